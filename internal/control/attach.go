package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// Start starts a command and joins its streams. The command goes on when ctx
// ends. One whose id is known is joined instead.
func (s *Session) Start(ctx context.Context, r StartRequest) (Started, error) {
	c := &command{
		RunRequest: RunRequest{
			Ref: r.Ref, Command: r.Command, Argv: r.Argv, Cwd: r.Cwd, Variables: r.Variables,
			TimeoutS: r.TimeoutS, ID: r.ID, Generation: r.Generation,
		},
		tty: r.TTY, background: r.Background, streamed: true, stdinOpen: r.Stdin,
	}
	e, id, err := s.resolve(r.Ref)
	if err != nil {
		rec, err := s.remembered(id, c, err)
		if err != nil {
			return Started{}, err
		}
		return Started{Exec: rec.Exec, Stream: replay(rec, Offsets{})}, nil
	}
	x, known, err := s.begin(ctx, e, c)
	if err != nil {
		return Started{}, err
	}
	if known != nil {
		if x = s.p.execs.find(known.Exec); x == nil {
			return Started{Exec: known.Exec, Stream: replay(known, Offsets{}), Notice: s.notice(e, known.Generation)}, nil
		}
	}
	if err := x.awaitStart(ctx); err != nil {
		return Started{}, err
	}
	st := s.newStream(x, Offsets{}, r.Stdin)
	if err := st.join(ctx); err != nil && !passing(err) && !errors.Is(err, ErrNoExec) {
		st.Close()
		return Started{}, s.p.execError(err, x)
	}
	return Started{Exec: x.name, PID: x.pid, Stream: st, Notice: s.notice(e, x.generation)}, nil
}

// Attach joins the streams of an exec of the session's owner.
func (s *Session) Attach(ctx context.Context, r AttachRequest) (Attached, error) {
	x, rec, err := s.findExec(ctx, r.Exec)
	if err != nil {
		return Attached{}, err
	}
	if r.From.Stdout < 0 || r.From.Stderr < 0 {
		return Attached{}, Errorf(KindInvalid, "from counts bytes, from 0 on")
	}
	if x == nil {
		return Attached{Exec: rec.Exec, State: "exited", Stream: replay(rec, r.From)}, nil
	}
	if err := x.awaitStart(ctx); err != nil {
		return Attached{}, err
	}
	st := s.newStream(x, r.From, !r.ReadOnly)
	a := Attached{Exec: x.name, State: "running", Stream: st}
	if x.isDone() {
		a.State = "exited"
	}
	err = st.join(ctx)
	switch {
	case err == nil:
		a.Skipped, a.StdinTaken = st.takeSkipped(), st.taken
	case !passing(err) && !errors.Is(err, ErrNoExec): // the stream tells what became of that one
		st.Close()
		return Attached{}, s.p.execError(err, x)
	}
	return a, nil
}

// WaitExec waits for the end of an exec, at most for timeout where that is positive.
func (s *Session) WaitExec(ctx context.Context, exec string, timeout time.Duration) (ExecState, error) {
	x, rec, err := s.findExec(ctx, exec)
	if err != nil {
		return ExecState{}, err
	}
	if x == nil {
		e := exitOf(*rec.End, rec.Lost)
		return ExecState{Exec: rec.Exec, Exit: &e}, nil
	}
	var late <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-x.done:
	case <-late:
		return ExecState{Exec: x.name}, nil
	case <-ctx.Done():
		return ExecState{}, ctx.Err()
	}
	if x.err != nil {
		return ExecState{}, x.err
	}
	e := exitOf(x.end, x.lost)
	return ExecState{Exec: x.name, Exit: &e}, nil
}

// SignalExec sends a signal to an exec, and returns how many processes still live.
func (s *Session) SignalExec(ctx context.Context, exec, signal string, tree bool) (survivors int, err error) {
	err = s.onExec(ctx, exec, func(g Guest) error {
		survivors, err = g.Signal(ctx, exec, signal, tree)
		return err
	})
	return survivors, err
}

// ResizeExec sets the size of an exec's terminal.
func (s *Session) ResizeExec(ctx context.Context, exec string, t TTY) error {
	return s.onExec(ctx, exec, func(g Guest) error { return g.Resize(ctx, exec, t) })
}

// CloseStdin ends an exec's input.
func (s *Session) CloseStdin(ctx context.Context, exec string) error {
	return s.onExec(ctx, exec, func(g Guest) error { return g.CloseStdin(ctx, exec) })
}

// onExec calls the guest of an exec that has begun. Of one whose environment
// went it fails with generation_gone; of one of which nothing is left it does nothing.
func (s *Session) onExec(ctx context.Context, exec string, f func(g Guest) error) error {
	x, rec, err := s.findExec(ctx, exec)
	switch {
	case err != nil:
		return err
	case x == nil && rec.Lost != nil:
		return gone(rec.Lost)
	case x == nil:
		return nil
	}
	if err := x.awaitStart(ctx); err != nil {
		return err
	}
	if x.isDone() && x.lost != nil {
		return gone(x.lost)
	}
	if x.ctx.Err() != nil { // nothing of it lives
		return nil
	}
	err = s.p.persist(x, startPatience, f)
	switch {
	case errors.Is(err, ErrNoExec) && x.isDone(): // nothing of it lives
		return nil
	case errors.Is(err, ErrNoExec): // its run of the sandbox is over, and we are about to hear so
		return s.p.execError(ErrGuestUnreachable, x)
	case err != nil:
		return s.p.execError(err, x)
	}
	return nil
}

// findExec finds an exec of the owner's by its name. Where the plane no longer
// has it, rec is the record of its end.
func (s *Session) findExec(ctx context.Context, name string) (x *exec, rec *ExecRecord, err error) {
	unknown := Errorf(KindNotFound, "no exec has the name %q, or it ended long ago", clip(name, 64))
	if x = s.p.execs.find(name); x == nil {
		// After a restart the guests say what runs.
		if err := s.p.allKnown(ctx, s.rec.Owner); err != nil {
			return nil, nil, err
		}
		x = s.p.execs.find(name)
	}
	if x != nil {
		if x.e.t.key.Owner != s.rec.Owner {
			return nil, nil, unknown
		}
		return x, nil, nil
	}
	r, ok, err := s.p.o.Store.ExecByName(name)
	switch {
	case err != nil:
		return nil, nil, &Error{Kind: KindInternal, Message: "the server could not read its database", Err: err}
	case !ok || s.p.ownerOf(r.Env) != s.rec.Owner || r.End == nil && r.Lost == nil:
		return nil, nil, unknown
	}
	if r.End == nil {
		r.End = &ExecEnd{}
	}
	return nil, &r, nil
}

// ownerOf is whose an environment is, or was until lately; "" if none.
func (p *Plane) ownerOf(id string) string {
	p.mu.RLock()
	e := p.envs[id]
	p.mu.RUnlock()
	if e != nil {
		return e.t.key.Owner
	}
	if r, ok, err := p.o.Store.RemovedEnv(id); err == nil && ok {
		return r.Owner
	}
	return ""
}

// allKnown waits, after a restart, until the owner's guests have said what runs.
func (p *Plane) allKnown(ctx context.Context, owner string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listPatience,
		&Error{Kind: KindEngineUnavailable, Message: "what runs in the sandboxes is not known yet; try again", RetryAfter: 2 * time.Second})
	defer cancel()
	p.mu.RLock()
	all := slices.Collect(maps.Values(p.envs))
	p.mu.RUnlock()
	for _, e := range all {
		if e.t.key.Owner != owner || e.rec.Load().State != Ready {
			continue
		}
		e.t.mu.Lock()
		for e.unknown() && e.rec.Load().State == Ready {
			if e.t.unlockedWait(ctx, e.changed) != nil {
				e.t.mu.Unlock()
				return context.Cause(ctx)
			}
		}
		e.t.mu.Unlock()
	}
	return nil
}

// awaitStart waits until the exec has begun or ended, and fails where it never began.
func (x *exec) awaitStart(ctx context.Context) error {
	select {
	case <-x.begun:
		return nil
	case <-x.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	switch {
	case x.err != nil:
		return x.err
	case x.lost != nil:
		return gone(x.lost)
	}
	return nil
}

func (x *exec) isDone() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// passing reports whether a guest may be reached by another attempt.
func passing(err error) bool {
	return errors.Is(err, ErrGuestUnreachable) || errors.Is(err, ErrEngineUnavailable)
}

func exitOf(end ExecEnd, lost *Tombstone) ExecExit {
	if lost != nil {
		return ExecExit{EnvLost: &LostEnv{Reason: lost.Reason, Tombstone: lost}}
	}
	code := end.ExitCode
	return ExecExit{
		ExitCode: &code, Signal: end.Signal, OOM: end.OOM, TimedOut: end.TimedOut,
		Duration: end.Duration, Cwd: end.Cwd, OutputLost: end.OutputLost, Left: end.Left,
	}
}
