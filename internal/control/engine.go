package control

import (
	"context"
	"time"
)

// Engine is what the plane asks of the place that sandboxes run on. A sandbox
// is addressed by its name, which the plane derives from the instance and the
// environment's id, so that any step can be repeated after a crash.
//
// Every error that means "the engine does not answer" wraps
// ErrEngineUnavailable; the plane declares nothing lost on such an error.
type Engine interface {
	// Create makes a sandbox that does not run yet. It is idempotent by name: a
	// sandbox of that name that is there is left as it is, in whatever state,
	// and reported as Existed. Errors: ErrImageMissing, ErrImageUnavailable.
	Create(ctx context.Context, spec SandboxSpec) (Created, error)
	// Pull brings an image that Create called missing. Errors: ErrImageUnavailable.
	Pull(ctx context.Context, image string) error
	// Start starts PID 1. A running one is success. Errors: ErrNoSandbox.
	Start(ctx context.Context, name string) error
	// Stop ends every process gracefully (TERM, 2 s, KILL) and keeps the files.
	// A stopped or an absent one is success.
	Stop(ctx context.Context, name string) error
	// Kill ends every process at once and keeps the files. A stopped or an absent one is success.
	Kill(ctx context.Context, name string) error
	// Remove removes the sandbox in any state; absent is success. With
	// RemoveAll its workspace goes too, with KeepWorkspace that stays.
	Remove(ctx context.Context, name string, files RemoveFiles) error
}

// RemoveFiles says what Remove does to the workspace.
type RemoveFiles int

// What Remove does to the workspace.
const (
	KeepWorkspace RemoveFiles = iota
	RemoveAll
)

// SandboxSpec is what the plane asks an engine to make.
type SandboxSpec struct {
	Name    string // deterministic, unique on the engine
	Env     string // the environment's id
	Owner   string
	Task    string
	EnvName string
	Image   string // "" where the engine has no images
	Network string // "default" or "none"
	Workdir string // absolute; the workspace is mounted at /workspace whatever it is
	Limits  Limits // 0 in a field: not limited
}

// Created is what Create found or made.
type Created struct {
	Existed          bool     // a sandbox of that name was there
	WorkspaceExisted bool     // the workspace's files were there
	Unenforced       []string // limits asked for that this host cannot enforce: "cpus", "memory_mb", "pids", "disk_mb"
	Image            string   // what the image was resolved to: its id or digest, "" where there is none
}

// Limits bounds a sandbox. A zero field is not limited.
type Limits struct {
	CPUs     float64 `json:"cpus,omitempty"`
	MemoryMB int64   `json:"memory_mb,omitempty"` // MiB
	Pids     int64   `json:"pids,omitempty"`
	DiskMB   int64   `json:"disk_mb,omitempty"` // MiB
}

// SandboxState is an engine's word for what a sandbox is doing.
type SandboxState string

// The states that List reports.
const (
	SandboxCreated SandboxState = "created" // never started
	SandboxRunning SandboxState = "running" // also paused and restarting
	SandboxExited  SandboxState = "exited"  // it ran and ended; also dead
	SandboxFiles   SandboxState = "files"   // its workspace alone is left
)

// SandboxStatus is one sandbox of this instance as the engine sees it.
type SandboxStatus struct {
	Name       string
	Env        string
	Owner      string
	Task       string
	EnvName    string
	Image      string
	State      SandboxState
	ExitCode   int // of its last run, where exited
	OOM        bool
	CreatedAt  time.Time
	StartedAt  time.Time // zero: never
	FinishedAt time.Time // zero: never
}

// EngineEvent is something that happened to a sandbox by itself or by our hand.
type EngineEvent struct {
	Name     string
	Env      string
	Kind     EngineEventKind
	ExitCode int  // with SandboxDied
	OOM      bool // with SandboxDied: this very run ended for want of memory
	At       time.Time
}

// EngineEventKind says what happened.
type EngineEventKind string

// What Watch reports.
const (
	SandboxStarted EngineEventKind = "started"
	SandboxDied    EngineEventKind = "died"
	SandboxRemoved EngineEventKind = "removed"
)

// EngineInfo describes an engine that answers.
type EngineInfo struct {
	Name      string   // "docker", "local"
	Version   string   // the engine's own
	Isolation string   // what stands between a sandbox and the host: "container", "namespaces", "none"
	Enforces  []string // the limits this host enforces: "cpus", "memory_mb", "pids", "disk_mb"
}
