package control

import (
	"context"
	"time"
)

// operate runs one operator's decision on an environment.
func (p *Plane) operate(ctx context.Context, id string, f func(x *tx, e *env, r *Env) error) (View, error) {
	e := p.lockEnv(id)
	if e == nil {
		return View{}, p.goneOrUnknown(id, "")
	}
	defer e.t.mu.Unlock()
	x := e.t.begin()
	if err := f(x, e, e.rec.Load()); err != nil {
		return View{}, err
	}
	if err := x.finish(ctx); err != nil {
		return View{}, err
	}
	return e.view(), nil
}

// Pin holds an environment against turn ends and the reaper. A zero until is
// without end. Pinning what is pinned replaces reason and end.
func (p *Plane) Pin(ctx context.Context, actor, id, reason string, until time.Time) (View, error) {
	if err := checkText("reason", reason, 512); err != nil {
		return View{}, err
	}
	if !until.IsZero() && !until.After(p.Now()) {
		return View{}, Errorf(KindInvalid, "until is %s; it takes a time to come", At(until))
	}
	return p.operate(ctx, id, func(x *tx, e *env, r *Env) error {
		if r.State == Stopping && r.Teardown.Final() {
			return Errorf(KindConflict, "the environment is being removed (%s); it can no longer be pinned", r.Teardown.Reason)
		}
		c := x.env(e)
		c.Pin = &Pin{By: actor, Reason: reason, Since: x.now, Until: ceilMillis(until)}
		data := map[string]any{}
		if !until.IsZero() {
			data["until"] = At(c.Pin.Until).String()
		}
		x.event(c, EnvPinned, actor, reason, data)
		x.moved(e)
		return nil
	})
}

// Unpin lets go of a pin; it counts as activity.
func (p *Plane) Unpin(ctx context.Context, actor, id string) (View, error) {
	return p.operate(ctx, id, func(x *tx, e *env, r *Env) error {
		if r.Pin != nil {
			x.unpin(e, actor, "")
		}
		return nil
	})
}

func (x *tx) unpin(e *env, actor, reason string) {
	c := x.env(e)
	c.Pin, c.UnpinnedAt = nil, x.now
	x.activity(e, "unpin", actor)
	x.event(c, EnvUnpinned, actor, reason, nil)
	x.moved(e)
}

// TouchEnv counts as activity, by an operator.
func (p *Plane) TouchEnv(ctx context.Context, actor, id string) (View, error) {
	return p.operate(ctx, id, func(x *tx, e *env, r *Env) error {
		x.activity(e, "touch", actor)
		x.event(x.env(e), EnvTouched, actor, "", nil)
		return nil
	})
}

// Stop makes a persistent environment dormant, gracefully, whatever holds it.
func (p *Plane) Stop(ctx context.Context, actor, id string) (View, error) {
	return p.operate(ctx, id, func(x *tx, e *env, r *Env) error {
		if !r.Persistent {
			return Errorf(KindConflict, "the environment is ephemeral: it has no files to keep; kill it instead")
		}
		x.end(e, TeardownStop, false, actor, "stopped by an operator", "operator")
		return nil
	})
}

// Kill ends an environment at once, whatever holds it: a persistent one keeps its files unless purge.
func (p *Plane) Kill(ctx context.Context, actor, id string, purge bool) (View, error) {
	return p.operate(ctx, id, func(x *tx, e *env, r *Env) error {
		reason := "killed by an operator"
		if purge && r.Persistent {
			reason = "killed and purged by an operator"
		}
		x.end(e, TeardownKill, purge, actor, reason, "operator")
		return nil
	})
}

// EnvExecs lists an environment's commands, for operators.
func (p *Plane) EnvExecs(_ context.Context, id string) ([]ExecView, error) {
	e := p.lockEnv(id)
	if e == nil {
		return nil, p.goneOrUnknown(id, "")
	}
	defer e.t.mu.Unlock()
	return e.execViews(), nil
}
