package controltest

import (
	"context"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

// Alarms asks a plane when an alarm is due, each key by a timer of its own. It
// is the reaper's stand-in for tests of the plane.
type Alarms struct {
	mu      sync.Mutex // guards the fields below
	plane   Plane
	ctx     context.Context
	alarms  map[string]*alarm
	running sync.WaitGroup
}

// Plane is what alarms ask.
type Plane interface {
	Now() time.Time
	Due(ctx context.Context, key string) (teardown bool)
	Teardown(ctx context.Context, key string)
}

type alarm struct {
	at    time.Time   // zero: none is set
	timer *time.Timer // nil before Run
	busy  bool        // the plane is being asked: a Set meanwhile waits for it
}

var _ control.Alarms = (*Alarms)(nil)

// NewAlarms makes alarms that are kept until Run.
func NewAlarms() *Alarms { return &Alarms{alarms: map[string]*alarm{}} }

// Run asks the plane from now on, also for what was set before. It returns
// once ctx has ended and no call of the plane runs.
func (a *Alarms) Run(ctx context.Context, p Plane) {
	a.mu.Lock()
	a.plane, a.ctx = p, ctx
	for key := range a.alarms {
		a.arm(key)
	}
	a.mu.Unlock()
	<-ctx.Done()
	a.mu.Lock()
	for _, al := range a.alarms {
		if al.timer != nil {
			al.timer.Stop()
		}
	}
	a.mu.Unlock()
	a.running.Wait()
}

// Set sets the time of a key.
func (a *Alarms) Set(key string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	al := a.alarms[key]
	if al == nil {
		al = &alarm{}
		a.alarms[key] = al
	}
	al.at = at
	a.arm(key)
}

// Clear takes a key's time away.
func (a *Alarms) Clear(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	al := a.alarms[key]
	if al == nil {
		return
	}
	al.at = time.Time{}
	if al.timer != nil {
		al.timer.Stop()
	}
	if !al.busy {
		delete(a.alarms, key)
	}
}

// Rearm reckons every timer anew: to be called after the plane's clock was re-based.
func (a *Alarms) Rearm() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range a.alarms {
		a.arm(key)
	}
}

// At returns the time that is set for a key; ok is false where none is.
func (a *Alarms) At(key string) (at time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	al := a.alarms[key]
	if al == nil || al.at.IsZero() {
		return time.Time{}, false
	}
	return al.at, true
}

// arm starts the timer of a key. It is called with mu held.
func (a *Alarms) arm(key string) {
	al := a.alarms[key]
	if a.plane == nil || al.busy || al.at.IsZero() || a.ctx.Err() != nil {
		return
	}
	if al.timer != nil {
		al.timer.Stop()
	}
	at := al.at
	al.timer = time.AfterFunc(at.Sub(a.plane.Now()), func() { a.fire(key, al, at) })
}

func (a *Alarms) fire(key string, al *alarm, at time.Time) {
	a.mu.Lock()
	if a.alarms[key] != al || al.busy || !al.at.Equal(at) || a.ctx.Err() != nil {
		a.mu.Unlock()
		return
	}
	al.busy, al.at = true, time.Time{}
	a.running.Add(1)
	a.mu.Unlock()
	defer a.running.Done()

	if a.plane.Due(a.ctx, key) {
		a.plane.Teardown(a.ctx, key)
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	al.busy = false
	if al.at.IsZero() {
		delete(a.alarms, key)
		return
	}
	a.arm(key)
}
