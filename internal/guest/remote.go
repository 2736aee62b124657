package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest/wire"
)

// remote is the guest of one sandbox.
type remote struct {
	fleet *Fleet
	name  string
}

// call makes a call, and once more where its connection broke.
func (r remote) call(ctx context.Context, req *wire.Request, payload []byte, maxPayload int) (resp *wire.Response, data []byte, err error) {
	err = r.over(ctx, req, func(_ *line, c *conn) error {
		var err error
		resp, data, err = c.call(ctx, req, payload, maxPayload)
		return err
	})
	return resp, data, err
}

// over has fn make a call over a connection, and once more where that broke.
func (r remote) over(ctx context.Context, req *wire.Request, fn func(*line, *conn) error) error {
	l, err := r.fleet.line(r.name)
	if err != nil {
		return unreachable(err)
	}
	l.begin()
	defer l.end()
	for again := true; ; again = false {
		c, err := l.connect(ctx)
		if err != nil {
			if ctx.Err() != nil && !errors.Is(err, control.ErrNoSandbox) {
				err = errors.Join(ctx.Err(), err)
			}
			return unreachable(err)
		}
		if err := c.knows(req); err != nil {
			return err
		}
		err = fn(l, c)
		broken, isBroken := errors.AsType[errBroken](err)
		if !isBroken {
			return r.own(err)
		}
		l.discard(c)
		if !again {
			return unreachable(broken)
		}
		r.fleet.log.Debug("guest dialled anew", "sandbox", r.name, "call", req.Method, "error", broken.err)
	}
}

func unreachable(err error) error {
	return fmt.Errorf("%w: %w", control.ErrGuestUnreachable, err)
}

// own makes the guest's own error one of control's.
func (r remote) own(err error) error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return err
	}
	message := text(e.Message, 4096)
	switch e.Code {
	case wire.CodeErrno:
		if !errnoName.MatchString(e.Errno) {
			return &control.FileError{Errno: "EIO", Message: message}
		}
		return &control.FileError{Errno: e.Errno, Message: message}
	case wire.CodeNoExec:
		return control.ErrNoExec
	case wire.CodeRun:
		return control.ErrOtherRun
	case wire.CodeNoTTY:
		return control.Errorf(control.KindConflict, "the exec has no terminal")
	case wire.CodeInvalid:
		return &control.Error{Kind: control.KindInvalid, Message: message}
	}
	return fmt.Errorf("guest: %s", message)
}

var (
	errnoName  = regexp.MustCompile(`^E[A-Z0-9]{1,15}$`)
	signalName = regexp.MustCompile(`^[A-Z0-9+-]{1,10}$`)
)

// text is what a guest says, as UTF-8 of at most n bytes.
func text(s string, n int) string {
	if len(s) > n {
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// errMalformed is an answer without what it must have.
func errMalformed(method string) error {
	return fmt.Errorf("%w: malformed answer to %s", control.ErrGuestUnreachable, method)
}

// Ping answers once the guest does, until ctx ends, or at once where the engine
// says that there is no such sandbox.
func (r remote) Ping(ctx context.Context) error {
	for wait := firstPingWait; ; wait = min(2*wait, maxPingWait) {
		_, _, err := r.call(ctx, &wire.Request{Method: wire.MethodPing}, nil, 0)
		if err == nil || errors.Is(err, control.ErrNoSandbox) || errors.Is(err, errForgotten) {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// Run names this run of the sandbox, as the guest said when it was dialled.
func (r remote) Run(ctx context.Context) (string, error) {
	l, err := r.fleet.line(r.name)
	if err != nil {
		return "", unreachable(err)
	}
	l.begin()
	defer l.end()
	c, err := l.connect(ctx)
	if err != nil {
		return "", unreachable(err)
	}
	return c.run, nil
}

// Start starts a command, unless one of that name was started before.
func (r remote) Start(ctx context.Context, s control.ExecStart) (control.ExecStarted, error) {
	start := &wire.Start{
		Exec: s.Exec, Run: s.Run, Shell: s.Shell, Argv: s.Argv, Cwd: s.Cwd, Workdir: s.Workdir,
		Env: s.Env, Variables: s.Variables, Timeout: int64(s.Timeout), Background: s.Background,
		StdinOpen: s.StdinOpen, Join: s.Join, Spill: s.Spill,
	}
	if s.TTY != nil {
		start.TTY = size(*s.TTY)
	}
	resp, _, err := r.call(ctx, &wire.Request{Method: wire.MethodStart, Start: start}, s.Stdin, 0)
	if err != nil {
		return control.ExecStarted{}, err
	}
	if resp.Started == nil {
		return control.ExecStarted{}, errMalformed(wire.MethodStart)
	}
	return control.ExecStarted{PID: max(resp.Started.PID, 0), Existed: resp.Started.Existed}, nil
}

// Wait waits for the end of an exec.
func (r remote) Wait(ctx context.Context, exec string, limit int) (control.ExecEnd, error) {
	limit = min(max(limit, 0), wire.MaxPayload/2)
	resp, data, err := r.call(ctx, &wire.Request{Method: wire.MethodWait, Exec: exec, Limit: limit}, nil, 2*limit)
	if err != nil {
		return control.ExecEnd{}, err
	}
	end, ok := execEnd(resp.End, data, limit)
	if !ok {
		return control.ExecEnd{}, errMalformed(wire.MethodWait)
	}
	return end, nil
}

// execEnd checks the end of an exec as a guest tells it.
func execEnd(e *wire.End, data []byte, limit int) (control.ExecEnd, bool) {
	if e == nil || e.Stdout < 0 || e.Stderr < 0 || e.Stdout > limit || e.Stderr > limit || e.Stdout+e.Stderr != len(data) {
		return control.ExecEnd{}, false
	}
	if e.ExitCode < 0 || e.ExitCode > math.MaxUint8 || e.Signal != "" && !signalName.MatchString(e.Signal) {
		return control.ExecEnd{}, false
	}
	return control.ExecEnd{
		ExitCode: e.ExitCode, Signal: e.Signal, OOM: e.OOM, TimedOut: e.TimedOut,
		Stdout: data[:e.Stdout:e.Stdout], Stderr: data[e.Stdout:],
		OmittedOut: max(e.OmittedOut, 0), OmittedErr: max(e.OmittedErr, 0), OutputLost: e.OutputLost,
		Duration: time.Duration(max(e.Duration, 0)),
		Cwd:      text(e.Cwd, 4096), CwdLost: text(e.CwdLost, 4096), Left: max(e.Left, 0),
		FileOut: text(e.FileOut, 4096), FileErr: text(e.FileErr, 4096),
	}, true
}

// Gone waits until nothing that the exec started is alive.
func (r remote) Gone(ctx context.Context, exec string) error {
	_, _, err := r.call(ctx, &wire.Request{Method: wire.MethodGone, Exec: exec}, nil, 0)
	return err
}

// Execs lists what runs, what was left running, and what ended lately.
func (r remote) Execs(ctx context.Context) ([]control.ExecStatus, error) {
	resp, _, err := r.call(ctx, &wire.Request{Method: wire.MethodExecs}, nil, 0)
	if err != nil {
		return nil, err
	}
	all := make([]control.ExecStatus, len(resp.Execs))
	for i, e := range resp.Execs {
		all[i] = control.ExecStatus{
			Exec: text(e.Exec, 256), PID: max(e.PID, 0), Command: text(e.Command, 1024),
			StartedAt: instant(e.StartedAt), EndedAt: instant(e.EndedAt),
			Background: e.Background, TTY: e.TTY, Left: e.Left, Running: e.Running,
			ExitCode: min(max(e.ExitCode, 0), math.MaxUint8), Timeout: time.Duration(max(e.Timeout, 0)),
		}
	}
	return all, nil
}

// instant makes a time of ns since 1970; 0 is none.
func instant(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns)
}

// Signal sends a signal and returns how many processes still live.
func (r remote) Signal(ctx context.Context, exec, signal string, tree bool) (survivors int, err error) {
	resp, _, err := r.call(ctx, &wire.Request{Method: wire.MethodSignal, Exec: exec, Signal: signal, Tree: tree}, nil, 0)
	if err != nil {
		return 0, err
	}
	return max(resp.Survivors, 0), nil
}

// ReadFile reads at most length bytes of a file from offset on.
func (r remote) ReadFile(ctx context.Context, path string, offset int64, length int) (control.FileChunk, error) {
	length = min(max(length, 0), wire.MaxPayload)
	resp, data, err := r.call(ctx, &wire.Request{Method: wire.MethodRead, Path: path, Offset: offset, Length: length}, nil, length)
	if err != nil {
		return control.FileChunk{}, err
	}
	c := resp.Chunk
	if c == nil {
		return control.FileChunk{}, errMalformed(wire.MethodRead)
	}
	return control.FileChunk{
		Data: data, Size: max(c.Size, 0), Mode: fs.FileMode(c.Mode), MTime: time.Unix(0, c.MTime), EOF: c.EOF,
	}, nil
}

// WriteFile writes a whole file, or appends to one.
func (r remote) WriteFile(ctx context.Context, w control.FileWrite) (size int64, err error) {
	req := &wire.Request{Method: wire.MethodWrite, Call: rand.Text(), Path: w.Path, Append: w.Append, Mkdirs: w.Mkdirs}
	if w.Mode != nil {
		mode := uint32(*w.Mode)
		req.Mode = &mode
	}
	resp, _, err := r.call(ctx, req, w.Data, 0)
	if err != nil {
		return 0, err
	}
	return max(resp.Size, 0), nil
}

// ListFiles lists a directory.
func (r remote) ListFiles(ctx context.Context, path string) ([]control.FileInfo, error) {
	resp, _, err := r.call(ctx, &wire.Request{Method: wire.MethodList, Path: path}, nil, 0)
	if err != nil {
		return nil, err
	}
	all := make([]control.FileInfo, len(resp.Files))
	for i, f := range resp.Files {
		all[i] = fileInfo(f)
	}
	return all, nil
}

// StatFile describes a file; a symbolic link is not followed.
func (r remote) StatFile(ctx context.Context, path string) (control.FileInfo, error) {
	resp, _, err := r.call(ctx, &wire.Request{Method: wire.MethodStat, Path: path}, nil, 0)
	if err != nil {
		return control.FileInfo{}, err
	}
	if len(resp.Files) != 1 {
		return control.FileInfo{}, errMalformed(wire.MethodStat)
	}
	return fileInfo(resp.Files[0]), nil
}

func fileInfo(f wire.File) control.FileInfo {
	switch f.Type {
	case "file", "dir", "symlink":
	default:
		f.Type = "other"
	}
	return control.FileInfo{
		Name: text(f.Name, 1024), Type: f.Type, Size: max(f.Size, 0), Mode: fs.FileMode(f.Mode), MTime: time.Unix(0, f.MTime),
	}
}

// RemoveFile removes a file or an empty directory; with recursive, all below it too.
func (r remote) RemoveFile(ctx context.Context, path string, recursive bool) error {
	_, _, err := r.call(ctx, &wire.Request{Method: wire.MethodRemove, Call: rand.Text(), Path: path, Recursive: recursive}, nil, 0)
	return err
}

// Mkdir makes a directory; with recursive, its parents too, and one that is there is no error.
func (r remote) Mkdir(ctx context.Context, path string, recursive bool) error {
	_, _, err := r.call(ctx, &wire.Request{Method: wire.MethodMkdir, Call: rand.Text(), Path: path, Recursive: recursive}, nil, 0)
	return err
}
