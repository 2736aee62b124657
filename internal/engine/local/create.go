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
	k := kept{Spec: spec, CreatedAt: time.Now().UTC()}
	if !e.makeOfHeld(b, k) {
		if err := e.makeAnew(b, k); err != nil {
			return err
		}
	}
	e.set(func() { b.kept, b.last = &k, nil })
	b.settle(e)
	return nil
}

func (e *Engine) makeAnew(b *box, k kept) error {
	if err := os.Mkdir(b.dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	// The disk is waited for while the directories are made, and while the start is
	// prepared: nothing runs before its directory is there for good.
	var place func() error
	var placeErr error
	var prepared sync.WaitGroup
	prepared.Go(func() { place, placeErr = prepare(b.dir, k) })
	err := makeFiles(b.dir)
	prepared.Wait()
	if err := errors.Join(err, placeErr); err != nil {
		return err
	}
	return place()
}

// makeOfHeld makes a new sandbox of one that is held, if there is one of its kind: the
// spec is on disk in the directory before that has the sandbox's name.
func (e *Engine) makeOfHeld(b *box, k kept) bool {
	if b.kept != nil { // it has files
		return false
	}
	h := e.stock.takeHeld(e.kind(k.Spec.Network))
	if h == nil {
		return false
	}
	place, err := prepare(h.dir, k)
	if err == nil {
		err = place()
	}
	if err == nil {
		err = os.Rename(h.dir, b.dir)
	}
	if err == nil {
		h.dir = ""
		if e.stock.name(b.name, h) {
			return true
		}
		err = errors.New("the engine is closed") // the sandbox is made all the same
	}
	e.log.Warn("a sandbox that was held is not used", "sandbox", b.name, "err", err)
	made := h.dir == ""
	e.filling.Go(func() { e.letGo(h) })
	return made
}
