package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

// Stop ends every process gracefully and keeps the files.
func (e *Engine) Stop(ctx context.Context, name string) error {
	b, err := e.take(ctx, name)
	if err != nil {
		return err
	}
	defer e.give(b)
	r, _ := e.running(b)
	if r == nil {
		return nil
	}
	if err := signal(r.pid, unix.SIGTERM); err != nil {
		return fmt.Errorf("sandbox stop: %w", err)
	}
	grace := time.NewTimer(e.opts.StopGrace)
	defer grace.Stop()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sandbox stop: %w", ctx.Err())
	case <-grace.C:
	}
	if err := e.kill(ctx, b); err != nil {
		return fmt.Errorf("sandbox stop: %w", err)
	}
	return nil
}

// Kill ends every process at once and keeps the files.
func (e *Engine) Kill(ctx context.Context, name string) error {
	b, err := e.take(ctx, name)
	if err != nil {
		return err
	}
	defer e.give(b)
	if err := e.kill(ctx, b); err != nil {
		return fmt.Errorf("sandbox kill: %w", err)
	}
	return nil
}

// launcherWait is how long a launcher may take to kill. One that does not is
// killed itself, and its sandbox with it.
const launcherWait = 2 * time.Second

// kill ends a run, if there is one. The launcher does it, and so knows whose hand it was.
func (e *Engine) kill(ctx context.Context, b *box) error {
	r, last := e.running(b)
	if r == nil {
		return nil
	}
	if err := signal(last.Launcher, unix.SIGTERM); err != nil {
		return err
	}
	wait := time.NewTimer(launcherWait)
	defer wait.Stop()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
	}
	if err := errors.Join(signal(last.Launcher, unix.SIGKILL), signal(r.pid, unix.SIGKILL)); err != nil {
		return err
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signal signals exactly this process; one that is gone needs none.
func signal(p launch.Process, s unix.Signal) error {
	fd, err := p.Open(false)
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, s, nil, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return os.NewSyscallError("signal", err)
}

// Remove removes the sandbox in any state, and with RemoveAll its workspace.
func (e *Engine) Remove(ctx context.Context, name string, files control.RemoveFiles) error {
	b, err := e.take(ctx, name)
	if err != nil {
		return err
	}
	defer e.give(b)
	if b.kept == nil {
		return nil
	}
	if err := e.remove(ctx, b, files); err != nil {
		return fmt.Errorf("sandbox remove: %w", err)
	}
	return nil
}

func (e *Engine) remove(ctx context.Context, b *box, files control.RemoveFiles) error {
	if err := e.kill(ctx, b); err != nil {
		return err
	}
	if h := e.stock.redeem(b.name); h != nil { // it was never started
		e.letGo(h)
	}
	if err := e.removeGroups(ctx, b); err != nil {
		return err
	}
	var err error
	e.set(func() { err = b.unlisten() })
	if err != nil {
		return err
	}
	was := *b.kept
	gone := func(k *kept) {
		e.set(func() { b.kept, b.last = k, nil })
		if !was.FilesOnly {
			e.events.add(control.EngineEvent{Name: b.name, Env: was.Spec.Env, Kind: control.SandboxRemoved, At: time.Now().UTC()})
		}
	}
	if files == control.KeepWorkspace {
		if was.FilesOnly {
			return removeRest(b.dir)
		}
		k := was
		k.FilesOnly = true
		if err := b.write(k); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		gone(&k)
		return removeRest(b.dir)
	}
	// Out of the way first, so that it is gone at once or not at all.
	trash := e.path(sandboxesDir, ".gone-"+b.name)
	if err := removeTree(trash); err != nil {
		return err
	}
	if err := os.Rename(b.dir, trash); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	gone(nil)
	return removeTree(trash)
}
