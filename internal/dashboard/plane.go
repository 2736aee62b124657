package dashboard

import (
	"context"
	"time"

	"sandkeeper/internal/control"
)

// Plane is what the dashboard asks of the control plane.
type Plane interface {
	Now() time.Time
	Envs(f control.EnvFilter) (views []control.View, next string, err error)
	Env(id string) (control.View, error)
	EnvExecs(ctx context.Context, id string) ([]control.ExecView, error)
	Pin(ctx context.Context, actor, id, reason string, until time.Time) (control.View, error)
	Unpin(ctx context.Context, actor, id string) (control.View, error)
	TouchEnv(ctx context.Context, actor, id string) (control.View, error)
	Stop(ctx context.Context, actor, id string) (control.View, error)
	Kill(ctx context.Context, actor, id string, purge bool) (control.View, error)
	OpenFile(ctx context.Context, m control.Mover, env, path string) (control.FileReader, error)
	CreateFile(ctx context.Context, m control.Mover, env string, c control.FileCreate) (control.FileWriter, error)
	Forecast(within time.Duration) []control.Forecast
	Orphans() []control.Orphan
	AdoptOrphan(ctx context.Context, actor, sandbox string) (control.View, error)
	PurgeOrphan(ctx context.Context, actor, sandbox string) error
	Engine() control.EngineStatus
	Events(after uint64, limit int, f control.EventFilter) (ev []control.Event, first, last uint64, err error)
	Record(ctx context.Context, ev control.Event) error
	Watch(after uint64) Watcher
}

// Watcher follows the plane, as *control.Watch does.
type Watcher interface {
	Next(ctx context.Context) (control.Changes, error)
	Close()
}

var _ Watcher = (*control.Watch)(nil)

// ForPlane makes a Plane of the real one.
func ForPlane(p *control.Plane) Plane { return plane{p} }

type plane struct{ *control.Plane }

func (p plane) Watch(after uint64) Watcher { return p.Plane.Watch(after) }
