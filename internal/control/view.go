package control

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// view is the env object at this instant; the task is locked.
func (e *env) view() View {
	now := e.t.p.Now()
	rec := e.rec.Load()
	return e.t.p.viewOf(rec, &e.t.rec, e.holds(rec, &e.t.rec, now), now)
}

func (p *Plane) viewOf(r *Env, turn *TaskRecord, holds []Hold, now time.Time) View {
	v := View{
		ID: r.ID, Owner: r.Owner, Task: r.Task, Name: r.Name, State: r.State, Generation: r.Generation,
		Persistent: r.Persistent, Pinned: r.Pin != nil, Engine: r.Engine, Isolation: r.Isolation,
		LifetimeS: int64(r.Lifetime / time.Second), CreatedAt: At(r.CreatedAt),
		LastActivity: ActivityView{At: At(r.LastActivity.At), Kind: r.LastActivity.Kind, Actor: r.LastActivity.Actor},
		Now:          At(now), Holds: holds, Workdir: r.Applied.Workdir,
		Limits: r.Applied.Limits.view(), Unenforced: slices.Clone(r.Unenforced),
		Drift: drift(r.Asked, r.Applied), Labels: maps.Clone(r.Labels),
	}
	if r.Pin != nil {
		v.Pin = &PinView{By: r.Pin.By, Reason: r.Pin.Reason, Since: At(r.Pin.Since), Until: AtPtr(ceilMillis(r.Pin.Until))}
	}
	if r.Applied.Image != "" {
		v.Image = &r.Applied.Image
	}
	if r.MaxAge > 0 {
		s := int64(r.MaxAge / time.Second)
		v.MaxAgeS = &s
	}
	if a := action(r); a != "" {
		v.NextAction = &a
	}
	if !r.Deadline.IsZero() {
		v.Deadline = AtPtr(r.Deadline)
		// Against the now that is shown, so that the two always add up.
		ms := max(0, r.Deadline.Sub(now.Truncate(time.Millisecond)).Milliseconds())
		v.RemainingMS = &ms
	}
	v.Rule = p.ruleText(r, len(holds) > 0, now)
	if turn.Turn > 0 {
		v.Turn = &TurnView{Number: turn.Turn, Open: turn.Open, Since: At(turn.Since)}
	}
	if v.Unenforced == nil {
		v.Unenforced = []string{}
	}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	if r.Error != "" {
		v.Error = &r.Error
	}
	if td := r.Teardown; td != nil && r.State == Stopping {
		v.Teardown = &TeardownView{Reason: td.Reason, Attempts: td.Attempts, NextAt: AtPtr(td.NextAt), Error: td.Error}
	}
	return v
}

// ruleText says why the countdown is what it is.
func (p *Plane) ruleText(r *Env, held bool, now time.Time) string {
	j := p.judge(r, held, now, p.ranAt(now))
	verb := map[string]string{actionStop: "stopped, its files kept", actionRemove: "removed with its files", actionPurge: "purged with its files"}[j.action]
	switch {
	case r.Pin != nil:
		return "pinned: neither a turn's end nor the reaper touches it"
	case r.State == Starting:
		return "starting: the countdown begins once it is ready"
	case r.State == Stopping:
		return "being torn down: " + r.Teardown.Reason
	case r.State == Removed:
		return "removed"
	case r.State == Dormant && j.at.IsZero():
		return "dormant: its files are kept until somebody purges them"
	case j.at.IsZero():
		return "held: the countdown begins when the last hold goes"
	}
	switch j.rule {
	case "max_age":
		return verb + " at " + seconds(r.MaxAge) + " of age, held or not"
	case "retention":
		return verb + " after " + seconds(p.o.Retention) + " without activity"
	case "failed":
		return verb + " " + seconds(p.o.FailedAfter) + " after its start failed"
	}
	return verb + " after " + seconds(r.Lifetime) + " without activity"
}

func (l Limits) view() LimitsView {
	var v LimitsView
	if l.CPUs != 0 {
		v.CPUs = &l.CPUs
	}
	if l.MemoryMB != 0 {
		v.MemoryMB = &l.MemoryMB
	}
	if l.Pids != 0 {
		v.Pids = &l.Pids
	}
	if l.DiskMB != 0 {
		v.DiskMB = &l.DiskMB
	}
	return v
}

// tellState tells the sessions that used the environment; the task is locked.
func (e *env) tellState() {
	users := e.users()
	if len(users) == 0 {
		return
	}
	v := e.view()
	for _, s := range users {
		s.tell(func(k Sink) { k.EnvState(v) })
	}
}

// Envs lists environments by the order of their ids, removed ones only where
// the filter names that state. next is the cursor of the page that follows, "" at the end.
func (p *Plane) Envs(f EnvFilter) (views []View, next string, err error) {
	views = []View{}
	if f.State == Removed {
		recs, err := p.o.Store.RemovedEnvs()
		if err != nil {
			return nil, "", &Error{Kind: KindInternal, Message: "the server could not read its database", Err: err}
		}
		slices.SortFunc(recs, func(a, b *Env) int { return strings.Compare(a.ID, b.ID) })
		now := p.Now()
		for _, r := range recs {
			if r.ID <= f.After || !f.match(r) {
				continue
			}
			if f.Limit > 0 && len(views) == f.Limit {
				return views, views[len(views)-1].ID, nil
			}
			views = append(views, p.viewOf(r, &TaskRecord{}, []Hold{}, now))
		}
		return views, "", nil
	}
	p.mu.RLock()
	all := make([]*env, 0, len(p.envs))
	for id, e := range p.envs {
		if id > f.After && f.match(e.rec.Load()) {
			all = append(all, e)
		}
	}
	p.mu.RUnlock()
	slices.SortFunc(all, func(a, b *env) int { return strings.Compare(a.id, b.id) })
	for _, e := range all {
		if f.Limit > 0 && len(views) == f.Limit {
			return views, views[len(views)-1].ID, nil
		}
		e.t.mu.Lock()
		if r := e.rec.Load(); r.State != Removed && f.match(r) {
			views = append(views, e.view())
		}
		e.t.mu.Unlock()
	}
	return views, "", nil
}

func (f *EnvFilter) match(r *Env) bool {
	if f.State != "" && r.State != f.State || f.Task != "" && r.Task != f.Task || f.Owner != "" && r.Owner != f.Owner {
		return false
	}
	if f.Query == "" {
		return true
	}
	q := strings.ToLower(f.Query)
	for _, s := range []string{r.Task, r.Owner, r.Name, r.ID, r.Applied.Image} {
		if strings.Contains(strings.ToLower(s), q) {
			return true
		}
	}
	return false
}

// Env returns one environment. A removed one is KindGenerationGone with its
// tombstone, and KindNotFound once that is forgotten.
func (p *Plane) Env(id string) (View, error) {
	e := p.lockEnv(id)
	if e == nil {
		return View{}, p.goneOrUnknown(id, "")
	}
	defer e.t.mu.Unlock()
	return e.view(), nil
}

// goneOrUnknown is the error for an id that is not in memory. With an owner,
// another's is not found.
func (p *Plane) goneOrUnknown(id, owner string) error {
	r, ok, err := p.o.Store.RemovedEnv(id)
	if err != nil {
		return &Error{Kind: KindInternal, Message: "the server could not read its database", Err: err}
	}
	if !ok || owner != "" && r.Owner != owner || r.Tombstone != nil && p.Now().Sub(r.Tombstone.At.Time) > tombstoneKept {
		return Errorf(KindNotFound, "no environment has the id %q", clip(id, 32))
	}
	return gone(r.Tombstone)
}

// gone is the error that a removed or replaced sandbox gives.
func gone(t *Tombstone) *Error {
	if t == nil {
		return Errorf(KindGenerationGone, "the sandbox is gone")
	}
	e := Errorf(KindGenerationGone, "the sandbox of generation %d is gone: %s (by %s at %s)", t.Generation, t.Reason, t.Actor, t.At)
	e.Tombstone = t
	return e
}
