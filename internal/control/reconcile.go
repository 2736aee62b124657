package control

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// neverStartedKept is how long a labelled sandbox that was never started and
// has no record may stay: a create that is older than its record's loss.
const neverStartedKept = 10 * time.Minute

// engineStatus is what is known of the engine.
type engineStatus struct {
	mu        sync.Mutex
	info      EngineInfo
	reachable bool
	since     time.Time
	err       string
}

func (s *engineStatus) name() (name, isolation string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info.Name, s.info.Isolation
}

// Engine tells what is known of the engine.
func (p *Plane) Engine() EngineStatus {
	s := &p.engine
	s.mu.Lock()
	defer s.mu.Unlock()
	return EngineStatus{EngineInfo: s.info, Reachable: s.reachable, Since: s.since, Error: s.err}
}

// EngineSeen takes the outcome of asking the engine how it is. Only an error
// that is ErrEngineUnavailable says that it is down.
func (p *Plane) EngineSeen(ctx context.Context, info EngineInfo, err error) {
	down := errors.Is(err, ErrEngineUnavailable)
	if err != nil && !down {
		return
	}
	s := &p.engine
	s.mu.Lock()
	if err == nil && info.Name != "" {
		s.info = info
	}
	if down == !s.reachable {
		s.mu.Unlock()
		return
	}
	s.reachable, s.since, s.err = !down, p.Now(), ""
	ev := Event{Kind: EngineUp, Actor: ActorReconciler, Data: map[string]any{"engine": s.info.Name, "version": s.info.Version}}
	if down {
		s.err = "the engine does not answer"
		ev.Kind, ev.Reason = EngineDown, s.err
		p.log.Warn("engine down", "err", err)
	}
	s.mu.Unlock()
	p.Record(ctx, ev) //nolint:errcheck // logged
}

// Observe takes one event of the engine. Events that are older than the
// present run of a sandbox, and those of a teardown of ours, change nothing.
// look is true where the event alone does not settle it, and a listing would.
func (p *Plane) Observe(ctx context.Context, ev EngineEvent) (look bool) {
	e := p.lockEnv(ev.Env)
	if e == nil {
		return false
	}
	defer e.t.mu.Unlock()
	r := e.rec.Load()
	if ev.Name != e.sandbox() || !ev.At.IsZero() && ev.At.Before(r.StartedAt) {
		return false
	}
	switch {
	case ev.Kind == SandboxStarted:
		// By somebody else, or by an earlier start of ours and stopped since.
		return r.State == Dormant
	case r.State == Ready:
		if ev.Kind == SandboxDied {
			e.lost(ctx, &ev.ExitCode, ev.OOM)
		} else {
			e.lost(ctx, nil, false)
		}
	case r.State == Starting && e.job != nil && ev.Kind == SandboxDied:
		e.job.cancel(errSandboxDied)
	}
	return false
}

// lost takes the end of a sandbox that ended by itself; the task is locked.
// exit is nil where it is not known.
func (e *env) lost(ctx context.Context, exit *int, oom bool) {
	p := e.t.p
	x := e.t.begin()
	c := x.env(e)
	reason := "it ended by itself"
	if oom {
		reason = "out of memory"
	}
	tomb := &Tombstone{Reason: reason, Actor: ActorReconciler, At: At(x.now), Generation: c.Generation, ExitCode: exit, OOM: oom}
	data := map[string]any{"generation": c.Generation, "oom": oom}
	if exit != nil {
		data["exit_code"] = *exit
	}
	x.event(c, EnvLost, ActorReconciler, reason, data)
	if c.Persistent || c.Pin != nil {
		c.State, c.DormantSince, c.IdleSince, c.NotBefore, c.Tombstone = Dormant, x.now, time.Time{}, time.Time{}, tomb
		x.event(c, EnvDormant, ActorReconciler, reason, map[string]any{"generation": c.Generation})
		told := x.loseExecs(e, tomb)
		x.after = append(x.after, told)
		x.moved(e)
	} else {
		x.teardown(e, TeardownRemove, ActorReconciler, reason, ruleLost)
		x.env(e).Tombstone = tomb
	}
	if err := x.finish(ctx); err != nil {
		return // the next round sees it again
	}
	p.o.Guests.Forget(e.sandbox())
}

// Reconcile compares the records with a listing of the engine that began at
// that time of the plane's clock. What changed since then is left alone.
func (p *Plane) Reconcile(ctx context.Context, listed []SandboxStatus, began time.Time) error {
	seen := make(map[string]*SandboxStatus, len(listed))
	for i := range listed {
		s := &listed[i]
		if s.Env != "" && s.Name == p.sandboxName(s.Env) {
			seen[s.Env] = s
		}
	}
	p.mu.RLock()
	ids := make([]string, 0, len(p.envs))
	for id := range p.envs {
		ids = append(ids, id)
	}
	p.mu.RUnlock()
	for _, id := range ids {
		if e := p.lockEnv(id); e != nil {
			e.reconcile(ctx, seen[id], began)
			e.t.mu.Unlock()
		}
	}
	for i := range listed {
		if err := p.reconcileUnrecorded(ctx, &listed[i], began); err != nil {
			return err
		}
	}
	p.forgetOrphans(ctx, listed)
	return ctx.Err()
}

// reconcile compares one record with what the engine has of it; the task is locked.
func (e *env) reconcile(ctx context.Context, s *SandboxStatus, began time.Time) {
	r := e.rec.Load()
	running := s != nil && s.State == SandboxRunning
	switch r.State {
	case Ready:
		if !e.readyAt.Before(began) || !r.StartedAt.Before(began) {
			return
		}
		switch {
		case running && !r.Run.IsZero() && !s.StartedAt.IsZero() && !s.StartedAt.Equal(r.Run):
			e.lost(ctx, nil, false) // it was started again behind our back; the next round takes that up
		case running:
			e.sawRun(s.StartedAt)
			if e.unasked {
				e.ask()
			}
		case !running && s != nil && s.State == SandboxExited:
			e.lost(ctx, &s.ExitCode, s.OOM)
		case !running:
			e.lost(ctx, nil, false)
		}
	case Starting:
		if e.job == nil { // its end could not be recorded
			e.launch(howFor(r))
		}
	case Failed:
		// The start failed after PID 1 ran, and so did what was to end it.
		if running && e.job == nil && r.FailedAt.Before(began) {
			mode := TeardownRemove
			if r.Persistent || r.Pin != nil {
				mode = TeardownKill
			}
			x := e.t.begin()
			x.teardown(e, mode, ActorReconciler, "its failed start left it running", "failed")
			x.finish(ctx) //nolint:errcheck // the next round sees it again
		}
	case Dormant:
		// Started behind our back: its files are in use, by the next generation.
		if running && e.job == nil && r.DormantSince.Before(began) {
			x := e.t.begin()
			x.env(e).LastActivity = Activity{At: x.now, Kind: "resume", Actor: ActorReconciler}
			x.start(e, howResumed)
			x.finish(ctx) //nolint:errcheck // the next round sees it again
		}
	}
}

// sawRun notes by what the engine tells this run of the sandbox from a later one; the task is locked.
func (e *env) sawRun(at time.Time) {
	if at.IsZero() || !e.rec.Load().Run.IsZero() {
		return
	}
	x := e.t.begin()
	x.env(e).Run = at.Round(0).UTC()
	x.finish(e.t.p.ctx) //nolint:errcheck // written behind
}

// ask asks the guest, after a restart, what runs in the sandbox; the task is locked.
func (e *env) ask() {
	p := e.t.p
	e.unasked = false // one asks; unknown until it answers
	e.asking = true
	generation := e.rec.Load().Generation
	p.background(func() {
		var (
			list []ExecStatus
			err  error
		)
		pause := 50 * time.Millisecond
		giveUp := p.Now().Add(max(p.o.RestartGrace, time.Minute))
		for {
			ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
			list, err = p.o.Guests.Guest(e.sandbox()).Execs(ctx)
			cancel()
			if r := e.rec.Load(); err == nil || r.State != Ready || r.Generation != generation || p.Now().After(giveUp) {
				break
			}
			select {
			case <-p.ctx.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, 2*time.Second)
		}
		ends := e.endsOf(list)
		if err != nil {
			p.log.Warn("guest not reached after the restart", "env", e.id, "err", err)
		}
		e.t.mu.Lock()
		defer e.t.mu.Unlock()
		e.asking = false
		if r := e.rec.Load(); r.State == Ready && r.Generation == generation {
			e.takeUp(list, ends)
		}
		e.bump()
		x := e.t.begin()
		x.checkTurn()
		x.finish(p.ctx) //nolint:errcheck // looked at again by the task's alarm
		e.t.p.hub.changed(e.id)
	})
}

// endsOf asks the guest how those ended that no longer run.
func (e *env) endsOf(list []ExecStatus) map[string]ExecEnd {
	ends := map[string]ExecEnd{}
	for _, s := range list {
		if s.Running {
			continue
		}
		ctx, cancel := context.WithTimeout(e.t.p.ctx, 5*time.Second)
		end, err := e.t.p.o.Guests.Guest(e.sandbox()).Wait(ctx, s.Exec, 0)
		cancel()
		if err != nil {
			break // the list has their exit codes
		}
		end.Stdout, end.Stderr = nil, nil
		ends[s.Exec] = end
	}
	return ends
}

// takeUp follows what the guest says is running, and the ends that nobody has recorded.
func (e *env) takeUp(list []ExecStatus, ends map[string]ExecEnd) {
	p := e.t.p
	generation := e.rec.Load().Generation
	for _, s := range list {
		rec, recorded := e.unended[s.Exec]
		if e.execs[s.Exec] != nil || slices.ContainsFunc(e.ended, func(x *exec) bool { return x.name == s.Exec }) {
			continue
		}
		x := e.newExec(s.Exec, s.StartedAt)
		x.command, x.pid, x.generation, x.state = clip(s.Command, 200), s.PID, generation, execRunning
		x.start = ExecStart{Exec: s.Exec, Background: s.Background, Timeout: s.Timeout}
		if s.TTY {
			x.start.TTY = &TTY{} // its size is the guest's to know
		}
		close(x.begun)
		if recorded {
			x.id, x.digest = rec.ID, rec.Digest
			e.byID[x.id] = x
		}
		if !recorded && !s.Running {
			// Its end was told, by an earlier process.
			if rec, ok, err := p.o.Store.ExecByName(s.Exec); err == nil && ok {
				x.id = rec.ID
			}
			end, known := ends[s.Exec]
			if !known {
				end.ExitCode = s.ExitCode
			}
			x.state, x.endedAt, x.end = execEnded, s.EndedAt, end
			close(x.done)
			if !s.Left {
				x.cancel()
				e.keepEnded(x, p.Now())
				continue
			}
			x.state, x.leftSince = execLeft, latest(s.EndedAt, s.StartedAt)
		}
		e.execs[x.name] = x
		if x.state == execLeft {
			p.background(func() { p.followLeft(x) })
			continue
		}
		p.background(func() { p.followExec(x) })
	}
	clear(e.unended)
}

// Housekeep looks at the clocks, prunes what is past its time, and drops from
// memory what has nothing to decide. It is called every 30 s.
func (p *Plane) Housekeep(ctx context.Context) {
	p.checkClock(ctx)
	now := p.Now()
	if err := p.commit(ctx, &Batch{Ran: p.ranAt(now)}); err != nil {
		return
	}
	err := p.o.Store.Prune(ctx, PruneLimits{
		TombstonesBefore: now.Add(-tombstoneKept), ExecsEndedBefore: now.Add(-tombstoneKept),
		EventsBefore: now.Add(-p.o.EventsMaxAge), EventsKeep: p.o.EventsKeep,
	})
	if err != nil {
		p.log.Warn("prune", "err", err)
	}
	p.evict()
}
