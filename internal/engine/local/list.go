package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"sandkeeper/internal/control"
)

// List lists every sandbox of the instance, in every state, and workspaces whose
// sandbox is gone. One whose directory is gone is not listed.
func (e *Engine) List(ctx context.Context) ([]control.SandboxStatus, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	listed := make([]control.SandboxStatus, 0, len(e.boxes))
	dirs := make(map[string]string, len(e.boxes))
	for name, b := range e.boxes {
		if b.kept == nil {
			continue
		}
		listed = append(listed, b.status())
		dirs[name] = b.dir
	}
	e.mu.Unlock()
	listed = slices.DeleteFunc(listed, func(s control.SandboxStatus) bool {
		_, err := os.Lstat(dirs[s.Name])
		return errors.Is(err, fs.ErrNotExist)
	})
	slices.SortFunc(listed, func(a, b control.SandboxStatus) int { return strings.Compare(a.Name, b.Name) })
	return listed, nil
}

// status is what is known of a sandbox; the engine's mu is held.
func (b *box) status() control.SandboxStatus {
	spec := b.kept.Spec
	s := control.SandboxStatus{
		Name: b.name, Env: spec.Env, Owner: spec.Owner, Task: spec.Task, EnvName: spec.EnvName,
		State: control.SandboxCreated, CreatedAt: b.kept.CreatedAt,
	}
	switch {
	case b.kept.FilesOnly:
		s.State = control.SandboxFiles
	case b.run != nil:
		s.State, s.StartedAt = control.SandboxRunning, b.last.Started
	case b.last != nil:
		s.State = control.SandboxExited
		s.StartedAt, s.FinishedAt, s.ExitCode, s.OOM = b.last.Started, b.last.Finished, b.last.ExitCode, b.last.OOM
	}
	return s
}
