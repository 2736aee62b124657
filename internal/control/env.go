package control

import (
	"time"
)

// State is where an environment stands.
type State string

// The states. Their order of life: starting → ready | failed | dormant |
// stopping; ready → stopping | dormant | removed (lost); stopping → dormant |
// removed, never back; dormant → starting | stopping; failed → starting |
// dormant | removed.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Stopping State = "stopping"
	Dormant  State = "dormant" // nothing runs, the files are kept
	Failed   State = "failed"  // it could not be started and there are no files to keep
	Removed  State = "removed"
)

// Key names an environment for its owner. At most one live sandbox has it.
type Key struct {
	Owner, Task, Name string
}

// TaskKey is what a turn belongs to.
type TaskKey struct {
	Owner, Task string
}

// Spec is what was asked for, or applied, when a sandbox was made.
type Spec struct {
	Image      string            `json:"image"`
	Network    string            `json:"network"` // "default", "none"
	Workdir    string            `json:"workdir"`
	Variables  map[string]string `json:"variables,omitempty"` // may hold secrets: never shown, never in an event
	Limits     Limits            `json:"limits"`
	Persistent bool              `json:"persistent"`
}

// Env is the durable record of one environment. A record is never changed in
// place: the plane replaces it by a changed copy once that is on disk.
type Env struct {
	ID         string `json:"id"`
	Owner      string `json:"owner"`
	Task       string `json:"task"`
	Name       string `json:"name"`
	State      State  `json:"state"`
	Generation int64  `json:"generation"`
	Persistent bool   `json:"persistent"`
	Pin        *Pin   `json:"pin,omitempty"`

	Engine     string            `json:"engine"`
	Isolation  string            `json:"isolation"`
	Asked      Spec              `json:"asked"`
	Applied    Spec              `json:"applied"`
	Unenforced []string          `json:"unenforced,omitempty"`
	Lifetime   time.Duration     `json:"lifetime"`          // idle time before the reaper acts
	MaxAge     time.Duration     `json:"max_age,omitempty"` // from ReadyAt; 0: none
	Labels     map[string]string `json:"labels,omitempty"`
	Error      string            `json:"error,omitempty"` // why the last start failed

	// The generations in which the environment and its root file system began.
	CreatedGeneration int64 `json:"created_generation"`
	RootGeneration    int64 `json:"root_generation"`

	CreatedAt    time.Time `json:"created_at"`
	StartedAt    time.Time `json:"started_at,omitzero"` // when the start of this generation was decided
	ReadyAt      time.Time `json:"ready_at,omitzero"`   // when that start was done: a pull may take longer than any age
	Run          time.Time `json:"run,omitzero"`        // when this run of its PID 1 began, by the engine's clock; zero: not seen yet
	GuestRun     string    `json:"guest_run,omitempty"` // the same run as its PID 1 names it: commands are started in no other; "": not told
	LastActivity Activity  `json:"last_activity"`
	IdleSince    time.Time `json:"idle_since,omitzero"` // zero: held, or not ready
	Deadline     time.Time `json:"deadline,omitzero"`   // as last shown; zero: none
	NotBefore    time.Time `json:"not_before,omitzero"` // the reaper leaves it alone until then (after a restart)
	DormantSince time.Time `json:"dormant_since,omitzero"`
	UnpinnedAt   time.Time `json:"unpinned_at,omitzero"`
	FailedAt     time.Time `json:"failed_at,omitzero"`

	// A purge needs its announcement on disk, and as much of our own running
	// time since then as the announcement is ahead.
	AnnouncedAt  time.Time     `json:"announced_at,omitzero"`
	AnnouncedRun time.Duration `json:"announced_run,omitempty"` // our running time then

	Teardown  *Teardown  `json:"teardown,omitempty"`  // while stopping
	Tombstone *Tombstone `json:"tombstone,omitempty"` // once removed; also of the last run of a dormant one that was lost
	Files     bool       `json:"files,omitempty"`     // a sandbox or a workspace of it may be on the engine
	Recreate  bool       `json:"recreate,omitempty"`  // the next start makes a new root file system from Asked

	Users []string `json:"users,omitempty"` // the sessions that used it since its last turn began: they are told of it
}

// Key returns the environment's key.
func (e *Env) Key() Key { return Key{e.Owner, e.Task, e.Name} }

// Holder reports whether the environment has its key: any but a removed one and
// an ephemeral one that is being torn down.
func (e *Env) Holder() bool {
	switch e.State {
	case Removed:
		return false
	case Stopping:
		return e.Teardown == nil || !e.Teardown.Final()
	}
	return true
}

// Activity is the last thing that counted as one.
type Activity struct {
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`  // "acquire", "touch", "turn", "exec", "input", "file", "unpin", "resume"
	Actor string    `json:"actor"` // "agent:NAME", "operator:NAME", ...
}

// Pin holds an environment against turn ends and the reaper.
type Pin struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // zero: until it is unpinned
}

// String names the pin in messages: by whom, and why where that was said.
func (p *Pin) String() string {
	if p.Reason == "" {
		return p.By
	}
	return p.By + " (" + p.Reason + ")"
}

// TeardownMode says what a teardown leaves.
type TeardownMode string

// The modes of a teardown.
const (
	TeardownStop    TeardownMode = "stop"    // graceful; the files stay
	TeardownKill    TeardownMode = "kill"    // at once; the files stay
	TeardownDiscard TeardownMode = "discard" // the workspace alone stays
	TeardownRemove  TeardownMode = "remove"  // everything goes
)

// Teardown is a durable job: it is repeated until the engine says that the
// thing is stopped, or absent.
type Teardown struct {
	Mode     TeardownMode `json:"mode"`
	Actor    string       `json:"actor"`
	Reason   string       `json:"reason"` // "idle 300 s", "turn ended", ...
	Rule     string       `json:"rule"`   // "idle", "max_age", "retention", "failed", "turn_end", "operator", "release", ...
	Since    time.Time    `json:"since"`
	Attempts int          `json:"attempts"`
	NextAt   time.Time    `json:"next_at,omitzero"`
	Error    string       `json:"error,omitempty"`
}

// Final reports whether nothing is left after it.
func (t *Teardown) Final() bool { return t.Mode == TeardownRemove }

// Tombstone says how a sandbox, or one run of it, came to its end.
type Tombstone struct {
	Reason     string `json:"reason"`
	Actor      string `json:"actor"`
	At         Time   `json:"at"`
	Generation int64  `json:"generation"`
	ExitCode   *int   `json:"exit_code,omitempty"`
	OOM        bool   `json:"oom,omitempty"`
}

// HoldKind says what keeps the idle countdown from running.
type HoldKind string

// The kinds of holds.
const (
	HoldTurn     HoldKind = "turn"
	HoldExec     HoldKind = "exec"
	HoldProcess  HoldKind = "process"
	HoldTerminal HoldKind = "terminal"
	HoldFile     HoldKind = "file" // a file or folder is on its way
	HoldPin      HoldKind = "pin"
)

// Hold is one thing that keeps the idle countdown from running.
type Hold struct {
	Kind  HoldKind `json:"kind"`
	Ref   string   `json:"ref,omitempty"` // the exec's name
	Since Time     `json:"since"`
	Until *Time    `json:"until"` // null: no bound is known
}

// View is the env object of the protocol: one environment at one instant.
type View struct {
	ID           string            `json:"id"`
	Owner        string            `json:"owner"`
	Task         string            `json:"task"`
	Name         string            `json:"name"`
	State        State             `json:"state"`
	Generation   int64             `json:"generation"`
	Persistent   bool              `json:"persistent"`
	Pinned       bool              `json:"pinned"`
	Pin          *PinView          `json:"pin"`
	Engine       string            `json:"engine"`
	Isolation    string            `json:"isolation"`
	Image        *string           `json:"image"` // null where the engine has no images
	LifetimeS    int64             `json:"lifetime_seconds"`
	MaxAgeS      *int64            `json:"max_age_seconds"`
	CreatedAt    Time              `json:"created_at"`
	LastActivity ActivityView      `json:"last_activity"`
	Deadline     *Time             `json:"deadline"`
	RemainingMS  *int64            `json:"remaining_ms"`
	NextAction   *string           `json:"next_action"` // "stop", "remove", "purge"; null where the reaper has nothing to do with it
	Rule         string            `json:"rule"`        // why, as a sentence for people; beyond the protocol's fields
	Now          Time              `json:"now"`
	Holds        []Hold            `json:"holds"`
	Turn         *TurnView         `json:"turn"` // null: the task never had a turn
	Workdir      string            `json:"workdir"`
	Limits       LimitsView        `json:"limits"`
	Unenforced   []string          `json:"unenforced"`
	Drift        []string          `json:"drift"`
	Labels       map[string]string `json:"labels"`
	Error        *string           `json:"error"`
	Teardown     *TeardownView     `json:"teardown,omitempty"` // while stopping; beyond the protocol's fields
}

// PinView is the protocol's pin.
type PinView struct {
	By     string `json:"by"`
	Reason string `json:"reason"`
	Since  Time   `json:"since"`
	Until  *Time  `json:"until"`
}

// ActivityView is the protocol's last_activity.
type ActivityView struct {
	At    Time   `json:"at"`
	Kind  string `json:"kind"`
	Actor string `json:"actor"`
}

// TurnView is the protocol's turn of an env object.
type TurnView struct {
	Number int64 `json:"number"`
	Open   bool  `json:"open"`
	Since  Time  `json:"since"`
}

// LimitsView is the protocol's limits: null where there is none.
type LimitsView struct {
	CPUs     *float64 `json:"cpus"`
	MemoryMB *int64   `json:"memory_mb"`
	Pids     *int64   `json:"pids"`
	DiskMB   *int64   `json:"disk_mb"`
}

// TeardownView shows operators how a teardown goes.
type TeardownView struct {
	Reason   string `json:"reason"`
	Attempts int    `json:"attempts"`
	NextAt   *Time  `json:"next_at"`
	Error    string `json:"error,omitempty"`
}
