// Package reaper is when things happen; what happens is the plane's to decide.
//
// It keeps one queue of deadlines and sleeps until the earliest: there is no
// polling, and no wake-up between deadlines. What is due is asked of the plane
// by a bounded number of calls at once, in the order of the deadlines; a
// teardown that becomes due runs in a bounded number of its own, so that one
// that hangs delays neither a decision nor another teardown. A key is never
// worked on twice at once: a deadline that is set meanwhile is honoured after.
//
// Beside that it brings the plane the engine's events and listings: at start,
// after each connection to the engine's events, where an event asks for one,
// and every 30 s as the safety net. While the engine does not answer it is asked again after 100 ms, and
// then at ever longer times up to 2 s; deadlines go on meanwhile.
package reaper

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

// Plane is what the reaper asks; *control.Plane fulfils it.
type Plane interface {
	Now() time.Time
	Due(ctx context.Context, key string) (teardown bool)
	Teardown(ctx context.Context, key string)
	Reconcile(ctx context.Context, listed []control.SandboxStatus, began time.Time) error
	Observe(ctx context.Context, ev control.EngineEvent) (look bool)
	EngineSeen(ctx context.Context, info control.EngineInfo, err error)
	Housekeep(ctx context.Context)
}

// Engine is what the reaper needs of an engine; engine.Engine fulfils it.
type Engine interface {
	Info(ctx context.Context) (control.EngineInfo, error)
	List(ctx context.Context) ([]control.SandboxStatus, error)
	Watch(ctx context.Context, since time.Time, ready func(), fn func(control.EngineEvent)) error
}

// Options configures a Reaper. Zero fields take the default named.
type Options struct {
	Engine    Engine
	Log       *slog.Logger  // none
	Dues      int           // how many keys the plane is asked about at once; 512
	Teardowns int           // how many teardowns run at once; 32
	Every     time.Duration // between two rounds, and two housekeepings; 30 s
	Timeout   time.Duration // after which a question counts as not answered by the engine; 20 s
}

// Reaper is the deadline queue and the rounds. It is made before the plane,
// which sets its alarms, and started with it.
type Reaper struct {
	o      Options
	plane  Plane // from Start on
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // all goroutines of ours
	rounds chan struct{}  // a token asks for a round

	mu        sync.Mutex // guards the fields below
	queue     *queue
	timer     *time.Timer      // fires at the earliest deadline; nil until Start
	busy      map[string]later // keys that are worked on
	dues      int              // running
	teardowns int              // running
	waiting   []string         // keys whose teardown waits for its turn
}

// later is the deadline that was set for a key while it was worked on.
type later struct {
	at  time.Time
	set bool
}

var _ control.Alarms = (*Reaper)(nil)

// New makes a reaper that keeps its alarms until Start.
func New(o Options) *Reaper {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Dues <= 0 {
		o.Dues = 512
	}
	if o.Teardowns <= 0 {
		o.Teardowns = 32
	}
	if o.Every <= 0 {
		o.Every = 30 * time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 20 * time.Second
	}
	return &Reaper{o: o, rounds: make(chan struct{}, 1), queue: newQueue(), busy: map[string]later{}}
}

// Start begins to ask the plane, until ctx ends or Stop. It is called once.
func (r *Reaper) Start(ctx context.Context, p Plane) {
	r.plane = p
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.mu.Lock()
	r.timer = time.NewTimer(0)
	r.arm()
	r.mu.Unlock()
	r.wg.Go(r.sleep)
	r.wg.Go(r.housekeep)
	r.wg.Go(r.reconcile)
	r.wg.Go(r.watch)
}

// Stop ends everything and waits for what runs; a teardown is cut short, and
// stays a job on disk. Without a Start it does nothing.
func (r *Reaper) Stop() {
	if r.cancel == nil {
		return
	}
	r.cancel()
	r.wg.Wait()
}

// Set gives a key its deadline, on the plane's clock, in place of an earlier one.
func (r *Reaper) Set(key string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.busy[key]; ok {
		r.busy[key] = later{at, true}
		return
	}
	r.change(func() { r.queue.set(key, at) })
}

// Clear takes a key's deadline away. One that is worked on goes on.
func (r *Reaper) Clear(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.busy[key]; ok {
		r.busy[key] = later{}
		return
	}
	r.change(func() { r.queue.clear(key) })
}

// change changes the queue, and the timer only where the earliest deadline is
// another one after it. It is called with mu held, as is all below but the goroutines.
func (r *Reaper) change(fn func()) {
	before, had := r.queue.first()
	fn()
	after, has := r.queue.first()
	if had != has || !before.Equal(after) {
		r.arm()
	}
}

// arm sets the timer to the earliest deadline. While as many calls run as may,
// it is off: each that ends takes what is due then.
func (r *Reaper) arm() {
	if r.timer == nil {
		return
	}
	at, ok := r.queue.first()
	if !ok || r.dues >= r.o.Dues || r.ctx.Err() != nil {
		r.timer.Stop()
		return
	}
	r.timer.Reset(at.Sub(r.plane.Now()))
}

// take takes out the next key that is due, as one that is worked on.
func (r *Reaper) take() (key string, ok bool) {
	if r.ctx.Err() != nil {
		return "", false
	}
	key, ok = r.queue.popDue(r.plane.Now())
	if ok {
		r.busy[key] = later{}
	}
	return key, ok
}

// done ends the work on a key: a deadline that was set meanwhile counts from now on.
func (r *Reaper) done(key string) {
	next := r.busy[key]
	delete(r.busy, key)
	if next.set {
		r.change(func() { r.queue.set(key, next.at) })
	}
}

// sleep wakes at each deadline and hands out what is due.
func (r *Reaper) sleep() {
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.timer.C:
		}
		r.mu.Lock()
		for r.dues < r.o.Dues {
			key, ok := r.take()
			if !ok {
				break
			}
			r.dues++
			r.wg.Go(func() { r.ask(key) })
		}
		r.arm()
		r.mu.Unlock()
	}
}

// ask asks the plane about a key, and then about whatever else is due.
func (r *Reaper) ask(key string) {
	for ok := true; ok; {
		teardown := r.plane.Due(r.ctx, key)
		r.mu.Lock()
		if teardown {
			r.tearDown(key)
		} else {
			r.done(key)
		}
		if key, ok = r.take(); !ok {
			r.dues--
			r.arm()
		}
		r.mu.Unlock()
	}
}

// tearDown starts the teardown of a key, or lets it wait for its turn.
func (r *Reaper) tearDown(key string) {
	if r.teardowns >= r.o.Teardowns {
		r.waiting = append(r.waiting, key)
		return
	}
	r.teardowns++
	r.wg.Go(func() {
		for ok := true; ok; {
			r.plane.Teardown(r.ctx, key)
			r.mu.Lock()
			r.done(key)
			if ok = len(r.waiting) > 0 && r.ctx.Err() == nil; ok {
				key, r.waiting = r.waiting[0], r.waiting[1:]
			} else {
				r.teardowns--
			}
			r.mu.Unlock()
		}
	})
}
