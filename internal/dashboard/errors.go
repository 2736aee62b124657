package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

// kindUnauthorized is of HTTP alone: the plane knows everybody who gets to it.
const kindUnauthorized = "unauthorized"

// httpError is a refusal by the dashboard itself.
type httpError struct {
	status  int
	kind    string
	message string
}

func (e *httpError) Error() string { return e.kind + ": " + e.message }

func unauthorized(message string) error {
	return &httpError{status: http.StatusUnauthorized, kind: kindUnauthorized, message: message}
}

func invalid(format string, args ...any) error {
	return control.Errorf(control.KindInvalid, format, args...)
}

// statuses maps the plane's kinds of failure to HTTP's.
var statuses = map[control.Kind]int{
	control.KindInvalid:           http.StatusBadRequest,
	control.KindForbidden:         http.StatusForbidden,
	control.KindNotFound:          http.StatusNotFound,
	control.KindGenerationGone:    http.StatusGone,
	control.KindQuota:             http.StatusTooManyRequests,
	control.KindEngineUnavailable: http.StatusServiceUnavailable,
	control.KindImageUnavailable:  http.StatusConflict,
	control.KindConflict:          http.StatusConflict,
	control.KindDraining:          http.StatusServiceUnavailable,
	control.KindInternal:          http.StatusInternalServerError,
}

// failure is an error as a client is told it.
type failure struct {
	status    int
	kind      string
	message   string
	tombstone *control.Tombstone
	retry     int    // seconds; 0: not told
	errno     string // the file system's; "" where it is none of its refusals
}

// describe turns any error into what a client may know of it.
func describe(err error) failure {
	if e, ok := errors.AsType[*httpError](err); ok {
		return failure{status: e.status, kind: e.kind, message: e.message}
	}
	if e, ok := errors.AsType[*echo.HTTPError](err); ok {
		return describeEcho(e)
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return failure{status: http.StatusRequestEntityTooLarge, kind: string(control.KindInvalid), message: "the body is too large"}
	}
	e := control.AsError(err)
	status, ok := statuses[e.Kind]
	if !ok {
		status = http.StatusInternalServerError
	}
	if e.Kind == control.KindQuota && e.Errno != "" { // a full disk, and no limit of ours
		status = http.StatusInsufficientStorage
	}
	return failure{status: status, kind: string(e.Kind), message: e.Message, tombstone: e.Tombstone, errno: e.Errno,
		retry: int((e.RetryAfter.Milliseconds() + 999) / 1000)}
}

func describeEcho(e *echo.HTTPError) failure {
	f := failure{status: e.Code, kind: string(control.KindInvalid), message: strings.ToLower(http.StatusText(e.Code))}
	switch e.Code {
	case http.StatusNotFound:
		f.kind, f.message = string(control.KindNotFound), "there is nothing at this address"
	case http.StatusMethodNotAllowed:
		f.kind, f.message = "method_not_allowed", "this address does not take that method"
	case http.StatusTooManyRequests:
		f.kind, f.message = string(control.KindQuota), "too many attempts: wait a moment"
	default:
		if e.Code >= http.StatusInternalServerError {
			f.kind = string(control.KindInternal)
		}
	}
	return f
}

// errorBody is the operator API's error.
type errorBody struct {
	Error struct {
		Kind    string `json:"kind"`
		Message string `json:"message"`
		Errno   string `json:"errno,omitempty"`
	} `json:"error"`
	Tombstone *control.Tombstone `json:"tombstone,omitempty"`
}

func apiError(kind, message string, tombstone *control.Tombstone) errorBody {
	var b errorBody
	b.Error.Kind, b.Error.Message, b.Tombstone = kind, message, tombstone
	return b
}

// handleError is where every error of a handler ends: once, in the form that
// the asker reads.
func (d *Dashboard) handleError(err error, c echo.Context) {
	if c.Response().Committed || errors.Is(err, context.Canceled) && c.Request().Context().Err() != nil {
		return // too late to say anything, or nobody there to be told
	}
	f := describe(err)
	if f.status >= http.StatusInternalServerError && f.status != http.StatusInsufficientStorage {
		d.log.Error("request failed", "method", c.Request().Method, "path", c.Request().URL.Path, "status", f.status, "err", err)
	}
	if f.retry > 0 {
		c.Response().Header().Set("Retry-After", strconv.Itoa(f.retry))
	}
	if err := d.answerError(c, f); err != nil {
		d.log.Debug("error not delivered", "path", c.Request().URL.Path, "err", err)
	}
}

func (d *Dashboard) answerError(c echo.Context, f failure) error {
	r := c.Request()
	if strings.HasPrefix(r.URL.Path, "/api/") {
		if f.status == http.StatusUnauthorized {
			c.Response().Header().Set("WWW-Authenticate", `Bearer realm="sandkeeper"`)
		}
		body := apiError(f.kind, f.message, f.tombstone)
		body.Error.Errno = f.errno
		return c.JSON(f.status, body)
	}
	setPageHeaders(c)
	if r.Header.Get("HX-Request") != "" {
		return render(c, f.status, templates.Notice(f.message))
	}
	if f.status == http.StatusUnauthorized {
		if r.Method == http.MethodGet && r.Header.Get("Authorization") == "" && !wantsStream(r) {
			return c.Redirect(http.StatusSeeOther, signInAddress(r))
		}
		c.Response().Header().Set("WWW-Authenticate", `Bearer realm="sandkeeper"`)
	}
	return render(c, f.status, templates.ErrorPage(d.frame(c, http.StatusText(f.status)), templates.Problem{
		Status: f.status, Title: http.StatusText(f.status), Message: f.message, SignIn: f.status == http.StatusUnauthorized || f.status == http.StatusForbidden,
	}))
}

// wantsStream reports whether the answer is read as an event stream, which a
// page in its place would only confuse.
func wantsStream(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "text/event-stream")
}
