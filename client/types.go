package client

import (
	"encoding/json"
	"time"
)

// State is where an environment stands.
type State string

// The states.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Stopping State = "stopping"
	Dormant  State = "dormant" // nothing runs; the files are kept, and the next call brings it back
	Failed   State = "failed"
	Removed  State = "removed"
)

// Ref names an environment: by its ID, or by its task and name.
type Ref struct {
	Env  string `json:"env,omitempty"`
	Task string `json:"task,omitempty"`
	Name string `json:"name,omitempty"` // "main" where it is empty
}

// ByID names an environment by its id.
func ByID(id string) Ref { return Ref{Env: id} }

// ByTask names a task's main environment.
func ByTask(task string) Ref { return Ref{Task: task} }

// Env is an environment at one instant, the server's Now.
type Env struct {
	ID           string            `json:"id"`
	Owner        string            `json:"owner"`
	Task         string            `json:"task"`
	Name         string            `json:"name"`
	State        State             `json:"state"`
	Generation   int64             `json:"generation"` // goes up at each start of the sandbox
	Persistent   bool              `json:"persistent"`
	Pinned       bool              `json:"pinned"`
	Pin          *Pin              `json:"pin"`
	Engine       string            `json:"engine"`
	Isolation    string            `json:"isolation"`
	Image        string            `json:"image"` // "" where the engine has no images
	LifetimeS    int64             `json:"lifetime_seconds"`
	MaxAgeS      *int64            `json:"max_age_seconds"` // nil: none
	CreatedAt    time.Time         `json:"created_at"`
	LastActivity Activity          `json:"last_activity"`
	Deadline     *time.Time        `json:"deadline"`     // when the reaper acts; nil while it will not
	RemainingMS  *int64            `json:"remaining_ms"` // the same against Now, for clocks that differ
	NextAction   string            `json:"next_action"`  // "stop", "remove", "purge", or "" for none
	Now          time.Time         `json:"now"`
	Holds        []Hold            `json:"holds"` // what keeps the reaper away
	Turn         *Turn             `json:"turn"`  // nil: the task never had one
	Workdir      string            `json:"workdir"`
	Limits       Limits            `json:"limits"`
	Unenforced   []string          `json:"unenforced"` // limits that were asked for and that the host cannot enforce
	Drift        []string          `json:"drift"`
	Labels       map[string]string `json:"labels"`
	Error        string            `json:"error"` // why the last start failed
}

// Ref names the environment by its id.
func (e *Env) Ref() Ref { return ByID(e.ID) }

// Pin holds an environment against turn ends and the reaper.
type Pin struct {
	By     string     `json:"by"`
	Reason string     `json:"reason"`
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until"`
}

// Activity is the last thing that counted as one.
type Activity struct {
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`
	Actor string    `json:"actor"`
}

// Hold is one thing that keeps the idle countdown from running.
type Hold struct {
	Kind  string     `json:"kind"` // "turn", "exec", "process", "terminal", "file", "pin"
	Ref   string     `json:"ref"`
	Since time.Time  `json:"since"`
	Until *time.Time `json:"until"` // nil: no bound is known
}

// Turn is a task's latest turn.
type Turn struct {
	Number int64     `json:"number"`
	Open   bool      `json:"open"`
	Since  time.Time `json:"since"`
}

// Limits bounds a sandbox. In a request, nil keeps what is; in an Env it is no limit.
type Limits struct {
	CPUs     *float64 `json:"cpus,omitempty"`
	MemoryMB *int64   `json:"memory_mb,omitempty"`
	Pids     *int64   `json:"pids,omitempty"`
	DiskMB   *int64   `json:"disk_mb,omitempty"`
}

// Hello is what the server says of itself and of the session.
type Hello struct {
	Session string `json:"session"`
	Resumed bool   `json:"resumed"` // the session that was asked for goes on
	Server  struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"server"`
	Boot             string   `json:"boot"` // new at each start of the server
	Protocol         int      `json:"protocol"`
	Features         []string `json:"features"` // the methods that it has
	HeartbeatS       int64    `json:"heartbeat_seconds"`
	DisconnectGraceS int64    `json:"disconnect_grace_seconds"`
	Limits           struct {
		MaxFrameBytes   int64 `json:"max_frame_bytes"`
		MaxExecsPerEnv  int64 `json:"max_execs_per_env"`
		StreamKeptBytes int64 `json:"stream_kept_bytes"`
	} `json:"limits"`
	Time time.Time `json:"time"`
}

// AcquireRequest asks for an environment. What is left out keeps what the
// environment has, or takes the server's default when it is created.
type AcquireRequest struct {
	Task       string            `json:"task"`
	Name       string            `json:"name,omitempty"` // "main" where it is empty
	Persistent *bool             `json:"persistent,omitempty"`
	Image      string            `json:"image,omitempty"`
	LifetimeS  int64             `json:"lifetime_seconds,omitempty"` // idle seconds before the reaper acts
	MaxAgeS    int64             `json:"max_age_seconds,omitempty"`
	Limits     *Limits           `json:"limits,omitempty"`
	Network    string            `json:"network,omitempty"` // "default" or "none"
	Variables  map[string]string `json:"variables,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	OnDrift    string            `json:"on_drift,omitempty"` // "keep", "recreate", "error"
}

// Acquired is the answer to an AcquireRequest: the environment is ready.
type Acquired struct {
	Env     Env      `json:"env"`
	Outcome string   `json:"outcome"` // "created", "reused", "resumed", "recreated"
	Drift   []string `json:"drift"`   // fields that differ from what was asked
}

// TurnEnded says what the end of a turn did.
type TurnEnded struct {
	Turn      *int64     `json:"turn"`  // nil: the task never had one
	Stale     bool       `json:"stale"` // a later turn is open: nothing was done
	Decisions []Decision `json:"decisions"`
}

// Decision is what the end of a turn did to one environment.
type Decision struct {
	Env      string     `json:"env"`
	Name     string     `json:"name"`
	Decision string     `json:"decision"` // "kept", "removed"
	Reason   string     `json:"reason"`   // "pinned", "persistent", "ephemeral"
	Deadline *time.Time `json:"deadline"`
}

// RunRequest is a command to run to its end: shell text, or a program with its arguments.
type RunRequest struct {
	Command     string            `json:"command,omitempty"`
	Argv        []string          `json:"argv,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	Variables   map[string]string `json:"variables,omitempty"`
	Stdin       string            `json:"stdin,omitempty"`
	TimeoutS    int64             `json:"timeout_seconds,omitempty"` // 180 where it is 0
	OutputLimit int64             `json:"output_limit,omitempty"`    // bytes of each stream; 50,000 where it is 0
	// ID names the command for its environment: asked again by it, the server
	// answers with the same run. A Client makes one up where it is empty.
	ID         string `json:"id,omitempty"`
	Generation int64  `json:"generation,omitempty"` // start only in this generation; 0: in any
}

// RunResult is how a command ended.
type RunResult struct {
	Exec       string // the server's name for it
	ExitCode   int    // 128+N by signal N, 124 timed out, 126 not executable, 127 missing
	Signal     string // "KILL", …; "" for none
	OOM        bool
	Stdout     []byte
	Stderr     []byte
	OmittedOut int64 // bytes of stdout left out between its head and its tail
	OmittedErr int64
	TimedOut   bool
	Duration   time.Duration
	Cwd        string
	CwdLost    string // the shell's directory that was gone, so that it began in the workdir
	OutputLost bool   // it ended long ago, its output is no longer kept
	FileOut    string // the sandbox's file that has stdout where the result does not hold all; "": there is none
	FileErr    string
	Left       int // processes that it left running
	Notice     *Notice
}

// UnmarshalJSON reads the protocol's form.
func (r *RunResult) UnmarshalJSON(b []byte) error {
	var w struct {
		Exec         string `json:"exec"`
		ExitCode     int    `json:"exit_code"`
		Signal       string `json:"signal"`
		OOM          bool   `json:"oom"`
		Stdout       string `json:"stdout"`
		StdoutBase64 []byte `json:"stdout_base64"`
		Stderr       string `json:"stderr"`
		StderrBase64 []byte `json:"stderr_base64"`
		Truncated    struct {
			Stdout int64 `json:"stdout"`
			Stderr int64 `json:"stderr"`
		} `json:"truncated"`
		TimedOut    bool   `json:"timed_out"`
		DurationMS  int64  `json:"duration_ms"`
		Cwd         string `json:"cwd"`
		CwdLost     string `json:"cwd_lost"`
		OutputLost  bool   `json:"output_lost"`
		OutputFiles struct {
			Stdout string `json:"stdout"`
			Stderr string `json:"stderr"`
		} `json:"output_files"`
		Left   int     `json:"left"`
		Notice *Notice `json:"notice"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*r = RunResult{
		Exec: w.Exec, ExitCode: w.ExitCode, Signal: w.Signal, OOM: w.OOM,
		Stdout: textOrBytes(w.Stdout, w.StdoutBase64), Stderr: textOrBytes(w.Stderr, w.StderrBase64),
		OmittedOut: w.Truncated.Stdout, OmittedErr: w.Truncated.Stderr,
		TimedOut: w.TimedOut, Duration: time.Duration(w.DurationMS) * time.Millisecond,
		Cwd: w.Cwd, CwdLost: w.CwdLost, OutputLost: w.OutputLost,
		FileOut: w.OutputFiles.Stdout, FileErr: w.OutputFiles.Stderr, Left: w.Left, Notice: w.Notice,
	}
	return nil
}

func textOrBytes(text string, raw []byte) []byte {
	if raw != nil {
		return raw
	}
	return []byte(text)
}

// Notice tells what became of the sandbox since the session last ran something in it.
type Notice struct {
	Generation int64    `json:"generation"`
	Lost       []string `json:"lost"`
	Kept       []string `json:"kept"`
}

// StartRequest is a command to start, whose streams a Process carries: shell
// text, or a program with its arguments.
type StartRequest struct {
	Command    string            `json:"command,omitempty"`
	Argv       []string          `json:"argv,omitempty"`
	Cwd        string            `json:"cwd,omitempty"`
	Variables  map[string]string `json:"variables,omitempty"`
	TimeoutS   int64             `json:"timeout_seconds,omitempty"` // none where it is 0
	TTY        *TTY              `json:"tty,omitempty"`             // nil: pipes
	Background bool              `json:"background,omitempty"`      // it outlives the turn, and holds the environment as a process
	Stdin      bool              `json:"stdin"`                     // open until it is closed; else empty
	ID         string            `json:"id,omitempty"`              // as a RunRequest's
	Generation int64             `json:"generation,omitempty"`
	// Window is how many bytes of output the client holds unread, and of input
	// the server; 1 MiB where it is 0.
	Window int64 `json:"window,omitempty"`
}

// TTY is the size of a terminal, in characters.
type TTY struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Offsets counts bytes of each stream, from its beginning.
type Offsets struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// Exit is the one end of a command.
type Exit struct {
	ExitCode   int    // as a RunResult's; -1 where the environment was lost
	Signal     string // "KILL", …; "" for none
	OOM        bool
	TimedOut   bool
	Lost       *Lost // the environment went before the command's end
	Duration   time.Duration
	Cwd        string
	OutputLost bool // it ended long ago, its output is no longer kept
}

// Lost is why a command ended with its environment.
type Lost struct {
	Reason    string     `json:"reason"`
	Tombstone *Tombstone `json:"tombstone"`
}

// UnmarshalJSON reads the protocol's form.
func (e *Exit) UnmarshalJSON(b []byte) error {
	var w struct {
		ExitCode   *int   `json:"exit_code"`
		Signal     string `json:"signal"`
		OOM        bool   `json:"oom"`
		TimedOut   bool   `json:"timed_out"`
		Lost       *Lost  `json:"env_lost"`
		DurationMS int64  `json:"duration_ms"`
		Cwd        string `json:"cwd"`
		OutputLost bool   `json:"output_lost"`
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*e = Exit{
		ExitCode: -1, Signal: w.Signal, OOM: w.OOM, TimedOut: w.TimedOut, Lost: w.Lost,
		Duration: time.Duration(w.DurationMS) * time.Millisecond, Cwd: w.Cwd, OutputLost: w.OutputLost,
	}
	if w.ExitCode != nil {
		e.ExitCode = *w.ExitCode
	}
	return nil
}

// Exec is one line of a list of commands.
type Exec struct {
	Exec       string    `json:"exec"`
	ID         string    `json:"id"`
	Command    string    `json:"command"`
	PID        int       `json:"pid"`
	StartedAt  time.Time `json:"started_at"`
	Background bool      `json:"background"`
	Left       bool      `json:"left"`  // it lives on after the command that started it
	State      string    `json:"state"` // "running", "exited"
	ExitCode   *int      `json:"exit_code"`
}

// File describes one file of a sandbox.
type File struct {
	Name  string    `json:"name"`
	Type  string    `json:"type"` // "file", "dir", "symlink", "other"
	Size  int64     `json:"size"`
	Mode  uint32    `json:"mode"` // permission bits
	MTime time.Time `json:"mtime"`
}

// Chunk is a part of a file.
type Chunk struct {
	Data  []byte    `json:"data"`
	Size  int64     `json:"size"` // of the whole file
	Mode  uint32    `json:"mode"`
	MTime time.Time `json:"mtime"`
	EOF   bool      `json:"eof"`
}

// FileWrite is a file to write. It must fit in one request: about 700 KB.
type FileWrite struct {
	Path   string  `json:"path"`
	Data   []byte  `json:"data"`
	Mode   *uint32 `json:"mode,omitempty"` // nil: 0o644 for a new file, unchanged for an old one
	Append bool    `json:"append,omitempty"`
	Mkdirs bool    `json:"mkdirs,omitempty"`
}

// Expiring says that the reaper will act on an environment soon.
type Expiring struct {
	Env         string    `json:"env"` // its id
	Deadline    time.Time `json:"deadline"`
	SecondsLeft int64     `json:"seconds_left"`
}
