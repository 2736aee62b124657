package guest

import (
	"context"
	"errors"

	"sandkeeper/internal/control"
)

var errNotYet = errors.New("guest: streams are not there yet")

// Attach joins the streams of an exec.
func (r remote) Attach(ctx context.Context, a control.GuestAttach) (control.GuestStream, error) {
	return nil, errNotYet
}

// CloseStdin ends an exec's input.
func (r remote) CloseStdin(ctx context.Context, exec string) error { return errNotYet }

// Resize sets the size of an exec's terminal.
func (r remote) Resize(ctx context.Context, exec string, t control.TTY) error { return errNotYet }
