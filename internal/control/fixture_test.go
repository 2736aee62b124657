package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// tester is what a fixture needs of a *testing.T, or of a *rapid.T.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
	Context() context.Context
}

// A fixture is a plane on fakes, in a bubble of fake time, with one agent
// connected. Its verbs fail the test where the plane refuses; those that begin
// with try return the error.
type fixture struct {
	tester
	o      control.Options
	engine *controltest.Engine
	guests *controltest.Guests
	store  *controltest.MemoryStore

	plane   *control.Plane
	alarms  *controltest.Alarms
	stop    func()
	agent   *control.Session
	sink    *sink
	seen    uint64 // the last event that a told looked at
	checked uint64 // the last event that was held against the contract
	wall    time.Duration
	watch   func(*control.Batch) error // asked before each commit
	mortal  *life                      // whose calls go to the store; nil: nobody counts
}

// rule runs a test in a bubble. Options are changed before the plane opens.
func rule(t *testing.T, name string, test func(f *fixture), change ...func(o *control.Options)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, change...)
			defer f.close()
			test(f)
		})
	})
}

func newFixture(t tester, change ...func(o *control.Options)) *fixture {
	e := controltest.NewEngine()
	f := &fixture{tester: t, engine: e, guests: controltest.NewGuests(e), store: controltest.NewMemoryStore()}
	info, _ := e.Info(t.Context())
	f.o = control.Options{
		Instance: "test", Engine: e, Guests: f.guests, EngineInfo: info, Image: "debian", Limits: control.Limits{CPUs: 1, MemoryMB: 512},
		Lifetime: 5 * time.Minute, Retention: 168 * time.Hour, DisconnectGrace: time.Minute, RestartGrace: time.Minute,
		Wall: func() time.Time { return time.Now().Add(f.wall) },
	}
	for _, c := range change {
		c(&f.o)
	}
	f.open()
	f.agent, f.sink = f.connect("hermes")
	f.mark()
	return f
}

// open opens a plane on the store, as a new process does.
func (f *fixture) open() {
	f.Helper()
	f.alarms = controltest.NewAlarms()
	f.o.Store, f.o.Alarms = f.store, f.alarms
	if f.mortal != nil {
		f.o.Store = mortalStore{f.store, f.mortal}
	}
	if f.watch != nil {
		f.store.OnCommit(f.watch)
	}
	p, err := control.Open(f.Context(), f.o)
	if f.mortal != nil && f.mortal.isDead() { // it did not live to see it
		f.plane = nil
		if p != nil {
			p.Close(context.WithoutCancel(f.Context())) //nolint:errcheck // a dead process closes nothing
		}
		return
	}
	f.must(err)
	f.plane = p
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.alarms.Run(ctx, p)
	}()
	f.stop = func() { cancel(); <-done }
	synctest.Wait()
}

func (f *fixture) close() {
	f.Helper()
	f.stop()
	err := f.plane.Close(context.WithoutCancel(f.Context()))
	if f.mortal != nil && f.mortal.isDead() {
		return
	}
	f.must(err)
	f.checkEvents()
}

// checkEvents holds the log against the contract.
func (f *fixture) checkEvents() {
	f.Helper()
	events, _, last, err := f.store.Events(f.checked, 1<<20, control.EventFilter{})
	f.must(err)
	f.checked = last
	for i := range events {
		if strings.HasPrefix(string(events[i].Kind), "operator.") {
			continue // the dashboard's: here the tests make them up
		}
		b, err := json.Marshal(events[i].View())
		f.must(err)
		if err := contracttest.Event(b); err != nil {
			f.Errorf("%s: %v", b, err)
		}
	}
}

// restart closes the plane and opens another on the same store; down passes in between.
func (f *fixture) restart(down time.Duration) {
	f.Helper()
	f.close()
	time.Sleep(down)
	f.open()
}

// crash is a restart without a close: what was not on disk is lost.
func (f *fixture) crash(down time.Duration) {
	f.Helper()
	disk := f.store.Reopen()
	f.close() // its last writes go to a disk that nobody reads
	f.store = disk
	time.Sleep(down)
	f.open()
}

// connect opens a session of the owner "default".
func (f *fixture) connect(name string, change ...func(h *control.Hello)) (*control.Session, *sink) {
	f.Helper()
	h := control.Hello{Agent: name}
	for _, c := range change {
		c(&h)
	}
	k := &sink{}
	s, _, err := f.plane.Hello(f.Context(), "default", h, k)
	f.must(err)
	return s, k
}

// resume takes a session up again; ok tells whether it was there.
func (f *fixture) resume(id string) (s *control.Session, k *sink, ok bool) {
	f.Helper()
	k = &sink{}
	s, ok, err := f.plane.Hello(f.Context(), "default", control.Hello{Agent: "hermes", Session: id}, k)
	f.must(err)
	return s, k, ok
}

// as acts for another session.
func (f *fixture) as(s *control.Session) *fixture {
	g := *f
	g.agent = s
	return &g
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// advance lets time pass, and all that is due in it happen.
func (f *fixture) advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// An ask changes what an acquire asks for.
type ask func(r *control.AcquireRequest)

func ptr[T any](v T) *T { return &v }

func persistent(r *control.AcquireRequest) { r.Persistent = ptr(true) }
func ephemeral(r *control.AcquireRequest)  { r.Persistent = ptr(false) }

func named(name string) ask { return func(r *control.AcquireRequest) { r.Name = name } }
func lifetime(d time.Duration) ask {
	return func(r *control.AcquireRequest) { r.LifetimeS = ptr(int64(d / time.Second)) }
}
func maxAge(d time.Duration) ask {
	return func(r *control.AcquireRequest) { r.MaxAgeS = ptr(int64(d / time.Second)) }
}
func image(s string) ask   { return func(r *control.AcquireRequest) { r.Image = &s } }
func onDrift(s string) ask { return func(r *control.AcquireRequest) { r.OnDrift = s } }

func (f *fixture) tryAcquire(task string, asks ...ask) (control.Acquired, error) {
	r := control.AcquireRequest{Task: task}
	for _, a := range asks {
		a(&r)
	}
	return f.agent.Acquire(f.Context(), r)
}

func (f *fixture) acquire(task string, asks ...ask) control.Acquired {
	f.Helper()
	a, err := f.tryAcquire(task, asks...)
	f.must(err)
	return a
}

// An acquiring is an acquire that has not answered yet.
type acquiring struct {
	done chan struct{}
	control.Acquired
	err error
}

func (f *fixture) acquireLater(task string, asks ...ask) *acquiring {
	a := &acquiring{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.Acquired, a.err = f.tryAcquire(task, asks...)
	}()
	synctest.Wait()
	return a
}

// answered waits until everything stands still, and tells whether the call has answered.
func answered(c chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (f *fixture) tryEnd(task string, turn ...int64) (control.TurnEnd, error) {
	r := control.TurnEndRequest{Task: task}
	if len(turn) > 0 {
		r.Turn = &turn[0]
	}
	return f.agent.TurnEnd(f.Context(), r)
}

func (f *fixture) endTurn(task string) control.TurnEnd {
	f.Helper()
	e, err := f.tryEnd(task)
	f.must(err)
	synctest.Wait()
	return e
}

// idle makes a persistent environment whose turn has ended just now.
func (f *fixture) idle(task string, asks ...ask) (id string) {
	f.Helper()
	id = f.acquire(task, append([]ask{persistent}, asks...)...).Env.ID
	f.endTurn(task)
	return id
}

// dormant makes a persistent environment that was stopped just now.
func (f *fixture) dormant(task string, asks ...ask) (id string) {
	f.Helper()
	id = f.idle(task, asks...)
	_, err := f.plane.Stop(f.Context(), "operator:ada", id)
	f.must(err)
	synctest.Wait()
	f.inState(id, control.Dormant)
	return id
}

func (f *fixture) tryRun(task, command string, change ...func(r *control.RunRequest)) (control.Ran, error) {
	r := control.RunRequest{Ref: control.Ref{Task: task}, Command: command}
	for _, c := range change {
		c(&r)
	}
	return f.agent.Run(f.Context(), r)
}

func withID(id string) func(r *control.RunRequest) { return func(r *control.RunRequest) { r.ID = id } }
func timeout(d time.Duration) func(r *control.RunRequest) {
	return func(r *control.RunRequest) { r.TimeoutS = ptr(int64(d / time.Second)) }
}
func inEnv(id string) func(r *control.RunRequest) {
	return func(r *control.RunRequest) { r.Ref = control.Ref{Env: id} }
}
func inGeneration(n int64) func(r *control.RunRequest) {
	return func(r *control.RunRequest) { r.Generation = &n }
}

func (f *fixture) run(task, command string, change ...func(r *control.RunRequest)) control.Ran {
	f.Helper()
	r, err := f.tryRun(task, command, change...)
	f.must(err)
	return r
}

// A running is an exec.run that has not answered yet.
type running struct {
	done chan struct{}
	control.Ran
	err error
}

// runLater starts a command that runs until end is called.
func (f *fixture) runLater(task, command string, change ...func(r *control.RunRequest)) *running {
	f.guests.OnStart(controltest.Running)
	r := &running{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.Ran, r.err = f.tryRun(task, command, change...)
	}()
	synctest.Wait()
	return r
}

// end ends the command that was started last.
func (f *fixture) end(e control.ExecEnd) {
	f.Helper()
	s := f.guests.Starts()
	if len(s) == 0 || !f.guests.End(s[len(s)-1].Exec, e) {
		f.Fatal("no command to end")
	}
	synctest.Wait()
}

func (f *fixture) view(id string) control.View {
	f.Helper()
	v, err := f.plane.Env(id)
	f.must(err)
	return v
}

func (f *fixture) inState(id string, want control.State) {
	f.Helper()
	got := control.Removed
	v, err := f.plane.Env(id)
	if err == nil {
		got = v.State
	} else if control.AsError(err).Kind != control.KindGenerationGone {
		f.Fatal(err)
	}
	if got != want {
		f.Fatalf("the environment is %s, want %s", got, want)
	}
}

// dueIn checks that the reaper acts that long from now; a negative time: it does not.
func (f *fixture) dueIn(id string, want time.Duration) {
	f.Helper()
	v := f.view(id)
	switch {
	case want < 0 && v.Deadline != nil:
		f.Fatalf("the deadline is in %s, want none", v.Deadline.Sub(v.Now.Time))
	case want >= 0 && v.Deadline == nil:
		f.Fatalf("there is no deadline, want one in %s; holds %+v", want, v.Holds)
	case want >= 0 && v.Deadline.Sub(v.Now.Time) != want:
		f.Fatalf("the deadline is in %s, want %s", v.Deadline.Sub(v.Now.Time), want)
	}
}

var errDisk = errors.New("no space left on device")

const never = time.Duration(-1)

// held checks the kinds of the holds that stand.
func (f *fixture) held(id string, kinds ...control.HoldKind) {
	f.Helper()
	got := []control.HoldKind{}
	for _, h := range f.view(id).Holds {
		got = append(got, h.Kind)
	}
	slices.Sort(got)
	slices.Sort(kinds)
	if !slices.Equal(got, kinds) {
		f.Fatalf("held by %v, want %v", got, kinds)
	}
}

// sandbox is what the engine has of an environment.
func (f *fixture) sandbox(id string) (control.SandboxStatus, bool) {
	return f.engine.Sandbox("sandkeeper-test-" + id)
}

func (f *fixture) onEngine(id string, want control.SandboxState) {
	f.Helper()
	got, ok := f.sandbox(id)
	if !ok && want != "" || ok && got.State != want {
		f.Fatalf("the engine has it %q, want %q", got.State, want)
	}
}

// reconcile is one round of the reconciler.
func (f *fixture) reconcile() {
	f.Helper()
	began := f.plane.Now()
	list, err := f.engine.List(f.Context())
	f.must(err)
	f.must(f.plane.Reconcile(f.Context(), list, began))
	synctest.Wait()
}

// die ends a sandbox by itself; the engine's event arrives at once.
func (f *fixture) die(id string, exitCode int, oom bool) {
	f.Helper()
	name := "sandkeeper-test-" + id
	if !f.engine.Die(name, exitCode, oom) {
		f.Fatal("the sandbox does not run")
	}
	f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: id, Kind: control.SandboxDied, ExitCode: exitCode, OOM: oom, At: time.Now()})
	synctest.Wait()
}

func (f *fixture) log() []control.Event {
	f.Helper()
	ev, _, _, err := f.plane.Events(f.seen, 1_000_000, control.EventFilter{})
	f.must(err)
	return ev
}

// mark lets the next told begin after what was told so far.
func (f *fixture) mark() {
	if ev := f.log(); len(ev) > 0 {
		f.seen = ev[len(ev)-1].Seq
	}
}

// told checks the events since the last told, as "kind", or "kind by ACTOR"
// where that is no agent.
func (f *fixture) told(want ...string) []control.Event {
	f.Helper()
	ev := f.log()
	f.mark()
	got := make([]string, len(ev))
	for i, e := range ev {
		got[i] = string(e.Kind)
		if !strings.HasPrefix(e.Actor, "agent:") {
			got[i] += " by " + e.Actor
		}
	}
	if !slices.Equal(got, want) {
		f.Fatalf("the log tells\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	return ev
}

// refused checks the kind of an error and returns it.
func (f *fixture) refused(err error, want control.Kind) *control.Error {
	f.Helper()
	e, ok := errors.AsType[*control.Error](err)
	if !ok || e.Kind != want {
		f.Fatalf("got %v, want %s", err, want)
	}
	return e
}

func (f *fixture) equal(what string, got, want any) {
	f.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		f.Fatalf("%s is %s, want %s", what, g, w)
	}
}

func contextWithCancel(f *fixture) (context.Context, context.CancelFunc) {
	return context.WithCancel(f.Context())
}

func asJSON(f *fixture, v any) string {
	f.Helper()
	b, err := json.Marshal(v)
	f.must(err)
	return string(b)
}

// A sink keeps what a session's socket is told.
type sink struct {
	mu       sync.Mutex
	states   []control.View
	expiring []control.Time
	replaced int
}

func (k *sink) EnvState(v control.View) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.states = append(k.states, v)
}

func (k *sink) EnvExpiring(_ string, deadline control.Time, _ time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expiring = append(k.expiring, deadline)
}

func (k *sink) Replaced() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.replaced++
}

// takeStates returns the states that were told since it was last asked.
func (k *sink) takeStates() (l []control.State) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.states {
		l = append(l, v.State)
	}
	k.states = nil
	return l
}

func (k *sink) takeExpiring() []control.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.expiring
	k.expiring = nil
	return l
}
