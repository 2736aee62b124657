package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sandkeeper/internal/control"
)

// The bounds of a page of a listing.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// params reads a query strictly: a name that is not expected, given twice or
// wrong in form is an error that names it. The first error is kept.
type params struct {
	values url.Values
	err    error
}

// query checks the names first, so that a typo never passes silently.
func query(u *url.URL, allowed ...string) *params {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return &params{err: invalid("the query cannot be read: %s", printable(err.Error()))}
	}
	p := &params{values: values}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch {
		case !slices.Contains(allowed, name) && len(allowed) == 0:
			p.fail("unknown parameter %q; there are none here", printable(name))
		case !slices.Contains(allowed, name):
			p.fail("unknown parameter %q; there are: %s", printable(name), strings.Join(allowed, ", "))
		case len(values[name]) > 1:
			p.fail("parameter %q is given more than once", name)
		case !utf8.ValidString(values[name][0]) || strings.ContainsRune(values[name][0], 0):
			p.fail("parameter %q is not valid text", name)
		}
	}
	return p
}

func (p *params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = invalid(format, args...)
	}
}

func (p *params) text(name string) string { return p.values.Get(name) }

// seq reads a sequence number; 0 where it is not given.
func (p *params) seq(name string) uint64 {
	s := p.values.Get(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		p.fail("parameter %q must be a sequence number, 0 or more; got %q", name, printable(s))
	}
	return n
}

// limit reads how many are asked for: what is over the bound is clamped.
func (p *params) limit() int {
	s := p.values.Get("limit")
	if s == "" {
		return defaultLimit
	}
	n, err := strconv.Atoi(s)
	if errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(s, "-") {
		return maxLimit
	}
	if err != nil || n < 1 {
		p.fail("parameter %q must be a whole number, 1 or more; got %q", "limit", printable(s))
	}
	return min(n, maxLimit)
}

// maxWithin is what a longer look ahead is clamped to: beyond any deadline.
const maxWithin = 200 * 365 * 24 * time.Hour

// within reads how far a forecast looks ahead; 0, which is without bound, where
// that is not given.
func (p *params) within() time.Duration {
	s := p.values.Get("within")
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) && !strings.HasPrefix(s, "-") {
		return maxWithin
	}
	if err != nil || n < 0 {
		p.fail("parameter %q must be whole seconds, 0 or more; got %q", "within", printable(s))
		return 0
	}
	// None at all is what is due by now.
	return max(time.Duration(min(n, int64(maxWithin/time.Second)))*time.Second, time.Nanosecond)
}

// states are all that an environment can be asked for by.
var states = []control.State{control.Starting, control.Ready, control.Stopping, control.Dormant, control.Failed, control.Removed}

// state reads a state; "" where it is not given.
func (p *params) state() control.State {
	s := control.State(p.values.Get("state"))
	if s != "" && !slices.Contains(states, s) {
		p.fail("parameter %q must be one of %s; got %q", "state", joinStates(), printable(string(s)))
	}
	return s
}

func joinStates() string {
	words := make([]string, len(states))
	for i, s := range states {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

// decode reads an optional JSON body strictly into v. No body, and one of white
// space alone, leave v as it is.
func decode(r io.Reader, v any) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return nil
	}
	if !utf8.Valid(b) {
		return invalid("the body is not valid UTF-8")
	}
	if b[0] != '{' {
		return invalid("the body must be a JSON object")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return invalid("%s", bodyProblem(err))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("the body holds more than one JSON object")
	}
	return nil
}

// bodyProblem says in our own words what is wrong with a body.
func bodyProblem(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return fmt.Sprintf("field %q must be a %s, not a %s", printable(e.Field), jsonType(e), e.Value)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return "unknown field " + printable(name)
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the body is not valid JSON"
	}
	return "the body cannot be read: a field has the wrong form"
}

func jsonType(e *json.UnmarshalTypeError) string {
	if e.Type.String() == "bool" {
		return "boolean"
	}
	return e.Type.String()
}

// printable bounds what came from a client and takes control characters out of
// it, so that it can be told back.
func printable(s string) string {
	const most = 100
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > most {
			b.WriteString("…")
			break
		}
		if unicode.IsControl(r) {
			r = '�'
		}
		b.WriteRune(r)
	}
	return b.String()
}
