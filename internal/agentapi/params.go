package agentapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sandkeeper/internal/control"
)

// params reads the fields of one object, each by its name and type. The first
// problem sticks; readers return zero values from then on. Null is as good as
// leaving a field out.
type params struct {
	path   string // of this object, "" for params itself
	fields map[string]json.RawMessage
	shape  **wireError // the first wrong shape, shared with the objects within
	value  **wireError // the first value that no environment can make right, likewise
}

// readParams takes an object apart. A field that is not among the known ones is
// a problem, and so is one that comes twice.
func readParams(raw json.RawMessage, known []string) *params {
	p := &params{shape: new(*wireError), value: new(*wireError)}
	if raw != nil {
		p.open(raw, known)
	}
	return p
}

func (p *params) open(raw json.RawMessage, known []string) {
	if raw[0] != '{' {
		p.fail("", "must be an object, not %s", jsonKind(raw))
		return
	}
	p.fields = make(map[string]json.RawMessage, len(known))
	err := eachMember(raw, func(name string, value json.RawMessage) error {
		if !slices.Contains(known, name) {
			return invalidParam(p.at(name), "unknown field")
		}
		if _, twice := p.fields[name]; twice {
			return invalidParam(p.at(name), "comes twice")
		}
		p.fields[name] = value
		return nil
	})
	if err != nil {
		p.stick(p.shape, err)
	}
}

func (p *params) stick(to **wireError, err error) {
	if *to != nil {
		return
	}
	if e, ok := errors.AsType[*wireError](err); ok {
		*to = e
		return
	}
	*to = invalidParam(p.at(""), "%v", err)
}

// at is the path of a field of this object.
func (p *params) at(name string) string {
	switch {
	case p.path == "" && name == "":
		return "params"
	case p.path == "":
		return name
	case name == "":
		return p.path
	}
	return p.path + "." + name
}

// fail notes a wrong shape of a field.
func (p *params) fail(name, format string, args ...any) {
	p.stick(p.shape, invalidParam(p.at(name), format, args...))
}

// reject notes a value that is wrong whatever it is for: it is told once the
// environment was found.
func (p *params) reject(name, why string) {
	p.stick(p.value, invalidParam(p.at(name), "%s", why))
}

// err is the first wrong shape, or else the first wrong value.
func (p *params) err() error {
	if *p.shape != nil {
		return *p.shape
	}
	if *p.value != nil {
		return *p.value
	}
	return nil
}

// errFor is err for a call on an environment: where only a value is wrong, an
// environment that is not there is the error instead.
func (p *params) errFor(ctx context.Context, s Session, r control.Ref) error {
	if *p.shape == nil && *p.value != nil {
		if _, err := s.Env(ctx, r); err != nil {
			return err
		}
	}
	return p.err()
}

// errForExec is err for a call on an exec, likewise.
func (p *params) errForExec(ctx context.Context, s Session, exec string) error {
	if *p.shape == nil && *p.value != nil {
		if _, err := s.WaitExec(ctx, exec, atOnce); err != nil {
			return err
		}
	}
	return p.err()
}

// get returns a field, or nil where it is absent or null.
func (p *params) get(name string) json.RawMessage {
	v := p.fields[name]
	if v == nil || v[0] == 'n' {
		return nil
	}
	return v
}

func (p *params) has(name string) bool { return p.get(name) != nil }

// need notes that a field is missing.
func (p *params) need(name string) {
	if !p.has(name) {
		p.fail(name, "required")
	}
}

// text reads an optional string.
func (p *params) text(name string) *string {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	if raw[0] != '"' {
		p.fail(name, "must be a string, not %s", jsonKind(raw))
		return nil
	}
	s, err := unquote(raw)
	if err != nil {
		p.fail(name, "%v", err)
		return nil
	}
	return &s
}

// textOrNone reads an optional string for which "" is as good as none.
func (p *params) textOrNone(name string) string {
	if s := p.text(name); s != nil {
		return *s
	}
	return ""
}

// name reads an optional name: 1 to 128 code points without control characters.
// It returns "" where it is absent.
func (p *params) name(name string) string {
	s := p.text(name)
	if s == nil {
		return ""
	}
	if err := checkName(*s); err != nil {
		p.fail(name, "%v", err)
	}
	return *s
}

// checkName holds a name against the protocol's rule.
func checkName(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("must be UTF-8")
	}
	if n := utf8.RuneCountInString(s); n < 1 || n > 128 {
		return fmt.Errorf("must have 1 to 128 characters, has %d", n)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r < 0x20 || r >= 0x7f && r <= 0x9f }); i >= 0 {
		return fmt.Errorf("must have no control characters")
	}
	return nil
}

// ref reads which environment a call is for.
func (p *params) ref() control.Ref {
	r := control.Ref{Env: p.textOrNone("env"), Task: p.name("task"), Name: p.name("name")}
	switch {
	case p.has("env") && p.has("task"):
		p.fail("env", "give either env or task, not both")
	case p.has("env") && p.has("name"):
		p.fail("name", "goes with task; env names an environment alone")
	case p.has("env") && r.Env == "":
		p.fail("env", "must not be empty")
	case !p.has("env") && !p.has("task"):
		p.fail("env", "required, or task")
	}
	return r
}

// boolean reads an optional boolean.
func (p *params) boolean(name string) *bool {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	if raw[0] != 't' && raw[0] != 'f' {
		p.fail(name, "must be true or false, not %s", jsonKind(raw))
		return nil
	}
	v := raw[0] == 't'
	return &v
}

func (p *params) flag(name string) bool {
	v := p.boolean(name)
	return v != nil && *v
}

// flagOr is flag with another default.
func (p *params) flagOr(name string, def bool) bool {
	if v := p.boolean(name); v != nil {
		return *v
	}
	return def
}

// whole reads an optional whole number. One beyond int64 becomes the nearest
// int64, which is out of any range that the plane allows.
func (p *params) whole(name string) *int64 {
	raw := p.number(name)
	if raw == "" {
		return nil
	}
	if n, err := strconv.ParseInt(raw, 10, 64); err == nil {
		return &n
	}
	f, _ := strconv.ParseFloat(raw, 64) // out of range: an infinity
	var n int64
	switch {
	case f != math.Trunc(f):
		p.fail(name, "must be a whole number")
		return nil
	case f >= 1<<63:
		n = math.MaxInt64
	case f <= -1<<63:
		n = math.MinInt64
	default:
		n = int64(f)
	}
	return &n
}

// real reads an optional number.
func (p *params) real(name string) *float64 {
	raw := p.number(name)
	if raw == "" {
		return nil
	}
	f, err := strconv.ParseFloat(raw, 64)
	if err != nil {
		p.fail(name, "is out of range")
		return nil
	}
	return &f
}

func (p *params) number(name string) string {
	raw := p.get(name)
	if raw == nil {
		return ""
	}
	if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		p.fail(name, "must be a number, not %s", jsonKind(raw))
		return ""
	}
	return string(raw)
}

// mostEntries bounds the objects whose names are the client's.
const mostEntries = 4096

// textMap reads an optional object whose values are strings; nil where absent.
func (p *params) textMap(name string) map[string]string {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	if raw[0] != '{' {
		p.fail(name, "must be an object, not %s", jsonKind(raw))
		return nil
	}
	m := map[string]string{}
	err := eachMember(raw, func(key string, value json.RawMessage) error {
		path := p.at(name) + "." + key
		if value[0] != '"' {
			return invalidParam(path, "must be a string, not %s", jsonKind(value))
		}
		s, err := unquote(value)
		if err != nil {
			return invalidParam(path, "%v", err)
		}
		if _, twice := m[key]; twice {
			return invalidParam(path, "comes twice")
		}
		if len(m) == mostEntries {
			return invalidParam(p.at(name), "has more than %d entries", mostEntries)
		}
		m[key] = s
		return nil
	})
	if err != nil {
		p.stick(p.shape, err)
	}
	return m
}

// textList reads an optional array of strings; nil where absent.
func (p *params) textList(name string) []string {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	if raw[0] != '[' {
		p.fail(name, "must be an array, not %s", jsonKind(raw))
		return nil
	}
	list := []string{}
	err := eachElement(raw, func(i int, value json.RawMessage) error {
		path := fmt.Sprintf("%s[%d]", p.at(name), i)
		if value[0] != '"' {
			return invalidParam(path, "must be a string, not %s", jsonKind(value))
		}
		s, err := unquote(value)
		if err != nil {
			return invalidParam(path, "%v", err)
		}
		list = append(list, s)
		return nil
	})
	if err != nil {
		p.stick(p.shape, err)
	}
	return list
}

// bytes reads base64, as RFC 4648 has it, with padding.
func (p *params) bytes(name string) []byte {
	s := p.text(name)
	if s == nil {
		return nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(*s)
	if err != nil {
		p.reject(name, "is no base64")
	}
	return b
}

// mode reads permission bits: a number from 0 to 0o7777.
func (p *params) mode(name string) *fs.FileMode {
	n := p.whole(name)
	if n == nil {
		return nil
	}
	if *n < 0 || *n > 0o7777 {
		p.reject(name, "must be permission bits, 0 to 4095 (0o7777)")
		return nil
	}
	m := modeOf(uint32(*n))
	return &m
}

// limits reads an optional object of limits.
func (p *params) limits(name string) *control.LimitsView {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	in := p.within(name, raw, "cpus", "memory_mb", "pids", "disk_mb")
	return &control.LimitsView{
		CPUs:     in.real("cpus"),
		MemoryMB: in.whole("memory_mb"),
		Pids:     in.whole("pids"),
		DiskMB:   in.whole("disk_mb"),
	}
}

// within takes apart an object that is the value of a field.
func (p *params) within(name string, raw json.RawMessage, known ...string) *params {
	in := &params{path: p.at(name), shape: p.shape, value: p.value}
	in.open(raw, known)
	return in
}

// offsets reads an optional object of bytes of each stream that were had already.
func (p *params) offsets(name string) (o control.Offsets) {
	raw := p.get(name)
	if raw == nil {
		return o
	}
	in := p.within(name, raw, "stdout", "stderr")
	for field, to := range map[string]*int64{"stdout": &o.Stdout, "stderr": &o.Stderr} {
		if n := in.whole(field); n != nil {
			if *to = *n; *n < 0 {
				in.reject(field, "must not be negative")
			}
		}
	}
	return o
}

// tty reads an optional size of a terminal.
func (p *params) tty(name string) *control.TTY {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	t := p.within(name, raw, "cols", "rows").size()
	return &t
}

// size reads the size of a terminal, which is required.
func (p *params) size() control.TTY {
	side := func(name string) int {
		p.need(name)
		n := p.whole(name)
		if n == nil {
			return 0
		}
		if *n < 1 || *n > math.MaxUint16 {
			p.reject(name, "must be 1 to 65535")
			return 0
		}
		return int(*n)
	}
	return control.TTY{Cols: side("cols"), Rows: side("rows")}
}

// window reads an optional window: how many bytes may be on their way in each
// direction of a channel.
func (p *params) window(name string) *int64 {
	n := p.whole(name)
	if n != nil && (*n < 1 || *n > math.MaxUint32) {
		p.reject(name, "must be 1 to 4294967295")
	}
	return n
}

// exec reads which exec a call is for.
func (p *params) exec() string {
	p.need("exec")
	x := p.textOrNone("exec")
	if p.has("exec") && x == "" {
		p.fail("exec", "must not be empty")
	}
	return x
}

// rejectCommand notes what is wrong with the fields that say what to run.
func (p *params) rejectCommand(command string, argv []string) {
	switch {
	case p.has("command") && p.has("argv"):
		p.reject("argv", "give either command or argv, not both")
	case !p.has("command") && !p.has("argv"):
		p.reject("command", "required, or argv")
	case p.has("argv") && len(argv) == 0:
		p.reject("argv", "must name a program")
	case p.has("command") && command == "":
		p.reject("command", "must not be empty")
	case p.has("id") && p.textOrNone("id") == "":
		p.reject("id", "must not be empty")
	}
}

// The permission bits of the protocol are the system's; Go keeps the upper
// three of them elsewhere.
var modeFlags = []struct {
	bit  uint32
	mode fs.FileMode
}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}}

func modeOf(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for _, f := range modeFlags {
		if bits&f.bit != 0 {
			m |= f.mode
		}
	}
	return m
}

func modeBits(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, f := range modeFlags {
		if m&f.mode != 0 {
			bits |= f.bit
		}
	}
	return bits
}
