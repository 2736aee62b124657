package control

import (
	"context"
	"sync/atomic"
	"time"
)

// clock tells the plane's time: the wall clock as it was at start, carried on
// by the monotonic one. A wall clock that is set anew changes nothing until
// rebase says so, so that no deadline comes early because of it.
type clock struct {
	wall  func() time.Time
	start time.Time    // with its monotonic reading
	shift atomic.Int64 // nanoseconds added by rebases
}

func newClock(wall func() time.Time) *clock {
	if wall == nil {
		wall = time.Now
	}
	c := &clock{wall: wall, start: time.Now()}
	c.shift.Store(int64(wall().Round(0).Sub(c.start.Round(0))))
	return c
}

// now has no monotonic reading: it is compared with times from disk.
func (c *clock) now() time.Time {
	return c.start.Round(0).Add(time.Since(c.start) + time.Duration(c.shift.Load())).UTC()
}

// origin is the start of this process on our clock.
func (c *clock) origin() time.Time {
	return c.start.Round(0).Add(time.Duration(c.shift.Load())).UTC()
}

// drift is how far the wall clock has parted from ours.
func (c *clock) drift() time.Duration { return c.wall().Round(0).Sub(c.now()) }

func (c *clock) rebase(by time.Duration) { c.shift.Add(int64(by)) }

// checkClock re-bases every armed deadline when the wall clock has parted from
// ours: what was left of it stays. What people were promised as a time of day,
// a pin's end, stays too.
//
// It is done to all at once, every task and session locked: an activity is
// stamped by the old clock and moved along, or by the new one and not moved.
func (p *Plane) checkClock(ctx context.Context) {
	by := p.clock.drift()
	if by.Abs() <= time.Second {
		return
	}
	tasks, sessions := p.lockAll()
	p.clock.rebase(by)
	p.mu.Unlock()
	now := p.Now()
	for _, s := range sessions {
		shift(by, &s.rec.Disconnected)
		if d := s.rec.Disconnected; !d.IsZero() {
			p.o.Alarms.Set(sessionAlarm(s.rec.ID), d.Add(s.rec.Grace))
		}
		s.mu.Unlock()
		p.markSessionDirty(s)
	}
	for _, t := range tasks {
		t.shift(by, now)
	}
	for _, t := range tasks {
		t.mu.Unlock()
		p.markDirty(t)
	}
	if err := p.flush(ctx); err != nil {
		p.log.Error("re-base", "err", err) // what failed is marked again
	}
	p.log.Warn("the wall clock jumped; deadlines were re-based", "by", by)
	p.Record(ctx, Event{Kind: ClockJumped, Actor: ActorServer, Reason: "the wall clock moved by " + seconds(by.Round(time.Millisecond)), Data: map[string]any{"seconds": by.Seconds()}}) //nolint:errcheck // logged
}

// lockAll locks every task, every session and, last, the maps, so that none is missing.
func (p *Plane) lockAll() (tasks []*task, sessions []*Session) {
	haveTasks, haveSessions := map[*task]struct{}{}, map[*Session]struct{}{}
	for {
		var newTasks []*task
		var newSessions []*Session
		p.mu.Lock()
		for _, t := range p.tasks {
			if _, ok := haveTasks[t]; !ok {
				newTasks = append(newTasks, t)
			}
		}
		for _, s := range p.sessions {
			if _, ok := haveSessions[s]; !ok {
				newSessions = append(newSessions, s)
			}
		}
		if len(newTasks)+len(newSessions) == 0 {
			return tasks, sessions
		}
		p.mu.Unlock()
		if len(newTasks) > 0 { // a session's lock is never held while a task's is taken
			for _, s := range sessions {
				s.mu.Unlock()
			}
			sessions, haveSessions, newSessions = nil, map[*Session]struct{}{}, nil
		}
		for _, t := range newTasks {
			t.mu.Lock()
			tasks, haveTasks[t] = append(tasks, t), struct{}{}
		}
		for _, s := range newSessions {
			s.mu.Lock()
			sessions, haveSessions[s] = append(sessions, s), struct{}{}
		}
	}
}

func shift(by time.Duration, ts ...*time.Time) {
	for _, t := range ts {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}

// shift moves what deadlines count from; the task is locked.
func (t *task) shift(by time.Duration, now time.Time) {
	for _, e := range t.all() {
		c := e.rec.Load().clone()
		shift(by, &c.StartedAt, &c.ReadyAt, &c.IdleSince, &c.NotBefore, &c.DormantSince, &c.UnpinnedAt, &c.FailedAt, &c.AnnouncedAt, &c.LastActivity.At, &e.readyAt, &e.told)
		if c.Teardown != nil {
			shift(by, &c.Teardown.NextAt)
		}
		for _, x := range e.execs {
			shift(by, &x.startedAt, &x.leftSince)
		}
		for _, x := range e.ended {
			shift(by, &x.endedAt)
		}
		e.rec.Store(c)
	}
	shift(by, &t.rec.Active, &t.rec.Since)
	for _, e := range t.all() {
		c := e.rec.Load().clone()
		held := len(e.holds(c, &t.rec, now)) > 0
		c.Deadline = t.p.judge(c, held, now, t.p.ranAt(now)).at
		e.rec.Store(c)
		t.p.hub.changed(e.id)
	}
	t.arm(now)
}
