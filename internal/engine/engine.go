// Package engine is what sandboxes run on. The interface is the whole of what
// the rest knows of an engine; nothing in it assumes that a sandbox is on this
// machine. The suite in enginetest is what each engine must pass.
package engine

import (
	"context"
	"io"
	"time"

	"sandkeeper/internal/control"
)

// Engine is one engine, for one instance: it sees and touches only what
// carries the instance's label. Its methods are safe for use by many
// goroutines. Errors that mean that it does not answer wrap
// control.ErrEngineUnavailable.
type Engine interface {
	control.Engine

	// Info asks the engine how it is.
	Info(ctx context.Context) (control.EngineInfo, error)
	// List lists every sandbox of the instance, in every state, and workspaces whose sandbox is gone.
	List(ctx context.Context) ([]control.SandboxStatus, error)
	// Watch calls fn with each event since that time, in order, until ctx ends
	// or the stream breaks; then it returns why. Events can be lost between two
	// calls: List after calling it again. ready, if not nil, is called once the stream stands.
	Watch(ctx context.Context, since time.Time, ready func(), fn func(control.EngineEvent)) error
	// Stats reads what a running sandbox uses now. Errors: control.ErrNoSandbox.
	Stats(ctx context.Context, name string) (Stats, error)
	// Dial opens a byte stream to the sandbox's guest. Errors: control.ErrNoSandbox, where it does not run.
	Dial(ctx context.Context, name string) (io.ReadWriteCloser, error)
	// Prune removes everything of the instance, shared things too, and says what it removed, a line each.
	Prune(ctx context.Context) (removed []string, err error)
	// Close lets go of what the engine holds here; sandboxes go on.
	Close() error
}

// Stats is what a sandbox uses.
type Stats struct {
	CPU    time.Duration // over the life of this run
	Memory int64         // bytes, without the page cache that can be dropped
	Pids   int64
}
