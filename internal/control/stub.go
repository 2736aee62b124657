package control

import (
	"context"
	"time"
)

type Plane struct{}
type Session struct{}
type Watch struct{}

// Open loads the records and applies what a restart means to them.
func Open(ctx context.Context, o Options) (*Plane, error) { panic("stub") }

// Close waits for what runs in the plane and writes what is not yet on disk. Sandboxes go on.
func (p *Plane) Close(ctx context.Context) error { panic("stub") }

// Drain refuses new work with KindDraining from now on.
func (p *Plane) Drain(ctx context.Context) { panic("stub") }

// Now is the plane's clock: the wall clock at start, carried on by the monotonic one.
func (p *Plane) Now() time.Time { panic("stub") }

// Agents.

// Hello opens or resumes a session for an owner. owner is the principal's, or what an operator's header says.
func (p *Plane) Hello(ctx context.Context, owner string, h Hello, sink Sink) (s *Session, resumed bool, err error) {
	panic("stub")
}

func (s *Session) ID() string           { panic("stub") }
func (s *Session) Grace() time.Duration { panic("stub") }

// Disconnect says that this socket is gone; one that was taken over is nothing to it.
func (s *Session) Disconnect(sink Sink) { panic("stub") }

func (s *Session) Acquire(ctx context.Context, r AcquireRequest) (Acquired, error) { panic("stub") }
func (s *Session) Env(ctx context.Context, r Ref) (View, error)                    { panic("stub") }
func (s *Session) Envs(ctx context.Context, task string) ([]View, error)           { panic("stub") }
func (s *Session) Touch(ctx context.Context, r Ref) (View, error)                  { panic("stub") }
func (s *Session) Release(ctx context.Context, r Ref, purge bool) (View, error)    { panic("stub") }
func (s *Session) TurnBegin(ctx context.Context, task string) (turn int64, opened bool, err error) {
	panic("stub")
}
func (s *Session) TurnEnd(ctx context.Context, r TurnEndRequest) (TurnEnd, error) { panic("stub") }
func (s *Session) Run(ctx context.Context, r RunRequest) (Ran, error)             { panic("stub") }
func (s *Session) Execs(ctx context.Context, r Ref) ([]ExecView, error)           { panic("stub") }
func (s *Session) ReadFile(ctx context.Context, r Ref, path string, offset int64, length *int64) (FileChunk, error) {
	panic("stub")
}
func (s *Session) WriteFile(ctx context.Context, r Ref, w FileWrite) (size int64, err error) {
	panic("stub")
}
func (s *Session) ListFiles(ctx context.Context, r Ref, path string) ([]FileInfo, error) {
	panic("stub")
}
func (s *Session) StatFile(ctx context.Context, r Ref, path string) (FileInfo, error) { panic("stub") }
func (s *Session) RemoveFile(ctx context.Context, r Ref, path string, recursive bool) error {
	panic("stub")
}
func (s *Session) Mkdir(ctx context.Context, r Ref, path string, recursive bool) error {
	panic("stub")
}

// Operators. actor is "operator:NAME".

func (p *Plane) Envs(f EnvFilter) (views []View, next string, err error) { panic("stub") }

// Env errors with KindGenerationGone and the tombstone for a removed one, later with KindNotFound.
func (p *Plane) Env(id string) (View, error)                                 { panic("stub") }
func (p *Plane) EnvExecs(ctx context.Context, id string) ([]ExecView, error) { panic("stub") }
func (p *Plane) Pin(ctx context.Context, actor, id, reason string, until time.Time) (View, error) {
	panic("stub")
}
func (p *Plane) Unpin(ctx context.Context, actor, id string) (View, error)            { panic("stub") }
func (p *Plane) TouchEnv(ctx context.Context, actor, id string) (View, error)         { panic("stub") }
func (p *Plane) Stop(ctx context.Context, actor, id string) (View, error)             { panic("stub") }
func (p *Plane) Kill(ctx context.Context, actor, id string, purge bool) (View, error) { panic("stub") }
func (p *Plane) Forecast(within time.Duration) []Forecast                             { panic("stub") }
func (p *Plane) Orphans() []Orphan                                                    { panic("stub") }
func (p *Plane) Engine() EngineStatus                                                 { panic("stub") }
func (p *Plane) Events(after uint64, limit int, f EventFilter) (ev []Event, first, last uint64, err error) {
	panic("stub")
}

// Record writes an event that is nobody's decision here, such as a sign-in.
func (p *Plane) Record(ctx context.Context, ev Event) error { panic("stub") }

// Watch follows events after that sequence number, and environments' changes from now on.
func (p *Plane) Watch(after uint64) *Watch { panic("stub") }

// Next waits until there is something to tell. A reader that is slow gets more at once, and slows nobody.
func (w *Watch) Next(ctx context.Context) (Changes, error) { panic("stub") }
func (w *Watch) Close()                                    { panic("stub") }

// The reaper's side.

// Due is called at or after an alarm's time. teardown is true where an attempt of a teardown is due:
// then Teardown is to be called with the same key.
func (p *Plane) Due(ctx context.Context, key string) (teardown bool) { panic("stub") }

// Teardown makes one attempt. What fails arms its next attempt by itself. It returns when the attempt has ended.
func (p *Plane) Teardown(ctx context.Context, key string) { panic("stub") }

// Reconcile compares the records with a listing of the engine that began at that time of the plane's clock.
func (p *Plane) Reconcile(ctx context.Context, listed []SandboxStatus, began time.Time) error {
	panic("stub")
}

// Observe takes one event of the engine.
func (p *Plane) Observe(ctx context.Context, ev EngineEvent) { panic("stub") }

// EngineSeen takes the outcome of asking the engine how it is.
func (p *Plane) EngineSeen(ctx context.Context, info EngineInfo, err error) { panic("stub") }

// Housekeep prunes what is past its time and looks at the clocks. It is called every 30 s.
func (p *Plane) Housekeep(ctx context.Context) { panic("stub") }
