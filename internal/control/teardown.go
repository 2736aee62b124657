package control

import (
	"context"
	"errors"
	"time"
)

// tombstoneKept is how long a removed environment, and an exec after its end, is remembered.
const tombstoneKept = 24 * time.Hour

// ruleLost is the rule of a teardown that clears away what died by itself.
const ruleLost = "lost"

// strongerThan orders the modes of teardown by what they leave.
func (m TeardownMode) strongerThan(o TeardownMode) bool {
	rank := map[TeardownMode]int{TeardownStop: 0, TeardownKill: 1, TeardownDiscard: 2, TeardownRemove: 3}
	return rank[m] > rank[o]
}

// teardown moves an environment to stopping, durably: what runs in it is lost
// from now on, and the reaper does the work until the engine says it is done.
// One that is under way already becomes the stronger of the two.
func (x *tx) teardown(e *env, mode TeardownMode, actor, reason, rule string) {
	r := x.env(e)
	td := &Teardown{Mode: mode, Actor: actor, Reason: reason, Rule: rule, Since: x.now, NextAt: x.now}
	kind := EnvStopping
	if r.State == Stopping {
		if !mode.strongerThan(r.Teardown.Mode) {
			return
		}
		kind = EnvChanged // the transition itself was told
	}
	was := r.Generation
	if r.State == Ready || r.State == Starting {
		r.Tombstone = &Tombstone{Reason: reason, Actor: actor, At: At(x.now), Generation: was}
	}
	r.State, r.Teardown, r.IdleSince, r.NotBefore = Stopping, td, time.Time{}, time.Time{}
	if rule != ruleLost { // env.lost has told it
		x.event(r, kind, actor, reason, map[string]any{"generation": was, "mode": string(mode), "rule": rule})
	}
	x.moved(e)
	lost := x.loseExecs(e, &Tombstone{Reason: reason, Actor: actor, At: At(x.now), Generation: was})
	x.after = append(x.after, func() {
		lost()
		if e.job != nil {
			e.job.cancel(errors.New("torn down: " + reason))
		}
		if e.attempt != nil {
			e.attempt() // of the weaker teardown
		}
		if td.Final() {
			// It no longer holds its key: a successor may start at once.
			if x.t.envs[r.Name] == e {
				delete(x.t.envs, r.Name)
			}
			x.t.leaving[e.id] = e
		}
	})
}

// Teardown makes one attempt of a teardown. What fails arms its next attempt
// by itself. It returns when the attempt has ended.
func (p *Plane) Teardown(ctx context.Context, key string) {
	_, id := parseAlarm(key)
	e := p.lockEnv(id)
	if e == nil {
		return
	}
	if j := e.job; j != nil { // a start that is being cancelled comes to its end first
		e.t.mu.Unlock()
		select {
		case <-j.done:
		case <-ctx.Done():
			return
		}
		if e = p.lockEnv(id); e == nil {
			return
		}
	}
	r := e.rec.Load()
	if r.State != Stopping || e.attempt != nil {
		e.t.mu.Unlock()
		return
	}
	actx, cancel := context.WithTimeout(ctx, p.o.TeardownTimeout)
	defer cancel()
	td := r.Teardown
	e.attempt = cancel
	e.t.mu.Unlock()

	p.o.Guests.Forget(e.sandbox())
	err := p.tearDown(actx, e.sandbox(), td.Mode)
	if errors.Is(err, ErrEngineUnavailable) {
		p.EngineSeen(p.ctx, EngineInfo{}, err)
	}

	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	e.attempt = nil
	if r = e.rec.Load(); r.State != Stopping {
		return
	}
	if r.Teardown.Mode != td.Mode { // somebody asked for more meanwhile
		e.t.arm(p.Now())
		return
	}
	if err != nil && ctx.Err() != nil {
		return // going down: the next process goes on with it
	}
	x := e.t.begin()
	if err != nil {
		x.teardownFailed(e, err)
	} else {
		x.teardownDone(e)
	}
	if ferr := x.finish(p.ctx); ferr != nil {
		p.setAlarm(envAlarm(e.id), p.Now().Add(time.Second))
	}
}

func (p *Plane) tearDown(ctx context.Context, name string, mode TeardownMode) error {
	switch mode {
	case TeardownStop:
		return p.o.Engine.Stop(ctx, name)
	case TeardownKill:
		return p.o.Engine.Kill(ctx, name)
	case TeardownDiscard:
		return p.o.Engine.Remove(ctx, name, KeepWorkspace)
	}
	return p.o.Engine.Remove(ctx, name, RemoveAll)
}

func (x *tx) teardownFailed(e *env, err error) {
	c := x.env(e)
	td := c.Teardown
	td.Attempts++
	td.NextAt = x.now.Add(backoff(td.Attempts))
	td.Error = "the engine refused; the server's log has its words"
	switch {
	case errors.Is(err, ErrEngineUnavailable):
		td.Error = "the engine does not answer"
	case errors.Is(err, context.DeadlineExceeded):
		td.Error = "the engine did not finish within " + x.p.o.TeardownTimeout.String()
	}
	x.p.log.Warn("teardown failed; it is tried again", "env", c.ID, "attempts", td.Attempts, "next", td.NextAt, "err", err)
	x.event(c, ReaperRetry, ActorReaper, td.Error, map[string]any{"attempts": td.Attempts, "next_at": At(td.NextAt).String()})
	x.moved(e)
}

func (x *tx) teardownDone(e *env) {
	c := x.env(e)
	td := c.Teardown
	x.moved(e)
	data := map[string]any{"generation": c.Generation}
	if td.Final() {
		c.State, c.Files, c.Pin, c.Deadline = Removed, false, nil, time.Time{}
		tomb := &Tombstone{Reason: td.Reason, Actor: td.Actor, At: At(x.now), Generation: c.Generation}
		if td.Rule == ruleLost && c.Tombstone != nil {
			tomb.ExitCode, tomb.OOM = c.Tombstone.ExitCode, c.Tombstone.OOM
		}
		c.Tombstone = tomb
		x.event(c, EnvRemoved, td.Actor, td.Reason, data)
		if td.Actor == ActorReaper {
			kind := ReaperRemoved
			if td.Rule == "retention" {
				kind = ReaperPurged
			}
			x.event(c, kind, ActorReaper, td.Reason, data)
		}
		c.Teardown = nil
		x.after = append(x.after, func() { x.p.drop(e) })
		return
	}
	c.State, c.DormantSince = Dormant, x.now
	c.Files = c.Files || c.FailedAt.IsZero() // a failed one has none, however it came to rest
	c.AnnouncedAt, c.AnnouncedRun = time.Time{}, 0
	c.Recreate = c.Recreate || td.Mode == TeardownDiscard
	x.event(c, EnvDormant, td.Actor, td.Reason, data)
	if td.Actor == ActorReaper {
		x.event(c, ReaperStopped, ActorReaper, td.Reason, data)
	}
	c.Teardown = nil
}

// drop forgets a removed environment; the task is locked.
func (p *Plane) drop(e *env) {
	r := e.rec.Load()
	if e.t.envs[r.Name] == e {
		delete(e.t.envs, r.Name)
	}
	delete(e.t.leaving, e.id)
	p.o.Alarms.Clear(envAlarm(e.id))
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.envs, e.id)
	if p.owners[r.Owner]--; p.owners[r.Owner] <= 0 {
		delete(p.owners, r.Owner)
	}
}

// Due is called at or after an alarm's time. teardown is true where an attempt
// of a teardown is due: then Teardown is to be called with the same key.
func (p *Plane) Due(ctx context.Context, key string) (teardown bool) {
	switch kind, id := parseAlarm(key); kind {
	case "session":
		p.expire(ctx, id)
	case "task":
		p.dueTask(ctx, parseTask(id))
	case "env":
		return p.dueEnv(ctx, id)
	}
	return false
}

// dueEnv reads every condition again in one critical section: between ready
// and stopping there is no gap into which an exec or an acquire could fall.
func (p *Plane) dueEnv(ctx context.Context, id string) (teardown bool) {
	e := p.lockEnv(id)
	if e == nil {
		return false
	}
	defer e.t.mu.Unlock()
	r := e.rec.Load()
	if r.State == Stopping {
		due := e.attempt == nil && !p.Now().Before(r.Teardown.NextAt)
		if !due {
			e.t.arm(p.Now())
		}
		return due
	}
	x := e.t.begin()
	x.checkTurn()
	if pin := r.Pin; pin != nil && !pin.Until.IsZero() && !x.now.Before(ceilMillis(pin.Until)) {
		x.unpin(e, ActorServer, "its pin's time has passed")
	}
	c := x.env(e)
	// A pin that went just now leaves a countdown that is to be seen first, and
	// the turn's end may have decided already.
	if c.State == r.State && (c.Pin == nil) == (r.Pin == nil) {
		turn := &e.t.rec
		if x.turn != nil {
			turn = x.turn
		}
		x.settle(e, c, turn)
		held := len(e.holds(c, turn, x.now)) > 0
		v := p.judge(c, held, x.now, p.ranAt(x.now))
		switch {
		case e.unknown() && c.State == Ready:
		case !v.at.IsZero() && !x.now.Before(v.at):
			mode := TeardownRemove
			if v.action == actionStop {
				mode = TeardownStop
			}
			x.teardown(e, mode, ActorReaper, v.reason, v.rule)
		default:
			x.announce(e, v)
		}
	}
	if err := x.finish(ctx); err != nil {
		p.setAlarm(envAlarm(id), p.Now().Add(time.Second))
	}
	return false
}

// announce tells agents of a reap that is near, and the log of a purge.
func (x *tx) announce(e *env, v verdict) {
	c := x.env(e)
	if at := x.p.announceAt(c); !at.IsZero() && !x.now.Before(at) {
		c.AnnouncedAt, c.AnnouncedRun = x.now, x.p.ranAt(x.now)
		at := x.p.judge(c, false, x.now, c.AnnouncedRun).at
		x.event(c, EnvExpiring, ActorReaper, v.reason, map[string]any{"deadline": At(at).String(), "seconds_left": int64(at.Sub(x.now).Seconds())})
	}
	if c.State == Ready && !v.at.IsZero() && e.told != v.at && !x.now.Before(v.at.Add(-noticeLead(c.Lifetime))) {
		x.after = append(x.after, func() {
			e.told = v.at
			for _, s := range e.users() {
				s.tell(func(k Sink) { k.EnvExpiring(e.id, At(v.at), v.at.Sub(x.now)) })
			}
		})
	}
}
