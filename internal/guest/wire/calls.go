// Package wire is what control plane and guest say to each other, over one byte
// stream: yamux, in which the control plane opens a stream for each call, writes
// one Request, and reads one Response.
//
// Both ends ignore fields that they do not know, and a method that the guest
// does not know is answered with CodeUnknown, so that an old guest works with a
// newer control plane. Both ends bound what they read before they keep it.
package wire

// Version of the calls. It goes up when an old guest could misread a newer
// control plane; what Features tells does not need it.
const Version = 1

// Methods of a Request.
const (
	MethodHello  = "hello"
	MethodPing   = "ping"
	MethodStart  = "start"
	MethodWait   = "wait"
	MethodGone   = "gone"
	MethodExecs  = "execs"
	MethodSignal = "signal"
	MethodAttach = "attach" // then the stream carries frames
	MethodClose  = "close_stdin"
	MethodResize = "resize"
	MethodRead   = "read"
	MethodWrite  = "write"
	MethodList   = "list"
	MethodStat   = "stat"
	MethodRemove = "remove"
	MethodMkdir  = "mkdir"
	MethodOpen   = "open"   // a file or folder to read; then the stream carries frames
	MethodCreate = "create" // a file, or with Tar a folder, to write; likewise
)

// Features of a guest, as it lists them in its hello.
const (
	FeatureStreams = "streams"   // attach, close_stdin; Start.StdinOpen
	FeatureTTY     = "tty"       // resize; Start.TTY
	FeatureFiles   = "transfers" // open, create
)

// Request is one call. Fields beside Method belong to the methods named.
type Request struct {
	Method string `json:"m"`
	// Call names a call that must not take effect twice: write, remove, mkdir.
	// A guest that has answered it gives the same answer again.
	Call string `json:"call,omitempty"`

	Version int    `json:"v,omitempty"`     // hello
	Start   *Start `json:"start,omitempty"` // start; the payload is its stdin
	Exec    string `json:"exec,omitempty"`  // wait, gone, signal, attach, close_stdin, resize
	Limit   int    `json:"limit,omitempty"` // wait: bytes of each stream
	Signal  string `json:"sig,omitempty"`   // signal
	Tree    bool   `json:"tree,omitempty"`  // signal

	FromOut int64 `json:"from_out,omitempty"` // attach: bytes already had
	FromErr int64 `json:"from_err,omitempty"`
	Input   bool  `json:"input,omitempty"` // attach: this stream gives stdin from now on
	TTY     *TTY  `json:"tty,omitempty"`   // resize

	Path      string  `json:"path,omitempty"` // the file calls; write has its data as payload
	Offset    int64   `json:"off,omitempty"`
	Length    int     `json:"len,omitempty"`
	Mode      *uint32 `json:"mode,omitempty"` // an fs.FileMode
	Append    bool    `json:"append,omitempty"`
	Mkdirs    bool    `json:"mkdirs,omitempty"`
	Recursive bool    `json:"rec,omitempty"`
	Tar       bool    `json:"tar,omitempty"` // create: what comes is an archive
}

// Start is a command to start.
type Start struct {
	Exec       string            `json:"exec"`
	Run        string            `json:"run,omitempty"` // that of hello; in another the command is not started
	Shell      string            `json:"sh,omitempty"`
	Argv       []string          `json:"argv,omitempty"`
	Cwd        string            `json:"cwd,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	Env        map[string]string `json:"env,omitempty"`
	Variables  map[string]string `json:"vars,omitempty"`
	Timeout    int64             `json:"timeout,omitempty"` // ns
	Background bool              `json:"bg,omitempty"`
	StdinOpen  bool              `json:"stdin,omitempty"` // more comes by attach
	Join       bool              `json:"join,omitempty"`  // somebody attaches at once: what they would miss is waited with
	Spill      int               `json:"spill,omitempty"` // a stream of more bytes is written to a file too; 0: none is
	TTY        *TTY              `json:"tty,omitempty"`
}

// TTY is the size of a terminal, in characters.
type TTY struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// Response answers a Request: either Error, or what belongs to its method.
type Response struct {
	Error *Error `json:"err,omitempty"`

	Version   int       `json:"v,omitempty"`
	Features  []string  `json:"features,omitempty"`
	Run       string    `json:"run,omitempty"` // hello: names this life of the guest
	Started   *Started  `json:"started,omitempty"`
	End       *End      `json:"end,omitempty"` // the payload is stdout, then stderr
	Execs     []Exec    `json:"execs,omitempty"`
	Survivors int       `json:"alive,omitempty"`
	Attached  *Attached `json:"attached,omitempty"`
	Chunk     *Chunk    `json:"chunk,omitempty"` // the payload is its data
	Files     []File    `json:"files,omitempty"`
	Size      int64     `json:"size,omitempty"`
	Opened    *Opened   `json:"opened,omitempty"` // open
}

// Codes of an Error.
const (
	CodeErrno   = "errno"   // the file system refused; Errno has its name
	CodeNoExec  = "no_exec" // never heard of that exec
	CodeRun     = "run"     // meant for another run of the sandbox
	CodeInvalid = "invalid"
	CodeNoTTY   = "no_tty"  // that exec has no terminal
	CodeUnknown = "unknown" // a method of another version
	CodeFailed  = "failed"
)

// Error is why a call failed.
type Error struct {
	Code    string `json:"code"`
	Errno   string `json:"errno,omitempty"`
	Message string `json:"msg,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Started tells of a command that runs, or ran.
type Started struct {
	PID     int  `json:"pid"`
	Existed bool `json:"existed,omitempty"`
}

// Attached tells what was joined.
type Attached struct {
	Running    bool  `json:"running,omitempty"`
	SkippedOut int64 `json:"skip_out,omitempty"` // bytes from the asked offset on that are no longer kept
	SkippedErr int64 `json:"skip_err,omitempty"`
	StdinTaken int64 `json:"taken,omitempty"` // of all that came by attach
	Stdin      bool  `json:"stdin,omitempty"` // stdin is open, and this stream's
}

// End is how an exec ended.
type End struct {
	ExitCode   int    `json:"code"`
	Signal     string `json:"sig,omitempty"`
	OOM        bool   `json:"oom,omitempty"`
	TimedOut   bool   `json:"timeout,omitempty"`
	Stdout     int    `json:"out,omitempty"` // bytes of it in the payload
	Stderr     int    `json:"err,omitempty"`
	OmittedOut int64  `json:"omit_out,omitempty"`
	OmittedErr int64  `json:"omit_err,omitempty"`
	OutputLost bool   `json:"lost,omitempty"`
	FileOut    string `json:"file_out,omitempty"` // wait: the file that has stdout; "": there is none
	FileErr    string `json:"file_err,omitempty"`
	Duration   int64  `json:"took"` // ns
	Cwd        string `json:"cwd,omitempty"`
	CwdLost    string `json:"cwd_lost,omitempty"`
	Left       int    `json:"left,omitempty"`
}

// Exec is one line of a guest's list. Times are ns since 1970.
type Exec struct {
	Exec       string `json:"exec"`
	PID        int    `json:"pid"`
	Command    string `json:"cmd"`
	StartedAt  int64  `json:"start"`
	EndedAt    int64  `json:"end,omitempty"`
	Background bool   `json:"bg,omitempty"`
	TTY        bool   `json:"tty,omitempty"`
	Left       bool   `json:"left,omitempty"`
	Running    bool   `json:"run,omitempty"`
	ExitCode   int    `json:"code,omitempty"`
	Timeout    int64  `json:"timeout,omitempty"`
}

// Chunk is a part of a file.
type Chunk struct {
	Size  int64  `json:"size"`
	Mode  uint32 `json:"mode"`
	MTime int64  `json:"mtime"`
	EOF   bool   `json:"eof,omitempty"`
}

// File describes one file.
type File struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Size  int64  `json:"size"`
	Mode  uint32 `json:"mode"`
	MTime int64  `json:"mtime"`
}

// Opened is a file or folder that was opened to be read.
type Opened struct {
	File
	Tag string `json:"tag"` // another one where the content may be another
}

// Send asks for an opened file's bytes, or for an archive of it.
type Send struct {
	Offset int64 `json:"off,omitempty"`
	Length int64 `json:"len,omitempty"`
	Tar    bool  `json:"tar,omitempty"`
}

// Done is how a transfer ended: with Error, or as it should.
type Done struct {
	Error   *Error `json:"err,omitempty"`
	Size    int64  `json:"size,omitempty"` // bytes of the file that was written
	Entries int64  `json:"n,omitempty"`    // of an archive that were extracted
}
