package controltest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
)

func spec(name string) control.SandboxSpec {
	return control.SandboxSpec{Name: name, Env: "env-" + name, Image: "busybox", Workdir: "/workspace"}
}

// running makes a sandbox that runs.
func running(t *testing.T, e *Engine, name string) {
	t.Helper()
	if _, err := e.Create(t.Context(), spec(name)); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

func state(e *Engine, name string) control.SandboxState {
	s, ok := e.Sandbox(name)
	if !ok {
		return "absent"
	}
	return s.State
}

func TestASandboxGoesThroughItsStates(t *testing.T) {
	e, ctx := NewEngine(), t.Context()
	if err := e.Start(ctx, "a"); !errors.Is(err, control.ErrNoSandbox) {
		t.Errorf("start of none: %v", err)
	}
	first, err := e.Create(ctx, spec("a"))
	if err != nil || first.Existed || first.WorkspaceExisted {
		t.Errorf("first: %+v, %v", first, err)
	}
	second, err := e.Create(ctx, spec("a"))
	if err != nil || !second.Existed || !second.WorkspaceExisted {
		t.Errorf("second: %+v, %v", second, err)
	}
	for _, step := range []struct {
		do   func() error
		want control.SandboxState
	}{
		{func() error { return nil }, control.SandboxCreated},
		{func() error { return e.Start(ctx, "a") }, control.SandboxRunning},
		{func() error { return e.Start(ctx, "a") }, control.SandboxRunning},
		{func() error { return e.Stop(ctx, "a") }, control.SandboxExited},
		{func() error { return e.Kill(ctx, "a") }, control.SandboxExited},
		{func() error { return e.Remove(ctx, "a", control.KeepWorkspace) }, control.SandboxFiles},
		{func() error { return e.Remove(ctx, "a", control.RemoveAll) }, "absent"},
		{func() error { return e.Remove(ctx, "a", control.RemoveAll) }, "absent"},
	} {
		if err := step.do(); err != nil {
			t.Error(err)
		}
		if got := state(e, "a"); got != step.want {
			t.Errorf("state %q, want %q", got, step.want)
		}
	}
}

func TestAMissingImageComesByAPull(t *testing.T) {
	e, ctx := NewEngine(), t.Context()
	e.MissImage("busybox", nil)
	if _, err := e.Create(ctx, spec("a")); !errors.Is(err, control.ErrImageMissing) {
		t.Errorf("create: %v", err)
	}
	if err := e.Pull(ctx, "busybox"); err != nil {
		t.Error(err)
	}
	if _, err := e.Create(ctx, spec("a")); err != nil {
		t.Error(err)
	}
	cause := errors.New("no such host")
	e.MissImage("none", cause)
	if err := e.Pull(ctx, "none"); !errors.Is(err, control.ErrImageUnavailable) || !errors.Is(err, cause) {
		t.Errorf("pull: %v", err)
	}
}

func TestAFaultMeetsItsCallsAlone(t *testing.T) {
	e, ctx := NewEngine(), t.Context()
	running(t, e, "a")
	running(t, e, "b")
	cause := errors.New("no")
	e.Inject(Fault{Call: "Stop", Name: "a", Times: 1, Err: cause})
	if err := e.Stop(ctx, "b"); err != nil || state(e, "b") != control.SandboxExited {
		t.Errorf("another: %v, %s", err, state(e, "b"))
	}
	if err := e.Stop(ctx, "a"); !errors.Is(err, cause) || state(e, "a") != control.SandboxRunning {
		t.Errorf("first: %v, %s", err, state(e, "a"))
	}
	if err := e.Stop(ctx, "a"); err != nil || state(e, "a") != control.SandboxExited {
		t.Errorf("second: %v, %s", err, state(e, "a"))
	}
	remove := e.Inject(Fault{Call: "Start", Err: cause, After: true})
	if err := e.Start(ctx, "a"); !errors.Is(err, cause) || state(e, "a") != control.SandboxRunning {
		t.Errorf("lost answer: %v, %s", err, state(e, "a"))
	}
	remove()
	if err := e.Start(ctx, "a"); err != nil {
		t.Error(err)
	}
	if got := len(e.Calls("Stop")); got != 3 {
		t.Errorf("%d calls of Stop, want 3", got)
	}
}

func TestAHangingCallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine()
		running(t, e, "a")
		release := make(chan struct{})
		e.Inject(Fault{Call: "Stop", Hang: release})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Stop(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || state(e, "a") != control.SandboxRunning {
			t.Errorf("got %v, %s", err, state(e, "a"))
		}
		done := make(chan error)
		go func() { done <- e.Stop(t.Context(), "a") }()
		synctest.Wait()
		close(release)
		if err := <-done; err != nil || state(e, "a") != control.SandboxExited {
			t.Errorf("released: %v, %s", err, state(e, "a"))
		}
		e.Inject(Fault{Call: "Start", Delay: time.Second})
		began := time.Now()
		if err := e.Start(t.Context(), "a"); err != nil || time.Since(began) != time.Second {
			t.Errorf("delayed by %v, %v", time.Since(began), err)
		}
	})
}

func TestWatchTellsWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine()
		running(t, e, "old")
		time.Sleep(time.Second)
		since := time.Now()
		running(t, e, "a")
		var (
			mu  sync.Mutex
			got []string
		)
		ended := make(chan error)
		ready := make(chan struct{})
		go func() {
			ended <- e.Watch(t.Context(), since, func() { close(ready) }, func(ev control.EngineEvent) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(ev.Name, " ", ev.Kind, " ", ev.ExitCode, " ", ev.OOM))
			})
		}()
		<-ready
		if !e.Die("a", 137, true) || e.Die("a", 1, false) {
			t.Error("a sandbox dies once")
		}
		e.Vanish("a", true)
		synctest.Wait()
		up := e.Down()
		if err := <-ended; !errors.Is(err, control.ErrEngineUnavailable) {
			t.Errorf("the stream ended with %v", err)
		}
		if _, err := e.List(t.Context()); !errors.Is(err, control.ErrEngineUnavailable) {
			t.Errorf("list while down: %v", err)
		}
		up()
		if list, err := e.List(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("list: %v, %v", list, err)
		}
		want := []string{"a started 0 false", "a died 137 true", "a removed 0 false"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		e.LoseEvents()
		got = nil
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- e.Watch(ctx, since, nil, func(ev control.EngineEvent) { got = append(got, ev.Name) }) }()
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || got != nil {
			t.Errorf("after a loss: %q, %v", got, err)
		}
	})
}

func TestDialReachesWhoAnswers(t *testing.T) {
	e := NewEngine()
	if _, err := e.Dial(t.Context(), "a"); !errors.Is(err, control.ErrNoSandbox) {
		t.Errorf("dial of none: %v", err)
	}
	running(t, e, "a")
	e.OnDial(func(name string, conn net.Conn) {
		fmt.Fprint(conn, "I am ", name)
		conn.Close()
	})
	conn, err := e.Dial(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(conn); err != nil || string(said) != "I am a" {
		t.Errorf("got %q, %v", said, err)
	}
}

func TestAnExecRunsOnceAndEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine()
		g := NewGuests(e)
		running(t, e, "a")
		guest, ctx := g.Guest("a"), t.Context()
		g.OnStart(func(_ string, s control.ExecStart) *control.ExecEnd {
			if s.Shell == "true" {
				return &control.ExecEnd{}
			}
			return nil
		})
		for i := range 2 {
			st, err := guest.Start(ctx, control.ExecStart{Exec: "x1", Shell: "true", Workdir: "/workspace"})
			if err != nil || st.Existed != (i > 0) {
				t.Errorf("start %d: %+v, %v", i, st, err)
			}
		}
		if got := len(g.Starts()); got != 1 {
			t.Errorf("%d were started, want 1", got)
		}
		if end, err := guest.Wait(ctx, "x1", 100); err != nil || end.ExitCode != 0 || end.Cwd != "/workspace" {
			t.Errorf("end %+v, %v", end, err)
		}
		if _, err := guest.Wait(ctx, "never", 100); !errors.Is(err, control.ErrNoExec) {
			t.Errorf("of none: %v", err)
		}

		if _, err := guest.Start(ctx, control.ExecStart{Exec: "x2", Shell: "server &"}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		out := []byte(strings.Repeat("a", 50) + strings.Repeat("b", 50))
		if !g.End("x2", control.ExecEnd{Left: 2, Stdout: out}) || g.End("x2", control.ExecEnd{}) {
			t.Error("an exec ends once")
		}
		end, err := guest.Wait(ctx, "x2", 10)
		if err != nil || end.Duration != time.Minute || string(end.Stdout) != "aaaabbbbbb" || end.OmittedOut != 90 {
			t.Errorf("end %+v, %v", end, err)
		}
		list, err := guest.Execs(ctx)
		if err != nil || len(list) != 2 || list[0].Left || !list[1].Left || list[1].Running {
			t.Errorf("list %+v, %v", list, err)
		}
		gone := make(chan error)
		go func() { gone <- guest.Gone(ctx, "x2") }()
		synctest.Wait()
		select {
		case err := <-gone:
			t.Errorf("gone while something lives: %v", err)
		default:
		}
		if !g.LetGo("x2") || g.LetGo("x2") {
			t.Error("what was left goes once")
		}
		if err := <-gone; err != nil {
			t.Error(err)
		}

		if _, err := guest.Start(ctx, control.ExecStart{Exec: "x3", Shell: "sleep 9", Timeout: 3 * time.Second}); err != nil {
			t.Error(err)
		}
		if end, err := guest.Wait(ctx, "x3", 10); err != nil || !end.TimedOut || end.ExitCode != 124 || end.Duration != 3*time.Second {
			t.Errorf("timed out: %+v, %v", end, err)
		}
		if _, err := guest.Start(ctx, control.ExecStart{Exec: "x4", Shell: "sleep 9"}); err != nil {
			t.Error(err)
		}
		if n, err := guest.Signal(ctx, "x4", "KILL", true); n != 0 || err != nil {
			t.Errorf("signal: %d, %v", n, err)
		}
		if end, err := guest.Wait(ctx, "x4", 10); err != nil || end.ExitCode != 137 || end.Signal != "KILL" {
			t.Errorf("killed: %+v, %v", end, err)
		}
	})
}

func TestAGuestGoesWithItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewEngine()
		g := NewGuests(e)
		g.OnStart(Running)
		guest, ctx := g.Guest("a"), t.Context()
		if err := guest.Ping(ctx); !errors.Is(err, control.ErrGuestUnreachable) {
			t.Errorf("without a sandbox: %v", err)
		}
		running(t, e, "a")
		if err := guest.Ping(ctx); err != nil {
			t.Error(err)
		}
		if _, err := guest.Start(ctx, control.ExecStart{Exec: "x1", Shell: "sleep 9"}); err != nil {
			t.Error(err)
		}
		waited := make(chan error)
		go func() {
			_, err := guest.Wait(ctx, "x1", 10)
			waited <- err
		}()
		synctest.Wait()
		e.Die("a", 1, false)
		if err := <-waited; !errors.Is(err, control.ErrGuestUnreachable) {
			t.Errorf("wait: %v", err)
		}
		if err := e.Start(ctx, "a"); err != nil {
			t.Error(err)
		}
		if _, err := guest.Wait(ctx, "x1", 10); !errors.Is(err, control.ErrNoExec) {
			t.Errorf("in the next run: %v", err)
		}
		g.Forget("a")
		if got := g.Forgotten(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("forgotten %q", got)
		}
	})
}

func TestFilesOutliveRunsAsTheEngineKeepsThem(t *testing.T) {
	e := NewEngine()
	guest, ctx := NewGuests(e).Guest("a"), t.Context()
	running(t, e, "a")
	write := func(path string) {
		t.Helper()
		if _, err := guest.WriteFile(ctx, control.FileWrite{Path: path, Data: []byte("hi"), Mkdirs: true}); err != nil {
			t.Fatal(err)
		}
	}
	errno := func(err error) string {
		if err == nil {
			return ""
		}
		if fe, ok := errors.AsType[*control.FileError](err); ok {
			return fe.Errno
		}
		return err.Error()
	}
	has := func(path string) bool {
		_, err := guest.StatFile(ctx, path)
		return err == nil
	}
	write("/etc/installed")
	write("notes/todo")
	if c, err := guest.ReadFile(ctx, "/workspace/notes/todo", 1, 10); err != nil || string(c.Data) != "i" || !c.EOF {
		t.Errorf("read %+v, %v", c, err)
	}
	if l, err := guest.ListFiles(ctx, "."); err != nil || len(l) != 1 || l[0].Name != "notes" || l[0].Type != "dir" {
		t.Errorf("list %+v, %v", l, err)
	}
	_, err1 := guest.ReadFile(ctx, "notes", 0, 1)
	_, err2 := guest.ReadFile(ctx, "none", 0, 1)
	_, err3 := guest.ListFiles(ctx, "notes/todo")
	_, err4 := guest.WriteFile(ctx, control.FileWrite{Path: "no/dir/x"})
	got := []string{errno(err1), errno(err2), errno(err3), errno(err4), errno(guest.RemoveFile(ctx, "notes", false)),
		errno(guest.Mkdir(ctx, "notes", false)), errno(guest.Mkdir(ctx, "notes", true))}
	if want := []string{"EISDIR", "ENOENT", "ENOTDIR", "ENOENT", "ENOTEMPTY", "EEXIST", ""}; !slices.Equal(got, want) {
		t.Errorf("errors %q, want %q", got, want)
	}

	if err := e.Stop(ctx, "a"); err != nil {
		t.Error(err)
	}
	running(t, e, "a")
	if !has("/etc/installed") || !has("notes/todo") {
		t.Error("a stop lost files")
	}
	if err := e.Remove(ctx, "a", control.KeepWorkspace); err != nil {
		t.Error(err)
	}
	running(t, e, "a")
	if has("/etc/installed") || !has("notes/todo") {
		t.Error("a new root file system keeps the workspace alone")
	}
	if err := guest.RemoveFile(ctx, "notes", true); err != nil || has("notes/todo") {
		t.Errorf("remove: %v", err)
	}
}

// plane notes when it is asked.
type plane struct {
	mu       sync.Mutex
	log      []string
	began    time.Time
	offset   time.Duration
	due      func(key string) bool
	teardown func(key string)
}

func (p *plane) Now() time.Time { return time.Now().Add(p.offset) }

func (p *plane) note(what, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, fmt.Sprint(what, " ", key, " ", time.Since(p.began)))
}

func (p *plane) Due(_ context.Context, key string) bool {
	p.note("due", key)
	return p.due != nil && p.due(key)
}

func (p *plane) Teardown(_ context.Context, key string) {
	p.note("teardown", key)
	if p.teardown != nil {
		p.teardown(key)
	}
}

func TestAlarmsAskAtTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAlarms()
		p := &plane{began: time.Now(), offset: time.Hour}
		p.due = func(key string) bool { return key == "env:t" }
		p.teardown = func(key string) {
			a.Set(key, p.Now()) // honoured once this has ended
			time.Sleep(10 * time.Second)
		}
		a.Set("env:early", p.Now().Add(time.Second))
		a.Set("env:cleared", p.Now().Add(time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { a.Run(ctx, p); close(ended) }()
		synctest.Wait()
		a.Clear("env:cleared")
		a.Clear("env:never")
		a.Set("env:moved", p.Now().Add(time.Second))
		a.Set("env:moved", p.Now().Add(3*time.Second))
		a.Set("env:t", p.Now().Add(5*time.Second))
		if at, ok := a.At("env:moved"); !ok || !at.Equal(p.Now().Add(3*time.Second)) {
			t.Errorf("set to %v, %v", at, ok)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		cancel()
		<-ended
		want := []string{"due env:early 1s", "due env:moved 3s", "due env:t 5s", "teardown env:t 5s", "due env:t 15s", "teardown env:t 15s"}
		if !slices.Equal(p.log, want) {
			t.Errorf("got %q, want %q", p.log, want)
		}
	})
}

func TestAStoreInMemoryOutlivesACrash(t *testing.T) {
	s := NewMemoryStore()
	env := &control.Env{ID: "a", Owner: "o", Task: "t", Name: "main", State: control.Ready}
	var told []uint64
	s.Publish(func(evs []control.Event) { told = append(told, evs[0].Seq) })
	b := &control.Batch{Envs: []*control.Env{env}, Events: []control.Event{{Kind: control.EnvReady, Env: "a"}}}
	if err := s.Commit(t.Context(), b); err != nil || b.Events[0].Seq != 1 {
		t.Fatal(b.Events, err)
	}
	env.State = control.Dormant // not committed
	cause := errors.New("full")
	s.OnCommit(func(*control.Batch) error { return cause })
	if err := s.Commit(t.Context(), b); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	n := s.Reopen()
	if err := n.Commit(t.Context(), &control.Batch{Envs: []*control.Env{{ID: "b", Owner: "o", Task: "t", Name: "main"}}}); !errors.Is(err, ErrRefused) {
		t.Errorf("a second holder of a key: %v", err)
	}
	r, err := n.Load(t.Context())
	if err != nil || len(r.Envs) != 1 || r.Envs[0].State != control.Ready {
		t.Errorf("loaded %+v, %v", r.Envs, err)
	}
	if !slices.Equal(told, []uint64{1}) {
		t.Errorf("told %v", told)
	}
}
