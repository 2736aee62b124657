package docker

import (
	"context"
	"errors"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"sandkeeper/internal/control"
)

// Start starts PID 1. A running one is success.
func (e *Engine) Start(ctx context.Context, name string) error {
	err := e.on(ctx, name, func(s *sandbox) error {
		if err := e.install(ctx, s.image); err != nil {
			return err
		}
		e.listen(name, s)
		e.forgetRun(s.id)
		err := e.api.client(ctx).ContainerStart(ctx, s.id, container.StartOptions{})
		if err != nil && strings.Contains(err.Error(), guestPath) {
			// The volume was emptied behind our back: make it good, once.
			e.log.Warn("the guest's binary is missing", "container", name, "err", err)
			if err := e.reinstall(ctx, s.image); err != nil {
				return err
			}
			err = e.api.client(ctx).ContainerStart(ctx, s.id, container.StartOptions{})
		}
		return err
	})
	if err != nil {
		e.unlisten(name)
	}
	return fault("container start", err)
}

// Stop ends every process gracefully and keeps the files.
func (e *Engine) Stop(ctx context.Context, name string) error {
	err := e.on(ctx, name, func(s *sandbox) error {
		return e.api.client(ctx).ContainerStop(ctx, s.id, container.StopOptions{Timeout: new(stopSeconds)})
	})
	if gone(err) {
		err = nil
	}
	if err == nil {
		e.unlisten(name)
	}
	return fault("container stop", err)
}

// Kill ends every process at once and keeps the files.
func (e *Engine) Kill(ctx context.Context, name string) error {
	err := e.on(ctx, name, func(s *sandbox) error {
		err := e.api.client(ctx).ContainerKill(ctx, s.id, "SIGKILL")
		if err != nil && !cerrdefs.IsConflict(err) { // a conflict says that it does not run
			return err
		}
		return e.await(ctx, s.id, container.WaitConditionNotRunning)
	})
	if gone(err) {
		err = nil
	}
	if err == nil {
		e.unlisten(name)
	}
	return fault("container kill", err)
}

// Remove removes the sandbox in any state, and with RemoveAll its workspace.
func (e *Engine) Remove(ctx context.Context, name string, files control.RemoveFiles) error {
	err := e.on(ctx, name, func(s *sandbox) error { return e.removeContainer(ctx, s.id) })
	if err != nil && !gone(err) {
		return fault("container remove", err)
	}
	e.forget(name)
	e.unlisten(name)
	e.removeLinkDir(name)
	if files == control.KeepWorkspace {
		return nil
	}
	return e.removeVolume(ctx, workspaceOf(name))
}

// removeContainer removes a container of ours, running or not, with the
// anonymous volumes that its image asked for; absent is success.
func (e *Engine) removeContainer(ctx context.Context, id string) error {
	err := e.api.client(ctx).ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
	if cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress") {
		err = e.await(ctx, id, container.WaitConditionRemoved)
	}
	if absent(err) {
		return nil
	}
	return err
}

// removeVolume removes a volume of ours; absent is success.
func (e *Engine) removeVolume(ctx context.Context, name string) error {
	there, err := e.ourVolume(ctx, name)
	if err != nil || !there {
		return err
	}
	err = e.api.client(ctx).VolumeRemove(ctx, name, false)
	if absent(err) {
		return nil
	}
	return fault("volume remove", err)
}

// await waits until a container is no longer running, or no longer there.
func (e *Engine) await(ctx context.Context, id string, condition container.WaitCondition) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, failed := e.api.client(ctx).ContainerWait(ctx, id, condition)
	select {
	case w := <-ended:
		if w.Error != nil {
			return errors.New(w.Error.Message)
		}
		return nil
	case err := <-failed:
		return err
	}
}

// gone says whether the engine answered that there is no such sandbox.
func gone(err error) bool { return errors.Is(err, control.ErrNoSandbox) || absent(err) }
