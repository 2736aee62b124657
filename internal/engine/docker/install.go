package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"sandkeeper/internal/control"
)

// The guest's binary is in one volume that all sandboxes of the instance mount
// read-only. Nothing is ever started to put it there: the volume is mounted by
// a container that is made for a copy and removed.
//
// A file that a copy replaces is unlinked first, so a sandbox that runs the old
// binary keeps it. A sandbox that starts must not see half a file, so the new
// binary is written under a name of its own and then linked; and no Start of
// ours runs between the two, since each waits for the installation. The sum is
// written last, so an installation that was cut short is made again.
const (
	stagedFile = "guest.next"
	guestFile  = "guest"
	sumFile    = "guest.sha256"
)

// installer sees to it that each process installs once.
type installer struct {
	turn chan struct{} // holds one token while nobody installs
	done bool          // guarded by turn
}

func newInstaller() installer {
	i := installer{turn: make(chan struct{}, 1)}
	i.turn <- struct{}{}
	return i
}

func (i *installer) begin(ctx context.Context) error {
	select {
	case <-i.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("guest install: %w", ctx.Err())
	}
}

func (i *installer) end() { i.turn <- struct{}{} }

// sharedLabels are those of what all sandboxes of the instance share.
func (e *Engine) sharedLabels() map[string]string {
	return map[string]string{labelInstance: e.opts.Instance}
}

func (e *Engine) guestVolume() string   { return "sandkeeper-" + e.opts.Instance + "-guest" }
func (e *Engine) copyContainer() string { return e.guestVolume() + "-copy" }

func (e *Engine) guestMount(readOnly bool) mount.Mount {
	return mount.Mount{
		Type:          mount.TypeVolume,
		Source:        e.guestVolume(),
		Target:        binTarget,
		ReadOnly:      readOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: e.sharedLabels()},
	}
}

// Prepare puts the guest's binary in its place ahead of the first Create, which
// does so itself otherwise. It needs some image that is on the engine.
// Errors: control.ErrImageMissing.
func (e *Engine) Prepare(ctx context.Context, image string) error {
	facts, err := e.image(ctx, image)
	if err != nil {
		return err
	}
	return e.install(ctx, facts.id)
}

// reinstall is for when the volume turned out not to have the binary.
func (e *Engine) reinstall(ctx context.Context, image string) error {
	if err := e.uninstalled(ctx); err != nil {
		return err
	}
	return e.install(ctx, image)
}

// uninstalled says that the binary is no longer there.
func (e *Engine) uninstalled(ctx context.Context) error {
	if err := e.guest.begin(ctx); err != nil {
		return err
	}
	defer e.guest.end()
	e.guest.done = false
	return nil
}

// install puts the guest's binary into its volume, once per process.
func (e *Engine) install(ctx context.Context, image string) error {
	if err := e.guest.begin(ctx); err != nil {
		return err
	}
	defer e.guest.end()
	if e.guest.done {
		return nil
	}
	host, err := e.host(ctx)
	if err != nil {
		return err
	}
	binary, err := e.opts.Binary(host.arch)
	if err != nil {
		return fmt.Errorf("guest install: %w", err)
	}
	if _, err := e.ourVolume(ctx, e.guestVolume()); err != nil {
		return err
	}
	if err := e.copyGuest(ctx, image, binary); err != nil {
		return err
	}
	e.guest.done = true
	return nil
}

func (e *Engine) copyGuest(ctx context.Context, image string, binary []byte) (err error) {
	id, err := e.makeCopyContainer(ctx, image)
	if err != nil {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.opts.CallTimeout)
		defer cancel()
		gone := e.api.client(clean).ContainerRemove(clean, id, container.RemoveOptions{Force: true})
		if gone != nil && !absent(gone) {
			err = errors.Join(err, fault("guest install: container remove", gone))
		}
	}()
	sum := sha256.Sum256(binary)
	want := hex.EncodeToString(sum[:])
	have, err := e.installedSum(ctx, id)
	if err != nil || have == want {
		return err
	}
	archive, err := guestArchive(binary, want)
	if err != nil {
		return fmt.Errorf("guest install: %w", err)
	}
	if err := e.api.client(ctx).CopyToContainer(ctx, id, binTarget, bytes.NewReader(archive), container.CopyToContainerOptions{}); err != nil {
		return fault("guest install: copy", err)
	}
	e.log.Info("guest installed", "volume", e.guestVolume(), "sha256", want)
	return nil
}

// makeCopyContainer makes the container that a copy goes through, in place of
// one that a crash left.
func (e *Engine) makeCopyContainer(ctx context.Context, image string) (string, error) {
	config := &container.Config{Image: image, Entrypoint: []string{guestPath}, Labels: e.sharedLabels()}
	hostConfig := &container.HostConfig{
		NetworkMode: "none",
		LogConfig:   container.LogConfig{Type: "none"},
		Mounts:      []mount.Mount{e.guestMount(false)},
	}
	name := e.copyContainer()
	for {
		made, err := e.api.client(ctx).ContainerCreate(ctx, config, hostConfig, nil, nil, name)
		switch {
		case err == nil:
			return made.ID, nil
		case !cerrdefs.IsConflict(err):
			return "", fault("guest install: container create", err)
		}
		left, _, err := e.inspect(ctx, name)
		switch {
		case errors.Is(err, control.ErrNoSandbox):
			continue
		case err != nil:
			return "", err
		}
		e.forget(name)
		if err := e.removeContainer(ctx, left.id); err != nil {
			return "", err
		}
	}
}

// installedSum reads the sum of the binary that is in the volume, "" for none.
func (e *Engine) installedSum(ctx context.Context, id string) (string, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	body, _, err := e.api.client(ctx).CopyFromContainer(ctx, id, binTarget+"/"+sumFile)
	switch {
	case absent(err):
		return "", nil
	case err != nil:
		return "", fault("guest install: read sum", err)
	}
	defer body.Close()
	archive := tar.NewReader(body)
	if _, err := archive.Next(); err != nil {
		return "", fault("guest install: read sum", err)
	}
	text, err := io.ReadAll(io.LimitReader(archive, 1<<10))
	if err != nil {
		return "", fault("guest install: read sum", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// guestArchive is what is copied into the volume, in this order.
func guestArchive(binary []byte, sum string) ([]byte, error) {
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	for _, f := range []struct {
		header tar.Header
		body   []byte
	}{
		{tar.Header{Name: sumFile, Mode: 0o444}, []byte("unfinished\n")},
		{tar.Header{Name: stagedFile, Mode: 0o555}, binary},
		{tar.Header{Name: guestFile, Mode: 0o555, Typeflag: tar.TypeLink, Linkname: stagedFile}, nil},
		{tar.Header{Name: sumFile, Mode: 0o444}, []byte(sum + "\n")},
	} {
		f.header.Size = int64(len(f.body))
		if err := archive.WriteHeader(&f.header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.body); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
