package control_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// A process can die at each of its calls to what lives on without it: the disk,
// the engine, the guests. A life counts these calls, named by the chain of the
// plane's own functions that led to each, and dies at one: before it took
// effect or after. What the plane does from then on reaches nothing.
type life struct {
	at    string // the call to die at; "": none
	after bool
	died  func() // called in the instant

	mu    sync.Mutex // guards the fields below
	calls []string   // each name once, in the order in which they came
	sites map[string]bool
	dead  bool
}

var errDead = errors.New("the process is dead")

func (l *life) call(method string, f func() error) error {
	name, site := caller(method)
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return errDead
	}
	if l.sites == nil {
		l.sites = map[string]bool{}
	}
	l.sites[site] = true
	if !slices.Contains(l.calls, name) {
		l.calls = append(l.calls, name)
	}
	dies := name == l.at
	if dies && !l.after {
		l.die()
		l.mu.Unlock()
		return errDead
	}
	l.mu.Unlock()
	err := f()
	if dies {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.dead {
			l.die()
		}
		return errDead
	}
	return err
}

func (l *life) die() {
	l.dead = true
	l.died()
}

func (l *life) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

var (
	closure  = regexp.MustCompile(`(\.func\d+|\.\d+|-range\d+|\.gowrap\d+|\[\.\.\.\])+$`)
	function = regexp.MustCompile(`(?:\(\*?(\w+)\)\.)?(\w+)$`) // behind what it was inlined into
)

// caller names a call by the plane's functions that led to it, and its site by
// the innermost of them.
func caller(method string) (name, site string) {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	var chain []string
	for {
		f, more := frames.Next()
		if dir, file := filepath.Split(f.File); strings.HasSuffix(dir, "internal/control/") && !strings.HasSuffix(file, "_test.go") {
			part := function.FindStringSubmatch(closure.ReplaceAllString(f.Function, ""))
			fn := strings.TrimPrefix(part[1]+"."+part[2], ".")
			if len(chain) == 0 || chain[len(chain)-1] != fn {
				chain = append(chain, fn)
			}
		}
		if !more {
			break
		}
	}
	if len(chain) == 0 {
		return method, method
	}
	site = chain[0] + " " + method
	slices.Reverse(chain)
	return strings.Join(append(chain, method), " > "), site
}

// mortalStore, mortalEngine and mortalGuests are the fakes as a life reaches them.
type mortalStore struct {
	*controltest.MemoryStore
	l *life
}

// Commit goes to a disk that nobody reads once the process is dead.
func (s mortalStore) Commit(ctx context.Context, b *control.Batch) error {
	err := s.l.call("Commit", func() error { return s.MemoryStore.Commit(ctx, b) })
	if errors.Is(err, errDead) && s.l.isDead() {
		return control.Errorf(control.KindInternal, "no disk")
	}
	return err
}

func (s mortalStore) Prune(ctx context.Context, p control.PruneLimits) error {
	return s.l.call("Prune", func() error { return s.MemoryStore.Prune(ctx, p) })
}

type mortalEngine struct {
	*controltest.Engine
	l *life
}

func (e mortalEngine) do(method string, f func() error) error {
	if err := e.l.call(method, f); !errors.Is(err, errDead) {
		return err
	}
	return control.ErrEngineUnavailable
}

func (e mortalEngine) Create(ctx context.Context, spec control.SandboxSpec) (c control.Created, err error) {
	err = e.do("Create", func() error { c, err = e.Engine.Create(ctx, spec); return err })
	return c, err
}
func (e mortalEngine) Pull(ctx context.Context, image string) error {
	return e.do("Pull", func() error { return e.Engine.Pull(ctx, image) })
}
func (e mortalEngine) Start(ctx context.Context, name string) error {
	return e.do("Start", func() error { return e.Engine.Start(ctx, name) })
}
func (e mortalEngine) Stop(ctx context.Context, name string) error {
	return e.do("Stop", func() error { return e.Engine.Stop(ctx, name) })
}
func (e mortalEngine) Kill(ctx context.Context, name string) error {
	return e.do("Kill", func() error { return e.Engine.Kill(ctx, name) })
}
func (e mortalEngine) Remove(ctx context.Context, name string, files control.RemoveFiles) error {
	return e.do("Remove", func() error { return e.Engine.Remove(ctx, name, files) })
}

type mortalGuests struct {
	*controltest.Guests
	l *life
}

func (g mortalGuests) Guest(name string) control.Guest { return mortalGuest{g.Guests.Guest(name), g.l} }

type mortalGuest struct {
	control.Guest
	l *life
}

func (g mortalGuest) do(method string, f func() error) error {
	if err := g.l.call(method, f); !errors.Is(err, errDead) {
		return err
	}
	return control.ErrGuestUnreachable
}

func (g mortalGuest) Ping(ctx context.Context) error {
	return g.do("Ping", func() error { return g.Guest.Ping(ctx) })
}
func (g mortalGuest) Run(ctx context.Context) (run string, err error) {
	err = g.do("Run", func() error { run, err = g.Guest.Run(ctx); return err })
	return run, err
}
func (g mortalGuest) Start(ctx context.Context, s control.ExecStart) (st control.ExecStarted, err error) {
	err = g.do("Start", func() error { st, err = g.Guest.Start(ctx, s); return err })
	return st, err
}
func (g mortalGuest) Wait(ctx context.Context, exec string, limit int) (end control.ExecEnd, err error) {
	err = g.do("Wait", func() error { end, err = g.Guest.Wait(ctx, exec, limit); return err })
	return end, err
}
func (g mortalGuest) Gone(ctx context.Context, exec string) error {
	return g.do("Gone", func() error { return g.Guest.Gone(ctx, exec) })
}
func (g mortalGuest) Execs(ctx context.Context) (list []control.ExecStatus, err error) {
	err = g.do("Execs", func() error { list, err = g.Guest.Execs(ctx); return err })
	return list, err
}
func (g mortalGuest) Signal(ctx context.Context, exec, signal string, tree bool) (n int, err error) {
	err = g.do("Signal", func() error { n, err = g.Guest.Signal(ctx, exec, signal, tree); return err })
	return n, err
}
func (g mortalGuest) Attach(ctx context.Context, a control.GuestAttach) (s control.GuestStream, err error) {
	err = g.do("Attach", func() error { s, err = g.Guest.Attach(ctx, a); return err })
	return s, err
}
func (g mortalGuest) CloseStdin(ctx context.Context, exec string) error {
	return g.do("CloseStdin", func() error { return g.Guest.CloseStdin(ctx, exec) })
}
func (g mortalGuest) Resize(ctx context.Context, exec string, t control.TTY) error {
	return g.do("Resize", func() error { return g.Guest.Resize(ctx, exec, t) })
}
func (g mortalGuest) ReadFile(ctx context.Context, path string, offset int64, length int) (c control.FileChunk, err error) {
	err = g.do("ReadFile", func() error { c, err = g.Guest.ReadFile(ctx, path, offset, length); return err })
	return c, err
}
func (g mortalGuest) WriteFile(ctx context.Context, w control.FileWrite) (n int64, err error) {
	err = g.do("WriteFile", func() error { n, err = g.Guest.WriteFile(ctx, w); return err })
	return n, err
}
func (g mortalGuest) ListFiles(ctx context.Context, path string) (l []control.FileInfo, err error) {
	err = g.do("ListFiles", func() error { l, err = g.Guest.ListFiles(ctx, path); return err })
	return l, err
}
func (g mortalGuest) StatFile(ctx context.Context, path string) (i control.FileInfo, err error) {
	err = g.do("StatFile", func() error { i, err = g.Guest.StatFile(ctx, path); return err })
	return i, err
}
func (g mortalGuest) RemoveFile(ctx context.Context, path string, recursive bool) error {
	return g.do("RemoveFile", func() error { return g.Guest.RemoveFile(ctx, path, recursive) })
}
func (g mortalGuest) OpenFile(ctx context.Context, path string) (f control.FileReader, err error) {
	err = g.do("OpenFile", func() error { f, err = g.Guest.OpenFile(ctx, path); return err })
	return f, err
}
func (g mortalGuest) CreateFile(ctx context.Context, c control.FileCreate) (f control.FileWriter, err error) {
	err = g.do("CreateFile", func() error { f, err = g.Guest.CreateFile(ctx, c); return err })
	return f, err
}
func (g mortalGuest) Mkdir(ctx context.Context, path string, recursive bool) error {
	return g.do("Mkdir", func() error { return g.Guest.Mkdir(ctx, path, recursive) })
}

const otherOrphan = "sandkeeper-test-other"

// story has every call of the plane in it, as steps of which each comes to rest.
func story(m *model) []func() {
	ctx := m.Context()
	a, b := m.agents[0], m.agents[1]
	acquire := func(r control.AcquireRequest) func() {
		return func() {
			m.later(func(ctx context.Context) error { _, err := a.session.Acquire(ctx, r); return err })
		}
	}
	run := func(r control.RunRequest) func() {
		return func() {
			m.later(func(ctx context.Context) error { _, err := a.session.Run(ctx, r); return err })
		}
	}
	turnEnd := func(task string) func() {
		return func() {
			a.session.TurnEnd(ctx, control.TurnEndRequest{Task: task}) //nolint:errcheck // it may be dead
			synctest.Wait()
		}
	}
	env := func(task string, f func(id string)) func() {
		return func() {
			if id := m.idOf(task); id != "" {
				f(id)
			}
			synctest.Wait()
		}
	}
	execs := func(task string, f func(exec string)) func() {
		return func() {
			list, _ := a.session.Execs(ctx, control.Ref{Task: task})
			for _, x := range list {
				f(x.Exec)
			}
			synctest.Wait()
		}
	}
	kill := func(x string) {
		if _, err := a.session.SignalExec(ctx, x, "KILL", true); err != nil {
			return // it may be dead
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.processes[x].ended = true
	}
	passes := func(d time.Duration) func() { return func() { m.passes(d) } }
	keep := control.Ref{Task: "a"}
	return []func(){
		// A turn of an ephemeral one, whose image comes first.
		func() { m.engine.MissImage("alpine", nil) },
		acquire(control.AcquireRequest{Task: "b", Image: ptr("alpine")}),
		run(control.RunRequest{Ref: control.Ref{Task: "b"}, Command: "short"}),
		run(control.RunRequest{Ref: control.Ref{Task: "b"}, Command: "long1", ID: "1", TimeoutS: ptr(int64(600))}),
		turnEnd("b"),
		// A persistent one: commands, streams and files.
		acquire(control.AcquireRequest{Task: "a", Persistent: ptr(true)}),
		run(control.RunRequest{Ref: keep, Command: "short2", ID: "2"}),
		run(control.RunRequest{Ref: keep, Command: "short2", ID: "2"}),
		run(control.RunRequest{Ref: keep, Command: "big3", ID: "3"}), // more than is recorded
		run(control.RunRequest{Ref: keep, Command: "big3", ID: "3"}),
		run(control.RunRequest{Ref: keep, Command: "left"}),
		func() {
			m.later(func(ctx context.Context) error {
				st, err := a.session.Start(ctx, control.StartRequest{Ref: keep, Command: "long", Stdin: true, TTY: &control.TTY{Cols: 80, Rows: 24}})
				if err == nil && st.Stream != nil {
					st.Stream.Close()
				}
				return err
			})
		},
		execs("a", func(x string) {
			if got, err := a.session.Attach(ctx, control.AttachRequest{Exec: x}); err == nil && got.Stream != nil {
				got.Stream.Close()
			}
			a.session.ResizeExec(ctx, x, control.TTY{Cols: 40, Rows: 20}) //nolint:errcheck // some have no terminal
			a.session.CloseStdin(ctx, x)                                  //nolint:errcheck // it may be dead
		}),
		func() {
			m.later(func(ctx context.Context) error {
				_, err := a.session.WriteFile(ctx, keep, control.FileWrite{Path: "f", Data: []byte("x")})
				return err
			})
			a.session.ReadFile(ctx, keep, "f", 0, nil) //nolint:errcheck // it may be dead
			a.session.StatFile(ctx, keep, "f")         //nolint:errcheck // it may be dead
			a.session.ListFiles(ctx, keep, ".")        //nolint:errcheck // it may be dead
			a.session.Mkdir(ctx, keep, "d", true)      //nolint:errcheck // it may be dead
			a.session.RemoveFile(ctx, keep, "d", true) //nolint:errcheck // it may be dead
			a.session.Touch(ctx, keep)                 //nolint:errcheck // it may be dead
			synctest.Wait()
		},
		func() {
			m.later(func(ctx context.Context) error {
				w, err := m.plane.CreateFile(ctx, control.Mover{Actor: "operator:ada"}, m.idOf("a"), control.FileCreate{Path: "up"})
				if err != nil {
					return err
				}
				defer w.Close()
				if _, err := w.Write([]byte("x")); err != nil {
					return err
				}
				_, err = w.Finish()
				return err
			})
			m.later(func(ctx context.Context) error {
				r, err := m.plane.OpenFile(ctx, control.Mover{Actor: "operator:ada"}, m.idOf("a"), "up")
				if err == nil {
					r.Close()
				}
				return err
			})
		},
		execs("a", kill),
		run(control.RunRequest{Ref: keep, Command: "long"}),
		func() { m.restartInLife() }, // and asked what runs
		m.round,
		execs("a", kill),
		turnEnd("a"),
		// Its countdown, from an operator's hand on it.
		env("a", func(id string) {
			m.plane.Pin(ctx, "operator:ada", id, "", time.Time{}) //nolint:errcheck // it may be dead
			m.plane.Unpin(ctx, "operator:ada", id)                //nolint:errcheck // it may be dead
			m.plane.TouchEnv(ctx, "operator:ada", id)             //nolint:errcheck // it may be dead
		}),
		passes(2 * time.Minute),                              // idle: it is stopped
		run(control.RunRequest{Ref: keep, Command: "short"}), // and resumed
		env("a", func(id string) {
			m.over("sandkeeper-test-" + id)
			m.engine.Die("sandkeeper-test-"+id, 1, false)
		}),
		m.round, // lost
		acquire(control.AcquireRequest{Task: "a", Image: ptr("alpine"), OnDrift: "recreate"}),
		env("a", func(id string) { m.plane.Stop(ctx, "operator:ada", id) }), //nolint:errcheck // it may be dead
		func() { m.engine.Inject(controltest.Fault{Call: "Start", Times: 1, Err: errDisk}) },
		acquire(control.AcquireRequest{Task: "a"}), // a start that fails
		func() { m.engine.Clear() },
		acquire(control.AcquireRequest{Task: "a"}),
		env("a", func(id string) { m.plane.Kill(ctx, "operator:ada", id, false) }), //nolint:errcheck // it may be dead
		turnEnd("a"),
		passes(50 * time.Minute), // announced, and purged
		// Given back, and killed with all files; by the other agent, which is lost in the middle.
		func() {
			m.later(func(ctx context.Context) error {
				_, err := b.session.Acquire(ctx, control.AcquireRequest{Task: "b", Persistent: ptr(true)})
				return err
			})
			m.later(func(ctx context.Context) error {
				_, err := b.session.Release(ctx, control.Ref{Task: "b"}, false)
				return err
			})
		},
		env("b", func(id string) {
			m.willPurge(id)
			m.plane.Kill(ctx, "operator:ada", id, true) //nolint:errcheck // it may be dead
		}),
		func() {
			m.later(func(ctx context.Context) error {
				_, err := b.session.Acquire(ctx, control.AcquireRequest{Task: "b"})
				return err
			})
			m.gone(b)
		},
		passes(2 * time.Minute), // abandoned
		// Orphans that go by themselves, and that were never started.
		func() {
			m.engine.Put(control.SandboxStatus{Name: otherOrphan, Env: "other", Owner: "default", Task: "a", EnvName: "main", State: control.SandboxRunning})
			m.engine.Put(control.SandboxStatus{Name: "sandkeeper-test-created", Env: "created", Owner: "default", Task: "a", EnvName: "main", State: control.SandboxCreated})
		},
		passes(11 * time.Minute),
		func() { m.engine.Vanish(otherOrphan, true) },
		m.round,
	}
}

// idOf is the id of a task's environment, "" where there is none.
func (m *model) idOf(task string) string {
	vs, _, err := m.plane.Envs(control.EnvFilter{Task: task})
	if err != nil || len(vs) == 0 {
		return ""
	}
	return vs[0].ID
}

// live plays the story in a life up to its end, restarts, and converges.
func live(t *testing.T, l *life) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, nil, func(o *control.Options) {
			o.Engine = mortalEngine{o.Engine.(*controltest.Engine), l}
			o.Guests = mortalGuests{o.Guests.(*controltest.Guests), l}
		})
		m.mortal = l
		var disk *controltest.MemoryStore
		l.died = func() {
			disk = m.store.Reopen()
			m.store.OnCommit(nil)
		}
		defer m.close()
		m.restartInLife() // in a life of ours, from the first instant on
		for _, step := range story(m) {
			if l.isDead() {
				break
			}
			step()
		}
		if l.at != "" && !l.isDead() {
			t.Fatalf("it does not come to %s", l.at)
		}
		if l.isDead() {
			m.afterDeath(disk)
		}
		m.converge()
	})
}

// restartInLife restarts the plane, which may die of it; the agents come back.
func (m *model) restartInLife() {
	m.asked = false
	m.restart(time.Second)
	for _, a := range m.agents {
		if !m.mortal.isDead() {
			m.hello(a)
		}
	}
}

// afterDeath opens a plane on what the dead one left.
func (m *model) afterDeath(disk *controltest.MemoryStore) {
	m.mu.Lock()
	clear(m.connected)
	m.mu.Unlock()
	m.asked = false
	m.mortal = nil
	if m.plane != nil {
		m.stop()
		m.plane.Close(context.WithoutCancel(m.Context())) //nolint:errcheck // a dead process closes nothing
	}
	m.engine.Vanish(otherOrphan, true)
	m.store = disk
	m.o.Engine, m.o.Guests = m.engine, m.guests
	time.Sleep(time.Second)
	m.open()
	m.works()
	for _, a := range m.agents {
		m.hello(a)
	}
	// An agent that had no answer asks again by the same id; no command runs twice for it.
	for _, r := range []control.RunRequest{
		{Ref: control.Ref{Task: "a"}, Command: "short2", ID: "2"},
		{Ref: control.Ref{Task: "a"}, Command: "big3", ID: "3"},
		{Ref: control.Ref{Task: "b"}, Command: "long1", ID: "1", TimeoutS: ptr(int64(600))},
	} {
		s := m.agents[0].session
		m.later(func(ctx context.Context) error { _, err := s.Run(ctx, r); return err })
	}
	m.round()
	m.check()
}

// Every write to disk and every call of engine and guests is a place to die at,
// before it and after it. The list is what the story comes to; a call in the
// plane's source to which it does not come fails the test.
func TestDeathAtEachCallConverges(t *testing.T) {
	whole := &life{}
	live(t, whole)
	for site := range callSites(t) {
		if !whole.sites[site] {
			t.Errorf("the story has no %s: a crash there is visited by no test", site)
		}
	}
	t.Logf("%d calls at %d sites", len(whole.calls), len(whole.sites))
	for _, name := range whole.calls {
		for _, after := range []bool{false, true} {
			when := "before "
			if after {
				when = "after "
			}
			t.Run(when+name, func(t *testing.T) { live(t, &life{at: name, after: after}) })
		}
	}
}

// callSites finds the calls in the plane's source, as "Type.method Call".
func callSites(t *testing.T) map[string]bool {
	t.Helper()
	of := map[string][]string{"Store": {"Commit", "Prune"}, "Engine": methods[control.Engine](), "Guest": methods[control.Guest]()}
	pkgs, err := parser.ParseDir(token.NewFileSet(), ".", func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0)
	if err != nil {
		t.Fatal(err)
	}
	sites := map[string]bool{}
	for _, file := range pkgs["control"].Files {
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if ok && slices.Contains(of[receiver(method.X)], method.Sel.Name) {
					sites[funcName(fn)+" "+method.Sel.Name] = true
				}
				return true
			})
		}
	}
	return sites
}

// receiver tells what of the outside a call is made on: p.o.Store, p.o.Engine,
// Guest(name), or g, as a guest is called everywhere.
func receiver(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.CallExpr:
		if fn, ok := x.Fun.(*ast.SelectorExpr); ok {
			return fn.Sel.Name
		}
	case *ast.Ident:
		if x.Name == "g" {
			return "Guest"
		}
	}
	return ""
}

func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	x := fn.Recv.List[0].Type
	if star, ok := x.(*ast.StarExpr); ok {
		x = star.X
	}
	return x.(*ast.Ident).Name + "." + fn.Name.Name
}

func methods[T any]() (names []string) {
	for m := range reflect.TypeFor[T]().Methods() {
		names = append(names, m.Name)
	}
	return names
}
