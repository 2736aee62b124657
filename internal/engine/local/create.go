package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

// Create makes a sandbox's directory, where it is not there.
func (e *Engine) Create(ctx context.Context, spec control.SandboxSpec) (control.Created, error) {
	if spec.Image != "" {
		return control.Created{}, noImages(spec.Image)
	}
	if err := e.networkOf(spec.Network); err != nil {
		return control.Created{}, err
	}
	b, err := e.take(ctx, spec.Name)
	if err != nil {
		return control.Created{}, err
	}
	defer e.give(b)
	created := control.Created{Unenforced: e.can.groups.unenforced(spec.Limits)}
	if b.there() {
		created.Existed, created.WorkspaceExisted = true, true
		return created, nil
	}
	if b.kept != nil {
		// What a removal that was cut short left is not the new sandbox's.
		if err := removeRest(b.dir); err != nil {
			return control.Created{}, fmt.Errorf("sandbox create: %w", err)
		}
		created.WorkspaceExisted = true
	}
	if err := e.makeBox(b, spec); err != nil {
		return control.Created{}, fmt.Errorf("sandbox create: %w", err)
	}
	return created, nil
}

// networkOf refuses a network that cannot be had.
func (e *Engine) networkOf(asked string) error {
	switch asked {
	case "", "default":
		return nil
	case "none":
		if e.can.network {
			return nil
		}
		return fmt.Errorf(`network "none": %w: this machine does not let the server make network namespaces, and a sandbox with the host's network is not what was asked for`, control.ErrSpecRefused)
	}
	return fmt.Errorf("network %q: %w: it is default or none", asked, control.ErrSpecRefused)
}

func (e *Engine) makeBox(b *box, spec control.SandboxSpec) error {
	if err := os.Mkdir(b.dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	k := kept{Spec: spec, CreatedAt: time.Now().UTC()}
	// The disk is waited for while the directories are made, and while the start is
	// prepared: nothing runs before its directory is there for good.
	var place func() error
	var placeErr error
	var prepared sync.WaitGroup
	prepared.Go(func() { place, placeErr = b.prepare(k) })
	err := makeFiles(b.dir)
	prepared.Wait()
	if err := errors.Join(err, placeErr); err != nil {
		return err
	}
	if err := place(); err != nil {
		return err
	}
	e.set(func() { b.kept, b.last = &k, nil })
	b.settle(e)
	return nil
}
