package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"golang.org/x/sync/errgroup"

	"sandkeeper/internal/control"
)

// inspectors bounds how many containers a listing asks about at once.
const inspectors = 4

// run is what is known of the last run of a container that does not run.
type run struct {
	exitCode          int
	started, finished time.Time // zero: not asked for
	oom               bool      // its own events said so
	noted             time.Time // when we learnt of it
}

// List lists every sandbox of the instance. The engine's list lacks when a
// container was started and how it ended, so it is asked about each one that
// runs, and once about each one that has ended.
func (e *Engine) List(ctx context.Context) ([]control.SandboxStatus, error) {
	began := time.Now()
	// Volumes first: what is made in between then shows as a sandbox.
	volumes, err := e.volumes(ctx, labelEnv)
	if err != nil {
		return nil, err
	}
	containers, err := e.containers(ctx, labelEnv)
	if err != nil {
		return nil, err
	}

	listed := make([]control.SandboxStatus, len(containers))
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(inspectors)
	for i, c := range containers {
		listed[i] = statusOf(c)
		e.remember(listed[i].Name, &sandbox{id: c.ID, image: c.ImageID, linked: hasLink(c.Mounts)})
		if listed[i].State != control.SandboxCreated {
			group.Go(func() error { return e.fill(gctx, c, &listed[i]) })
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	e.forgetOthers(containers, began)
	listed = slices.DeleteFunc(listed, func(s control.SandboxStatus) bool { return s.State == "" })
	e.unlistenOthers(listed, began)

	named := make(map[string]bool, len(listed))
	for _, s := range listed {
		named[s.Name] = true
	}
	for _, v := range volumes {
		name, ok := strings.CutSuffix(v.Name, workspaceOf(""))
		if !ok || named[name] {
			continue
		}
		there, err := e.ourVolume(ctx, v.Name)
		if err != nil {
			return nil, err
		}
		if there {
			listed = append(listed, filesOf(name, v))
		}
	}
	return listed, nil
}

// containers lists those of the instance with that label, in every state.
func (e *Engine) containers(ctx context.Context, labels ...string) ([]container.Summary, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	list, err := e.api.client(ctx).ContainerList(ctx, container.ListOptions{All: true, Filters: e.ours(labels...)})
	return list, fault("container list", err)
}

func (e *Engine) volumes(ctx context.Context, labels ...string) ([]*volume.Volume, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	list, err := e.api.client(ctx).VolumeList(ctx, volume.ListOptions{Filters: e.ours(labels...)})
	return list.Volumes, fault("volume list", err)
}

// ours matches what carries the instance's label, and these labels whatever their value.
func (e *Engine) ours(labels ...string) filters.Args {
	args := filters.NewArgs(filters.Arg("label", labelInstance+"="+e.opts.Instance))
	for _, l := range labels {
		args.Add("label", l)
	}
	return args
}

// statusOf reads what the engine's list has of a container.
func statusOf(c container.Summary) control.SandboxStatus {
	s := labelled(c.Labels)
	for _, n := range c.Names {
		if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
			s.Name = n
		}
	}
	s.Image = cmp.Or(s.Image, c.Image)
	s.State = stateOf(c.State)
	s.CreatedAt = time.Unix(c.Created, 0)
	return s
}

func stateOf(state container.ContainerState) control.SandboxState {
	switch state {
	case container.StateCreated:
		return control.SandboxCreated
	case container.StateRunning, container.StatePaused, container.StateRestarting:
		return control.SandboxRunning
	}
	return control.SandboxExited
}

// filesOf is a workspace whose sandbox is gone.
func filesOf(name string, v *volume.Volume) control.SandboxStatus {
	s := labelled(v.Labels)
	s.Name = name
	s.State = control.SandboxFiles
	s.CreatedAt = parseTime(v.CreatedAt)
	return s
}

// labelled reads the labels of a container or volume.
func labelled(labels map[string]string) control.SandboxStatus {
	var spec asked
	// A label that does not parse is of another version of ours: it only shows less.
	_ = json.Unmarshal([]byte(labels[labelSpec]), &spec)
	return control.SandboxStatus{
		Env:     labels[labelEnv],
		Owner:   labels[labelOwner],
		Task:    labels[labelTask],
		EnvName: labels[labelName],
		Image:   spec.Image,
	}
}

// fill adds when the last run started, and how and when it ended. One that is
// gone by now loses its state.
func (e *Engine) fill(ctx context.Context, c container.Summary, s *control.SandboxStatus) error {
	if s.State == control.SandboxExited {
		if r, ok := e.endOf(c.ID); ok && !r.started.IsZero() && strings.HasPrefix(c.Status, fmt.Sprintf("Exited (%d)", r.exitCode)) {
			r.tell(s)
			return nil
		}
	}
	state, err := e.state(ctx, c.ID)
	switch {
	case errors.Is(err, control.ErrNoSandbox):
		s.State = ""
		return nil
	case err != nil:
		return err
	}
	s.State = stateOf(state.Status)
	if s.State == control.SandboxRunning {
		e.forgetRun(c.ID)
		s.StartedAt = parseTime(state.StartedAt)
		// After a restart of ours its guest waits for a socket to dial.
		if known, err := e.find(ctx, s.Name); err == nil && known.id == c.ID {
			e.listen(s.Name, known)
		}
		return nil
	}
	r := run{exitCode: state.ExitCode, started: parseTime(state.StartedAt), finished: parseTime(state.FinishedAt)}
	if told, ok := e.endOf(c.ID); ok {
		r.oom = told.oom && told.exitCode == r.exitCode
	}
	e.noteEnd(c.ID, r)
	r.tell(s)
	return nil
}

// tell writes how a run ended into a status.
func (r run) tell(s *control.SandboxStatus) {
	s.ExitCode, s.StartedAt, s.FinishedAt, s.OOM = r.exitCode, r.started, r.finished, r.oom
}

// endOf returns what is known of a container's last run.
func (e *Engine) endOf(id string) (run, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.runs[id]
	return r, ok
}

func (e *Engine) noteEnd(id string, r run) {
	r.noted = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs[id] = r
}

// forgetRun drops what is known of how a container's last run ended: it runs again.
func (e *Engine) forgetRun(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, id)
}

// forgetOthers drops what was known before a listing that did not show it.
func (e *Engine) forgetOthers(listed []container.Summary, began time.Time) {
	ids := make(map[string]bool, len(listed))
	for _, c := range listed {
		ids[c.ID] = true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.known, func(_ string, s *sandbox) bool { return !ids[s.id] && s.seen.Before(began) })
	maps.DeleteFunc(e.runs, func(id string, r run) bool { return !ids[id] && r.noted.Before(began) })
}

// state asks for one container's state. Errors: control.ErrNoSandbox.
func (e *Engine) state(ctx context.Context, id string) (*container.State, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	found, err := e.api.client(ctx).ContainerInspect(ctx, id)
	switch {
	case absent(err):
		return nil, fmt.Errorf("container %s: %w", id, control.ErrNoSandbox)
	case err != nil:
		return nil, fault("container inspect", err)
	case found.State == nil:
		return nil, fmt.Errorf("container inspect: %s has no state", id)
	}
	return found.State, nil
}

// parseTime reads a time of the engine's; its "never" is the year 1.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}
