package control

import (
	"log/slog"
	"time"
)

// Options configures a Plane. Zero durations and counts take the default named.
type Options struct {
	Instance string // names this installation; part of every sandbox's name and label
	Store    Store
	Engine   Engine
	Guests   Guests
	Alarms   Alarms
	Log      *slog.Logger
	Wall     func() time.Time // the wall clock; time.Now unless a test says otherwise

	EngineInfo EngineInfo // as known at start; a later EngineSeen replaces it
	Image      string     // of an env that asks for none; "" on an engine without images
	Limits     Limits     // of an env that asks for none

	Lifetime         time.Duration // 5 min
	Retention        time.Duration // of a dormant one's files; 0 keeps for ever
	DisconnectGrace  time.Duration // 60 s: the most that a session may ask for
	RestartGrace     time.Duration // after a restart no countdown ends sooner; 0: none
	MaxTurn          time.Duration // 1 h
	BackgroundMaxAge time.Duration // 24 h
	FailedAfter      time.Duration // 10 min: a failed env without files goes
	AcquireWait      time.Duration // 30 s: for a persistent env that is being torn down
	StartTimeout     time.Duration // 60 s: create and start, the pull apart
	PullTimeout      time.Duration // 10 min
	TeardownTimeout  time.Duration // 30 s: one attempt

	MaxExecsPerEnv  int // 64
	MaxEnvsPerOwner int // 10,000

	EventsKeep   int           // 1,000,000
	EventsMaxAge time.Duration // 30 days
}

// Alarms is when the plane wants to be asked about something again. The reaper
// fulfils it: at or after the time it calls Plane.Due with the key. A later Set
// of the same key replaces the earlier. Both return at once.
type Alarms interface {
	Set(key string, at time.Time)
	Clear(key string)
}

// Sink is how a session's socket is told things. Its methods return at once.
type Sink interface {
	EnvState(v View)
	EnvExpiring(env string, deadline Time, left time.Duration)
	// Replaced: a newer socket took the session over; this one is to be closed.
	Replaced()
}

// Hello is an agent's introduction.
type Hello struct {
	Agent   string
	Version string
	Session string         // "" for a new one
	Grace   *time.Duration // nil: the server's; capped by the server's
}

// Ref names an environment by its id, or by task and name.
type Ref struct {
	Env  string
	Task string
	Name string // "" is "main"
}

// AcquireRequest asks for an environment. Nil fields keep what the env has, or
// take the default at creation.
type AcquireRequest struct {
	Task       string
	Name       string // "" is "main"
	Persistent *bool
	Image      *string
	LifetimeS  *int64
	MaxAgeS    *int64
	Limits     *LimitsView // nil fields keep
	Network    *string
	Variables  map[string]string // nil keeps
	Workdir    *string
	Labels     map[string]string // nil keeps
	OnDrift    string            // "", "keep", "recreate", "error"
}

// Acquired is the answer to an AcquireRequest.
type Acquired struct {
	Env     View     `json:"env"`
	Outcome string   `json:"outcome"` // "created", "reused", "resumed", "recreated"
	Drift   []string `json:"drift"`
}

// TurnEndRequest ends a turn.
type TurnEndRequest struct {
	Task    string
	Turn    *int64
	Outcome string // "", "done", "failed", "cancelled"
}

// TurnEnd is the answer to a TurnEndRequest.
type TurnEnd struct {
	Turn      *int64     `json:"turn"`
	Stale     bool       `json:"stale,omitempty"`
	Decisions []Decision `json:"decisions"`
}

// Decision is what a turn's end did to one environment.
type Decision struct {
	Env      string `json:"env"`
	Name     string `json:"name"`
	Decision string `json:"decision"` // "kept", "removed"
	Reason   string `json:"reason"`   // "pinned", "persistent", "ephemeral"
	Deadline *Time  `json:"deadline"`
}

// RunRequest runs a command to its end. Either Command or Argv is set.
type RunRequest struct {
	Ref
	Command     string
	Argv        []string
	Cwd         string
	Variables   map[string]string
	Stdin       string
	TimeoutS    *int64 // 180 s
	OutputLimit *int64 // 50,000 bytes of each stream
	ID          string
	Generation  *int64
}

// Ran is the answer to a RunRequest.
type Ran struct {
	Exec   string
	End    ExecEnd
	Notice *Notice
}

// Notice tells a session what became of the generation that it last used.
type Notice struct {
	Generation int64    `json:"generation"`
	Lost       []string `json:"lost"`
	Kept       []string `json:"kept"`
}

// ExecView is one line of exec.list.
type ExecView struct {
	Exec       string `json:"exec"`
	ID         string `json:"id,omitempty"`
	Command    string `json:"command"`
	PID        int    `json:"pid"`
	StartedAt  Time   `json:"started_at"`
	Background bool   `json:"background"`
	Left       bool   `json:"left"`
	State      string `json:"state"` // "running", "exited"
	ExitCode   *int   `json:"exit_code,omitempty"`
}

// EnvFilter narrows a listing. Empty fields match all.
type EnvFilter struct {
	State State
	Task  string
	Owner string
	Query string // part of a task, owner, name, id or image, whatever the case
	Limit int    // 0: all
	After string // the cursor that the previous page gave
}

// Forecast is what the reaper will do next to one environment.
type Forecast struct {
	Env    string `json:"env"`
	Task   string `json:"task"`
	Action string `json:"action"` // "stop", "remove", "purge"
	At     Time   `json:"at"`
	Rule   string `json:"rule"`
}

// EngineStatus is what is known of the engine.
type EngineStatus struct {
	EngineInfo
	Reachable bool
	Since     time.Time // of Reachable's value
	Error     string    // why it is not reachable
}

// Changes is what a Watch saw since it was last asked.
type Changes struct {
	Events []Event  // each once, ascending
	Reset  bool     // the log no longer reaches back to where this watch stood
	Envs   []string // ids of environments whose View changed, the removed ones too
}
