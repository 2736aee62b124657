package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Kind is a class of failure. It is an error itself, for errors.Is.
type Kind string

// The kinds of failure that the protocol names.
const (
	KindParse             Kind = "parse"
	KindInvalidRequest    Kind = "invalid_request"
	KindUnknownMethod     Kind = "unknown_method"
	KindInvalidParams     Kind = "invalid_params"
	KindInternal          Kind = "internal"
	KindHelloRequired     Kind = "hello_required"
	KindForbidden         Kind = "forbidden"
	KindNotFound          Kind = "not_found"
	KindGenerationGone    Kind = "generation_gone"
	KindQuotaExceeded     Kind = "quota_exceeded"
	KindEngineUnavailable Kind = "engine_unavailable"
	KindImageUnavailable  Kind = "image_unavailable"
	KindConflict          Kind = "conflict"
	KindDraining          Kind = "draining"
)

func (k Kind) Error() string { return string(k) }

// Error is a failure that the server reports.
type Error struct {
	Method     string // the call that failed
	Code       int    // JSON-RPC's, or the protocol's own; HTTP's status of a transfer
	Kind       Kind
	Message    string        // for a person
	Field      string        // with KindInvalidParams: the param that is wrong; "" where it is not one alone
	RetryAfter time.Duration // 0: not told
	Tombstone  *Tombstone    // with KindGenerationGone: how the sandbox ended
	Drift      []string      // with KindConflict of an acquire: fields that differ
	Errno      string        // of a file call that the file system refused: "EACCES", "EISDIR", …
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %s", e.Method, e.Kind, e.Message) }

// Is reports whether target is the error's Kind.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// Tombstone says how a sandbox, or one run of it, came to its end.
type Tombstone struct {
	Reason     string    `json:"reason"`
	Actor      string    `json:"actor"`
	At         time.Time `json:"at"`
	Generation int64     `json:"generation"`
	ExitCode   *int      `json:"exit_code"` // of its first process; nil: not known
	OOM        bool      `json:"oom"`       // it ended for want of memory
}

// Failures of the client's own side.
var (
	// ErrClosed: Close was called.
	ErrClosed = errors.New("client: closed")
	// ErrDropped: the connection dropped before the answer came, and the call is
	// not one to repeat unasked. Whether it took effect is not known.
	ErrDropped = errors.New("client: the connection dropped before the answer came")
	// ErrTakenOver: another connection resumed this client's session.
	ErrTakenOver = errors.New("client: another connection took the session over")
	// ErrReset: events are missing, because the log no longer reaches back to the
	// last that was read. Reading goes on with the oldest that there is.
	ErrReset = errors.New("client: the log of events no longer reaches back to the last that was read")
	// ErrSuperseded: a later Subscribe took the place of this one.
	ErrSuperseded = errors.New("client: another subscription took the place of this one")
	// ErrTooBig: the request is larger than the server takes.
	ErrTooBig = errors.New("client: the request is larger than the server takes")
)

// GapError stands in a stream for bytes that the server no longer has. Reading
// goes on behind them.
type GapError struct{ Bytes int64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("client: %d bytes of the stream are no longer kept", e.Bytes)
}

// HandshakeError says that the server did not let the client in.
type HandshakeError struct {
	Status  int    // of HTTP
	Message string // the server's, if it gave one
}

func (e *HandshakeError) Error() string {
	if e.Message != "" {
		return fmt.Sprintf("client: refused with %d: %s", e.Status, e.Message)
	}
	return fmt.Sprintf("client: refused with %d %s", e.Status, http.StatusText(e.Status))
}

// permanent reports whether another attempt would fare no better.
func permanent(err error) bool {
	if h, ok := errors.AsType[*HandshakeError](err); ok {
		return h.Status >= 400 && h.Status < 500 && h.Status != http.StatusTooManyRequests && h.Status != http.StatusRequestTimeout
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind == KindInvalidParams || e.Kind == KindInvalidRequest || e.Kind == KindForbidden
	}
	return false
}

// wireError is an error object as it comes.
type wireError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    struct {
		Kind         Kind       `json:"kind"`
		Field        string     `json:"field"`
		RetryAfterMS int64      `json:"retry_after_ms"`
		Tombstone    *Tombstone `json:"tombstone"`
		Drift        []string   `json:"drift"`
		Errno        string     `json:"errno"`
	} `json:"data"`
}

func (w *wireError) of(method string) *Error {
	return &Error{
		Method:     method,
		Code:       w.Code,
		Kind:       w.Data.Kind,
		Message:    w.Message,
		Field:      w.Data.Field,
		RetryAfter: time.Duration(w.Data.RetryAfterMS) * time.Millisecond,
		Tombstone:  w.Data.Tombstone,
		Drift:      w.Data.Drift,
		Errno:      w.Data.Errno,
	}
}

// message is anything that the server sends.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *wireError      `json:"error"`
}
