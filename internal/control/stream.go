package control

import (
	"fmt"
	"time"
)

// Output names one of an exec's two streams of output, as the wire numbers them.
type Output uint8

// On a tty everything comes as Stdout.
const (
	Stdout Output = 1
	Stderr Output = 2
)

// Offsets counts bytes of each stream, from its beginning.
type Offsets struct {
	Stdout int64 `json:"stdout"`
	Stderr int64 `json:"stderr"`
}

// TTY is the size of a terminal, in characters.
type TTY struct {
	Cols int
	Rows int
}

// GuestAttach says what to join of an exec.
type GuestAttach struct {
	Exec  string
	From  Offsets // bytes already had
	Input bool    // this one gives stdin from now on, instead of who did before
}

// GuestStream is an exec's streams, joined. While it is joined and not read, the
// command blocks once what waits is more than a bounded buffer; once it is
// closed or broken, the command goes on without it. Read and Write may be called
// beside each other, Close beside both.
type GuestStream interface {
	// Skipped tells how many bytes from the asked offsets on are no longer kept.
	Skipped() Offsets
	// Running tells whether the exec ran when it was joined.
	Running() bool
	// StdinTaken is how many bytes of stdin the guest had taken when it was joined.
	StdinTaken() int64
	// Read waits for the next bytes of either stream, those of each in order.
	// After the end of the exec and the last byte that was there by then it is
	// io.EOF. Errors: ErrGuestUnreachable where the connection broke.
	Read(p []byte) (n int, out Output, err error)
	// End is how the exec ended, without its output; only after io.EOF.
	End() ExecEnd
	// Write gives stdin, and blocks while the command does not read and a
	// bounded buffer is full. Errors: ErrStdinClosed; ErrGuestUnreachable.
	Write(p []byte) (int, error)
	CloseStdin() error
	Close() error
}

// StartRequest starts a command whose streams a channel carries. Either Command
// or Argv is set.
type StartRequest struct {
	Ref
	Command    string
	Argv       []string
	Cwd        string
	Variables  map[string]string
	ID         string
	Generation *int64
	TimeoutS   *int64 // none
	TTY        *TTY   // nil: pipes
	Background bool
	Stdin      bool // open until it is closed; else empty
}

// Started is the answer to a StartRequest. Its stream is joined from the first
// byte on; who gets it closes it.
type Started struct {
	Exec   string
	PID    int
	Stream ExecStream
	Notice *Notice
}

// AttachRequest joins the streams of an exec. Looking is no activity; input is.
type AttachRequest struct {
	Exec     string
	From     Offsets
	ReadOnly bool // leave stdin to who has it
}

// Attached is the answer to an AttachRequest.
type Attached struct {
	Exec       string
	State      string // "running", "exited"
	Skipped    Offsets
	StdinTaken int64
	Stream     ExecStream
}

// ExecStream is what a channel carries. It outlives a broken connection to the
// guest: it joins anew from where it was. Read and Write may be called beside
// each other; Close ends both, and leaves the exec alone.
type ExecStream interface {
	Exec() string
	// Read waits for the next bytes. Errors: io.EOF after the last, then Exit
	// tells the end; *Gap where bytes were lost, and reading goes on behind them;
	// any other is final, and says nothing of the exec's end.
	Read(p []byte) (n int, out Output, err error)
	Exit() ExecExit
	// Write gives stdin; it blocks while the command does not read, and counts as
	// activity. Errors: ErrStdinClosed.
	Write(p []byte) (int, error)
	CloseStdin() error
	Close() error
}

// Gap is a place in an exec's output whose bytes are no longer kept.
type Gap struct{ Skipped Offsets }

func (g *Gap) Error() string {
	return fmt.Sprintf("%d bytes of stdout and %d of stderr are no longer kept", g.Skipped.Stdout, g.Skipped.Stderr)
}

// ExecExit is the one end of an exec.
type ExecExit struct {
	ExitCode   *int // nil where the environment was lost
	Signal     string
	OOM        bool
	TimedOut   bool
	EnvLost    *LostEnv
	Duration   time.Duration
	Cwd        string
	OutputLost bool // the output is no longer kept
	Left       int  // processes that it left running
}

// LostEnv is why an exec ended with its environment.
type LostEnv struct {
	Reason    string     `json:"reason"`
	Tombstone *Tombstone `json:"tombstone"`
}

// ExecState is the answer to Session.WaitExec.
type ExecState struct {
	Exec string
	Exit *ExecExit // nil while it runs
}
