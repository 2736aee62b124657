package controltest

import (
	"context"
	"fmt"
	"io"

	"sandkeeper/internal/control"
)

// The bounds of a guest's streams, small enough for tests to reach.
const (
	// Kept is how much of each stream of an exec is kept, the latest bytes.
	Kept = 4 << 10
	// Window is how far an exec gets ahead of the slowest that has joined it.
	Window = 1 << 10
)

// output is what an exec wrote and was given. The engine's lock guards it.
type output struct {
	all     [2][]byte        // what was written of each stream
	lost    [2]int64         // bytes of each, from its beginning, that are no longer kept for who joins
	input   []byte           // all that it was given
	shut    bool             // no more input comes
	joined  map[*stream]bool // that are open
	giver   *stream          // whose input is taken
	changed chan struct{}    // closed and replaced with each change
}

func newOutput() output {
	return output{joined: map[*stream]bool{}, changed: make(chan struct{})}
}

func (o *output) bump() {
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *output) take(b []byte) { o.input = append(o.input, b...) }

// put adds to a stream.
func (o *output) put(out control.Output, b []byte) {
	i := out - control.Stdout
	o.all[i] = append(o.all[i], b...)
	o.lost[i] = max(o.lost[i], o.wrote(out)-Kept)
	o.bump()
}

// wrote counts the bytes of a stream.
func (o *output) wrote(out control.Output) int64 { return int64(len(o.all[out-control.Stdout])) }

// room is how much may be written before the slowest that has joined is a window behind.
func (o *output) room(out control.Output) int {
	n := int64(Window)
	for s := range o.joined {
		n = min(n, s.at[out-control.Stdout]+Window-o.wrote(out))
	}
	return int(max(0, n)) // who joined from the beginning may be further behind
}

// Write has a running exec write. As behind any full pipe only so much is taken
// as fits; 0 also where it does not run.
func (g *Guests) Write(exec string, out control.Output, b []byte) int {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	p := g.find(exec)
	if p == nil || !p.ended.IsZero() {
		return 0
	}
	n := min(len(b), p.room(out))
	p.put(out, b[:n])
	return n
}

// Runs reports whether an exec runs.
func (g *Guests) Runs(exec string) bool {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	p := g.find(exec)
	return p != nil && p.ended.IsZero()
}

// Wrote counts what an exec wrote to each stream; ok is false where its run of
// the sandbox is over.
func (g *Guests) Wrote(exec string) (o control.Offsets, ok bool) {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	p := g.find(exec)
	if p == nil {
		return o, false
	}
	return control.Offsets{Stdout: p.wrote(control.Stdout), Stderr: p.wrote(control.Stderr)}, true
}

// Input is what an exec was given, and whether that is all.
func (g *Guests) Input(exec string) (input string, shut bool) {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	if p := g.find(exec); p != nil {
		return string(p.input), p.shut
	}
	return "", false
}

// Cut breaks the connections that carry the streams of a sandbox's execs, with
// what is on its way in them.
func (g *Guests) Cut(sandbox string) {
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	box := g.engine.sandboxes[sandbox]
	if box == nil || box.run == nil {
		return
	}
	for _, p := range box.run.execs {
		for s := range p.joined {
			s.leave()
		}
	}
}

// Attach joins an exec. What is no longer kept from the asked bytes on is skipped.
func (g *guest) Attach(ctx context.Context, a control.GuestAttach) (s control.GuestStream, err error) {
	err = g.call(ctx, "Attach", func(box *sandbox) error {
		p := box.run.execs[a.Exec]
		if p == nil {
			return fmt.Errorf("%s: %w", a.Exec, control.ErrNoExec)
		}
		j := &stream{p: p, run: box.run, g: g, running: p.ended.IsZero(), at: [2]int64{a.From.Stdout, a.From.Stderr}, gone: make(chan struct{}), taken: int64(len(p.input))}
		for i := range j.at {
			j.skipped[i] = max(0, p.lost[i]-j.at[i])
			j.at[i] += j.skipped[i]
		}
		p.joined[j] = true
		if a.Input {
			p.giver = j
		}
		s = j
		return nil
	})
	return s, err
}

func (g *guest) CloseStdin(ctx context.Context, exec string) error {
	return g.call(ctx, "CloseStdin", func(box *sandbox) error {
		p := box.run.execs[exec]
		if p == nil {
			return fmt.Errorf("%s: %w", exec, control.ErrNoExec)
		}
		p.shut = true
		return nil
	})
}

func (g *guest) Resize(ctx context.Context, exec string, _ control.TTY) error {
	return g.call(ctx, "Resize", func(box *sandbox) error {
		p := box.run.execs[exec]
		switch {
		case p == nil:
			return fmt.Errorf("%s: %w", exec, control.ErrNoExec)
		case p.start.TTY == nil:
			return control.Errorf(control.KindConflict, "the exec has no terminal")
		}
		return nil
	})
}

// stream is one joined exec.
type stream struct {
	p       *process
	run     *run
	g       *guest
	running bool
	skipped [2]int64
	taken   int64
	at      [2]int64      // bytes that were read, or skipped; the engine's lock guards it
	gone    chan struct{} // closed once it was left, or cut
}

func (s *stream) Skipped() control.Offsets {
	return control.Offsets{Stdout: s.skipped[0], Stderr: s.skipped[1]}
}
func (s *stream) Running() bool     { return s.running }
func (s *stream) StdinTaken() int64 { return s.taken }

// End is without the output, which was read.
func (s *stream) End() control.ExecEnd {
	end := s.p.result
	end.Stdout, end.Stderr = nil, nil
	return end
}

func (s *stream) Read(b []byte) (int, control.Output, error) {
	for {
		n, out, changed, err := s.next(b)
		if n > 0 || err != nil {
			return n, out, err
		}
		select {
		case <-changed:
		case <-s.run.ended:
		case <-s.gone:
		}
	}
}

// next reads what is there; where nothing is, changed tells of more.
func (s *stream) next(b []byte) (n int, out control.Output, changed <-chan struct{}, err error) {
	s.g.engine.mu.Lock()
	defer s.g.engine.mu.Unlock()
	if s.left() {
		return 0, 0, nil, s.g.unreachable()
	}
	for i, all := range s.p.all {
		if have := all[min(s.at[i], int64(len(all))):]; len(have) > 0 {
			n := copy(b, have)
			s.at[i] += int64(n)
			return n, control.Stdout + control.Output(i), nil, nil
		}
	}
	if !s.p.ended.IsZero() {
		return 0, 0, nil, io.EOF
	}
	select {
	case <-s.run.ended:
		return 0, 0, nil, s.g.unreachable()
	default:
		return 0, 0, s.p.changed, nil
	}
}

func (s *stream) Write(b []byte) (int, error) {
	s.g.engine.mu.Lock()
	defer s.g.engine.mu.Unlock()
	select {
	case <-s.run.ended:
		return 0, s.g.unreachable()
	default:
	}
	switch {
	case s.left():
		return 0, s.g.unreachable()
	case !s.p.ended.IsZero(), s.p.shut, s.p.giver != s:
		return 0, control.ErrStdinClosed
	}
	s.p.take(b)
	return len(b), nil
}

func (s *stream) CloseStdin() error {
	s.g.engine.mu.Lock()
	defer s.g.engine.mu.Unlock()
	if s.left() {
		return s.g.unreachable()
	}
	s.p.shut = true
	return nil
}

func (s *stream) Close() error {
	s.g.engine.mu.Lock()
	defer s.g.engine.mu.Unlock()
	s.leave()
	return nil
}

func (s *stream) left() bool { return !s.p.joined[s] }

// leave makes room for what the exec writes. The engine's lock is held.
func (s *stream) leave() {
	if s.left() {
		return
	}
	delete(s.p.joined, s)
	close(s.gone)
	s.p.bump()
}
