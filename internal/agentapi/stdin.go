package agentapi

import (
	"context"
	"sync"

	"sandkeeper/internal/control"
)

const (
	// mostStdin is how much stdin waits in a channel for its command.
	mostStdin = 1 << 20
	// stdinPiece is how much of it is given at a time, and so, with a window,
	// how finely credit comes back.
	stdinPiece = 64 << 10
	// mostKeptStdin is the largest buffer that waits for more to come.
	mostKeptStdin = 64 << 10
)

// stdin is what a client has sent to a channel and the command has not taken.
// A goroutine gives it while there is some; at other times there is none.
type stdin struct {
	stream control.ExecStream
	// taken is told how much was given to the command, or was in vain.
	taken func(n int)

	mu      sync.Mutex
	waiting []byte
	spare   []byte // what waited before, emptied
	giving  int    // bytes in the giver's hands
	shut    bool   // the end of file follows what waits
	dead    bool   // nobody takes any of it
	runs    bool   // the giver does
	changed chan struct{}
	givers  sync.WaitGroup
}

func newStdin(s control.ExecStream, taken func(int)) *stdin {
	return &stdin{stream: s, taken: taken, changed: make(chan struct{})}
}

// put adds bytes, and waits for room. It reports whether they may still be
// taken. stalled is called if it has to wait, and what that returns afterwards.
func (s *stdin) put(ctx context.Context, p []byte, stalled func() func()) (ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if full := func() bool {
		held := len(s.waiting) + s.giving
		return held > 0 && held+len(p) > mostStdin && !s.dead
	}; full() {
		defer stalled()()
		if err := s.await(ctx, func() bool { return !full() }); err != nil {
			return false, err
		}
	}
	if s.dead || s.shut {
		return false, nil
	}
	s.waiting = append(s.waiting, p...)
	s.run()
	return true, nil
}

// close lets the end of file follow what waits.
func (s *stdin) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead || s.shut {
		return
	}
	s.shut = true
	s.run()
}

// drain waits until the command has all that came, or will never have it.
func (s *stdin) drain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.await(ctx, func() bool { return !s.runs })
}

// end ends it; what waits is lost. The stream is closed already, so the giver ends.
func (s *stdin) end() {
	s.mu.Lock()
	s.die()
	s.mu.Unlock()
	s.givers.Wait()
}

// await waits for a condition, which is asked with mu held.
func (s *stdin) await(ctx context.Context, cond func() bool) error {
	for !cond() {
		changed := s.changed
		s.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// tell wakes who awaits something; mu is held.
func (s *stdin) tell() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stdin) die() {
	s.dead, s.waiting, s.spare = true, nil, nil
	s.tell()
}

// run starts the giver, where none runs; mu is held.
func (s *stdin) run() {
	if !s.runs && !s.dead {
		s.runs = true
		s.givers.Go(s.give)
	}
}

// give gives what waits, until nothing does.
func (s *stdin) give() {
	for {
		s.mu.Lock()
		p := s.waiting
		if len(p) == 0 {
			last := s.shut && !s.dead
			if last {
				s.mu.Unlock()
				s.stream.CloseStdin() //nolint:errcheck // closed already is as good
				s.mu.Lock()
				s.die()
			}
			s.runs = false
			s.tell()
			s.mu.Unlock()
			return
		}
		s.waiting, s.spare = s.spare[:0], nil
		s.giving = len(p)
		s.mu.Unlock()

		buf, err := p[:0], error(nil)
		for len(p) > 0 && err == nil {
			var n int
			n, err = s.stream.Write(p[:min(len(p), stdinPiece)])
			p = p[n:]
			s.mu.Lock()
			s.giving = len(p)
			s.tell()
			s.mu.Unlock()
			s.taken(n)
		}
		s.mu.Lock()
		lost := 0
		if err != nil {
			lost = len(p) + len(s.waiting)
			s.die()
		} else if cap(buf) <= mostKeptStdin {
			s.spare = buf
		}
		s.giving = 0
		s.tell()
		s.mu.Unlock()
		if lost > 0 {
			s.taken(lost)
		}
	}
}
