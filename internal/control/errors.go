package control

import (
	"errors"
	"fmt"
	"time"
)

// Kind names a class of failure. Kinds are part of the contract with clients;
// the agent socket and the HTTP API each map them once to their own codes.
type Kind string

// The kinds of failure.
const (
	KindInvalid           Kind = "invalid_params"
	KindForbidden         Kind = "forbidden"
	KindNotFound          Kind = "not_found"
	KindGenerationGone    Kind = "generation_gone"
	KindQuota             Kind = "quota_exceeded"
	KindEngineUnavailable Kind = "engine_unavailable"
	KindImageUnavailable  Kind = "image_unavailable"
	KindConflict          Kind = "conflict"
	KindDraining          Kind = "draining"
	KindInternal          Kind = "internal"
)

// Error is a failure that a client may see. Message is for a person and never
// holds a path of this machine or a stack; Err is the private cause, for logs.
type Error struct {
	Kind       Kind
	Message    string
	RetryAfter time.Duration // 0: not told
	Tombstone  *Tombstone    // with KindGenerationGone
	Drift      []string      // with KindConflict of env.acquire
	Errno      string        // "EACCES", "EISDIR", ...: a file call that the file system refused
	Err        error
}

func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Kind, e.Message, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Kind, e.Message)
}

func (e *Error) Unwrap() error { return e.Err }

// AsError returns err as an *Error. One that is none becomes KindInternal with
// a message that gives nothing away.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: KindInternal, Message: "internal error; the server's log has the cause", Err: err}
}

// Errorf makes an Error of a kind.
func Errorf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Sentinels that engines and guests return, wrapped, so that the plane can tell
// causes apart with errors.Is.
var (
	// ErrEngineUnavailable: the engine does not answer. Nothing is known of its sandboxes.
	ErrEngineUnavailable = errors.New("engine unavailable")
	// ErrImageMissing: the image is not on the engine; a Pull may bring it.
	ErrImageMissing = errors.New("image is not on the engine")
	// ErrImageUnavailable: the image is not here and cannot be pulled. Its text has the engine's own words.
	ErrImageUnavailable = errors.New("image unavailable")
	// ErrSpecRefused: the engine will never make such a sandbox. Its text has the engine's own words.
	ErrSpecRefused = errors.New("the engine refuses this")
	// ErrNoSandbox: the engine knows no sandbox of that name.
	ErrNoSandbox = errors.New("no such sandbox")
	// ErrGuestUnreachable: the sandbox's PID 1 cannot be reached; whether a call took effect is not known.
	ErrGuestUnreachable = errors.New("guest unreachable")
	// ErrOtherRun: the sandbox runs, but it was started again since: what was meant for
	// its earlier run is not done in this one.
	ErrOtherRun = errors.New("the sandbox was started again")
	// ErrNoExec: the guest has never heard of that exec.
	ErrNoExec = errors.New("no such exec")
	// ErrStreamClosed: the stream was closed, at this end.
	ErrStreamClosed = errors.New("the stream is closed")
	// ErrStdinClosed: the exec takes no input, or another one gives it now.
	ErrStdinClosed = errors.New("stdin is closed")
)

// FileError is a refusal of the sandbox's file system.
type FileError struct {
	Errno   string // the errno's name, such as "ENOENT"
	Message string // for a person: the path as asked and the reason
}

func (e *FileError) Error() string { return e.Message }
