package agentapi

import (
	"context"
	"time"

	"sandkeeper/internal/control"
)

// Plane is what the socket asks of the control plane.
type Plane interface {
	Hello(ctx context.Context, owner string, h control.Hello, sink control.Sink) (s Session, resumed bool, err error)
	Now() time.Time
}

// Session is what it asks of an agent's session.
type Session interface {
	ID() string
	Grace() time.Duration
	Disconnect(sink control.Sink)

	Acquire(ctx context.Context, r control.AcquireRequest) (control.Acquired, error)
	Env(ctx context.Context, r control.Ref) (control.View, error)
	Envs(ctx context.Context, task string) ([]control.View, error)
	Touch(ctx context.Context, r control.Ref) (control.View, error)
	Release(ctx context.Context, r control.Ref, purge bool) (control.View, error)

	TurnBegin(ctx context.Context, task string) (turn int64, opened bool, err error)
	TurnEnd(ctx context.Context, r control.TurnEndRequest) (control.TurnEnd, error)

	Run(ctx context.Context, r control.RunRequest) (control.Ran, error)
	Execs(ctx context.Context, r control.Ref) ([]control.ExecView, error)
	Start(ctx context.Context, r control.StartRequest) (control.Started, error)
	Attach(ctx context.Context, r control.AttachRequest) (control.Attached, error)
	WaitExec(ctx context.Context, exec string, timeout time.Duration) (control.ExecState, error)
	SignalExec(ctx context.Context, exec, signal string, tree bool) (survivors int, err error)
	ResizeExec(ctx context.Context, exec string, t control.TTY) error
	CloseStdin(ctx context.Context, exec string) error
	Subscribe(after *uint64) (b control.Subscription, last uint64, err error)

	ReadFile(ctx context.Context, r control.Ref, path string, offset int64, length *int64) (control.FileChunk, error)
	WriteFile(ctx context.Context, r control.Ref, w control.FileWrite) (size int64, err error)
	ListFiles(ctx context.Context, r control.Ref, path string) ([]control.FileInfo, error)
	StatFile(ctx context.Context, r control.Ref, path string) (control.FileInfo, error)
	RemoveFile(ctx context.Context, r control.Ref, path string, recursive bool) error
	Mkdir(ctx context.Context, r control.Ref, path string, recursive bool) error
}

var (
	_ Session = (*control.Session)(nil)
	_ Plane   = plane{}
)

// On makes a Plane of the control plane.
func On(p *control.Plane) Plane { return plane{p} }

type plane struct{ *control.Plane }

func (p plane) Hello(ctx context.Context, owner string, h control.Hello, sink control.Sink) (Session, bool, error) {
	s, resumed, err := p.Plane.Hello(ctx, owner, h, sink)
	if err != nil {
		return nil, false, err
	}
	return s, resumed, nil
}
