package control

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

const (
	terminalIdle  = time.Hour   // an attached terminal without input holds no longer
	inputNotedFor = time.Second // input counts as activity at most that often
	outputWait    = 10 * time.Second
)

// execStream is an exec's streams, as one session has them joined. It joins
// anew where the connection to the guest breaks.
type execStream struct {
	s     *Session
	x     *exec
	input bool

	ctx    context.Context // until Close
	cancel context.CancelFunc
	exit   ExecExit // the reader's, once io.EOF
	over   bool     // likewise: io.EOF was told

	mu      sync.Mutex // guards the fields below
	at      Offsets    // bytes that were read, or skipped
	skipped Offsets    // not told yet
	taken   int64      // bytes of stdin that the guest had at the first join
	cur     GuestStream
	joined  bool // once
	closed  bool
	changed chan struct{} // closed when cur, or closed, changes
}

func (s *Session) newStream(x *exec, from Offsets, input bool) *execStream {
	st := &execStream{s: s, x: x, input: input, at: from, changed: make(chan struct{})}
	st.ctx, st.cancel = context.WithCancel(s.p.ctx)
	if x.start.TTY != nil {
		st.terminal(1)
	}
	return st
}

// Exec is the exec's name.
func (st *execStream) Exec() string { return st.x.name }

// Exit is how the exec ended; after io.EOF.
func (st *execStream) Exit() ExecExit { return st.exit }

// join joins the exec, unless that is so already.
func (st *execStream) join(ctx context.Context) error {
	st.mu.Lock()
	at, cur, closed := st.at, st.cur, st.closed
	st.mu.Unlock()
	if cur != nil || closed {
		return nil
	}
	x := st.x
	cur, err := st.s.p.o.Guests.Guest(x.e.sandbox()).Attach(ctx, GuestAttach{Exec: x.name, From: at, Input: st.input})
	if err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		cur.Close()
		return nil
	}
	skipped := cur.Skipped()
	st.at.Stdout += skipped.Stdout
	st.at.Stderr += skipped.Stderr
	st.skipped.Stdout += skipped.Stdout
	st.skipped.Stderr += skipped.Stderr
	if !st.joined {
		st.joined, st.taken = true, cur.StdinTaken()
	}
	st.cur = cur
	st.bump()
	return nil
}

// bump tells who waits for a change; st.mu is held.
func (st *execStream) bump() {
	close(st.changed)
	st.changed = make(chan struct{})
}

func (st *execStream) takeSkipped() Offsets {
	st.mu.Lock()
	defer st.mu.Unlock()
	o := st.skipped
	st.skipped = Offsets{}
	return o
}

// part lets a joined stream go that broke.
func (st *execStream) part(cur GuestStream) {
	cur.Close()
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.cur == cur {
		st.cur = nil
		st.bump()
	}
}

// Read waits for the next bytes.
func (st *execStream) Read(p []byte) (int, Output, error) {
	if st.over {
		return 0, 0, io.EOF
	}
	pause := 50 * time.Millisecond
	var since time.Time // the exec has ended, and its output does not come
	for {
		err := st.join(st.ctx)
		if o := st.takeSkipped(); o != (Offsets{}) {
			return 0, 0, &Gap{o}
		}
		st.mu.Lock()
		cur, closed := st.cur, st.closed
		st.mu.Unlock()
		switch {
		case closed || st.ctx.Err() != nil:
			return 0, 0, st.stopped()
		case err == nil:
			n, out, rerr := cur.Read(p)
			if rerr == nil {
				st.mu.Lock()
				if out == Stderr {
					st.at.Stderr += int64(n)
				} else {
					st.at.Stdout += int64(n)
				}
				st.mu.Unlock()
				return n, out, nil
			}
			if errors.Is(rerr, io.EOF) {
				return st.end(false)
			}
			st.part(cur)
			since = time.Time{}
		}
		// The connection broke. What is behind it tells whether there is more.
		now := st.s.p.Now()
		if st.x.isDone() {
			if since.IsZero() {
				since = now
			}
			if st.x.lost != nil || st.x.err != nil || errors.Is(err, ErrNoExec) || now.Sub(since) > outputWait {
				return st.end(true)
			}
		}
		select {
		case <-time.After(pause):
		case <-st.ctx.Done():
		}
		pause = min(2*pause, time.Second)
	}
}

// stopped is why a stream that was not read to its end gives no more.
func (st *execStream) stopped() error {
	if st.s.p.ctx.Err() != nil {
		return Errorf(KindDraining, "the server is going down; the command goes on and can be attached to")
	}
	return ErrStreamClosed
}

// end waits for the exec's end. lost says that bytes may be missing ahead of it.
func (st *execStream) end(lost bool) (int, Output, error) {
	select {
	case <-st.x.done:
	case <-st.ctx.Done():
		return 0, 0, st.stopped()
	}
	if st.x.err != nil {
		return 0, 0, st.x.err
	}
	st.exit = exitOf(st.x.end, st.x.lost)
	st.exit.OutputLost = lost && st.x.lost == nil
	st.over = true
	return 0, 0, io.EOF
}

// Write gives stdin.
func (st *execStream) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		cur, err := st.joinedNow()
		if err != nil {
			return written, err
		}
		n, err := cur.Write(p[written:])
		written += n
		if err != nil && !passing(err) {
			return written, err
		}
		if err != nil {
			st.part(cur)
		}
	}
	st.inputCame()
	return written, nil
}

// CloseStdin ends the input.
func (st *execStream) CloseStdin() error {
	for {
		cur, err := st.joinedNow()
		if err != nil {
			return err
		}
		err = cur.CloseStdin()
		if err == nil || !passing(err) {
			return err
		}
		st.part(cur)
	}
}

// joinedNow waits until the reader has joined the exec.
func (st *execStream) joinedNow() (GuestStream, error) {
	for {
		st.mu.Lock()
		cur, closed, changed := st.cur, st.closed, st.changed
		st.mu.Unlock()
		switch {
		case closed, st.x.isDone():
			return nil, ErrStdinClosed
		case cur != nil:
			return cur, nil
		}
		select {
		case <-changed:
		case <-st.x.done:
		case <-st.ctx.Done():
			return nil, ErrStdinClosed
		}
	}
}

// Close ends both directions, and leaves the exec alone.
func (st *execStream) Close() error {
	st.mu.Lock()
	if st.closed {
		st.mu.Unlock()
		return nil
	}
	st.closed = true
	cur := st.cur
	st.cur = nil
	st.bump()
	st.mu.Unlock()
	st.cancel()
	if cur != nil {
		cur.Close()
	}
	if st.x.start.TTY != nil {
		st.terminal(-1)
	}
	return nil
}

// terminal counts who is attached to the exec's terminal.
func (st *execStream) terminal(n int) {
	x, t := st.x, st.x.e.t
	t.mu.Lock()
	defer t.mu.Unlock()
	tx := t.begin()
	if x.terminals += n; x.terminals == 1 && n > 0 {
		x.joinedAt, x.lastInput = tx.now, time.Time{}
	}
	tx.finish(st.s.p.ctx) //nolint:errcheck // nothing is committed
	st.s.p.hub.changed(x.e.id)
}

// inputCame takes input for activity.
func (st *execStream) inputCame() {
	x, t := st.x, st.x.e.t
	t.mu.Lock()
	defer t.mu.Unlock()
	tx := t.begin()
	x.lastInput = tx.now
	r := x.e.rec.Load()
	if tx.now.Sub(x.inputNoted) < inputNotedFor || x.state != execRunning || r.State != Ready || r.Generation != x.generation {
		return
	}
	x.inputNoted = tx.now
	tx.activity(x.e, "exec", st.s.actor())
	tx.finish(st.s.p.ctx) //nolint:errcheck // written behind
}

// terminalHold tells until when somebody attached to its terminal holds the
// environment; the task is locked.
func (x *exec) terminalHold(now time.Time) (Hold, bool) {
	until := latest(x.joinedAt, x.lastInput).Add(terminalIdle)
	if x.terminals < 1 || x.state != execRunning || !now.Before(until) {
		return Hold{}, false
	}
	return Hold{Kind: HoldTerminal, Ref: x.name, Since: At(x.joinedAt), Until: AtPtr(ceilMillis(until))}, true
}

// replay is the stream of an exec of which only the record is left, behind the
// bytes that are had already.
func replay(rec *ExecRecord, from Offsets) ExecStream {
	r := &recordStream{name: rec.Exec}
	if rec.End != nil {
		r.exit = exitOf(*rec.End, rec.Lost)
		if rec.End.OmittedOut > 0 || rec.End.OmittedErr > 0 || rec.End.OutputLost {
			r.exit.OutputLost = true
		} else {
			r.out = rec.End.Stdout[min(from.Stdout, int64(len(rec.End.Stdout))):]
			r.err = rec.End.Stderr[min(from.Stderr, int64(len(rec.End.Stderr))):]
		}
	} else {
		r.exit = exitOf(ExecEnd{}, rec.Lost)
	}
	return r
}

type recordStream struct {
	name     string
	exit     ExecExit
	out, err []byte
}

func (r *recordStream) Exec() string   { return r.name }
func (r *recordStream) Exit() ExecExit { return r.exit }

func (r *recordStream) Read(p []byte) (int, Output, error) {
	switch {
	case len(r.out) > 0:
		n := copy(p, r.out)
		r.out = r.out[n:]
		return n, Stdout, nil
	case len(r.err) > 0:
		n := copy(p, r.err)
		r.err = r.err[n:]
		return n, Stderr, nil
	}
	return 0, 0, io.EOF
}

func (r *recordStream) Write([]byte) (int, error) { return 0, ErrStdinClosed }
func (r *recordStream) CloseStdin() error         { return ErrStdinClosed }
func (r *recordStream) Close() error              { return nil }
