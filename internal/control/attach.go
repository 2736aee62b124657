package control

import (
	"context"
	"time"
)

// Start starts a command and joins its streams.
func (s *Session) Start(ctx context.Context, r StartRequest) (Started, error) {
	return Started{}, Errorf(KindInternal, "not there yet")
}

// Attach joins the streams of an exec of the session's owner.
func (s *Session) Attach(ctx context.Context, r AttachRequest) (Attached, error) {
	return Attached{}, Errorf(KindInternal, "not there yet")
}

// WaitExec waits for the end of an exec, at most for timeout where that is positive.
func (s *Session) WaitExec(ctx context.Context, exec string, timeout time.Duration) (ExecState, error) {
	return ExecState{}, Errorf(KindInternal, "not there yet")
}

// SignalExec sends a signal to an exec, and returns how many processes still live.
func (s *Session) SignalExec(ctx context.Context, exec, signal string, tree bool) (survivors int, err error) {
	return 0, Errorf(KindInternal, "not there yet")
}

// ResizeExec sets the size of an exec's terminal.
func (s *Session) ResizeExec(ctx context.Context, exec string, t TTY) error {
	return Errorf(KindInternal, "not there yet")
}

// CloseStdin ends an exec's input.
func (s *Session) CloseStdin(ctx context.Context, exec string) error {
	return Errorf(KindInternal, "not there yet")
}
