package control

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// task is what shares one lock: the turn of (owner, task) and its environments.
type task struct {
	p   *Plane
	key TaskKey

	mu      sync.Mutex
	gone    bool            // dropped from memory: look it up again
	rec     TaskRecord      // guarded by mu
	envs    map[string]*env // by name: those that hold their key
	leaving map[string]*env // by id: ephemeral ones that are being torn down
}

func newTask(p *Plane, rec TaskRecord) *task {
	return &task{p: p, key: rec.Key(), rec: rec, envs: map[string]*env{}, leaving: map[string]*env{}}
}

// env is one environment in memory. rec may be read by anybody; all else is
// guarded by the task's lock.
type env struct {
	t   *task
	id  string
	rec atomic.Pointer[Env]

	job     *startJob              // the start that is under way
	attempt context.CancelFunc     // ends the attempt of a teardown that is under way
	changed chan struct{}          // closed and replaced at every change of state
	execs   map[string]*exec       // by name: waiting, running, or with processes left
	byID    map[string]*exec       // those of execs whose caller gave an id
	ended   []*exec                // lately ended, oldest first
	unended map[string]ExecRecord  // from before a restart, until their guest was asked
	unasked bool                   // its guest was not asked for its holds since the restart
	asking  bool                   // it is being asked
	readyAt time.Time              // when this process saw it become ready
	told    time.Time              // the deadline that agents were told of
	moving  map[*transfer]struct{} // files and folders on their way
}

func newEnv(t *task, rec *Env) *env {
	e := &env{t: t, id: rec.ID, changed: make(chan struct{}), execs: map[string]*exec{}, byID: map[string]*exec{},
		unended: map[string]ExecRecord{}, moving: map[*transfer]struct{}{}}
	e.rec.Store(rec)
	return e
}

// sandbox is its name on the engine.
func (e *env) sandbox() string { return e.t.p.sandboxName(e.id) }

// unknown tells whether what runs in it is not known, after a restart.
func (e *env) unknown() bool { return e.unasked || e.asking }

// bump wakes who waits for a change of state.
func (e *env) bump() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// all lists the task's environments, also those on their way out, by name.
func (t *task) all() []*env {
	l := slices.Collect(maps.Values(t.envs))
	l = slices.AppendSeq(l, maps.Values(t.leaving))
	slices.SortFunc(l, func(a, b *env) int {
		return cmp.Or(strings.Compare(a.rec.Load().Name, b.rec.Load().Name), strings.Compare(a.id, b.id))
	})
	return l
}

// lockTask returns the task, locked; its record is read from disk where it is
// not in memory, and made where there is none.
func (p *Plane) lockTask(k TaskKey) (*task, error) {
	for {
		p.mu.RLock()
		t := p.tasks[k]
		p.mu.RUnlock()
		if t == nil {
			rec, ok, err := p.o.Store.Task(k)
			if err != nil {
				return nil, &Error{Kind: KindInternal, Message: "the server could not read its database", Err: err}
			}
			if !ok {
				rec = TaskRecord{Owner: k.Owner, Task: k.Task}
			}
			p.mu.Lock()
			if t = p.tasks[k]; t == nil {
				t = newTask(p, rec)
				p.tasks[k] = t
			}
			p.mu.Unlock()
		}
		t.mu.Lock()
		if !t.gone {
			return t, nil
		}
		t.mu.Unlock()
	}
}

// lockEnv returns an environment that is not removed, its task locked; nil where there is none.
func (p *Plane) lockEnv(id string) *env {
	p.mu.RLock()
	e := p.envs[id]
	p.mu.RUnlock()
	if e == nil {
		return nil
	}
	e.t.mu.Lock()
	if e.rec.Load().State == Removed {
		e.t.mu.Unlock()
		return nil
	}
	return e
}

// evict drops tasks from memory that have nothing to decide; their counters stay on disk.
func (p *Plane) evict() {
	p.mu.RLock()
	all := slices.Collect(maps.Values(p.tasks))
	p.mu.RUnlock()
	for _, t := range all {
		if !t.mu.TryLock() {
			continue
		}
		if !t.rec.Open && len(t.envs) == 0 && len(t.leaving) == 0 && !p.dirty.has(t) {
			t.gone = true
			p.mu.Lock()
			delete(p.tasks, t.key)
			p.mu.Unlock()
			p.o.Alarms.Clear(taskAlarm(t.key))
		}
		t.mu.Unlock()
	}
}

// Holds.

// holds lists what keeps the environment's countdown from running, as of now.
func (e *env) holds(rec *Env, turn *TaskRecord, now time.Time) []Hold {
	hs := []Hold{}
	if rec.State == Starting || rec.State == Ready {
		if turn.Open && !turn.Lapsed {
			if present, until := e.t.presence(turn, now); present {
				hs = append(hs, Hold{Kind: HoldTurn, Since: At(turn.Since), Until: AtPtr(ceilMillis(until))})
			}
		}
		for _, x := range e.execs {
			if h, ok := x.hold(now); ok {
				hs = append(hs, h)
			}
			if h, ok := x.terminalHold(now); ok {
				hs = append(hs, h)
			}
		}
	}
	for m := range e.moving {
		if h, ok := m.hold(rec, now); ok {
			hs = append(hs, h)
		}
	}
	if rec.Pin != nil {
		hs = append(hs, Hold{Kind: HoldPin, Since: At(rec.Pin.Since), Until: AtPtr(ceilMillis(rec.Pin.Until))})
	}
	slices.SortFunc(hs, func(a, b Hold) int {
		return cmp.Or(a.Since.Compare(b.Since.Time), strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Ref, b.Ref))
	})
	return hs
}

// presence tells whether a participant of the turn is connected or in its
// grace, and until when that holds the turn: zero where no bound is known.
func (t *task) presence(turn *TaskRecord, now time.Time) (present bool, until time.Time) {
	connected := false
	for _, id := range turn.Sessions {
		t.p.mu.RLock()
		s := t.p.sessions[id]
		t.p.mu.RUnlock()
		if s == nil {
			continue
		}
		gone := s.goneUntil()
		if gone.IsZero() {
			connected = true
		} else if gone.After(now) {
			until = latest(until, gone)
			present = true
		}
	}
	lapse := t.lapseAt(turn)
	if connected {
		return true, lapse
	}
	return present, earliest(until, lapse)
}

// lapseAt is when max_turn drops the turn's hold: zero while a foreground exec runs, or
// it is not known yet whether one does.
func (t *task) lapseAt(turn *TaskRecord) time.Time {
	if !turn.Open || turn.Lapsed || t.p.o.MaxTurn <= 0 || t.unknown() {
		return time.Time{}
	}
	if t.foreground() {
		return time.Time{}
	}
	return ceilMillis(turn.Active.Add(t.p.o.MaxTurn))
}

// foreground tells whether a foreground exec of the task runs or waits to.
func (t *task) foreground() bool {
	for _, e := range t.envs {
		for _, x := range e.execs {
			if x.state != execLeft && !x.start.Background {
				return true
			}
		}
	}
	return false
}

// A tx is one decision in one task: changed copies of its records, and events.
// The task is locked from begin to finish.
type tx struct {
	p     *Plane
	t     *task
	now   time.Time
	envs  map[*env]*Env
	turn  *TaskRecord
	batch Batch
	must  bool     // it is to be on disk before it is answered; else it may be written behind
	state []*env   // whose change agents and waiters are told of
	after []func() // once applied, under the lock
}

func (t *task) begin() *tx {
	return &tx{p: t.p, t: t, now: t.p.Now(), envs: map[*env]*Env{}}
}

// env returns the copy to change.
func (x *tx) env(e *env) *Env {
	c, ok := x.envs[e]
	if !ok {
		c = e.rec.Load().clone()
		x.envs[e] = c
	}
	return c
}

// task returns the copy of the task's record to change.
func (x *tx) task() *TaskRecord {
	if x.turn == nil {
		c := x.t.rec
		c.Sessions = slices.Clone(c.Sessions)
		c.Generations = maps.Clone(c.Generations)
		c.Latest = maps.Clone(c.Latest)
		x.turn = &c
	}
	return x.turn
}

// event adds an event about an environment, or with nil about the task.
func (x *tx) event(e *Env, kind EventKind, actor, reason string, data map[string]any) {
	ev := Event{Time: At(x.now), Kind: kind, Owner: x.t.key.Owner, Task: x.t.key.Task, Actor: actor, Reason: reason, Data: data}
	if e != nil {
		ev.Env, ev.Name = e.ID, e.Name
	}
	x.batch.Events = append(x.batch.Events, ev)
	x.must = true
}

// moved says that the environment's state, or what agents are told of it, changed.
func (x *tx) moved(e *env) {
	x.must = true
	if !slices.Contains(x.state, e) {
		x.state = append(x.state, e)
	}
}

// activity stamps the environment and the turn. Nothing but activity does.
func (x *tx) activity(e *env, kind, actor string) {
	r := x.env(e)
	r.LastActivity = Activity{At: x.now, Kind: kind, Actor: actor}
	if !r.IdleSince.IsZero() {
		r.IdleSince = x.now
	}
	r.AnnouncedAt, r.AnnouncedRun = time.Time{}, 0
	x.turnActivity()
}

func (x *tx) turnActivity() {
	if t := x.task(); t.Open {
		t.Active, t.Lapsed = x.now, false
	}
}

// finish makes the decision durable and true. On an error nothing has changed.
func (x *tx) finish(ctx context.Context) error {
	turn := &x.t.rec
	if x.turn != nil {
		turn = x.turn
	}
	for e, c := range x.envs {
		x.settle(e, c, turn)
	}
	// What changes the turn or an exec changes the holds of every environment.
	for _, e := range x.t.envs {
		if _, ok := x.envs[e]; ok {
			continue
		}
		old := e.rec.Load()
		c := old.clone()
		x.settle(e, c, turn)
		if !c.IdleSince.Equal(old.IdleSince) || !c.Deadline.Equal(old.Deadline) {
			x.envs[e] = c
		}
	}
	if x.must {
		for _, c := range x.envs {
			x.batch.Envs = append(x.batch.Envs, c)
		}
		if x.turn != nil {
			x.batch.Tasks = append(x.batch.Tasks, *x.turn)
		}
		if err := x.p.commit(ctx, &x.batch); err != nil {
			// What the decision was about may have happened all the same.
			x.p.o.Alarms.Set(taskAlarm(x.t.key), x.now.Add(time.Second))
			return err
		}
	} else if len(x.envs) > 0 || x.turn != nil {
		x.p.markDirty(x.t)
	}
	if x.turn != nil {
		x.t.rec = *x.turn
	}
	for e, c := range x.envs {
		e.rec.Store(c)
	}
	for _, f := range x.after {
		f()
	}
	for e := range x.envs {
		x.p.hub.changed(e.id)
	}
	x.t.arm(x.now)
	for _, e := range x.state {
		e.bump()
		e.tellState()
	}
	return nil
}

// settle brings the copy's countdown in line with its holds.
func (x *tx) settle(e *env, c *Env, turn *TaskRecord) {
	held := len(e.holds(c, turn, x.now)) > 0
	switch {
	case c.State != Ready || held:
		c.IdleSince = time.Time{}
	case c.IdleSince.IsZero():
		c.IdleSince = x.now
	}
	c.Deadline = x.p.judge(c, held, x.now, x.p.ranAt(x.now)).at
}

// settle brings all countdowns in line with the holds; written behind.
func (t *task) settle(now time.Time) {
	x := t.begin()
	x.now = now
	x.finish(t.p.ctx) //nolint:errcheck // nothing is committed
}

// arm tells the alarms when to look at the task and its environments again.
func (t *task) arm(now time.Time) {
	p := t.p
	at := t.lapseAt(&t.rec)
	if t.abandoned() {
		at = now
	}
	p.setAlarm(taskAlarm(t.key), at)
	for _, e := range t.envs {
		p.setAlarm(envAlarm(e.id), e.nextLook(now))
	}
	for _, e := range t.leaving {
		p.setAlarm(envAlarm(e.id), e.nextLook(now))
	}
}

func (p *Plane) setAlarm(key string, at time.Time) {
	if at.IsZero() {
		p.o.Alarms.Clear(key)
		return
	}
	p.o.Alarms.Set(key, at)
}

// nextLook is when something is next to be decided about the environment.
func (e *env) nextLook(now time.Time) time.Time {
	r := e.rec.Load()
	if r.State == Stopping {
		if e.attempt != nil {
			return time.Time{} // its end arms the next
		}
		return latest(r.Teardown.NextAt, now)
	}
	at := r.Deadline
	if r.State == Ready && e.unknown() {
		at = time.Time{} // the answer arms it
	}
	if r.State == Ready && !at.IsZero() && e.told != at {
		at = earliest(at, latest(at.Add(-noticeLead(r.Lifetime)), now))
	}
	at = earliest(at, p0(e.t.p.announceAt(r), now))
	for _, h := range e.holds(r, &e.t.rec, now) {
		if h.Until != nil {
			at = earliest(at, h.Until.Time)
		}
	}
	return at
}

// p0 is t, or now where t has passed; zero stays zero.
func p0(t, now time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return latest(t, now)
}
