package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest/wire"
)

// knows checks that the guest is not too old for a call: it would ignore what it
// does not know of it.
func (c *conn) knows(req *wire.Request) error {
	feature := ""
	switch {
	case req.Method == wire.MethodOpen || req.Method == wire.MethodCreate:
		feature = wire.FeatureFiles
	case req.Method == wire.MethodResize || req.Start != nil && req.Start.TTY != nil:
		feature = wire.FeatureTTY
	case req.Method == wire.MethodAttach || req.Method == wire.MethodClose || req.Start != nil && req.Start.StdinOpen:
		feature = wire.FeatureStreams
	}
	if feature == "" || slices.Contains(c.features, feature) {
		return nil
	}
	return control.Errorf(control.KindConflict,
		"this sandbox was started by an older server, and its guest cannot do this (%s) until it is stopped and resumed", feature)
}

// Attach joins the streams of an exec.
func (r remote) Attach(ctx context.Context, a control.GuestAttach) (control.GuestStream, error) {
	req := &wire.Request{
		Method: wire.MethodAttach, Exec: a.Exec, Input: a.Input,
		FromOut: max(a.From.Stdout, 0), FromErr: max(a.From.Stderr, 0),
	}
	var j *joined
	err := r.over(ctx, req, func(l *line, c *conn) error {
		s, resp, err := c.attach(ctx, req)
		if err != nil {
			return err
		}
		if j = newJoined(s, req, resp.Attached); j == nil {
			s.Close()
			return errMalformed(wire.MethodAttach)
		}
		l.begin() // the line stays open for as long as the stream is
		j.release = l.end
		return nil
	})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// CloseStdin ends an exec's input.
func (r remote) CloseStdin(ctx context.Context, exec string) error {
	_, _, err := r.call(ctx, &wire.Request{Method: wire.MethodClose, Exec: exec}, nil, 0)
	return err
}

// Resize sets the size of an exec's terminal.
func (r remote) Resize(ctx context.Context, exec string, t control.TTY) error {
	_, _, err := r.call(ctx, &wire.Request{Method: wire.MethodResize, Exec: exec, TTY: size(t)}, nil, 0)
	return err
}

func size(t control.TTY) *wire.TTY {
	fit := func(n int) uint16 { return uint16(min(max(n, 1), math.MaxUint16)) }
	return &wire.TTY{Cols: fit(t.Cols), Rows: fit(t.Rows)}
}

// joined is a joined exec, over a stream of its own.
type joined struct {
	stream  *yamux.Stream
	release func()
	told    wire.Attached

	closing sync.Once
	closed  atomic.Bool
	noStdin atomic.Bool

	writing sync.Mutex // a frame at a time

	// Read's own.
	in   *bufio.Reader
	kind control.Output
	left int // bytes of the current frame
	end  *control.ExecEnd
}

// newJoined checks what a guest tells of an attach.
func newJoined(s *yamux.Stream, req *wire.Request, a *wire.Attached) *joined {
	if a == nil || a.StdinTaken < 0 || a.SkippedOut < 0 || a.SkippedErr < 0 ||
		a.SkippedOut > math.MaxInt64-req.FromOut || a.SkippedErr > math.MaxInt64-req.FromErr {
		return nil
	}
	j := &joined{stream: s, told: *a, in: bufio.NewReaderSize(s, 4096)}
	j.noStdin.Store(!req.Input || !a.Stdin)
	return j
}

func (j *joined) Skipped() control.Offsets {
	return control.Offsets{Stdout: j.told.SkippedOut, Stderr: j.told.SkippedErr}
}
func (j *joined) Running() bool     { return j.told.Running }
func (j *joined) StdinTaken() int64 { return j.told.StdinTaken }

// End is how the exec ended; only after io.EOF.
func (j *joined) End() control.ExecEnd {
	if j.end == nil {
		return control.ExecEnd{}
	}
	return *j.end
}

// Read reads what comes next of either stream.
func (j *joined) Read(p []byte) (n int, out control.Output, err error) {
	if j.closed.Load() {
		return 0, 0, net.ErrClosed
	}
	for j.left == 0 {
		if j.end != nil {
			return 0, 0, io.EOF
		}
		if err := j.next(); err != nil {
			return 0, 0, j.broken(err)
		}
	}
	n, err = j.in.Read(p[:min(len(p), j.left)])
	j.left -= n
	if err != nil && n == 0 {
		return 0, 0, j.broken(err)
	}
	return n, j.kind, nil
}

// next reads up to the payload of a frame of output, or the end.
func (j *joined) next() error {
	kind, n, err := wire.ReadFrame(j.in)
	if err != nil {
		return err
	}
	switch kind {
	case wire.FrameStdout, wire.FrameStderr:
		j.kind, j.left = control.Output(kind), n
		return nil
	case wire.FrameStdinClosed:
		j.noStdin.Store(true)
		_, err := j.in.Discard(n)
		return err
	case wire.FrameEnd:
		b := make([]byte, n)
		if _, err := io.ReadFull(j.in, b); err != nil {
			return err
		}
		var told wire.End
		if err := json.Unmarshal(b, &told); err != nil {
			return fmt.Errorf("end: %w", err)
		}
		end, ok := execEnd(&told, nil, 0)
		if !ok {
			return errors.New("malformed end")
		}
		j.end = &end
		j.noStdin.Store(true)
		return nil
	}
	return fmt.Errorf("a frame of kind %d", kind)
}

// broken is the error of a stream that ended before the exec did.
func (j *joined) broken(err error) error {
	switch {
	case j.closed.Load():
		return net.ErrClosed
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return unreachable(err)
}

// Write gives stdin.
func (j *joined) Write(p []byte) (n int, err error) {
	j.writing.Lock()
	defer j.writing.Unlock()
	for len(p) > 0 {
		part := p[:min(len(p), wire.MaxFrame)]
		if err := j.writeFrame(part); err != nil {
			return n, err
		}
		n += len(part)
		p = p[len(part):]
	}
	return n, nil
}

// CloseStdin ends stdin behind what was written.
func (j *joined) CloseStdin() error {
	j.writing.Lock()
	defer j.writing.Unlock()
	return j.writeFrame(nil)
}

func (j *joined) writeFrame(p []byte) error {
	if j.noStdin.Load() {
		return control.ErrStdinClosed
	}
	b := make([]byte, wire.FrameHeader+len(p))
	wire.PutFrame(b, wire.FrameStdin, len(p))
	copy(b[wire.FrameHeader:], p)
	if _, err := j.stream.Write(b); err != nil {
		if j.noStdin.Load() {
			return control.ErrStdinClosed
		}
		return j.broken(err)
	}
	return nil
}

// Close leaves the exec. Read and Write that wait return.
func (j *joined) Close() error {
	j.closing.Do(func() {
		j.closed.Store(true)
		j.stream.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // it has none
		j.stream.Close()
		j.release()
	})
	return nil
}
