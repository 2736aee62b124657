package control

import (
	"context"
	"time"
)

// Store keeps the plane's records. Implementations are safe for use by many
// goroutines.
type Store interface {
	// Load reads what the plane keeps in memory.
	Load(ctx context.Context) (*Records, error)
	// Commit writes the batch in one transaction and returns once it is
	// durable. Batches become durable in the order in which Commit was called.
	// After it is durable, and before any later batch's, its Applied is called;
	// then its events, with their Seq filled in, go to the function given to
	// Publish. On an error nothing of the batch was written and Applied is not called.
	Commit(ctx context.Context, b *Batch) error
	// Publish sets who is told of committed events, in order. It is called once, before the first Commit.
	Publish(func([]Event))
	// Task reads one task's record; ok is false where there is none.
	Task(k TaskKey) (rec TaskRecord, ok bool, err error)
	// Exec finds the record of an exec by the id that its caller gave it.
	Exec(env, id string) (rec ExecRecord, ok bool, err error)
	// ExecByName finds it by the plane's own name for it.
	ExecByName(exec string) (rec ExecRecord, ok bool, err error)
	// RemovedEnvs lists the environments that were removed and whose tombstones are kept.
	RemovedEnvs() ([]*Env, error)
	// RemovedEnv finds one of them by id; ok is false where there is none.
	RemovedEnv(id string) (e *Env, ok bool, err error)
	// Events reads up to limit events with Seq > after, ascending, and the
	// log's bounds (first is 0 while it is empty).
	Events(after uint64, limit int, f EventFilter) (ev []Event, first, last uint64, err error)
	// Prune drops what is older than these: tombstones and ended execs by
	// their time, events beyond a count or older than a time.
	Prune(ctx context.Context, p PruneLimits) error
}

// Records is all that the plane keeps in memory.
type Records struct {
	Envs     []*Env       // all but the removed
	Tasks    []TaskRecord // those with an open turn or with an env that is not removed
	Sessions []SessionRecord
	Execs    []ExecRecord // those that have not ended
	Orphans  []Orphan
	Ran      time.Duration // how long servers have run on this data, as last written
}

// Batch is one decision: its records and its events become durable together.
type Batch struct {
	Envs           []*Env // a removed one moves to the tombstones
	Tasks          []TaskRecord
	Sessions       []SessionRecord
	DeleteSessions []string
	Execs          []ExecRecord
	Orphans        []Orphan
	DeleteOrphans  []string      // sandbox names
	Ran            time.Duration // 0: unchanged
	Events         []Event
	Applied        func() // called once durable; it must be quick and must not commit
}

// PruneLimits says what Prune drops. Zero fields drop nothing.
type PruneLimits struct {
	TombstonesBefore time.Time
	ExecsEndedBefore time.Time
	EventsBefore     time.Time
	EventsKeep       int
}

// TaskRecord has what belongs to (owner, task): its counters and its turn. The
// counters outlive every environment of the task.
type TaskRecord struct {
	Owner       string            `json:"owner"`
	Task        string            `json:"task"`
	Turn        int64             `json:"turn"` // the latest turn's number; 0: never one
	Open        bool              `json:"open"`
	Since       time.Time         `json:"since,omitzero"`        // of the latest turn
	Active      time.Time         `json:"active,omitzero"`       // last activity, or end of an exec, in it
	Lapsed      bool              `json:"lapsed,omitempty"`      // max_turn has passed without activity
	Sessions    []string          `json:"sessions,omitempty"`    // its participants
	Generations map[string]int64  `json:"generations,omitempty"` // by env name
	Latest      map[string]string `json:"latest,omitempty"`      // by env name: the id of the latest env
}

// Key returns the task's key.
func (t *TaskRecord) Key() TaskKey { return TaskKey{t.Owner, t.Task} }

// SessionRecord is an agent's session; it outlives its sockets and the server.
type SessionRecord struct {
	ID           string           `json:"id"`
	Owner        string           `json:"owner"`
	Agent        string           `json:"agent"`
	Version      string           `json:"version,omitempty"`
	Grace        time.Duration    `json:"grace"`
	CreatedAt    time.Time        `json:"created_at"`
	Disconnected time.Time        `json:"disconnected,omitzero"` // zero: connected
	Used         map[string]int64 `json:"used,omitempty"`        // by "task\x00name": the last generation that it ran something in
}

// ExecRecord is an exec that its caller gave an id: it is on disk before the
// command starts, and remembered after its end.
type ExecRecord struct {
	Exec       string        `json:"exec"` // the plane's name for it, unique for ever
	Env        string        `json:"env"`
	ID         string        `json:"id"`
	Digest     string        `json:"digest"` // of the command, to tell another one with the same id
	Generation int64         `json:"generation"`
	StartedAt  time.Time     `json:"started_at"`
	Timeout    time.Duration `json:"timeout,omitempty"`
	EndedAt    time.Time     `json:"ended_at,omitzero"`
	End        *ExecEnd      `json:"end,omitempty"`  // once ended by itself
	Lost       *Tombstone    `json:"lost,omitempty"` // once its sandbox went before its end
}

// refused tells whether it was never started, and never will be: its id is free again.
func (x *ExecRecord) refused() bool { return !x.EndedAt.IsZero() && x.End == nil && x.Lost == nil }

// Orphan is a sandbox with our label and without a record.
type Orphan struct {
	Name    string    `json:"name"` // of the sandbox
	Env     string    `json:"env"`
	Owner   string    `json:"owner"`
	Task    string    `json:"task"`
	EnvName string    `json:"env_name"`
	Image   string    `json:"image"`
	FoundAt time.Time `json:"found_at"`
	Stopped bool      `json:"stopped"`
}

// Role is what a token may do.
type Role string

// The roles.
const (
	RoleAgent    Role = "agent"
	RoleOperator Role = "operator"
	RoleViewer   Role = "viewer"
)

// Principal is who a token stands for.
type Principal struct {
	Token string // the token's id; never the token
	Name  string // as shown to operators
	Role  Role
	Owner string // of an agent's token
}
