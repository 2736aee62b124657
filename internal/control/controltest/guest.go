package controltest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

// Guests are the guests of an Engine's sandboxes. A guest answers while its
// sandbox runs; else its calls fail with ErrGuestUnreachable, also those that wait.
//
// An exec ends at once with exit code 0, unless OnStart says otherwise or its
// timeout is due. What it writes meanwhile, by Write, comes to who has joined it
// at once; the output of its end follows.
type Guests struct {
	Faults
	engine *Engine

	mu      sync.Mutex // guards the fields below
	script  func(name string, s control.ExecStart) *control.ExecEnd
	starts  []Started
	forgets []string
}

// Started is one command that was really started: an exec that is named twice is here once.
type Started struct {
	Sandbox string
	control.ExecStart
}

// process is one exec in one run of a sandbox.
type process struct {
	start   control.ExecStart
	pid     int
	began   time.Time
	ended   time.Time     // zero while it runs
	end     chan struct{} // closed at its end; result is set before
	result  control.ExecEnd
	left    chan struct{} // closed once nothing of it lives
	timeout *time.Timer
	output
}

var _ control.Guests = (*Guests)(nil)

// NewGuests makes the guests of an engine's sandboxes.
func NewGuests(e *Engine) *Guests { return &Guests{engine: e} }

// OnStart sets what becomes of a command: fn returns its end, or nil to let it
// run until End. It is called with a lock held and must not call the guests.
func (g *Guests) OnStart(fn func(sandbox string, s control.ExecStart) *control.ExecEnd) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.script = fn
}

// Running lets every command run until End.
func Running(string, control.ExecStart) *control.ExecEnd { return nil }

// Starts lists the commands that were started, in order.
func (g *Guests) Starts() []Started {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.starts)
}

// Forgotten lists the names that Forget was called with, in order.
func (g *Guests) Forgotten() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.forgets)
}

// End ends a running exec; with end.Left, that many processes of it live on
// until LetGo. It reports whether one of that name ran.
func (g *Guests) End(exec string, end control.ExecEnd) bool {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	p := g.find(exec)
	return p != nil && p.finish(end)
}

// LetGo ends what an ended exec left running. It reports whether there was something.
func (g *Guests) LetGo(exec string) bool {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	p := g.find(exec)
	return p != nil && p.clear()
}

// find is called with the engine's lock held.
func (g *Guests) find(exec string) *process {
	for _, box := range g.engine.sandboxes {
		if box.run == nil {
			continue
		}
		if p := box.run.execs[exec]; p != nil {
			return p
		}
	}
	return nil
}

// Guest returns the guest of a sandbox.
func (g *Guests) Guest(name string) control.Guest { return &guest{g, name} }

// Forget notes the name; there is nothing open to close.
func (g *Guests) Forget(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forgets = append(g.forgets, name)
}

type guest struct {
	*Guests
	name string
}

func (g *guest) unreachable() error {
	return fmt.Errorf("guest of %s: %w", g.name, control.ErrGuestUnreachable)
}

// call makes a call with the engine's lock held over fn, which gets the sandbox and its run.
func (g *guest) call(ctx context.Context, method string, fn func(*sandbox) error) error {
	return g.do(ctx, method, g.name, func() error {
		g.engine.mu.Lock()
		defer g.engine.mu.Unlock()
		box := g.engine.sandboxes[g.name]
		if box == nil || box.run == nil {
			return g.unreachable()
		}
		return fn(box)
	})
}

func (g *guest) Ping(ctx context.Context) error {
	return g.call(ctx, "Ping", func(*sandbox) error { return nil })
}

func (g *guest) Run(ctx context.Context) (name string, err error) {
	err = g.call(ctx, "Run", func(box *sandbox) error {
		name = box.run.name
		return nil
	})
	return name, err
}

func (g *guest) Start(ctx context.Context, s control.ExecStart) (st control.ExecStarted, err error) {
	err = g.call(ctx, "Start", func(box *sandbox) error {
		execs := box.run.execs
		if s.Run != "" && s.Run != box.run.name {
			return control.ErrOtherRun
		}
		if p, ok := execs[s.Exec]; ok {
			st = control.ExecStarted{PID: p.pid, Existed: true}
			return nil
		}
		files := g.engine.files[g.name]
		if s.Cwd != "" {
			if n := files.nodes[path.Clean(s.Cwd)]; n == nil || !n.mode.IsDir() {
				return refuse("ENOENT", s.Cwd, "no such file or directory")
			}
		}
		p := &process{
			start: s, pid: 2 + len(execs), began: time.Now(), end: make(chan struct{}), left: make(chan struct{}), output: newOutput(),
		}
		p.take(s.Stdin)
		execs[s.Exec] = p
		st.PID = p.pid
		g.mu.Lock()
		defer g.mu.Unlock()
		g.starts = append(g.starts, Started{g.name, s})
		end := &control.ExecEnd{}
		if g.script != nil {
			end = g.script(g.name, s)
		}
		switch {
		case end != nil:
			p.finish(*end)
		case s.Timeout > 0:
			p.timeout = time.AfterFunc(s.Timeout, func() {
				g.engine.mu.Lock()
				defer g.engine.mu.Unlock()
				p.finish(control.ExecEnd{ExitCode: 124, Signal: "TERM", TimedOut: true})
			})
		}
		return nil
	})
	return st, err
}

// finish ends a process. It is called with the engine's lock held.
func (p *process) finish(end control.ExecEnd) bool {
	if !p.ended.IsZero() {
		return false
	}
	if p.timeout != nil {
		p.timeout.Stop()
	}
	p.ended = time.Now()
	end.Duration = p.ended.Sub(p.began)
	if end.Cwd == "" {
		end.Cwd = cmp.Or(p.start.Cwd, p.start.Workdir)
	}
	p.put(control.Stdout, end.Stdout)
	p.put(control.Stderr, end.Stderr)
	end.Stdout, end.Stderr = p.all[0], p.all[1]
	p.result = end
	close(p.end)
	if end.Left == 0 {
		close(p.left)
	}
	return true
}

// clear ends what an ended process left. It is called with the engine's lock held.
func (p *process) clear() bool {
	if p.ended.IsZero() || !p.alive() {
		return false
	}
	close(p.left)
	return true
}

func (p *process) alive() bool {
	select {
	case <-p.left:
		return false
	default:
		return true
	}
}

// await waits for a channel of an exec.
func (g *guest) await(ctx context.Context, method, exec string, of func(*process) chan struct{}) (*process, error) {
	var (
		p *process
		r *run
	)
	err := g.call(ctx, method, func(box *sandbox) error {
		if p, r = box.run.execs[exec], box.run; p == nil {
			return fmt.Errorf("%s: %w", exec, control.ErrNoExec)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	done := of(p)
	select {
	case <-done: // an answer that was ready counts, also where the sandbox has ended since
		return p, nil
	default:
	}
	select {
	case <-done:
		return p, nil
	case <-r.ended:
		return nil, g.unreachable()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *guest) Wait(ctx context.Context, exec string, limit int) (control.ExecEnd, error) {
	p, err := g.await(ctx, "Wait", exec, func(p *process) chan struct{} { return p.end })
	if err != nil {
		return control.ExecEnd{}, err
	}
	end := p.result
	end.Stdout, end.OmittedOut = bounded(end.Stdout, limit)
	end.Stderr, end.OmittedErr = bounded(end.Stderr, limit)
	return end, nil
}

// bounded keeps the first 40 % and the last 60 % of a limit, joined.
func bounded(b []byte, limit int) (kept []byte, omitted int64) {
	if len(b) <= limit {
		return slices.Clone(b), 0
	}
	head := limit * 2 / 5
	return slices.Concat(b[:head], b[len(b)-(limit-head):]), int64(len(b) - limit)
}

func (g *guest) Gone(ctx context.Context, exec string) error {
	_, err := g.await(ctx, "Gone", exec, func(p *process) chan struct{} { return p.left })
	return err
}

func (g *guest) Execs(ctx context.Context) (list []control.ExecStatus, err error) {
	err = g.call(ctx, "Execs", func(box *sandbox) error {
		for _, exec := range slices.Sorted(maps.Keys(box.run.execs)) {
			p := box.run.execs[exec]
			command := p.start.Shell
			if command == "" {
				command = fmt.Sprint(p.start.Argv)
			}
			running := p.ended.IsZero()
			list = append(list, control.ExecStatus{
				Exec: exec, PID: p.pid, Command: command, StartedAt: p.began, EndedAt: p.ended, Background: p.start.Background, TTY: p.start.TTY != nil,
				Running: running, Left: !running && p.alive(), ExitCode: p.result.ExitCode, Timeout: p.start.Timeout,
			})
		}
		return nil
	})
	return list, err
}

func (g *guest) Signal(ctx context.Context, exec, signal string, tree bool) (survivors int, err error) {
	err = g.call(ctx, "Signal", func(box *sandbox) error {
		p := box.run.execs[exec]
		if p == nil {
			return fmt.Errorf("%s: %w", exec, control.ErrNoExec)
		}
		number := map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "TERM": 15}[signal]
		if number == 0 { // one that does not end a process
			survivors = 1
			return nil
		}
		p.finish(control.ExecEnd{ExitCode: 128 + number, Signal: signal})
		if tree {
			p.clear()
		}
		if p.alive() {
			survivors = p.result.Left
		}
		return nil
	})
	return survivors, err
}

// file makes a file call with the absolute path.
func (g *guest) file(ctx context.Context, method, p string, fn func(t *tree, p string) error) error {
	return g.call(ctx, method, func(box *sandbox) error {
		if !path.IsAbs(p) {
			p = path.Join(cmp.Or(box.spec.Workdir, "/workspace"), p)
		}
		return fn(g.engine.files[g.name], path.Clean(p))
	})
}

func (g *guest) ReadFile(ctx context.Context, p string, offset int64, length int) (c control.FileChunk, err error) {
	err = g.file(ctx, "ReadFile", p, func(t *tree, p string) (err error) {
		c, err = t.read(p, offset, length)
		return err
	})
	return c, err
}

func (g *guest) WriteFile(ctx context.Context, w control.FileWrite) (size int64, err error) {
	err = g.file(ctx, "WriteFile", w.Path, func(t *tree, p string) (err error) {
		size, err = t.write(p, w)
		return err
	})
	return size, err
}

func (g *guest) ListFiles(ctx context.Context, p string) (infos []control.FileInfo, err error) {
	err = g.file(ctx, "ListFiles", p, func(t *tree, p string) (err error) {
		infos, err = t.list(p)
		return err
	})
	return infos, err
}

func (g *guest) StatFile(ctx context.Context, p string) (info control.FileInfo, err error) {
	err = g.file(ctx, "StatFile", p, func(t *tree, p string) error {
		n, err := t.find(p)
		if err != nil {
			return err
		}
		info = n.info(p)
		return nil
	})
	return info, err
}

func (g *guest) RemoveFile(ctx context.Context, p string, recursive bool) error {
	return g.file(ctx, "RemoveFile", p, func(t *tree, p string) error { return t.remove(p, recursive) })
}

func (g *guest) Mkdir(ctx context.Context, p string, recursive bool) error {
	return g.file(ctx, "Mkdir", p, func(t *tree, p string) error { return t.mkdir(p, recursive) })
}
