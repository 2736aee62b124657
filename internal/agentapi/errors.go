package agentapi

import (
	"errors"
	"fmt"
	"time"

	"sandkeeper/internal/control"
)

// The codes of JSON-RPC 2.0, and ours.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeUnknownMethod  = -32601
	codeInvalidParams  = -32602
	codeInternal       = -32603
	codeHelloRequired  = -32001
	codeForbidden      = -32002
	codeNotFound       = -32010
	codeGenerationGone = -32011
	codeQuota          = -32012
	codeEngine         = -32013
	codeImage          = -32014
	codeConflict       = -32015
	codeDraining       = -32016
)

// codes maps the plane's kinds to the wire.
var codes = map[control.Kind]int{
	control.KindInvalid:           codeInvalidParams,
	control.KindForbidden:         codeForbidden,
	control.KindNotFound:          codeNotFound,
	control.KindGenerationGone:    codeGenerationGone,
	control.KindQuota:             codeQuota,
	control.KindEngineUnavailable: codeEngine,
	control.KindImageUnavailable:  codeImage,
	control.KindConflict:          codeConflict,
	control.KindDraining:          codeDraining,
	control.KindInternal:          codeInternal,
}

// wireError is the error object of a response.
type wireError struct {
	Code    int       `json:"code"`
	Message string    `json:"message"`
	Data    errorData `json:"data"`
}

type errorData struct {
	Kind         string             `json:"kind"`
	Field        string             `json:"field,omitempty"` // the path of the param that is wrong
	RetryAfterMS int64              `json:"retry_after_ms,omitempty"`
	Tombstone    *control.Tombstone `json:"tombstone,omitempty"`
	Drift        []string           `json:"drift,omitempty"`
	Errno        string             `json:"errno,omitempty"`
}

func (e *wireError) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Data.Kind, e.Message) }

func failure(code int, kind, format string, args ...any) *wireError {
	return &wireError{Code: code, Message: fmt.Sprintf(format, args...), Data: errorData{Kind: kind}}
}

func parseError() *wireError {
	return failure(codeParse, "parse", "the frame is no JSON text in UTF-8")
}

func invalidRequest(format string, args ...any) *wireError {
	return failure(codeInvalidRequest, "invalid_request", format, args...)
}

func invalidParam(field, format string, args ...any) *wireError {
	e := failure(codeInvalidParams, "invalid_params", "%s: %s", shorten(field), fmt.Sprintf(format, args...))
	e.Data.Field = shorten(field)
	return e
}

// wireErrorOf maps any error of a call to the wire.
func wireErrorOf(err error) *wireError {
	if e, ok := errors.AsType[*wireError](err); ok {
		return e
	}
	c := control.AsError(err)
	code, ok := codes[c.Kind]
	if !ok {
		code = codeInternal
	}
	return &wireError{Code: code, Message: c.Message, Data: errorData{
		Kind:         string(c.Kind),
		RetryAfterMS: int64((c.RetryAfter + time.Millisecond - 1) / time.Millisecond),
		Tombstone:    c.Tombstone,
		Drift:        c.Drift,
		Errno:        c.Errno,
	}}
}

// shorten bounds what a message repeats of a client's own words.
func shorten(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most]) + "…"
}
