package controltest

import (
	"context"
	"fmt"
	"io"
	"sync"

	"sandkeeper/internal/control"
)

// Attach joins an exec. What it wrote comes once it has ended: the output of
// its end, stdout first.
func (g *guest) Attach(ctx context.Context, a control.GuestAttach) (s control.GuestStream, err error) {
	err = g.call(ctx, "Attach", func(box *sandbox) error {
		p := box.run.execs[a.Exec]
		if p == nil {
			return fmt.Errorf("%s: %w", a.Exec, control.ErrNoExec)
		}
		s = &stream{p: p, run: box.run, g: g, running: p.ended.IsZero(), from: a.From, closed: make(chan struct{})}
		return nil
	})
	return s, err
}

func (g *guest) CloseStdin(ctx context.Context, exec string) error {
	return g.call(ctx, "CloseStdin", func(box *sandbox) error {
		if box.run.execs[exec] == nil {
			return fmt.Errorf("%s: %w", exec, control.ErrNoExec)
		}
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
	from    control.Offsets // the reader's alone

	once   sync.Once
	closed chan struct{}
}

func (s *stream) Skipped() control.Offsets { return control.Offsets{} }
func (s *stream) Running() bool            { return s.running }
func (s *stream) StdinTaken() int64        { return 0 }
func (s *stream) End() control.ExecEnd     { return s.p.result }

func (s *stream) Read(b []byte) (int, control.Output, error) {
	select {
	case <-s.p.end:
	default:
		select {
		case <-s.p.end:
		case <-s.run.ended:
			return 0, 0, s.g.unreachable()
		case <-s.closed:
			return 0, 0, s.g.unreachable()
		}
	}
	if rest := s.p.result.Stdout; int64(len(rest)) > s.from.Stdout {
		n := copy(b, rest[s.from.Stdout:])
		s.from.Stdout += int64(n)
		return n, control.Stdout, nil
	}
	if rest := s.p.result.Stderr; int64(len(rest)) > s.from.Stderr {
		n := copy(b, rest[s.from.Stderr:])
		s.from.Stderr += int64(n)
		return n, control.Stderr, nil
	}
	return 0, 0, io.EOF
}

func (s *stream) Write(b []byte) (int, error) {
	select {
	case <-s.run.ended:
		return 0, s.g.unreachable()
	case <-s.p.end:
		return 0, control.ErrStdinClosed
	default:
		return len(b), nil
	}
}

func (s *stream) CloseStdin() error { return nil }

func (s *stream) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}
