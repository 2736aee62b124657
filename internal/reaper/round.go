package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sandkeeper/internal/control"
)

// The times between two tries while the engine does not answer.
const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = 2 * time.Second
)

// retry is a time that doubles with each failure in a row.
type retry struct{ next time.Duration }

func (t *retry) reset() { t.next = 0 }

func (t *retry) after() time.Duration {
	t.next = min(max(2*t.next, firstRetry), longestRetry)
	return t.next
}

// pause waits; false once ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// housekeep lets the plane prune and look at its clocks. Where it re-based its
// clock, the timer is reckoned anew.
func (r *Reaper) housekeep() {
	for pause(r.ctx, r.o.Every) {
		r.plane.Housekeep(r.ctx)
		r.mu.Lock()
		r.arm()
		r.mu.Unlock()
	}
}

// reconcile makes a round at once, when it is asked for, and every 30 s; after
// one that failed it tries again soon.
func (r *Reaper) reconcile() {
	var failed retry
	for {
		wait := r.o.Every
		if err := r.round(); err != nil {
			wait = failed.after()
		} else {
			failed.reset()
		}
		t := time.NewTimer(wait)
		select {
		case <-r.ctx.Done():
			t.Stop()
			return
		case <-r.rounds:
			t.Stop()
		case <-t.C:
		}
	}
}

// round asks the engine how it is and what it has, and brings the plane both.
func (r *Reaper) round() error {
	ctx, cancel := context.WithTimeout(r.ctx, r.o.Timeout)
	defer cancel()
	info, err := r.o.Engine.Info(ctx)
	if err = r.seen(info, err); err != nil {
		return err
	}
	began := r.plane.Now()
	listed, err := r.o.Engine.List(ctx)
	if err = r.seen(info, err); err != nil {
		return err
	}
	if err := r.plane.Reconcile(r.ctx, listed, began); err != nil && r.ctx.Err() == nil {
		r.o.Log.Warn("reconcile", "err", err) // the next round comes to the same
	}
	return nil
}

// seen tells the plane how a question to the engine went. One that was not
// answered in time says the same as a refused connection.
func (r *Reaper) seen(info control.EngineInfo, err error) error {
	if r.ctx.Err() != nil {
		return r.ctx.Err() // going down says nothing about the engine
	}
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, control.ErrEngineUnavailable) {
		err = fmt.Errorf("%w: %w", control.ErrEngineUnavailable, err)
	}
	if err != nil && !errors.Is(err, control.ErrEngineUnavailable) {
		r.o.Log.Warn("engine", "err", err)
	}
	r.plane.EngineSeen(r.ctx, info, err)
	return err
}

// watch follows the engine's events. Whenever the stream stands anew it asks
// for a round, since events may have been lost before.
func (r *Reaper) watch() {
	var (
		failed retry
		since  = time.Now()
	)
	for {
		err := r.o.Engine.Watch(r.ctx, since, func() {
			failed.reset()
			r.askRound()
		}, func(ev control.EngineEvent) {
			if ev.At.After(since) {
				since = ev.At
			}
			if r.plane.Observe(r.ctx, ev) {
				r.askRound()
			}
		})
		if r.ctx.Err() != nil {
			return
		}
		r.o.Log.Info("engine events ended", "err", err)
		r.askRound() // it tells the plane whether the engine is gone
		if !pause(r.ctx, failed.after()) {
			return
		}
	}
}

// askRound asks for a round, unless one is asked for already.
func (r *Reaper) askRound() {
	select {
	case r.rounds <- struct{}{}:
	default:
	}
}
