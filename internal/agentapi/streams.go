package agentapi

import (
	"context"
	"time"

	"sandkeeper/internal/control"
)

// atOnce is a timeout for a wait that only looks: the plane takes none as without end.
const atOnce = time.Nanosecond

// mostWait bounds the waiting that a client may ask for.
const mostWait = 365 * 24 * time.Hour

func execStart(ctx context.Context, on *socket, s Session, p *params) (any, error) {
	r := control.StartRequest{
		Ref:        p.ref(),
		Command:    p.textOrNone("command"),
		Argv:       p.textList("argv"),
		Cwd:        p.textOrNone("cwd"),
		Variables:  p.textMap("variables"),
		ID:         p.textOrNone("id"),
		Generation: p.whole("generation"),
		TimeoutS:   p.whole("timeout_seconds"),
		TTY:        p.tty("tty"),
		Background: p.flag("background"),
		Stdin:      p.flagOr("stdin", true),
	}
	window := p.window("window")
	p.rejectCommand(r.Command, r.Argv)
	if err := p.errFor(ctx, s, r.Ref); err != nil {
		return nil, err
	}
	if err := on.channels.reserve(); err != nil {
		return nil, err
	}
	started, err := s.Start(ctx, r)
	if err != nil {
		on.channels.release()
		return nil, err
	}
	c, begin := on.channel(started.Stream, window)
	return opened{startResult{started.Exec, c.id, started.PID, started.Notice}, begin, c.cancel}, nil
}

func execAttach(ctx context.Context, on *socket, s Session, p *params) (any, error) {
	r := control.AttachRequest{Exec: p.exec(), From: p.offsets("from"), ReadOnly: !p.flagOr("stdin", true)}
	window := p.window("window")
	if err := p.errForExec(ctx, s, r.Exec); err != nil {
		return nil, err
	}
	if err := on.channels.reserve(); err != nil {
		return nil, err
	}
	a, err := s.Attach(ctx, r)
	if err != nil {
		on.channels.release()
		return nil, err
	}
	c, begin := on.channel(a.Stream, window)
	return opened{attachResult{a.Exec, c.id, a.State, a.Skipped, a.StdinTaken}, begin, c.cancel}, nil
}

func execWait(ctx context.Context, s Session, p *params) (any, error) {
	exec, timeout := p.exec(), time.Duration(0)
	if n := p.whole("timeout_seconds"); n != nil {
		if *n < 0 {
			p.reject("timeout_seconds", "must not be negative")
		}
		timeout = max(atOnce, time.Duration(min(*n, int64(mostWait/time.Second)))*time.Second)
	}
	if err := p.errForExec(ctx, s, exec); err != nil {
		return nil, err
	}
	x, err := s.WaitExec(ctx, exec, timeout)
	if err != nil {
		return nil, err
	}
	if x.Exit == nil {
		return waitResult{Exec: x.Exec, State: "running"}, nil
	}
	end := exitOf(*x.Exit)
	return waitResult{x.Exec, "exited", &end}, nil
}

func execSignal(ctx context.Context, s Session, p *params) (any, error) {
	exec, signal, tree := p.exec(), p.textOrNone("signal"), p.flagOr("tree", true)
	p.need("signal")
	if err := p.errForExec(ctx, s, exec); err != nil {
		return nil, err
	}
	survivors, err := s.SignalExec(ctx, exec, signal, tree)
	if err != nil {
		return nil, err
	}
	return signalResult{survivors}, nil
}

func execResize(ctx context.Context, s Session, p *params) (any, error) {
	exec, size := p.exec(), p.size()
	if err := p.errForExec(ctx, s, exec); err != nil {
		return nil, err
	}
	if err := s.ResizeExec(ctx, exec, size); err != nil {
		return nil, err
	}
	return empty{}, nil
}

// execCloseStdin ends an exec's input behind what this socket has sent to it.
func execCloseStdin(ctx context.Context, on *socket, s Session, p *params) (any, error) {
	exec := p.exec()
	if err := p.err(); err != nil {
		return nil, err
	}
	for _, c := range on.channels.of(exec) {
		if err := c.stdin.drain(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.CloseStdin(ctx, exec); err != nil {
		return nil, err
	}
	return empty{}, nil
}
