package control

import (
	"context"
	"slices"
	"time"
)

// join makes the session a participant of the task's turn; with open it opens
// one where none is.
func (x *tx) join(s *Session, open bool) (opened bool) {
	t := &x.t.rec
	if x.turn != nil {
		t = x.turn
	}
	if !t.Open {
		if !open {
			return false
		}
		t = x.task()
		t.Turn++
		t.Open, t.Since, t.Active, t.Lapsed = true, x.now, x.now, false
		t.Sessions = nil
		opened = true
		x.event(nil, TurnBegan, s.actor(), "", map[string]any{"turn": t.Turn})
		for _, e := range x.t.envs {
			if len(e.rec.Load().Users) > 0 {
				x.env(e).Users = nil
			}
		}
	}
	if !slices.Contains(t.Sessions, s.rec.ID) {
		t = x.task()
		t.Sessions = append(t.Sessions, s.rec.ID)
		x.must = true
		x.after = append(x.after, func() { s.join(x.t.key) })
	}
	return opened
}

// uses makes the session one that is told of the environment until the next turn begins.
func (x *tx) uses(s *Session, e *env) {
	r := x.env(e)
	if slices.Contains(r.Users, s.rec.ID) {
		return
	}
	users := []string{s.rec.ID}
	x.p.mu.RLock()
	defer x.p.mu.RUnlock()
	for _, id := range r.Users {
		if x.p.sessions[id] != nil { // who is over is told no more
			users = append(users, id)
		}
	}
	r.Users = users
}

// users are the sessions that are told of the environment: those that use it, and
// its owner's subscribers; the task is locked.
func (e *env) users() []*Session {
	p := e.t.p
	p.mu.RLock()
	defer p.mu.RUnlock()
	var all []*Session
	for _, id := range e.rec.Load().Users {
		if s := p.sessions[id]; s != nil {
			all = append(all, s)
		}
	}
	return p.subscribers.join(e.t.key.Owner, all)
}

// TurnBegin opens a turn, or joins the one that is open.
func (s *Session) TurnBegin(ctx context.Context, name string) (turn int64, opened bool, err error) {
	if err := CheckName("task", name); err != nil {
		return 0, false, err
	}
	if err := s.p.checkDraining(); err != nil {
		return 0, false, err
	}
	t, err := s.p.lockTask(TaskKey{s.rec.Owner, name})
	if err != nil {
		return 0, false, err
	}
	defer t.mu.Unlock()
	x := t.begin()
	opened = x.join(s, true)
	x.turnActivity()
	for _, e := range t.envs {
		x.activity(e, "turn", s.actor())
	}
	if err := x.finish(ctx); err != nil {
		return 0, false, err
	}
	return t.rec.Turn, opened, nil
}

// TurnEnd ends the open turn and decides on every environment of the task. It
// answers once the decision is on disk; teardowns go on behind it.
func (s *Session) TurnEnd(ctx context.Context, r TurnEndRequest) (TurnEnd, error) {
	end := TurnEnd{Decisions: []Decision{}}
	if err := CheckName("task", r.Task); err != nil {
		return end, err
	}
	if r.Outcome != "" {
		if err := checkOneOf("outcome", r.Outcome, "done", "failed", "cancelled"); err != nil {
			return end, err
		}
	}
	t, err := s.p.lockTask(TaskKey{s.rec.Owner, r.Task})
	if err != nil {
		return end, err
	}
	defer t.mu.Unlock()
	number := t.rec.Turn
	if number > 0 {
		end.Turn = &number
	}
	if r.Turn != nil {
		switch {
		case *r.Turn < 1 || *r.Turn > number:
			return end, Errorf(KindInvalid, "turn is %d; the latest turn of this task is %d", *r.Turn, number)
		case *r.Turn < number && t.rec.Open:
			end.Stale = true
			return end, nil
		}
	}
	if !t.rec.Open {
		return end, nil
	}
	x := t.begin()
	decided := x.endTurn(s.actor(), r.Outcome, "", true)
	if err := x.finish(ctx); err != nil {
		return end, err
	}
	for _, d := range decided {
		d.Deadline = AtPtr(d.e.rec.Load().Deadline)
		end.Decisions = append(end.Decisions, d.Decision)
	}
	return end, nil
}

type decided struct {
	Decision
	e *env
}

// endTurn closes the turn by the table. byAgent says that the end is itself activity.
func (x *tx) endTurn(actor, outcome, reason string, byAgent bool) []decided {
	t := x.task()
	for _, id := range t.Sessions {
		x.p.mu.RLock()
		s := x.p.sessions[id]
		x.p.mu.RUnlock()
		if s != nil {
			x.after = append(x.after, func() { s.leave(x.t.key) })
		}
	}
	var (
		ds   []decided
		rows = []any{}
		ends []func()
	)
	for _, e := range x.t.all() {
		kept, why, ok := decideTurnEnd(e.rec.Load())
		if !ok {
			continue
		}
		d := decided{Decision{Env: e.id, Name: e.rec.Load().Name, Decision: "kept", Reason: why}, e}
		if kept {
			if byAgent {
				x.activity(e, "turn", actor)
			}
		} else {
			d.Decision.Decision = "removed"
			ends = append(ends, func() { x.teardown(e, TeardownRemove, actor, "turn ended", "turn_end") })
		}
		ds = append(ds, d)
		rows = append(rows, map[string]any{"env": d.Env, "name": d.Name, "decision": d.Decision.Decision, "reason": why})
	}
	t.Open, t.Lapsed, t.Sessions = false, false, nil
	data := map[string]any{"turn": t.Turn, "decisions": rows}
	if outcome != "" {
		data["outcome"] = outcome
	}
	x.event(nil, TurnEnded, actor, reason, data)
	for _, end := range ends {
		end()
	}
	return ds
}

// dueTask looks at a task's turn: abandoned, lapsed, or neither.
func (p *Plane) dueTask(ctx context.Context, k TaskKey) {
	t, err := p.lockTask(k)
	if err != nil {
		p.o.Alarms.Set(taskAlarm(k), p.Now().Add(time.Second))
		return
	}
	defer t.mu.Unlock()
	x := t.begin()
	x.checkTurn()
	if err := x.finish(ctx); err != nil {
		p.o.Alarms.Set(taskAlarm(k), p.Now().Add(time.Second))
	}
}

// checkTurn ends a turn that everybody left, and drops the hold of one in
// which nothing has happened for max_turn.
func (x *tx) checkTurn() {
	t := &x.t.rec
	if x.turn != nil { // with what this decision has stamped
		t = x.turn
	}
	if !t.Open {
		return
	}
	if x.t.abandoned() {
		x.event(nil, AgentAbandoned, ActorServer, "every participant was gone for its grace", map[string]any{"turn": t.Turn})
		x.endTurn(ActorServer, "", "abandoned", false)
		return
	}
	if at := x.t.lapseAt(t); !at.IsZero() && !x.now.Before(at) {
		x.task().Lapsed = true
		x.event(nil, TurnLapsed, ActorServer, "no activity for "+seconds(x.p.o.MaxTurn), map[string]any{"turn": t.Turn})
	}
}

// abandoned tells whether the open turn has lost all its participants, and no
// foreground exec keeps it.
func (t *task) abandoned() bool {
	if !t.rec.Open || t.foreground() || t.unknown() {
		return false
	}
	t.p.mu.RLock()
	defer t.p.mu.RUnlock()
	for _, id := range t.rec.Sessions {
		if t.p.sessions[id] != nil {
			return false
		}
	}
	return true
}

// unknown tells whether what runs in the task is not known yet after a restart.
func (t *task) unknown() bool {
	for _, e := range t.envs {
		if e.unknown() && e.rec.Load().State == Ready {
			return true
		}
	}
	return false
}
