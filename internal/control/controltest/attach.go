package controltest

import (
	"context"
	"errors"

	"sandkeeper/internal/control"
)

var errNotYet = errors.New("controltest: streams are not there yet")

func (g *guest) Attach(ctx context.Context, a control.GuestAttach) (control.GuestStream, error) {
	return nil, errNotYet
}

func (g *guest) CloseStdin(ctx context.Context, exec string) error { return errNotYet }

func (g *guest) Resize(ctx context.Context, exec string, t control.TTY) error { return errNotYet }
