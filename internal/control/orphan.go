package control

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// An orphan is a sandbox with this instance's label and without a record. It is
// stopped, kept and shown, until an operator adopts or purges it.

// Orphans lists what carries our label and has no record.
func (p *Plane) Orphans() []Orphan {
	p.mu.RLock()
	defer p.mu.RUnlock()
	os := slices.Collect(maps.Values(p.orphans))
	slices.SortFunc(os, func(a, b Orphan) int { return strings.Compare(a.Name, b.Name) })
	return os
}

// AdoptOrphan makes an orphan the dormant, persistent environment that its
// labels tell of; what was asked of it beside its image is lost, so that it has
// the defaults. Errors: KindNotFound; KindConflict where its key has another
// environment, or where it is not stopped yet.
func (p *Plane) AdoptOrphan(ctx context.Context, actor, sandbox string) (View, error) {
	p.orphanMu.Lock()
	defer p.orphanMu.Unlock()
	o, err := p.orphan(sandbox)
	switch {
	case err != nil:
		return View{}, err
	case !o.Stopped:
		return View{}, Errorf(KindConflict, "the sandbox is still being stopped; try again in a moment")
	case o.Name != p.sandboxName(o.Env) || o.Owner == "" || o.Task == "" || o.EnvName == "":
		return View{}, Errorf(KindConflict, "the sandbox's labels do not tell whose it is; it can only be purged")
	}
	t, err := p.lockTask(TaskKey{o.Owner, o.Task})
	if err != nil {
		return View{}, err
	}
	defer t.mu.Unlock()
	if other := t.envs[o.EnvName]; other != nil {
		return View{}, Errorf(KindConflict, "its task has another environment of that name, %s: release or kill that one first", other.id)
	}
	x := t.begin()
	e := x.adopt(o, actor)
	x.batch.DeleteOrphans = append(x.batch.DeleteOrphans, o.Name)
	x.after = append(x.after, func() {
		t.envs[o.EnvName] = e
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.orphans, o.Name)
		p.envs[e.id] = e
		p.owners[o.Owner]++
	})
	if err := x.finish(ctx); err != nil {
		return View{}, err
	}
	return e.view(), nil
}

// adopt makes the record. Its generation stands for the runs that nobody remembers.
func (x *tx) adopt(o Orphan, actor string) *env {
	p, t := x.p, x.task()
	if t.Generations == nil {
		t.Generations = map[string]int64{}
	}
	if t.Latest == nil {
		t.Latest = map[string]string{}
	}
	t.Generations[o.EnvName]++
	t.Latest[o.EnvName] = o.Env
	generation := t.Generations[o.EnvName]
	spec := Spec{Image: o.Image, Network: "default", Workdir: "/workspace", Limits: p.o.Limits, Persistent: true}
	name, isolation := p.engine.name()
	rec := &Env{
		ID: o.Env, Owner: o.Owner, Task: o.Task, Name: o.EnvName, State: Dormant,
		Generation: generation, CreatedGeneration: generation, RootGeneration: generation,
		Persistent: true, Engine: name, Isolation: isolation, Asked: spec, Applied: spec,
		Lifetime: p.o.Lifetime, CreatedAt: x.now, DormantSince: x.now, Files: true,
		LastActivity: Activity{At: x.now, Kind: "touch", Actor: actor},
	}
	e := newEnv(x.t, rec)
	x.envs[e] = rec
	x.event(rec, OrphanAdopted, actor, "", map[string]any{"sandbox": o.Name})
	x.moved(e)
	return e
}

// PurgeOrphan removes an orphan with its files. Errors: KindNotFound;
// KindEngineUnavailable where it could not be removed now.
func (p *Plane) PurgeOrphan(ctx context.Context, actor, sandbox string) error {
	p.orphanMu.Lock()
	defer p.orphanMu.Unlock()
	o, err := p.orphan(sandbox)
	if err != nil {
		return err
	}
	gone, err := p.removeOrphan(ctx, o.Name, o.event(p.Now(), actor, "purged by an operator"))
	if gone {
		p.purged[o.Name] = p.Now()
	}
	if err == nil && !gone {
		return &Error{Kind: KindEngineUnavailable, Message: "the sandbox could not be removed; the server's log has the cause. Try again", RetryAfter: 5 * time.Second}
	}
	return err
}

func (p *Plane) orphan(sandbox string) (Orphan, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	o, ok := p.orphans[sandbox]
	if !ok {
		return o, Errorf(KindNotFound, "no orphan has the name %q", clip(sandbox, 200))
	}
	return o, nil
}

func (o *Orphan) event(now time.Time, actor, reason string) Event {
	return Event{Time: At(now), Env: o.Env, Owner: o.Owner, Task: o.Task, Name: o.EnvName, Actor: actor, Reason: reason, Data: map[string]any{"sandbox": o.Name}}
}

// reconcileUnrecorded deals with what carries our label and has no record. It
// cannot come from a crash, since intent comes first: the database was lost or
// restored. Only what was never started is removed; the rest is stopped, kept and shown.
func (p *Plane) reconcileUnrecorded(ctx context.Context, s *SandboxStatus, began time.Time) error {
	p.orphanMu.Lock()
	defer p.orphanMu.Unlock()
	if at, ok := p.purged[s.Name]; ok {
		if !began.After(at) {
			return nil // purged while the engine listed
		}
		delete(p.purged, s.Name)
	}
	p.mu.RLock()
	_, recorded := p.envs[s.Env]
	known, found := p.orphans[s.Name]
	p.mu.RUnlock()
	if recorded && s.Name == p.sandboxName(s.Env) {
		return nil
	}
	ev := Event{Time: At(p.Now()), Env: s.Env, Owner: s.Owner, Task: s.Task, Name: s.EnvName, Actor: ActorReconciler, Data: map[string]any{"sandbox": s.Name, "state": string(s.State)}}
	removed, ok, err := p.o.Store.RemovedEnv(s.Env)
	if err != nil {
		return err
	}
	if ok {
		if removed.Tombstone == nil || !removed.Tombstone.At.Before(began) {
			return nil // removed while the engine listed
		}
		ev.Reason = "its environment was removed"
		_, err := p.removeOrphan(ctx, s.Name, ev) // what was not removed comes again
		return err
	}
	if s.State == SandboxCreated {
		if p.Now().Sub(s.CreatedAt) < neverStartedKept {
			return nil
		}
		ev.Reason = "it was never started and has no record"
		_, err := p.removeOrphan(ctx, s.Name, ev) // what was not removed comes again
		return err
	}
	o := Orphan{Name: s.Name, Env: s.Env, Owner: s.Owner, Task: s.Task, EnvName: s.EnvName, Image: s.Image, FoundAt: p.Now()}
	if found {
		o = known
	}
	stopped := s.State != SandboxRunning
	if !stopped {
		sctx, cancel := context.WithTimeout(ctx, p.o.TeardownTimeout)
		err := p.o.Engine.Stop(sctx, s.Name)
		cancel()
		if err != nil {
			p.log.Warn("stop an orphan", "sandbox", s.Name, "err", err)
		}
		stopped = err == nil
	}
	if found && o.Stopped == stopped {
		return nil
	}
	o.Stopped = stopped
	b := &Batch{Orphans: []Orphan{o}}
	if !found {
		ev.Kind, ev.Reason = OrphanFound, "it carries this instance's label and has no record; it is stopped and kept"
		b.Events = []Event{ev}
	}
	if err := p.commit(ctx, b); err != nil {
		return err
	}
	p.mu.Lock()
	p.orphans[o.Name] = o
	p.mu.Unlock()
	return nil
}

// removeOrphan removes it with its files; gone is false where the engine failed.
func (p *Plane) removeOrphan(ctx context.Context, name string, ev Event) (gone bool, err error) {
	rctx, cancel := context.WithTimeout(ctx, p.o.TeardownTimeout)
	defer cancel()
	if err := p.o.Engine.Remove(rctx, name, RemoveAll); err != nil {
		p.log.Warn("remove an orphan", "sandbox", name, "err", err)
		return false, nil
	}
	ev.Kind = OrphanRemoved
	if err := p.commit(ctx, &Batch{Events: []Event{ev}, DeleteOrphans: []string{name}}); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.orphans, name)
	return true, nil
}

// forgetOrphans drops those that the engine no longer has.
func (p *Plane) forgetOrphans(ctx context.Context, listed []SandboxStatus) {
	p.orphanMu.Lock()
	defer p.orphanMu.Unlock()
	here := make(map[string]struct{}, len(listed))
	for _, s := range listed {
		here[s.Name] = struct{}{}
	}
	for _, o := range p.Orphans() {
		if _, ok := here[o.Name]; ok {
			continue
		}
		ev := o.event(p.Now(), ActorReconciler, "it is no longer on the engine")
		ev.Kind = OrphanRemoved
		if p.commit(ctx, &Batch{DeleteOrphans: []string{o.Name}, Events: []Event{ev}}) == nil {
			p.mu.Lock()
			delete(p.orphans, o.Name)
			p.mu.Unlock()
		}
	}
}
