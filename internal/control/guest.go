package control

import (
	"context"
	"io/fs"
	"time"
)

// Guests reaches the PID 1 of sandboxes by the sandboxes' names.
type Guests interface {
	// Guest returns the guest of a running sandbox. It is cheap, keeps one
	// connection per sandbox and dials anew when that is gone.
	Guest(name string) Guest
	// Forget closes what is open to that sandbox: it is being torn down.
	Forget(name string)
}

// Guest is the PID 1 of one sandbox. What it says is untrusted: root in the
// sandbox can take it over. A call that did not get its answer fails with
// ErrGuestUnreachable after the connection was dialled anew once; each call may
// be repeated safely, since commands are named by the caller.
type Guest interface {
	// Ping answers once the guest does, until ctx ends.
	Ping(ctx context.Context) error
	// Run names this run of the sandbox: each life of its PID 1 has a name of its
	// own. It is "" where the guest is too old to say.
	Run(ctx context.Context) (string, error)
	// Start starts a command, or does nothing if one of that name was ever
	// started in this run of the sandbox. A program that is missing or cannot be
	// executed is no error of Start: the exec ends with 127 or 126.
	// Errors: *FileError ENOENT where an explicit Cwd does not exist; ErrOtherRun.
	Start(ctx context.Context, s ExecStart) (ExecStarted, error)
	// Wait waits for the end of an exec, and returns its output bounded to
	// limit bytes of each stream: the first 40 % and the last 60 %, joined.
	// Errors: ErrNoExec; ctx's.
	Wait(ctx context.Context, exec string, limit int) (ExecEnd, error)
	// Gone waits until nothing that the exec started is alive. Errors: ErrNoExec; ctx's.
	Gone(ctx context.Context, exec string) error
	// Execs lists what runs, what ended commands left running, and lately ended ones.
	Execs(ctx context.Context) ([]ExecStatus, error)
	// Signal sends a signal ("TERM", "KILL", ...) to an exec: the whole tree, or its first process.
	// It returns how many still live: verified 0 for KILL of a tree; for others after 100 ms.
	Signal(ctx context.Context, exec, signal string, tree bool) (survivors int, err error)

	// Attach joins the streams of an exec, also of one that has ended and whose
	// output is still kept. Errors: ErrNoExec; ctx bounds the joining alone.
	Attach(ctx context.Context, a GuestAttach) (GuestStream, error)
	// CloseStdin ends an exec's input, once it has read what was given.
	// Errors: ErrNoExec.
	CloseStdin(ctx context.Context, exec string) error
	// Resize sets the size of an exec's terminal. Errors: ErrNoExec; *Error
	// KindConflict where it has none.
	Resize(ctx context.Context, exec string, t TTY) error

	// The file calls. A relative path counts from the workdir. Errors: *FileError.
	ReadFile(ctx context.Context, path string, offset int64, length int) (FileChunk, error)
	WriteFile(ctx context.Context, w FileWrite) (size int64, err error)
	ListFiles(ctx context.Context, path string) ([]FileInfo, error)
	StatFile(ctx context.Context, path string) (FileInfo, error)
	RemoveFile(ctx context.Context, path string, recursive bool) error
	Mkdir(ctx context.Context, path string, recursive bool) error

	// OpenFile opens a file or a folder to read it, and CreateFile begins to write
	// one; ctx bounds that alone. Errors: as of the file calls; *Error KindConflict
	// where the guest is too old.
	OpenFile(ctx context.Context, path string) (FileReader, error)
	CreateFile(ctx context.Context, c FileCreate) (FileWriter, error)
}

// FileReader is an open file or folder. Nothing of it moves ahead of what is read
// but a bounded buffer. Close may be called beside the other methods, which are
// one caller's.
type FileReader interface {
	Info() OpenFile
	// Send asks for length bytes of a file from offset on, SendTar for an archive
	// of a folder or a file; Read then has them, and io.EOF after the last. Of a
	// file that became shorter there are fewer bytes. Errors: *FileError;
	// ErrGuestUnreachable where the connection broke or nothing moved for minutes.
	Send(offset, length int64) error
	SendTar() error
	Read(p []byte) (int, error)
	Close() error
}

// FileWriter takes the bytes of a file or of an archive. It blocks while the
// sandbox does not take them. Errors: as of FileReader, from Write as soon as the
// sandbox refuses. Close may be called beside the other methods, which are one
// caller's.
type FileWriter interface {
	Write(p []byte) (int, error)
	// Finish says that all was written, and waits until it is in its place.
	Finish() (FileWritten, error)
	// Close without a Finish drops a file that was written; the entries of an
	// archive that are whole stay.
	Close() error
}

// FileCreate says what is to be written. The folders above it are made.
type FileCreate struct {
	Path string
	Mode *fs.FileMode // of a file; nil: 0644 for a new one, unchanged for one that is replaced
	Tar  bool         // what comes is a tar, to be extracted into the folder Path
}

// FileWritten tells what was written.
type FileWritten struct {
	Size    int64 // bytes of the file
	Entries int64 // of the archive
}

// OpenFile describes an open file or folder.
type OpenFile struct {
	FileInfo
	Tag string // another one where the content may be another; of letters, digits, dots and dashes
}

// ExecStart is a command to start. Either Shell or Argv is set.
type ExecStart struct {
	Exec       string            // the plane's name for it, unique for ever
	Run        string            // the run of the sandbox that it is meant for; "": any
	Shell      string            // text for a shell; shell state carries over
	Argv       []string          // a program and its arguments; shell state is left alone
	Cwd        string            // "": the carried directory for Shell, the workdir for Argv
	Workdir    string            // the environment's workdir
	Env        map[string]string // the environment's variables; what shell commands export lies over them
	Variables  map[string]string // this call's own, over all
	Stdin      []byte            // what it reads first
	StdinOpen  bool              // more comes by Attach or CloseStdin; else end of file follows Stdin
	TTY        *TTY              // nil: pipes
	Join       bool              // an Attach follows at once: until then, or half a minute, no byte is lost
	Timeout    time.Duration     // 0: none; then TERM, 2 s, KILL to the whole tree
	Background bool
	Spill      int // a stream of more bytes is also written to a file of the sandbox, bounded; 0: none is
}

// ExecStarted tells of a command that runs, or ran.
type ExecStarted struct {
	PID     int // as the sandbox numbers it
	Existed bool
}

// ExecEnd is how an exec ended.
type ExecEnd struct {
	ExitCode   int    // 128+N after signal N, 127 missing, 126 not executable, 124 timed out
	Signal     string // "KILL"; "" if none
	OOM        bool   // the kernel killed a process of it for want of memory
	TimedOut   bool
	Stdout     []byte
	Stderr     []byte
	OmittedOut int64 // bytes of stdout left out between head and tail
	OmittedErr int64
	OutputLost bool   // the output is no longer kept
	FileOut    string // the sandbox's file that has stdout, by ExecStart.Spill; "": there was none
	FileErr    string
	Duration   time.Duration
	Cwd        string // the directory it ended in (Shell) or ran in
	CwdLost    string // the carried directory that was gone, so that it started in the workdir; "" if none
	Left       int    // processes that it left running
}

// ExecStatus is one line of a guest's list.
type ExecStatus struct {
	Exec       string
	PID        int
	Command    string // as shown to people
	StartedAt  time.Time
	EndedAt    time.Time // zero while it runs
	Background bool
	TTY        bool // it has a terminal
	Left       bool // its command has ended and processes of it live
	Running    bool // its command runs
	ExitCode   int  // once ended
	Timeout    time.Duration
}

// FileChunk is a part of a file.
type FileChunk struct {
	Data  []byte
	Size  int64 // of the whole file, in bytes
	Mode  fs.FileMode
	MTime time.Time
	EOF   bool
}

// FileWrite is a write of a whole file, or an append to one.
type FileWrite struct {
	Path   string
	Data   []byte
	Mode   *fs.FileMode // nil: 0644 for a new file, unchanged for an old one
	Append bool
	Mkdirs bool
}

// FileInfo describes one file.
type FileInfo struct {
	Name  string
	Type  string // "file", "dir", "symlink", "other"
	Size  int64
	Mode  fs.FileMode
	MTime time.Time
}
