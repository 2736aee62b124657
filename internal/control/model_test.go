package control_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// TestInvariants drives a plane by random calls of agents and operators,
// faults, deaths, crashes, jumps of the clock and time, and holds the
// invariants against it: some within each commit, some after each step, some
// once all faults have gone. A longer run: -rapid.checks=5000 -rapid.steps=100.
func TestInvariants(t *testing.T) { check(t, (*model).actions) }

// check runs a model by the actions that it has in a test.
func check(t *testing.T, of func(m *model) map[string]func(*rapid.T)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		var failed any
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			m := newModel(inBubble{rt, ctx}, rt)
			defer func() {
				failed = recover() // out of the bubble, where rapid waits for it
				cancel()
				m.letGo()
				m.close()
			}()
			actions := of(m)
			actions[""] = func(*rapid.T) { m.check() }
			rt.Repeat(actions)
			m.converge()
		})
		if failed != nil {
			panic(failed)
		}
	})
}

type inBubble struct {
	*rapid.T
	ctx context.Context
}

func (b inBubble) Context() context.Context { return b.ctx }

const orphan = "sandkeeper-test-orphan"

type model struct {
	*fixture
	rt     *rapid.T
	agents []*modelAgent
	calls  sync.WaitGroup
	broken atomic.Bool // commits fail
	asked  bool        // guests were asked since the last start

	streams streams
	readers sync.WaitGroup // of channels

	mu        sync.Mutex // guards what follows: commits and guests write it
	wrong     []string   // what was found within commits
	processes map[string]*modelProcess
	purges    map[string]bool // environments that somebody asked to purge, or to recreate as ephemeral
	announced map[string]time.Time
	connected map[string]bool // sessions
	mended    time.Time       // when the database last began to work
}

type modelAgent struct {
	name    string
	session *control.Session
	sink    *sink
}

// modelProcess is a command as the sandbox has it.
type modelProcess struct {
	sandbox string
	start   control.ExecStart
	began   time.Time
	ended   bool
}

// newModel makes a model that draws from rt; nil where nothing is drawn.
func newModel(t tester, rt *rapid.T, change ...func(o *control.Options)) *model {
	m := &model{rt: rt, processes: map[string]*modelProcess{}, purges: map[string]bool{}, announced: map[string]time.Time{}, connected: map[string]bool{}, streams: streams{ends: map[string]string{}}}
	m.fixture = newFixture(t, func(o *control.Options) {
		o.Retention, o.MaxTurn, o.FailedAfter, o.RestartGrace = 20*time.Minute, 10*time.Minute, 2*time.Minute, 20*time.Second
		o.DisconnectGrace, o.Lifetime = 30*time.Second, time.Minute
		for _, c := range change {
			c(o)
		}
	})
	m.guests.OnStart(m.started)
	m.watch = m.judge
	m.store.OnCommit(m.judge)
	m.engine.Put(control.SandboxStatus{Name: orphan, Env: "orphan", Owner: "default", Task: "a", EnvName: "main", State: control.SandboxRunning})
	for _, name := range []string{"hermes", "iris"} {
		a := &modelAgent{name: name}
		m.agents = append(m.agents, a)
		m.hello(a)
	}
	return m
}

// Drawing.

func (m *model) pick(what string, of ...string) string { return rapid.SampledFrom(of).Draw(m.rt, what) }
func (m *model) chance(what string, in int) bool       { return rapid.IntRange(1, in).Draw(m.rt, what) == 1 }
func (m *model) agent() *modelAgent {
	return m.agents[rapid.IntRange(0, len(m.agents)-1).Draw(m.rt, "agent")]
}
func (m *model) duration(what string, of ...time.Duration) time.Duration {
	names := make([]string, len(of))
	for i, d := range of {
		names[i] = d.String()
	}
	return of[slices.Index(names, m.pick(what, names...))]
}
func (m *model) task() string { return m.pick("task", "a", "b") }
func (m *model) ref() control.Ref {
	return control.Ref{Task: m.task(), Name: m.pick("name", "main", "main", "x")}
}

// env draws one of the environments; ok is false where there is none.
func (m *model) env() (v control.View, ok bool) {
	vs, _, err := m.plane.Envs(control.EnvFilter{})
	m.must(err)
	if len(vs) == 0 {
		return v, false
	}
	slices.SortFunc(vs, func(a, b control.View) int { // ids are random; draws are not to be
		return strings.Compare(a.Task+a.Name+a.CreatedAt.String(), b.Task+b.Name+b.CreatedAt.String())
	})
	v = vs[rapid.IntRange(0, len(vs)-1).Draw(m.rt, "env")]
	m.rt.Logf("%s: %s of %s/%s", v.ID, v.State, v.Task, v.Name)
	return v, true
}

// later makes a call that may wait.
func (m *model) later(f func(ctx context.Context) error) {
	m.calls.Go(func() {
		if err := f(m.Context()); err != nil && control.AsError(err).Kind == control.KindInternal && m.Context().Err() == nil {
			if e := control.AsError(err); e.Message == "internal error; the server's log has the cause" {
				m.fail("an error without a kind: %v", err)
			}
		}
	})
	synctest.Wait()
}

func (m *model) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

func (m *model) hello(a *modelAgent) {
	h := control.Hello{Agent: a.name}
	if a.session != nil {
		h.Session = a.session.ID()
	}
	k := &sink{}
	s, _, err := m.plane.Hello(m.Context(), "default", h, k)
	if err != nil {
		return
	}
	a.session, a.sink = s, k
	m.mu.Lock()
	m.connected[s.ID()] = true
	m.mu.Unlock()
}

func (m *model) gone(a *modelAgent) {
	m.mu.Lock()
	delete(m.connected, a.session.ID())
	m.mu.Unlock()
	a.session.Disconnect(a.sink)
}

// started is asked by the guests what becomes of a command: its text says so.
func (m *model) started(sandbox string, s control.ExecStart) *control.ExecEnd {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes[s.Exec] = &modelProcess{sandbox: sandbox, start: s, began: time.Now(), ended: !strings.HasPrefix(s.Shell, "long")}
	switch {
	case strings.HasPrefix(s.Shell, "long"):
		return nil
	case strings.HasPrefix(s.Shell, "left"):
		return &control.ExecEnd{Left: 1}
	case strings.HasPrefix(s.Shell, "big"):
		return &control.ExecEnd{Stdout: make([]byte, 100_000)}
	}
	return &control.ExecEnd{ExitCode: 7}
}

func (m *model) run(r control.RunRequest) {
	s := m.agent().session
	m.later(func(ctx context.Context) error {
		_, err := s.Run(ctx, r)
		return err
	})
}

func (m *model) actions() map[string]func(*rapid.T) {
	seconds := func(what string) *int64 {
		if m.chance("with "+what, 2) {
			return nil
		}
		return ptr(int64(m.duration(what, 5*time.Second, 30*time.Second, 5*time.Minute) / time.Second))
	}
	operator := func(f func(id string) error) func(*rapid.T) {
		return func(*rapid.T) {
			if v, ok := m.env(); ok {
				f(v.ID) //nolint:errcheck // refusals are part of it
				synctest.Wait()
			}
		}
	}
	acquire := func(*rapid.T) {
		ref := m.ref()
		r := control.AcquireRequest{Task: ref.Task, Name: ref.Name, LifetimeS: seconds("lifetime"), OnDrift: m.pick("drift", "keep", "keep", "error", "recreate")}
		if m.chance("aged", 5) {
			r.MaxAgeS = seconds("age")
		}
		switch m.pick("mode", "", "persistent", "persistent", "ephemeral") {
		case "persistent":
			r.Persistent = ptr(true)
		case "ephemeral":
			r.Persistent = ptr(false)
		}
		if m.chance("other image", 5) {
			r.Image = ptr("alpine")
		}
		s := m.agent().session
		m.later(func(ctx context.Context) error {
			_, err := s.Acquire(ctx, r)
			return err
		})
	}
	actions := map[string]func(*rapid.T){
		"acquire":       acquire,
		"acquire again": acquire,
		"run": func(*rapid.T) {
			r := control.RunRequest{Ref: m.ref(), Command: m.pick("command", "short", "long", "left"), TimeoutS: seconds("timeout")}
			m.run(r)
		},
		"run by id": func(*rapid.T) {
			id := m.pick("id", "1", "2", "3", "4", "5")
			m.run(control.RunRequest{Ref: m.ref(), Command: m.pick("command", "short", "long") + id, ID: id})
		},
		"run in an old generation": func(*rapid.T) {
			v, ok := m.env()
			if !ok || v.Generation < 2 {
				return
			}
			_, err := m.agent().session.Run(m.Context(), control.RunRequest{Ref: control.Ref{Env: v.ID}, Command: "old", Generation: ptr(v.Generation - 1)})
			if err == nil {
				m.Fatalf("a command ran in generation %d, which is over", v.Generation-1)
			}
		},
		"end a command": func(*rapid.T) {
			m.mu.Lock()
			var running []string
			for _, name := range slices.SortedFunc(maps.Keys(m.processes), func(a, b string) int {
				return m.processes[a].began.Compare(m.processes[b].began)
			}) {
				if !m.processes[name].ended {
					running = append(running, name)
				}
			}
			m.mu.Unlock()
			if len(running) == 0 {
				return
			}
			name := running[rapid.IntRange(0, len(running)-1).Draw(m.rt, "command")]
			m.mu.Lock()
			m.processes[name].ended = true
			m.mu.Unlock()
			m.guests.End(name, control.ExecEnd{ExitCode: 3})
			synctest.Wait()
		},
		"a process ends": func(*rapid.T) {
			for _, s := range m.guests.Starts() {
				if m.guests.LetGo(s.Exec) {
					break
				}
			}
			synctest.Wait()
		},
		"write a file": func(*rapid.T) {
			s, ref := m.agent().session, m.ref()
			m.later(func(ctx context.Context) error {
				_, err := s.WriteFile(ctx, ref, control.FileWrite{Path: "f", Data: []byte("x")})
				return err
			})
		},
		"touch": func(*rapid.T) {
			m.agent().session.Touch(m.Context(), m.ref()) //nolint:errcheck // refusals are part of it
		},
		"begin a turn": func(*rapid.T) {
			m.agent().session.TurnBegin(m.Context(), m.task()) //nolint:errcheck // refusals are part of it
		},
		"end a turn": func(*rapid.T) { m.endTurn(m.task()) },
		"release": func(*rapid.T) {
			s, ref := m.agent().session, m.ref()
			purge := m.chance("purge", 3)
			if v, err := s.Env(m.Context(), ref); err == nil && purge {
				m.willPurge(v.ID)
			}
			s.Release(m.Context(), ref, purge) //nolint:errcheck // refusals are part of it
			synctest.Wait()
		},
		"disconnect": func(*rapid.T) {
			m.gone(m.agent())
			synctest.Wait()
		},
		"connect": func(*rapid.T) {
			m.hello(m.agent())
			synctest.Wait()
		},
		"pin": operator(func(id string) error {
			var until time.Time
			if m.chance("until", 2) {
				until = m.plane.Now().Add(m.duration("for", time.Second, time.Minute, time.Hour))
			}
			_, err := m.plane.Pin(m.Context(), "operator:ada", id, "", until)
			return err
		}),
		"unpin": operator(func(id string) error { _, err := m.plane.Unpin(m.Context(), "operator:ada", id); return err }),
		"stop":  operator(func(id string) error { _, err := m.plane.Stop(m.Context(), "operator:ada", id); return err }),
		"kill": operator(func(id string) error {
			purge := m.chance("purge", 3)
			if purge {
				m.willPurge(id)
			}
			_, err := m.plane.Kill(m.Context(), "operator:ada", id, purge)
			return err
		}),
		"operator touches": operator(func(id string) error { _, err := m.plane.TouchEnv(m.Context(), "operator:ada", id); return err }),
		"time": func(*rapid.T) {
			m.passes(m.duration("for", time.Millisecond, time.Second, 30*time.Second, time.Minute))
		},
		"much time": func(*rapid.T) { m.passes(m.duration("for", 5*time.Minute, 11*time.Minute, 25*time.Minute)) },
		"fault": func(*rapid.T) {
			err := rapid.SampledFrom([]error{errDisk, control.ErrEngineUnavailable}).Draw(m.rt, "error")
			m.engine.Inject(controltest.Fault{
				Call:  m.pick("call", "Create", "Start", "Stop", "Kill", "Remove"),
				Times: rapid.IntRange(1, 3).Draw(m.rt, "times"), After: m.chance("after", 2), Err: err,
			})
		},
		"hang": func(*rapid.T) {
			m.engine.Inject(controltest.Fault{Call: m.pick("call", "Create", "Start", "Stop", "Kill", "Remove"), Times: 1, Hang: make(chan struct{})})
		},
		"guest fault": func(*rapid.T) {
			m.guests.Inject(controltest.Fault{
				Call: m.pick("call", "Ping", "Start", "Wait", "Gone", "WriteFile", "Attach", "Signal"), Times: rapid.IntRange(1, 3).Draw(m.rt, "times"),
				After: m.chance("after", 2), Err: control.ErrGuestUnreachable,
			})
		},
		"die": func(*rapid.T) {
			v, ok := m.env()
			if !ok {
				return
			}
			name := "sandkeeper-test-" + v.ID
			code := rapid.SampledFrom([]int{0, 1, 137}).Draw(m.rt, "code")
			died := m.engine.Die(name, code, code == 137)
			m.over(name)
			if m.chance("heard", 2) && died {
				m.plane.Observe(m.Context(), control.EngineEvent{Name: name, Env: v.ID, Kind: control.SandboxDied, ExitCode: code, OOM: code == 137, At: time.Now()})
			}
			if m.chance("started again", 4) {
				ctx, cancel := context.WithTimeout(m.Context(), time.Second)
				m.engine.Start(ctx, name) //nolint:errcheck // a fault may be in the way
				cancel()
			}
			synctest.Wait()
		},
		"vanish": func(*rapid.T) {
			if v, ok := m.env(); ok {
				m.engine.Vanish("sandkeeper-test-"+v.ID, false)
				m.over("sandkeeper-test-" + v.ID)
			}
		},
		"reconcile": func(*rapid.T) { m.round() },
		"the database fails": func(*rapid.T) {
			m.broken.Store(true)
			m.passes(m.duration("for", time.Millisecond, 2*time.Second))
		},
		"the database works": func(*rapid.T) { m.mend() },
		"crash":              func(*rapid.T) { m.again(m.crash) },
		"restart":            func(*rapid.T) { m.again(m.restart) },
	}
	maps.Copy(actions, m.streamActions(seconds))
	return actions
}

func (m *model) willPurge(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.purges[id] = true
}

// passes lets time pass, with the reconciler's rounds in it.
func (m *model) passes(d time.Duration) {
	for d > 0 {
		step := min(d, 30*time.Second)
		m.advance(step)
		if d -= step; d > 0 {
			m.round()
		}
	}
}

func (m *model) round() {
	began := m.plane.Now()
	list, err := m.engine.List(m.Context())
	m.plane.EngineSeen(m.Context(), control.EngineInfo{}, err)
	if err == nil {
		m.plane.Reconcile(m.Context(), list, began) //nolint:errcheck // commits may fail
		if !m.broken.Load() {
			m.asked = true
		}
	}
	m.plane.Housekeep(m.Context())
	synctest.Wait()
}

func (m *model) works() {
	m.broken.Store(false)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mended = m.plane.Now()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (m *model) mend() {
	m.works()
	m.advance(2 * time.Second) // what could not be written is tried again
}

// again restarts the plane, gracefully or not.
func (m *model) again(how func(time.Duration)) {
	m.mu.Lock()
	clear(m.connected)
	m.mu.Unlock()
	m.works()
	m.asked = false
	how(m.duration("down for", time.Millisecond, 10*time.Second, 10*time.Minute))
	for _, a := range m.agents {
		if m.chance("comes back", 3) {
			m.hello(a)
		} else {
			a.session, a.sink = m.ghost(a), &sink{}
		}
	}
}

// ghost is a session whose socket has gone: what it had is there for its grace.
func (m *model) ghost(a *modelAgent) *control.Session {
	k := &sink{}
	h := control.Hello{Agent: a.name, Session: a.session.ID()}
	s, _, err := m.plane.Hello(m.Context(), "default", h, k)
	m.must(err)
	s.Disconnect(k)
	return s
}

// endTurn ends a turn and holds the answer against the table.
func (m *model) endTurn(task string) {
	s := m.agent().session
	before, err := s.Envs(m.Context(), task)
	m.must(err)
	open := false
	want := map[string]string{}
	for _, v := range before {
		open = v.Turn != nil && v.Turn.Open
		switch {
		case v.State == control.Stopping && v.Teardown != nil && m.final(v.ID):
		case v.Pinned:
			want[v.ID] = "kept pinned"
		case v.Persistent:
			want[v.ID] = "kept persistent"
		default:
			want[v.ID] = "removed ephemeral"
		}
	}
	end, err := s.TurnEnd(m.Context(), control.TurnEndRequest{Task: task})
	if err != nil {
		return
	}
	if !open {
		want = map[string]string{}
	}
	got := map[string]string{}
	for _, d := range end.Decisions {
		got[d.Env] = d.Decision + " " + d.Reason
	}
	if len(before) > 0 && !maps.Equal(got, want) {
		m.Fatalf("the turn's end decided %v, want %v", got, want)
	}
	synctest.Wait()
}

// final tells from the disk whether an environment is on its way out for good.
func (m *model) final(id string) bool {
	r, err := m.store.Load(context.Background())
	m.must(err)
	for _, e := range r.Envs {
		if e.ID == id {
			return e.State == control.Stopping && e.Teardown.Final()
		}
	}
	return true
}

// judge holds each decision against what is true at its instant.
func (m *model) judge(b *control.Batch) error {
	if m.broken.Load() {
		return errDisk
	}
	for _, ev := range b.Events {
		switch ev.Kind {
		case control.EnvExpiring:
			m.mu.Lock()
			m.announced[ev.Env] = ev.Time.Time
			m.mu.Unlock()
		case control.EnvDormant, control.EnvRemoved, control.EnvLost:
			m.over("sandkeeper-test-" + ev.Env)
		case control.EnvStopping, control.EnvChanged:
			if _, ok := ev.Data["mode"]; ok {
				m.judgeTeardown(b, ev)
			}
		}
	}
	return nil
}

func (m *model) judgeTeardown(b *control.Batch, ev control.Event) {
	i := slices.IndexFunc(b.Envs, func(e *control.Env) bool { return e.ID == ev.Env })
	if i < 0 {
		m.fail("%s of %s without its record", ev.Kind, ev.Env)
		return
	}
	e := b.Envs[i]
	now := ev.Time.Time
	rule := ev.Data["rule"].(string)
	if rule == "turn_end" && (e.Persistent || e.Pin != nil) {
		m.fail("a turn's end removes %s, persistent %t, pinned %t", e.ID, e.Persistent, e.Pin != nil)
	}
	if ev.Actor == control.ActorReaper {
		if e.Pin != nil {
			m.fail("the reaper takes the pinned %s", e.ID)
		}
		shown := time.Time{}
		for _, f := range m.plane.Forecast(0) {
			if f.Env == e.ID {
				shown = f.At.Time
			}
		}
		m.mu.Lock()
		mended := m.mended
		m.mu.Unlock()
		if shown.IsZero() || now.Before(shown) || rule != "idle" && rule != "max_age" && now.Sub(later(shown, mended)) > time.Minute {
			m.fail("%s is taken by the rule %s at %s, while %s is shown", e.ID, rule, now, shown)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if rule == "idle" && e.Persistent == (e.Teardown.Mode == control.TeardownStop) {
		for name, p := range m.processes {
			bound := p.start.Timeout
			if bound == 0 {
				bound = 24 * time.Hour
			}
			if p.sandbox == "sandkeeper-test-"+e.ID && !p.ended && time.Since(p.began) < bound && m.runs(p) && m.guests.Runs(name) {
				m.wrong = append(m.wrong, fmt.Sprintf("%s is reaped as idle while %s runs", e.ID, name))
			}
		}
		for _, t := range b.Tasks {
			if t.Task == e.Task && t.Open && !t.Lapsed {
				for _, s := range t.Sessions {
					if m.connected[s] {
						m.wrong = append(m.wrong, fmt.Sprintf("%s is reaped as idle while its turn is open and %s is there", e.ID, s))
					}
				}
			}
		}
	}
	if e.Teardown.Mode == control.TeardownRemove && e.Persistent && e.Files && !m.purges[e.ID] {
		if at, ok := m.announced[e.ID]; rule != "retention" || !ok || now.Sub(at) < 10*time.Minute {
			m.wrong = append(m.wrong, fmt.Sprintf("the files of %s go by the rule %s at %s, announced %t at %s", e.ID, rule, now, ok, at))
		}
	}
}

// over says that a run of a sandbox is over, and its commands with it.
func (m *model) over(sandbox string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.processes {
		p.ended = p.ended || p.sandbox == sandbox
	}
}

// runs tells whether a command's run of the sandbox goes on.
func (m *model) runs(p *modelProcess) bool {
	s, ok := m.engine.Sandbox(p.sandbox)
	return ok && s.State == control.SandboxRunning && !s.StartedAt.After(p.began)
}

// tell shows the log's end, where a check fails.
func (m *model) tell() {
	logf := m.rt.Logf
	if m.rt == nil {
		logf = m.Errorf
	}
	ev, _, last, _ := m.plane.Events(0, 1_000_000, control.EventFilter{})
	for _, e := range ev[max(0, len(ev)-40):] {
		logf("%d/%d %s %s %s %s %s %v", e.Seq, last, e.Time, e.Kind, e.Env, e.Actor, e.Reason, e.Data)
	}
}

// Fatalf shows the log first.
func (m *model) Fatalf(format string, args ...any) {
	m.Helper()
	m.tell()
	m.fixture.Fatalf(format, args...)
}

// check holds after each step.
func (m *model) check() {
	synctest.Wait()
	m.mu.Lock()
	wrong := m.wrong
	m.mu.Unlock()
	if len(wrong) > 0 {
		m.tell()
		m.Fatal(strings.Join(wrong, "\n"))
	}
	vs, _, err := m.plane.Envs(control.EnvFilter{})
	m.must(err)
	m.checkKeys(vs)
	m.checkRuns()
	if m.broken.Load() {
		return
	}
	m.checkClocks(vs)
	m.checkDisk(vs)
	m.checkLog(vs)
}

// One key has one live sandbox.
func (m *model) checkKeys(vs []control.View) {
	live := map[string]string{}
	for _, v := range vs {
		if v.State != control.Starting && v.State != control.Ready {
			continue
		}
		key := v.Task + "/" + v.Name
		if other, ok := live[key]; ok {
			m.Fatalf("%s and %s are both live with the key %s", other, v.ID, key)
		}
		live[key] = v.ID
	}
}

// No command runs twice.
func (m *model) checkRuns() {
	names, ids := map[string]bool{}, map[string]bool{}
	for _, s := range m.guests.Starts() {
		if names[s.Exec] {
			m.Fatalf("the exec %s was started twice", s.Exec)
		}
		names[s.Exec] = true
		if s.Shell == "old" {
			m.Fatalf("a command ran in a generation that is over")
		}
		id := strings.TrimLeft(s.Shell, "shortlonglefbi")
		if key := s.Sandbox + " " + id; id != "" {
			if ids[key] {
				m.Fatalf("the command of id %s ran twice in %s", id, s.Sandbox)
			}
			ids[key] = true
		}
	}
}

// A countdown runs where nothing holds, and is kept.
func (m *model) checkClocks(vs []control.View) {
	for _, v := range vs {
		aged := v.MaxAgeS != nil
		switch {
		case v.Pinned && v.Deadline != nil:
			m.Fatalf("%s is pinned and due at %s", v.ID, v.Deadline)
		case v.State == control.Ready && len(v.Holds) == 0 && v.Deadline == nil:
			m.Fatalf("%s is ready, held by nothing, and has no deadline", v.ID)
		case v.State == control.Ready && len(v.Holds) > 0 && v.Deadline != nil && !aged:
			m.Fatalf("%s is held by %v and due at %s", v.ID, v.Holds, v.Deadline)
		case (v.State == control.Starting || v.State == control.Stopping) && v.Deadline != nil:
			m.Fatalf("%s is %s and due at %s", v.ID, v.State, v.Deadline)
		case (v.State == control.Dormant || v.State == control.Failed) && !v.Pinned && v.Deadline == nil:
			m.Fatalf("%s is %s and has no deadline", v.ID, v.State)
		}
		if late := v.Now.Sub(deadlineOf(v)); m.asked && late > 0 && (late > 3*time.Minute || !m.unasked(v)) {
			m.Fatalf("%s is %s past its deadline of %s; holds %v", v.ID, v.Now.Sub(v.Deadline.Time), v.Deadline, v.Holds)
		}
	}
}

func deadlineOf(v control.View) time.Time {
	if v.Deadline == nil {
		return v.Now.Time
	}
	return v.Deadline.Time
}

// unasked: a guest that a start did not reach is asked before its sandbox is reaped.
func (m *model) unasked(v control.View) bool {
	_, armed := m.alarms.At("env:" + v.ID)
	return v.State == control.Ready && !armed
}

// What anybody can read is on disk.
func (m *model) checkDisk(vs []control.View) {
	r, err := m.store.Load(context.Background())
	m.must(err)
	disk := map[string]string{}
	for _, e := range r.Envs {
		disk[e.ID] = fmt.Sprint(e.State, e.Generation, e.Persistent, e.Pin != nil, int64(e.Lifetime/time.Second))
	}
	for _, v := range vs {
		if got := fmt.Sprint(v.State, v.Generation, v.Persistent, v.Pinned, v.LifetimeS); disk[v.ID] != got {
			m.Fatalf("%s is %s, and on disk %s", v.ID, got, disk[v.ID])
		}
		delete(disk, v.ID)
	}
	if len(disk) > 0 {
		m.Fatalf("on disk alone: %v", disk)
	}
}

// The log has no gap and tells every transition once.
func (m *model) checkLog(vs []control.View) {
	ev, _, _, err := m.plane.Events(0, 1_000_000, control.EventFilter{})
	m.must(err)
	steps := map[string]map[control.EventKind]string{
		"":               {control.EnvStarting: "starting"},
		"starting":       {control.EnvReady: "ready", control.EnvResumed: "ready", control.EnvRecreated: "ready", control.EnvFailed: "failed dormant", control.EnvStopping: "stopping"},
		"ready":          {control.EnvStopping: "stopping", control.EnvLost: "lost"},
		"lost":           {control.EnvDormant: "dormant", control.EnvRemoved: "removed"},
		"stopping":       {control.EnvDormant: "dormant", control.EnvRemoved: "removed"},
		"dormant":        {control.EnvStarting: "starting", control.EnvStopping: "stopping"},
		"failed dormant": {control.EnvStarting: "starting", control.EnvStopping: "stopping"},
	}
	state := map[string]string{}
	generation := map[string]int64{}
	turns := map[string]int64{}
	for i, e := range ev {
		if e.Seq != uint64(i+1) {
			m.Fatalf("event %d has the number %d", i+1, e.Seq)
		}
		switch e.Kind {
		case control.EnvStarting, control.EnvReady, control.EnvResumed, control.EnvRecreated, control.EnvFailed, control.EnvStopping, control.EnvDormant, control.EnvRemoved, control.EnvLost:
			next, ok := steps[state[e.Env]][e.Kind]
			if !ok {
				m.Fatalf("event %d: %s of %s, which is %q", e.Seq, e.Kind, e.Env, state[e.Env])
			}
			state[e.Env] = next
		}
		key := e.Task + "/" + e.Name
		switch e.Kind {
		case control.EnvStarting:
			n := int64(e.Data["generation"].(float64))
			if n != generation[key]+1 {
				m.Fatalf("event %d: generation %d of %s follows %d", e.Seq, n, key, generation[key])
			}
			generation[key] = n
		case control.TurnBegan:
			n := int64(e.Data["turn"].(float64))
			if n != turns[e.Task]+1 {
				m.Fatalf("event %d: turn %d of %s follows %d", e.Seq, n, e.Task, turns[e.Task])
			}
			turns[e.Task] = n
		}
	}
	for _, v := range vs {
		if told := state[v.ID]; !strings.Contains(told, string(v.State)) && (told != "lost" || v.State != control.Stopping) {
			m.Fatalf("%s is %s, and the log says %s", v.ID, v.State, told)
		}
	}
}

// converge takes all faults away: disk and engine come to agree, and in the
// end everything goes that nobody keeps.
func (m *model) converge() {
	m.mend()
	m.engine.Clear()
	m.guests.Clear()
	m.passes(5 * time.Minute)
	m.check()
	vs, _, err := m.plane.Envs(control.EnvFilter{})
	m.must(err)
	known := map[string]bool{orphan: true}
	for _, v := range vs {
		s, ok := m.sandbox(v.ID)
		known["sandkeeper-test-"+v.ID] = true
		switch {
		case v.State == control.Starting, v.State == control.Stopping:
			m.Fatalf("%s is %s for ever", v.ID, v.State)
		case v.State == control.Ready && s.State != control.SandboxRunning, v.State != control.Ready && ok && s.State == control.SandboxRunning:
			m.Fatalf("%s is %s, and the engine has it %q", v.ID, v.State, s.State)
		}
	}
	list, err := m.engine.List(m.Context())
	m.must(err)
	for _, s := range list {
		if !known[s.Name] {
			m.Fatalf("leaked: %+v", s)
		}
	}
	if s, _ := m.engine.Sandbox(orphan); s.State != control.SandboxExited || len(m.plane.Orphans()) != 1 {
		m.Fatalf("the orphan is %q, and shown as %+v", s.State, m.plane.Orphans())
	}

	for _, a := range m.agents {
		m.gone(a)
	}
	for _, v := range vs {
		_, err := m.plane.Unpin(m.Context(), "operator:ada", v.ID)
		if err != nil && control.AsError(err).Kind != control.KindGenerationGone {
			m.Fatal(err)
		}
	}
	for _, s := range m.guests.Starts() {
		m.guests.End(s.Exec, control.ExecEnd{})
		m.guests.LetGo(s.Exec)
	}
	m.mu.Lock()
	for _, p := range m.processes {
		p.ended = true
	}
	m.mu.Unlock()
	m.finish()
	m.passes(time.Hour)
	m.check()
	vs, _, err = m.plane.Envs(control.EnvFilter{})
	m.must(err)
	if len(vs) > 0 {
		m.Fatalf("nobody keeps %s, which is %s: %+v", vs[0].ID, vs[0].State, vs[0])
	}
	if list, _ := m.engine.List(m.Context()); len(list) != 1 {
		m.Fatalf("leaked: %+v", list)
	}
	m.calls.Wait()
}
