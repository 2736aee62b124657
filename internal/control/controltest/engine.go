package controltest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
)

// Engine is an engine in memory. It keeps the promises of engine.Engine; what
// it should break is told with Inject.
type Engine struct {
	Faults

	mu         sync.Mutex // guards the fields below
	info       control.EngineInfo
	sandboxes  map[string]*sandbox
	workspaces map[string]control.SandboxStatus // by sandbox name, also of those that are gone
	images     map[string]error                 // why an image cannot be pulled; nil: it can
	unenforced []string
	history    []control.EngineEvent
	breaks     int           // how often the streams of Watch were broken
	broken     error         // why, the last time
	changed    chan struct{} // closed, and made anew, at a change of history or breaks
	dial       func(name string, conn net.Conn)
	files      map[string]*tree // by sandbox name
}

type sandbox struct {
	control.SandboxStatus
	spec control.SandboxSpec
	run  *run // while it runs
}

// run is one life of a sandbox's PID 1.
type run struct {
	name  string        // as its guest has it
	ended chan struct{} // closed at its end
	execs map[string]*process
}

var _ engine.Engine = (*Engine)(nil)

// NewEngine makes an engine that has every image and no sandbox.
func NewEngine() *Engine {
	return &Engine{
		info: control.EngineInfo{
			Name: "docker", Version: "0.0.0", Isolation: "container", Enforces: []string{"cpus", "memory_mb", "pids"},
		},
		sandboxes:  map[string]*sandbox{},
		workspaces: map[string]control.SandboxStatus{},
		images:     map[string]error{},
		changed:    make(chan struct{}),
		files:      map[string]*tree{},
	}
}

// SetInfo sets what Info returns, and which limits Create reports as not enforced.
func (e *Engine) SetInfo(info control.EngineInfo, unenforced ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.info, e.unenforced = info, unenforced
}

// MissImage takes an image from the engine. A Pull brings it back, or fails
// with cause where that is not nil.
func (e *Engine) MissImage(image string, cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.images[image] = cause
}

// Down makes the engine not answer until up is called: calls fail with
// ErrEngineUnavailable and the streams of Watch break.
func (e *Engine) Down() (up func()) {
	err := fmt.Errorf("dial: %w", control.ErrEngineUnavailable)
	up = e.Inject(Fault{Err: err})
	e.BreakWatch(err)
	return up
}

// BreakWatch ends the streams of Watch that stand, with err.
func (e *Engine) BreakWatch(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.breaks++
	e.broken = err
	e.tell()
}

// LoseEvents forgets what happened so far: a later Watch does not hear of it.
func (e *Engine) LoseEvents() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.history) // streams count on, and pass over what is empty
}

// Die ends a running sandbox by itself. It reports whether it ran.
func (e *Engine) Die(name string, exitCode int, oom bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.end(name, exitCode, oom)
}

// Vanish removes a sandbox behind our back; with its workspace, if files is set.
func (e *Engine) Vanish(name string, files bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remove(name, files)
}

// Put puts a sandbox there in a state, as if made by somebody else or before a loss of the database.
func (e *Engine) Put(s control.SandboxStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.workspaces[s.Name] = s
	e.files[s.Name] = newTree()
	if s.State == control.SandboxFiles {
		return
	}
	box := &sandbox{SandboxStatus: s}
	if s.State == control.SandboxRunning {
		box.run = newRun()
	}
	e.sandboxes[s.Name] = box
}

// Sandbox returns a sandbox as List has it; ok is false where there is neither one of that name nor a workspace.
func (e *Engine) Sandbox(name string) (s control.SandboxStatus, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if box, ok := e.sandboxes[name]; ok {
		return box.SandboxStatus, true
	}
	s, ok = e.workspaces[name]
	s.State = control.SandboxFiles
	return s, ok
}

// Spec returns what a sandbox was made from.
func (e *Engine) Spec(name string) (spec control.SandboxSpec, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	box, ok := e.sandboxes[name]
	if !ok {
		return spec, false
	}
	return box.spec, true
}

// OnDial sets who answers Dial: fn has the guest's end. Without it, Dial's peer closes at once.
func (e *Engine) OnDial(fn func(name string, conn net.Conn)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dial = fn
}

// Info asks the engine how it is.
func (e *Engine) Info(ctx context.Context) (info control.EngineInfo, err error) {
	err = e.call(ctx, "Info", "", func() error {
		info = e.info
		return nil
	})
	return info, err
}

// call makes a call with the engine's lock held over fn.
func (e *Engine) call(ctx context.Context, method, name string, fn func() error) error {
	return e.do(ctx, method, name, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		return fn()
	})
}

// Create makes a sandbox that does not run yet.
func (e *Engine) Create(ctx context.Context, spec control.SandboxSpec) (c control.Created, err error) {
	err = e.call(ctx, "Create", spec.Name, func() error {
		_, c.WorkspaceExisted = e.workspaces[spec.Name]
		c.Unenforced = slices.Clone(e.unenforced)
		if box, ok := e.sandboxes[spec.Name]; ok {
			c.Existed, c.Image = true, box.Image
			return nil
		}
		if _, missing := e.images[spec.Image]; missing {
			return fmt.Errorf("create: %s: %w", spec.Image, control.ErrImageMissing)
		}
		if spec.Image != "" {
			c.Image = "sha256:" + spec.Image
		}
		s := control.SandboxStatus{
			Name: spec.Name, Env: spec.Env, Owner: spec.Owner, Task: spec.Task, EnvName: spec.EnvName,
			Image: c.Image, State: control.SandboxCreated, CreatedAt: time.Now(),
		}
		e.sandboxes[spec.Name] = &sandbox{SandboxStatus: s, spec: spec}
		if !c.WorkspaceExisted {
			e.workspaces[spec.Name] = s
			e.files[spec.Name] = newTree()
		}
		return nil
	})
	return c, err
}

// Pull brings an image.
func (e *Engine) Pull(ctx context.Context, image string) error {
	return e.call(ctx, "Pull", image, func() error {
		if cause := e.images[image]; cause != nil {
			return fmt.Errorf("pull: %s: %w: %w", image, control.ErrImageUnavailable, cause)
		}
		delete(e.images, image)
		return nil
	})
}

// Start starts PID 1.
func (e *Engine) Start(ctx context.Context, name string) error {
	return e.call(ctx, "Start", name, func() error {
		box, ok := e.sandboxes[name]
		if !ok {
			return fmt.Errorf("start: %s: %w", name, control.ErrNoSandbox)
		}
		if box.run != nil {
			return nil
		}
		box.run, box.State, box.StartedAt = newRun(), control.SandboxRunning, time.Now()
		e.happened(control.EngineEvent{Name: name, Env: box.Env, Kind: control.SandboxStarted})
		return nil
	})
}

// Stop ends every process gracefully.
func (e *Engine) Stop(ctx context.Context, name string) error {
	return e.call(ctx, "Stop", name, func() error {
		e.end(name, 0, false)
		return nil
	})
}

// Kill ends every process at once.
func (e *Engine) Kill(ctx context.Context, name string) error {
	return e.call(ctx, "Kill", name, func() error {
		e.end(name, 137, false)
		return nil
	})
}

// Remove removes the sandbox in any state.
func (e *Engine) Remove(ctx context.Context, name string, files control.RemoveFiles) error {
	return e.call(ctx, "Remove", name, func() error {
		e.remove(name, files == control.RemoveAll)
		return nil
	})
}

// List lists every sandbox, and workspaces whose sandbox is gone, by name.
func (e *Engine) List(ctx context.Context) (list []control.SandboxStatus, err error) {
	err = e.call(ctx, "List", "", func() error {
		list = e.list()
		return nil
	})
	return list, err
}

func (e *Engine) list() (list []control.SandboxStatus) {
	for _, box := range e.sandboxes {
		list = append(list, box.SandboxStatus)
	}
	for name, s := range e.workspaces {
		if _, ok := e.sandboxes[name]; !ok {
			s.State = control.SandboxFiles
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b control.SandboxStatus) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Watch calls fn with what happened since that time and what happens from now on.
func (e *Engine) Watch(ctx context.Context, since time.Time, ready func(), fn func(control.EngineEvent)) error {
	var (
		news    []control.EngineEvent
		changed chan struct{}
		breaks  int
	)
	err := e.call(ctx, "Watch", "", func() error {
		news, changed, breaks = slices.Clone(e.history), e.changed, e.breaks
		return nil
	})
	if err != nil {
		return err
	}
	if ready != nil {
		ready()
	}
	for next := 0; ; {
		for _, ev := range news[next:] {
			if ev.Kind != "" && !ev.At.Before(since) {
				fn(ev)
			}
		}
		next = len(news)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		e.mu.Lock()
		if e.breaks != breaks {
			defer e.mu.Unlock()
			return e.broken
		}
		news, changed = slices.Clone(e.history), e.changed
		e.mu.Unlock()
	}
}

// Stats reads what a running sandbox uses.
func (e *Engine) Stats(ctx context.Context, name string) (s engine.Stats, err error) {
	err = e.call(ctx, "Stats", name, func() error {
		box, ok := e.sandboxes[name]
		if !ok || box.run == nil {
			return fmt.Errorf("stats: %s: %w", name, control.ErrNoSandbox)
		}
		s = engine.Stats{CPU: time.Since(box.StartedAt) / 100, Memory: 6 << 20, Pids: int64(1 + len(box.run.execs))}
		return nil
	})
	return s, err
}

// Dial opens a byte stream to the sandbox's guest.
func (e *Engine) Dial(ctx context.Context, name string) (conn io.ReadWriteCloser, err error) {
	err = e.call(ctx, "Dial", name, func() error {
		if box, ok := e.sandboxes[name]; !ok || box.run == nil {
			return fmt.Errorf("dial: %s: %w", name, control.ErrNoSandbox)
		}
		ours, theirs := net.Pipe()
		conn = ours
		if e.dial == nil {
			return theirs.Close()
		}
		go e.dial(name, theirs)
		return nil
	})
	return conn, err
}

// Prune removes everything.
func (e *Engine) Prune(ctx context.Context) (removed []string, err error) {
	err = e.call(ctx, "Prune", "", func() error {
		for _, s := range e.list() {
			e.remove(s.Name, true)
			removed = append(removed, s.Name)
		}
		return nil
	})
	return removed, err
}

// Close does nothing: there is nothing to let go of.
func (e *Engine) Close() error { return nil }

// The rest is called with mu held.

func newRun() *run {
	return &run{name: rand.Text(), ended: make(chan struct{}), execs: map[string]*process{}}
}

func (e *Engine) end(name string, exitCode int, oom bool) bool {
	box, ok := e.sandboxes[name]
	if !ok || box.run == nil {
		return false
	}
	close(box.run.ended)
	box.run = nil
	box.State, box.ExitCode, box.OOM, box.FinishedAt = control.SandboxExited, exitCode, oom, time.Now()
	e.happened(control.EngineEvent{Name: name, Env: box.Env, Kind: control.SandboxDied, ExitCode: exitCode, OOM: oom})
	return true
}

func (e *Engine) remove(name string, files bool) {
	if box, ok := e.sandboxes[name]; ok {
		e.end(name, 137, false)
		delete(e.sandboxes, name)
		e.files[name].dropRoot()
		e.happened(control.EngineEvent{Name: name, Env: box.Env, Kind: control.SandboxRemoved})
	}
	if files {
		delete(e.workspaces, name)
		delete(e.files, name)
	}
}

func (e *Engine) happened(ev control.EngineEvent) {
	ev.At = time.Now()
	e.history = append(e.history, ev)
	e.tell()
}

// tell wakes the streams of Watch.
func (e *Engine) tell() {
	close(e.changed)
	e.changed = make(chan struct{})
}
