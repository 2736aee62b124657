package local

import (
	"context"
	"fmt"
	"io"

	"sandkeeper/internal/control"
)

// Dial opens a byte stream to the sandbox's guest, which dials our socket. What
// dials it is believed only if the kernel says that it is the sandbox's PID 1.
func (e *Engine) Dial(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	e.mu.Lock()
	b := e.boxes[name]
	if b == nil || b.run == nil || b.listens == nil {
		e.mu.Unlock()
		return nil, fmt.Errorf("sandbox %s does not run: %w", name, control.ErrNoSandbox)
	}
	r, l := b.run, b.listens
	e.mu.Unlock()
	waited, cancel := context.WithTimeout(ctx, e.opts.LinkWait)
	defer cancel()
	conn, err := l.Dial(waited, func(peer int) error {
		if peer != r.pid.ID {
			return fmt.Errorf("process %d dialled in, and the sandbox's PID 1 is %d", peer, r.pid.ID)
		}
		return nil
	})
	if err == nil {
		return conn, nil
	}
	select {
	case <-r.ended:
		return nil, fmt.Errorf("sandbox %s has ended: %w", name, control.ErrNoSandbox)
	default:
	}
	return nil, fmt.Errorf("guest socket: %w: %w", control.ErrGuestUnreachable, err)
}
