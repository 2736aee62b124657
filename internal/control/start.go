package control

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// How a start came about; it decides the event and the answer to an acquire.
const (
	howCreated   = "created"
	howResumed   = "resumed"
	howRecreated = "recreated"
)

// howFor guesses it for a start that a restart interrupted.
func howFor(r *Env) string {
	switch {
	case r.Recreate:
		return howRecreated
	case r.Files:
		return howResumed
	}
	return howCreated
}

// startJob is one start that is under way. It belongs to one generation.
type startJob struct {
	generation int64
	cancel     context.CancelCauseFunc
	done       chan struct{} // closed at its end; err and how may be read then
	err        error
	how        string // howResumed becomes howRecreated where the sandbox was gone
	run        string // as the guest names it
}

// start moves an environment to starting: the intent is on disk before the
// engine is asked.
func (x *tx) start(e *env, how string) {
	r := x.env(e)
	t := x.task()
	if t.Generations == nil {
		t.Generations = map[string]int64{}
	}
	t.Generations[r.Name]++
	r.State, r.Generation, r.StartedAt, r.Error = Starting, t.Generations[r.Name], x.now, ""
	r.Run, r.GuestRun, r.NotBefore, r.AnnouncedAt, r.AnnouncedRun = time.Time{}, "", time.Time{}, time.Time{}, 0
	x.event(r, EnvStarting, x.actor(r), "", map[string]any{"generation": r.Generation, "image": r.Asked.Image, "how": how})
	x.moved(e)
	x.after = append(x.after, func() { e.launch(how) })
}

// actor is whose activity led to this.
func (x *tx) actor(r *Env) string {
	if r.LastActivity.Actor != "" {
		return r.LastActivity.Actor
	}
	return ActorServer
}

// launch runs the start of the record's generation; the task is locked.
func (e *env) launch(how string) {
	p := e.t.p
	ctx, cancel := context.WithCancelCause(p.ctx)
	j := &startJob{generation: e.rec.Load().Generation, cancel: cancel, done: make(chan struct{}), how: how}
	e.job = j
	rec := e.rec.Load()
	p.background(func() {
		defer cancel(nil)
		created, err := p.runStart(ctx, e, rec, j)
		if err != nil && context.Cause(ctx) != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		e.started(j, created, err)
	})
}

// runStart asks the engine and the guest. Each step can be repeated.
func (p *Plane) runStart(ctx context.Context, e *env, r *Env, j *startJob) (Created, error) {
	spec := SandboxSpec{
		Name: e.sandbox(), Env: r.ID, Owner: r.Owner, Task: r.Task, EnvName: r.Name,
		Image: r.Asked.Image, Network: r.Asked.Network, Workdir: r.Asked.Workdir, Limits: r.Asked.Limits,
	}
	timed := func(d time.Duration, f func(context.Context) error) error {
		c, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return f(c)
	}
	var created Created
	create := func(c context.Context) (err error) {
		created, err = p.o.Engine.Create(c, spec)
		return err
	}
	if !r.FailedAt.IsZero() && !r.Files {
		// What an earlier try left may not be what is asked now.
		if err := timed(p.o.TeardownTimeout, func(c context.Context) error { return p.o.Engine.Remove(c, spec.Name, RemoveAll) }); err != nil {
			return created, fmt.Errorf("remove what a failed start left: %w", err)
		}
	}
	if r.Recreate {
		if err := timed(p.o.TeardownTimeout, func(c context.Context) error { return p.o.Engine.Remove(c, spec.Name, KeepWorkspace) }); err != nil {
			return created, fmt.Errorf("remove the old root file system: %w", err)
		}
	}
	err := timed(p.o.StartTimeout, create)
	if errors.Is(err, ErrImageMissing) {
		if err = p.pull(ctx, r, timed); err != nil {
			return created, err
		}
		err = timed(p.o.StartTimeout, create)
	}
	if err != nil {
		return created, err
	}
	err = timed(p.o.StartTimeout, func(c context.Context) error {
		if err := p.o.Engine.Start(c, spec.Name); err != nil {
			return err
		}
		g := p.o.Guests.Guest(spec.Name)
		if err := g.Ping(c); err != nil {
			return err
		}
		var err error
		j.run, err = g.Run(c)
		return err
	})
	if err != nil && ctx.Err() == nil {
		// What is recorded as not running does not run.
		if kerr := timed(p.o.TeardownTimeout, func(c context.Context) error { return p.o.Engine.Kill(c, spec.Name) }); kerr != nil {
			p.log.Warn("end what failed to start", "env", r.ID, "err", kerr)
		}
	}
	return created, err
}

func (p *Plane) pull(ctx context.Context, r *Env, timed func(time.Duration, func(context.Context) error) error) error {
	say := func(kind EventKind) {
		ev := Event{Time: At(p.Now()), Kind: kind, Env: r.ID, Owner: r.Owner, Task: r.Task, Name: r.Name, Actor: ActorServer, Data: map[string]any{"image": r.Asked.Image}}
		p.commit(ctx, &Batch{Events: []Event{ev}}) //nolint:errcheck // logged; the pull does not depend on it
	}
	say(ImagePulling)
	if err := timed(p.o.PullTimeout, func(c context.Context) error { return p.o.Engine.Pull(c, r.Asked.Image) }); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%w: the pull took longer than %s", ErrImageUnavailable, p.o.PullTimeout)
		}
		return err
	}
	say(ImagePulled)
	return nil
}

// started takes the outcome of a start.
func (e *env) started(j *startJob, created Created, err error) {
	p := e.t.p
	if errors.Is(err, ErrEngineUnavailable) {
		p.EngineSeen(p.ctx, EngineInfo{}, err)
	}
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	defer close(j.done)
	if e.job == j {
		e.job = nil
	}
	r := e.rec.Load()
	if r.State != Starting || r.Generation != j.generation {
		j.err = gone(e.endOf(r, j.generation)) // a teardown overtook it
		return
	}
	if err != nil && p.ctx.Err() != nil {
		j.err = Errorf(KindDraining, "the server is going down; the start goes on when it is back")
		return // the record says starting: the next process finishes it
	}
	x := e.t.begin()
	c := x.env(e)
	if err != nil {
		j.err = startError(err, r)
		p.log.Warn("start failed", "env", r.ID, "err", err)
		x.startFailed(e, j, err)
	} else {
		x.startDone(e, j, created)
	}
	x.moved(e)
	if err := x.finish(p.ctx); err != nil {
		// Undecided on disk, so undecided: the reconciler comes back to it.
		j.err = err
		return
	}
	if c.State == Ready {
		e.readyAt = x.now
		e.unasked = false
	}
}

func (x *tx) startDone(e *env, j *startJob, created Created) {
	c := x.env(e)
	if j.how == howResumed && !created.Existed {
		j.how = howRecreated
	}
	if !created.Existed {
		c.Applied = c.Asked
		c.Applied.Persistent = c.Persistent
		if !created.WorkspaceExisted {
			c.CreatedGeneration = c.Generation // nothing of the old one was left
		}
	}
	if !created.Existed || c.RootGeneration == 0 {
		c.RootGeneration = c.Generation
	}
	if !created.Existed || created.Unenforced != nil {
		c.Unenforced = created.Unenforced
	}
	c.GuestRun = j.run
	c.Engine, c.Isolation = x.p.engine.name()
	c.State, c.ReadyAt, c.Files, c.Recreate, c.FailedAt, c.DormantSince = Ready, x.now, true, false, time.Time{}, time.Time{}
	kind := map[string]EventKind{howCreated: EnvReady, howResumed: EnvResumed, howRecreated: EnvRecreated}[j.how]
	x.event(c, kind, x.actor(c), "", map[string]any{"generation": c.Generation, "image_id": created.Image, "unenforced": append([]string{}, c.Unenforced...)})
}

// startFailed goes back to dormant where files are kept, else to failed.
func (x *tx) startFailed(e *env, j *startJob, err error) {
	c := x.env(e)
	c.Error = AsError(startError(err, c)).Message
	if c.Files {
		c.State = Dormant
		if c.DormantSince.IsZero() {
			c.DormantSince = x.now
		}
	} else {
		c.State, c.FailedAt = Failed, x.now
	}
	tomb := &Tombstone{Reason: "its start failed", Actor: ActorServer, At: At(x.now), Generation: j.generation}
	c.Tombstone = tomb
	x.event(c, EnvFailed, ActorServer, c.Error, map[string]any{"generation": j.generation})
}

// startError is what a client is told of a start that failed.
func startError(err error, r *Env) error {
	switch {
	case errors.Is(err, ErrImageUnavailable), errors.Is(err, ErrImageMissing):
		return &Error{Kind: KindImageUnavailable, Message: fmt.Sprintf("image %q: %v", r.Asked.Image, err), Err: err}
	case errors.Is(err, ErrEngineUnavailable):
		return &Error{Kind: KindEngineUnavailable, Message: "the engine does not answer; the call can be repeated", RetryAfter: 2 * time.Second, Err: err}
	case errors.Is(err, ErrSpecRefused):
		return &Error{Kind: KindInvalid, Message: err.Error(), Err: err}
	case errors.Is(err, errSandboxDied):
		return &Error{Kind: KindInternal, Message: "the sandbox ended while it started: its first process did", Err: err}
	case errors.Is(err, ErrGuestUnreachable), errors.Is(err, context.DeadlineExceeded):
		return &Error{Kind: KindEngineUnavailable, Message: "the sandbox did not come up in time; the call can be repeated", RetryAfter: 2 * time.Second, Err: err}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: KindInternal, Message: "the sandbox could not be started; the server's log has the cause", Err: err}
}

// errSandboxDied: PID 1 ended before the start was done.
var errSandboxDied = errors.New("its first process ended")

// awaitReady brings an environment to ready, or says why not. It is called
// with the task locked and returns with it locked; the record may have moved
// on by then, so callers look again. resume allows a start from dormant.
func (e *env) awaitReady(ctx context.Context, actor, kind string) error {
	t := e.t
	var deadline <-chan time.Time
	for {
		r := e.rec.Load()
		var wait <-chan struct{}
		switch r.State {
		case Ready:
			return nil
		case Removed:
			return gone(r.Tombstone)
		case Failed:
			return Errorf(KindConflict, "the environment could not be started (%s); acquire it again", r.Error)
		case Starting:
			j := e.job
			if j == nil {
				return Errorf(KindInternal, "the start could not be recorded; try again")
			}
			if err := t.unlockedWait(ctx, j.done); err != nil {
				return err
			}
			if j.err != nil {
				return j.err
			}
			continue
		case Dormant:
			if err := t.p.checkDraining(); err != nil {
				return err
			}
			x := t.begin()
			x.activity(e, kind, actor)
			x.start(e, howFor(r))
			if err := x.finish(ctx); err != nil {
				return err
			}
			continue
		case Stopping:
			if r.Teardown.Final() {
				return gone(e.endOf(r, r.Generation))
			}
			wait = e.changed
		}
		if deadline == nil {
			tm := time.NewTimer(t.p.o.AcquireWait)
			defer tm.Stop()
			deadline = tm.C
		}
		t.mu.Unlock()
		var err error
		select {
		case <-wait:
		case <-deadline:
			err = &Error{Kind: KindConflict, Message: "the environment is still being stopped; try again", RetryAfter: 5 * time.Second}
		case <-ctx.Done():
			err = ctx.Err()
		case <-t.p.ctx.Done():
			err = Errorf(KindDraining, "the server is going down")
		}
		t.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// unlockedWait waits for c without the lock.
func (t *task) unlockedWait(ctx context.Context, c <-chan struct{}) error {
	t.mu.Unlock()
	defer t.mu.Lock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// endOf is the tombstone of a generation: how its run ended, or is ending.
func (e *env) endOf(r *Env, generation int64) *Tombstone {
	if td := r.Teardown; td != nil && r.State == Stopping {
		return &Tombstone{Reason: td.Reason, Actor: td.Actor, At: At(td.Since), Generation: generation}
	}
	if r.Tombstone != nil {
		return r.Tombstone
	}
	return &Tombstone{Reason: "replaced", Actor: ActorServer, At: At(r.StartedAt), Generation: generation}
}
