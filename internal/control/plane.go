package control

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Plane is the control plane of one instance. Its methods are safe for use by
// many goroutines.
type Plane struct {
	o      Options
	log    *slog.Logger
	clock  *clock
	hub    *hub
	ranWas time.Duration // on this data, before this process

	ctx      context.Context // of what runs in the background
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	draining atomic.Bool

	// orphanMu is held over each decision about an orphan. It is taken before any task's lock.
	orphanMu sync.Mutex
	purged   map[string]time.Time // sandboxes of orphans, when; guarded by orphanMu

	// mu guards the maps. It is taken inside a task's lock, never around one.
	mu       sync.RWMutex
	tasks    map[TaskKey]*task
	envs     map[string]*env
	owners   map[string]int // environments that are not removed, by owner
	sessions map[string]*Session
	orphans  map[string]Orphan

	subscribers subscribers

	engine engineStatus
	dirty  dirtySet
	execs  execIndex
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{
		{&o.Lifetime, 5 * time.Minute},
		{&o.DisconnectGrace, time.Minute},
		{&o.MaxTurn, time.Hour},
		{&o.BackgroundMaxAge, 24 * time.Hour},
		{&o.FailedAfter, 10 * time.Minute},
		{&o.AcquireWait, 30 * time.Second},
		{&o.StartTimeout, time.Minute},
		{&o.PullTimeout, 10 * time.Minute},
		{&o.TeardownTimeout, 30 * time.Second},
		{&o.EventsMaxAge, 30 * 24 * time.Hour},
	} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if o.MaxExecsPerEnv == 0 {
		o.MaxExecsPerEnv = 64
	}
	if o.MaxEnvsPerOwner == 0 {
		o.MaxEnvsPerOwner = 10_000
	}
	if o.EventsKeep == 0 {
		o.EventsKeep = 1_000_000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Open loads the records and applies what a restart means to them: what was
// under way goes on, sessions have their grace, and a countdown that was
// running has the restart grace.
func Open(ctx context.Context, o Options) (*Plane, error) {
	o.setDefaults()
	recs, err := o.Store.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("load records: %w", err)
	}
	p := &Plane{
		o: o, log: o.Log, clock: newClock(o.Wall), ranWas: recs.Ran,
		tasks: map[TaskKey]*task{}, envs: map[string]*env{}, owners: map[string]int{},
		sessions: map[string]*Session{}, orphans: map[string]Orphan{}, purged: map[string]time.Time{},
	}
	p.ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	p.hub = newHub(o.Store)
	o.Store.Publish(p.hub.publish)
	p.engine.info = o.EngineInfo
	p.engine.reachable = true
	p.engine.since = p.Now()
	if err := p.Record(ctx, Event{Kind: ServerStarted, Actor: ActorServer, Data: map[string]any{"instance": o.Instance, "envs": len(recs.Envs)}}); err != nil {
		return nil, fmt.Errorf("record the start: %w", err)
	}
	p.restore(recs)
	return p, nil
}

// restore takes over what an earlier process left.
func (p *Plane) restore(recs *Records) {
	now := p.Now()
	for _, r := range recs.Tasks {
		p.tasks[r.Key()] = newTask(p, r)
	}
	for _, r := range recs.Sessions {
		r.Disconnected = now // nobody could connect while we were down: the grace begins anew
		s := &Session{p: p, rec: r, used: r.Used}
		s.init()
		p.sessions[r.ID] = s
		p.o.Alarms.Set(sessionAlarm(r.ID), now.Add(r.Grace))
	}
	for _, o := range recs.Orphans {
		p.orphans[o.Name] = o
	}
	for _, r := range recs.Envs {
		t := p.tasks[TaskKey{r.Owner, r.Task}]
		if t == nil {
			t = newTask(p, TaskRecord{Owner: r.Owner, Task: r.Task})
			p.tasks[t.key] = t
		}
		r = r.clone()
		r.clampTo(now)
		// A countdown that was running has the grace; one that starts later has none.
		if !r.Deadline.IsZero() {
			r.NotBefore = now.Add(p.o.RestartGrace)
		}
		e := newEnv(t, r)
		e.unasked = r.State == Ready
		p.envs[r.ID] = e
		p.owners[r.Owner]++
		if r.Holder() {
			t.envs[r.Name] = e
		} else {
			t.leaving[r.ID] = e
		}
	}
	for _, x := range recs.Execs {
		if e := p.envs[x.Env]; e != nil {
			e.unended[x.Exec] = x
		}
	}
	for _, t := range p.tasks {
		t.mu.Lock()
		for _, id := range t.rec.Sessions {
			if s := p.sessions[id]; s != nil {
				s.join(t.key)
			}
		}
		for _, e := range t.all() {
			switch r := e.rec.Load(); r.State {
			case Starting:
				e.launch(howFor(r))
			case Stopping:
				c := r.clone()
				c.Teardown.NextAt = now
				e.rec.Store(c)
			}
		}
		t.settle(now)
		t.mu.Unlock()
		if t.rec.Open { // one whose participants did not outlive the restart is over
			p.o.Alarms.Set(taskAlarm(t.key), now)
		}
	}
}

// clampTo pulls times that lie ahead back to now: the wall clock went back
// while nobody ran.
func (e *Env) clampTo(now time.Time) {
	for _, t := range []*time.Time{&e.StartedAt, &e.ReadyAt, &e.IdleSince, &e.DormantSince, &e.UnpinnedAt, &e.FailedAt, &e.AnnouncedAt, &e.LastActivity.At} {
		if t.After(now) {
			*t = now
		}
	}
}

func (e *Env) clone() *Env {
	c := *e
	if e.Teardown != nil {
		t := *e.Teardown
		c.Teardown = &t
	}
	return &c
}

// Close waits for what runs in the plane and writes what is not yet on disk.
// Sandboxes and their commands go on.
func (p *Plane) Close(ctx context.Context) error {
	p.cancel()
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.flush(ctx)
}

// Drain refuses new work with KindDraining from now on.
func (p *Plane) Drain(ctx context.Context) {
	if p.draining.CompareAndSwap(false, true) {
		if err := p.Record(ctx, Event{Kind: ServerStopping, Actor: ActorServer}); err != nil {
			p.log.Warn("record the stop", "err", err)
		}
	}
}

func (p *Plane) checkDraining() error {
	if p.draining.Load() {
		return Errorf(KindDraining, "the server is going down; connect again in a moment")
	}
	return nil
}

// Now is the plane's clock: the wall clock at start, carried on by the
// monotonic one. It has no monotonic reading.
func (p *Plane) Now() time.Time { return p.clock.now() }

// ranAt is how long servers have run on this data, at that time of our clock.
func (p *Plane) ranAt(now time.Time) time.Duration { return p.ranWas + now.Sub(p.clock.origin()) }

// Record writes an event that is nobody's decision here, such as a sign-in.
func (p *Plane) Record(ctx context.Context, ev Event) error {
	ev.Time = At(p.Now())
	return p.commit(ctx, &Batch{Events: []Event{ev}})
}

// commit writes a batch. Its caller's context may end: a batch that is queued is not withdrawn.
func (p *Plane) commit(ctx context.Context, b *Batch) error {
	if err := p.o.Store.Commit(context.WithoutCancel(ctx), b); err != nil {
		p.log.Error("commit", "err", err)
		return &Error{Kind: KindInternal, Message: "the server could not write to its database; nothing was changed", Err: err}
	}
	return nil
}

// background runs f until it returns; Close waits for it.
func (p *Plane) background(f func()) { p.wg.Go(f) }

// newID is 10 characters, 50 bits, for names that people read.
func newID() string {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:10]
}

// sandboxName derives the name on the engine, the same on every try.
func (p *Plane) sandboxName(id string) string { return "sandkeeper-" + p.o.Instance + "-" + id }

// The keys of alarms.
func envAlarm(id string) string     { return "env:" + id }
func sessionAlarm(id string) string { return "session:" + id }
func taskAlarm(k TaskKey) string    { return "task:" + k.Owner + "\x00" + k.Task }

func parseTask(id string) TaskKey {
	owner, task, _ := strings.Cut(id, "\x00")
	return TaskKey{owner, task}
}

func parseAlarm(key string) (kind, id string) {
	kind, id, _ = strings.Cut(key, ":")
	return kind, id
}
