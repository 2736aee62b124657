package control

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// Acquire gives the session the environment of its key, made, resumed or as it
// is. It answers once that is ready, or with the reason why not.
func (s *Session) Acquire(ctx context.Context, r AcquireRequest) (Acquired, error) {
	if err := r.check(); err != nil {
		return Acquired{}, err
	}
	if err := s.p.checkDraining(); err != nil {
		return Acquired{}, err
	}
	t, err := s.p.lockTask(TaskKey{s.rec.Owner, r.Task})
	if err != nil {
		return Acquired{}, err
	}
	defer t.mu.Unlock()
	x := t.begin()
	x.join(s, true)
	x.turnActivity()
	e := t.envs[r.Name]
	outcome := "reused"
	if e != nil {
		x.uses(s, e)
	} else {
		if e, err = x.create(s, r); err != nil {
			return Acquired{}, err
		}
		outcome = howCreated
	}
	if err := x.finish(ctx); err != nil {
		return Acquired{}, err
	}
	for {
		how, again, err := s.acquireStep(ctx, e, r)
		if how != "" {
			outcome = how
		}
		if err != nil {
			return Acquired{}, err
		}
		if !again {
			break
		}
		if next := t.envs[r.Name]; next != e { // removed while we waited
			x := t.begin()
			if next != nil {
				x.uses(s, next)
			} else {
				x.join(s, true)
				if next, err = x.create(s, r); err != nil {
					return Acquired{}, err
				}
				outcome = howCreated
			}
			if err := x.finish(ctx); err != nil {
				return Acquired{}, err
			}
			e = next
		}
	}
	rec := e.rec.Load()
	s.met(rec)
	return Acquired{Env: e.view(), Outcome: outcome, Drift: drift(r.over(rec.Applied), rec.Applied)}, nil
}

// acquireStep looks at the environment once, the task locked; again asks for another look.
func (s *Session) acquireStep(ctx context.Context, e *env, r AcquireRequest) (how string, again bool, err error) {
	t := e.t
	x := t.begin()
	rec := x.env(e)
	switch rec.State {
	case Ready:
		recreate, err := x.applyAcquire(s, e, r)
		if err != nil {
			return "", false, err
		}
		if recreate {
			x.teardown(e, TeardownDiscard, s.actor(), "recreated", "recreate")
			x.env(e).Recreate = true
			return "", true, x.finish(ctx)
		}
		return "", false, x.finish(ctx)
	case Dormant, Failed:
		how = howFor(rec)
		if !rec.Files { // there is nothing yet that could differ from what is asked
			rec.Applied = r.over(rec.Asked)
			rec.Asked, rec.Persistent = rec.Applied, rec.Applied.Persistent
		}
		recreate, err := x.applyAcquire(s, e, r)
		if err != nil {
			return "", false, err
		}
		if recreate {
			rec.Recreate, how = true, howRecreated
		}
		x.start(e, how)
		if err := x.finish(ctx); err != nil {
			return "", false, err
		}
		fallthrough
	case Starting:
		j := e.job
		if j == nil {
			return "", false, Errorf(KindInternal, "the start could not be recorded; try again")
		}
		if err := t.unlockedWait(ctx, j.done); err != nil {
			return "", false, err
		}
		if how != "" {
			how = j.how
		}
		if j.err != nil {
			return how, false, j.err
		}
		return how, true, nil
	}
	// Stopping, or removed meanwhile.
	if rec.State == Removed || rec.Teardown.Final() {
		return "", true, nil
	}
	err = e.awaitStopped(ctx)
	return "", true, err
}

// awaitStopped waits until a persistent environment is no longer being stopped; the task is locked.
func (e *env) awaitStopped(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, e.t.p.o.AcquireWait,
		&Error{Kind: KindConflict, Message: "the environment is still being stopped; try again", RetryAfter: 5 * time.Second})
	defer cancel()
	for e.rec.Load().State == Stopping {
		if err := e.t.unlockedWait(ctx, e.changed); err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// create adds a new environment to the task and starts it.
func (x *tx) create(s *Session, r AcquireRequest) (*env, error) {
	p := x.p
	p.mu.RLock()
	n := p.owners[s.rec.Owner]
	p.mu.RUnlock()
	if n >= p.o.MaxEnvsPerOwner {
		return nil, Errorf(KindQuota, "the owner has %d environments; at most %d are allowed", n, p.o.MaxEnvsPerOwner)
	}
	spec := r.over(Spec{Image: p.o.Image, Network: "default", Workdir: "/workspace", Limits: p.o.Limits})
	name, isolation := p.engine.name()
	rec := &Env{
		ID: newID(), Owner: s.rec.Owner, Task: r.Task, Name: r.Name, State: Starting,
		Persistent: spec.Persistent, Engine: name, Isolation: isolation, Asked: spec, Applied: spec,
		Lifetime: p.o.Lifetime, Labels: maps.Clone(r.Labels), CreatedAt: x.now,
		LastActivity: Activity{At: x.now, Kind: "acquire", Actor: s.actor()},
		Users:        []string{s.rec.ID},
	}
	if r.LifetimeS != nil {
		rec.Lifetime = time.Duration(*r.LifetimeS) * time.Second
	}
	if r.MaxAgeS != nil {
		rec.MaxAge = time.Duration(*r.MaxAgeS) * time.Second
	}
	e := newEnv(x.t, rec)
	x.envs[e] = rec
	if t := x.task(); t.Latest == nil {
		t.Latest = map[string]string{}
	}
	x.task().Latest[r.Name] = rec.ID
	// In the map before its start is launched, which finish does.
	x.after = append(x.after, func() {
		x.t.envs[r.Name] = e
		p.mu.Lock()
		defer p.mu.Unlock()
		p.envs[e.id] = e
		p.owners[rec.Owner]++
	})
	x.start(e, howCreated)
	rec.CreatedGeneration = rec.Generation
	return e, nil
}

// over lays what was asked over what there is.
func (r *AcquireRequest) over(base Spec) Spec {
	if r.Image != nil {
		base.Image = *r.Image
	}
	if r.Network != nil {
		base.Network = *r.Network
	}
	if r.Workdir != nil {
		base.Workdir = *r.Workdir
	}
	if r.Variables != nil {
		base.Variables = maps.Clone(r.Variables)
	}
	if r.Persistent != nil {
		base.Persistent = *r.Persistent
	}
	base.Limits = r.Limits.over(base.Limits)
	return base
}

// applyAcquire applies to a live or resumable environment what applies at
// once, records what was asked, and says whether it is to be recreated.
func (x *tx) applyAcquire(s *Session, e *env, r AcquireRequest) (recreate bool, err error) {
	c := x.env(e)
	d := drift(r.over(c.Applied), c.Applied)
	if r.Persistent != nil && *r.Persistent && !c.Persistent {
		d = slices.DeleteFunc(d, func(f string) bool { return f == "persistent" })
	}
	if len(d) > 0 {
		switch r.OnDrift {
		case "error":
			e := Errorf(KindConflict, "the environment differs from what was asked in: %s", strings.Join(d, ", "))
			e.Drift = d
			return false, e
		case "recreate":
			if err := e.mayRecreate(s, c); err != nil {
				return false, err
			}
			recreate = true
		}
	}
	changed := map[string]any{}
	if r.LifetimeS != nil {
		if l := time.Duration(*r.LifetimeS) * time.Second; l != c.Lifetime {
			c.Lifetime = l
			changed["lifetime_seconds"] = *r.LifetimeS
		}
	}
	if r.MaxAgeS != nil {
		if a := time.Duration(*r.MaxAgeS) * time.Second; a != c.MaxAge {
			c.MaxAge = a
			changed["max_age_seconds"] = *r.MaxAgeS
		}
	}
	if r.Labels != nil && !maps.Equal(r.Labels, c.Labels) {
		c.Labels = maps.Clone(r.Labels)
		changed["labels"] = c.Labels
	}
	c.Asked = r.over(c.Asked)
	if r.Persistent != nil && (*r.Persistent && !c.Persistent || recreate && *r.Persistent != c.Persistent) {
		c.Persistent = *r.Persistent
		changed["persistent"] = c.Persistent
	}
	c.Applied.Persistent = c.Persistent
	if len(changed) > 0 {
		x.event(c, EnvChanged, s.actor(), "", changed)
		x.moved(e)
	}
	if !slices.Equal(drift(c.Asked, c.Applied), drift(e.rec.Load().Asked, e.rec.Load().Applied)) {
		x.must = true
	}
	x.activity(e, "acquire", s.actor())
	return recreate, nil
}

// mayRecreate refuses while somebody else's exec runs, or a pin stands.
func (e *env) mayRecreate(s *Session, c *Env) error {
	if c.Pin != nil {
		return Errorf(KindConflict, "the environment is pinned by %s; it is not recreated until it is unpinned", c.Pin)
	}
	for _, x := range e.execs {
		if x.session != s.rec.ID && x.state != execLeft {
			return Errorf(KindConflict, "the exec %s of another session runs; the environment is not recreated under it", x.name)
		}
	}
	return nil
}

// resolve finds the environment that a Ref names, its task locked. One that is
// gone, or on its way out for good, is KindGenerationGone; for its id is
// returned beside the error, since execs of it may still be asked for.
func (s *Session) resolve(r Ref) (e *env, id string, err error) {
	if (r.Env == "") == (r.Task == "") {
		return nil, "", Errorf(KindInvalid, "either env or task is needed")
	}
	if r.Env != "" {
		if r.Name != "" {
			return nil, "", Errorf(KindInvalid, "name goes with task, not with env")
		}
		e := s.p.lockEnv(r.Env)
		if e == nil {
			err := s.p.goneOrUnknown(r.Env, s.rec.Owner)
			if AsError(err).Kind == KindGenerationGone { // else it may be another owner's
				id = r.Env
			}
			return nil, id, err
		}
		rec := e.rec.Load()
		if rec.Owner != s.rec.Owner {
			e.t.mu.Unlock()
			return nil, "", Errorf(KindNotFound, "no environment has the id %q", clip(r.Env, 32))
		}
		if rec.State == Stopping && rec.Teardown.Final() {
			tomb := e.endOf(rec, rec.Generation)
			e.t.mu.Unlock()
			return nil, r.Env, gone(tomb)
		}
		return e, e.id, nil
	}
	if r.Name == "" {
		r.Name = "main"
	}
	if err := CheckName("task", r.Task); err != nil {
		return nil, "", err
	}
	if err := CheckName("name", r.Name); err != nil {
		return nil, "", err
	}
	t, err := s.p.lockTask(TaskKey{s.rec.Owner, r.Task})
	if err != nil {
		return nil, "", err
	}
	if e := t.envs[r.Name]; e != nil {
		return e, e.id, nil
	}
	id = t.rec.Latest[r.Name]
	leaving := t.leaving[id]
	defer t.mu.Unlock()
	switch {
	case leaving != nil:
		rec := leaving.rec.Load()
		return nil, id, gone(leaving.endOf(rec, rec.Generation))
	case id != "":
		if err := s.p.goneOrUnknown(id, s.rec.Owner); AsError(err).Kind != KindNotFound {
			return nil, id, err
		}
	}
	return nil, "", Errorf(KindNotFound, "the task %q has no environment %q; acquire one", clip(r.Task, 64), clip(r.Name, 64))
}

// use is what every call that counts as activity does first: resolve, take
// part in the turn, stamp. The task stays locked.
func (s *Session) use(ctx context.Context, r Ref, kind string) (*env, error) {
	e, _, err := s.resolve(r)
	if err != nil {
		return nil, err
	}
	x := e.t.begin()
	x.join(s, false)
	x.activity(e, kind, s.actor())
	x.uses(s, e)
	if err := x.finish(ctx); err != nil {
		e.t.mu.Unlock()
		return nil, err
	}
	return e, nil
}

// Env returns the environment. A read is no activity.
func (s *Session) Env(_ context.Context, r Ref) (View, error) {
	e, _, err := s.resolve(r)
	if err != nil {
		return View{}, err
	}
	defer e.t.mu.Unlock()
	return e.view(), nil
}

// Envs lists the owner's environments, of one task if it is named.
func (s *Session) Envs(_ context.Context, task string) ([]View, error) {
	if task != "" {
		if err := CheckName("task", task); err != nil {
			return nil, err
		}
	}
	vs, _, err := s.p.Envs(EnvFilter{Owner: s.rec.Owner, Task: task})
	return vs, err
}

// Touch counts as activity and does nothing else.
func (s *Session) Touch(ctx context.Context, r Ref) (View, error) {
	e, err := s.use(ctx, r, "touch")
	if err != nil {
		return View{}, err
	}
	defer e.t.mu.Unlock()
	return e.view(), nil
}

// Release tears the environment down now; the files of a persistent one stay unless purge.
func (s *Session) Release(ctx context.Context, r Ref, purge bool) (View, error) {
	e, _, err := s.resolve(r)
	if err != nil {
		return View{}, err
	}
	defer e.t.mu.Unlock()
	rec := e.rec.Load()
	if rec.Pin != nil {
		return View{}, Errorf(KindConflict, "the environment is pinned by %s; it is not released until it is unpinned", rec.Pin)
	}
	x := e.t.begin()
	x.join(s, false)
	x.uses(s, e)
	x.end(e, TeardownStop, purge, s.actor(), "released", "release")
	if err := x.finish(ctx); err != nil {
		return View{}, err
	}
	return e.view(), nil
}

// end tears down by hand: an ephemeral one is removed; a persistent one keeps
// its files unless purge. What is so already stays so.
func (x *tx) end(e *env, mode TeardownMode, purge bool, actor, reason, rule string) {
	r := x.env(e)
	if purge || !r.Persistent {
		mode = TeardownRemove
	} else if r.State == Dormant {
		return
	}
	x.teardown(e, mode, actor, reason, rule)
}
