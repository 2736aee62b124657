package control

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Session is an agent's session. It outlives its sockets and, within its
// grace, the server.
type Session struct {
	p *Plane

	// writing is held from the reading of the record to its commit, so that no
	// older one is written over a newer. It is taken around mu, never inside it.
	writing sync.Mutex

	// mu guards what follows. It is taken inside a task's lock, never around one.
	mu    sync.Mutex
	rec   SessionRecord
	sink  Sink // nil while no socket is connected
	tasks map[TaskKey]struct{}
	used  map[string]int64 // by task and name: the last generation that it ran something in
}

func (s *Session) init() {
	s.tasks = map[TaskKey]struct{}{}
	if s.used = maps.Clone(s.used); s.used == nil {
		s.used = map[string]int64{}
	}
}

// ID returns the session's name, by which hello resumes it.
func (s *Session) ID() string { return s.rec.ID }

// Owner returns whom the session acts for.
func (s *Session) Owner() string { return s.rec.Owner }

// Grace is how long the session is kept without a socket.
func (s *Session) Grace() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec.Grace
}

func (s *Session) actor() string { return "agent:" + s.rec.Agent }

// record is the session as it is to be written; mu is held.
func (s *Session) record() SessionRecord {
	r := s.rec
	r.Used = maps.Clone(s.used)
	return r
}

func (s *Session) write(ctx context.Context) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	r := s.record()
	s.mu.Unlock()
	s.p.mu.RLock()
	_, live := s.p.sessions[r.ID]
	s.p.mu.RUnlock()
	if !live {
		return nil
	}
	return s.p.commit(ctx, &Batch{Sessions: []SessionRecord{r}})
}

// goneUntil is when the grace of a disconnected session ends; zero while it is connected.
func (s *Session) goneUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.Disconnected.IsZero() {
		return time.Time{}
	}
	return ceilMillis(s.rec.Disconnected.Add(s.rec.Grace))
}

func (s *Session) join(k TaskKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[k] = struct{}{}
}

func (s *Session) leave(k TaskKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, k)
}

func (s *Session) tell(f func(Sink)) {
	s.mu.Lock()
	k := s.sink
	s.mu.Unlock()
	if k != nil {
		f(k)
	}
}

// Hello opens a session for an owner, or resumes one that is within its grace.
func (p *Plane) Hello(ctx context.Context, owner string, h Hello, sink Sink) (s *Session, resumed bool, err error) {
	if err := CheckName("agent", h.Agent); err != nil {
		return nil, false, err
	}
	if err := checkText("version", h.Version, 128); err != nil {
		return nil, false, err
	}
	if err := CheckName("owner", owner); err != nil {
		return nil, false, err
	}
	grace := p.o.DisconnectGrace
	if h.Grace != nil {
		if *h.Grace < 0 {
			return nil, false, Errorf(KindInvalid, "disconnect_grace_seconds is negative")
		}
		grace = min(*h.Grace, grace)
	}
	if err := p.checkDraining(); err != nil {
		return nil, false, err
	}
	if h.Session != "" {
		if s, err := p.resume(ctx, owner, h, grace, sink); s != nil || err != nil {
			return s, s != nil, err
		}
	}
	now := p.Now()
	s = &Session{p: p, sink: sink, rec: SessionRecord{ID: "s" + newID() + newID(), Owner: owner, Agent: h.Agent, Version: h.Version, Grace: grace, CreatedAt: now}}
	s.init()
	ev := Event{Time: At(now), Kind: AgentConnected, Owner: owner, Actor: s.actor(), Data: map[string]any{"session": publicSession(s.rec.ID), "version": h.Version}}
	if err := p.commit(ctx, &Batch{Sessions: []SessionRecord{s.rec}, Events: []Event{ev}}); err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	p.sessions[s.rec.ID] = s
	p.mu.Unlock()
	return s, false, nil
}

// publicSession shortens a session's name: whoever knows the whole may resume it.
func publicSession(id string) string { return id[:min(len(id), 6)] }

// resume returns nil where there is nothing to resume.
func (p *Plane) resume(ctx context.Context, owner string, h Hello, grace time.Duration, sink Sink) (*Session, error) {
	p.mu.RLock()
	s := p.sessions[h.Session]
	p.mu.RUnlock()
	if s == nil || s.rec.Owner != owner {
		return nil, nil
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	if d := s.rec.Disconnected; !d.IsZero() && !p.Now().Before(d.Add(s.rec.Grace)) {
		s.mu.Unlock()
		return nil, nil // its alarm is about to end it
	}
	old := s.sink
	was := s.rec
	s.rec.Disconnected, s.rec.Grace, s.rec.Version = time.Time{}, grace, h.Version
	s.sink = sink
	rec := s.record()
	s.mu.Unlock()
	if old != nil {
		old.Replaced()
	}
	ev := Event{Time: At(p.Now()), Kind: AgentResumed, Owner: owner, Actor: s.actor(), Data: map[string]any{"session": publicSession(rec.ID)}}
	if err := p.commit(ctx, &Batch{Sessions: []SessionRecord{rec}, Events: []Event{ev}}); err != nil {
		s.mu.Lock()
		if s.sink == sink {
			s.sink, s.rec.Disconnected, s.rec.Grace = nil, latest(was.Disconnected, p.Now()), was.Grace
			p.o.Alarms.Set(sessionAlarm(rec.ID), s.rec.Disconnected.Add(s.rec.Grace))
		}
		s.mu.Unlock()
		return nil, err
	}
	p.o.Alarms.Clear(sessionAlarm(rec.ID))
	s.settleTasks()
	return s, nil
}

// settleTasks brings the holds of the session's turns up to date.
func (s *Session) settleTasks() {
	s.mu.Lock()
	keys := slices.Collect(maps.Keys(s.tasks))
	s.mu.Unlock()
	for _, k := range keys {
		t, err := s.p.lockTask(k)
		if err != nil {
			continue
		}
		t.settle(s.p.Now())
		for _, e := range t.envs {
			s.p.hub.changed(e.id)
		}
		t.mu.Unlock()
	}
}

// Disconnect says that this socket is gone; of one that was taken over it changes nothing.
func (s *Session) Disconnect(sink Sink) {
	if s.disconnect(sink) {
		s.settleTasks()
	}
}

func (s *Session) disconnect(sink Sink) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	if s.sink != sink {
		s.mu.Unlock()
		return false
	}
	now := s.p.Now()
	s.sink = nil
	s.rec.Disconnected = now
	rec := s.record()
	s.mu.Unlock()
	s.p.o.Alarms.Set(sessionAlarm(rec.ID), now.Add(rec.Grace))
	ev := Event{Time: At(now), Kind: AgentDisconnected, Owner: rec.Owner, Actor: s.actor(), Data: map[string]any{"session": publicSession(rec.ID), "grace_seconds": rec.Grace.Seconds()}}
	// The alarm is set and holds, also where this cannot be written.
	s.p.commit(s.p.ctx, &Batch{Sessions: []SessionRecord{rec}, Events: []Event{ev}}) //nolint:errcheck // logged
	return true
}

// expire ends a session whose grace has passed, and the turns that nobody is left in.
func (p *Plane) expire(ctx context.Context, id string) {
	p.mu.RLock()
	s := p.sessions[id]
	p.mu.RUnlock()
	if s == nil {
		return
	}
	s.writing.Lock()
	defer s.writing.Unlock() // it does not come back between the look and the end
	until := s.goneUntil()
	if until.IsZero() {
		return
	}
	if p.Now().Before(until) {
		p.o.Alarms.Set(sessionAlarm(id), until)
		return
	}
	if err := p.commit(ctx, &Batch{DeleteSessions: []string{id}}); err != nil {
		p.o.Alarms.Set(sessionAlarm(id), p.Now().Add(time.Second))
		return
	}
	p.mu.Lock()
	delete(p.sessions, id)
	p.mu.Unlock()
	s.mu.Lock()
	keys := slices.Collect(maps.Keys(s.tasks))
	s.mu.Unlock()
	for _, k := range keys {
		p.dueTask(ctx, k)
	}
}
