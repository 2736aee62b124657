package pid1

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/wire"
)

// A flood of small writes must not be one of frames: after a frame of less than
// smallFrame bytes, the next such one waits for pace.
const (
	smallFrame = 8 << 10
	pace       = time.Millisecond
	maxEndPath = 4096
)

var errOver = errors.New("the stream is over")

// joint is one control plane's part in the streams of an exec.
type joint struct {
	e        *execution
	wake     chan struct{} // there is more output
	out, err *cursor
	giver    *giver // nil: gives no stdin
	attached wire.Attached
}

// joinPatience is how long a command that somebody is to join may wait for them
// with what it wrote: the first bytes of a fast one would be gone else.
const joinPatience = 30 * time.Second

// expectJoin has the output followed by nobody, until unexpect.
func (e *execution) expectJoin() {
	for _, s := range []*stream{&e.output.out, &e.output.err} {
		c, _, _ := s.follow(0, make(chan struct{}, 1)) // nothing was written yet
		e.expected = append(e.expected, c)
	}
	time.AfterFunc(joinPatience, e.unexpect)
}

// unexpect is called once somebody has joined, or will not.
func (e *execution) unexpect() {
	e.joined.Do(func() {
		for _, c := range e.expected {
			c.leave()
		}
	})
}

// join joins the streams of an execution, once it is known whether it started.
func (r *runner) join(ctx context.Context, req *wire.Request) (*joint, error) {
	e, err := r.find(req.Exec)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if e.refused != nil {
		return nil, errNoExec
	}
	j := &joint{e: e, wake: make(chan struct{}, 1)}
	a := &j.attached
	a.Running = !done(e.ended)
	if j.out, a.SkippedOut, err = e.output.out.follow(req.FromOut, j.wake); err != nil {
		return nil, err
	}
	if j.err, a.SkippedErr, err = e.output.err.follow(req.FromErr, j.wake); err != nil {
		j.out.leave()
		return nil, err
	}
	e.unexpect()
	if e.input != nil {
		if req.Input {
			j.giver, a.StdinTaken = e.input.join()
			a.Stdin = j.giver != nil
		} else {
			a.StdinTaken = e.input.given()
		}
	}
	return j, nil
}

// attach answers an attach. It reports whether the stream has more calls: where
// the attach failed.
func (g *Guest) attach(ctx context.Context, in *caller, s *wire.Stream, req *wire.Request) (more bool) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "sandkeeper: call %s: %v\n%s", req.Method, p, debug.Stack())
		}
	}()
	j, err := g.runner.join(ctx, req)
	if err != nil {
		return wire.Write(s, failure(err)) == nil
	}
	defer j.leave()
	if wire.Write(s, &wire.Response{Attached: &j.attached}) == nil {
		j.carry(ctx, in.Reader, s)
	}
	return false
}

func (j *joint) leave() {
	j.out.leave()
	j.err.leave()
	if j.e.input != nil {
		j.e.input.leave(j.giver)
	}
}

// carry carries both ways until the end is told, or the stream is closed or
// broken. Of a closed one, the stdin that came before is still given.
func (j *joint) carry(ctx context.Context, in *bufio.Reader, s *wire.Stream) {
	past := time.Unix(1, 0)
	ctx, cancel := context.WithCancel(ctx)
	sending, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	received := make(chan struct{})
	wg.Go(func() {
		defer close(received)
		defer stop()
		j.receive(in)
	})
	wg.Go(func() {
		select {
		case <-s.PeerClosed:
			stop()
		case <-sending.Done():
		}
		s.SetWriteDeadline(past) //nolint:errcheck // it is over
	})
	err := j.send(sending, s)
	if err != nil {
		j.out.leave()
		j.err.leave()
		select {
		case <-s.PeerClosed:
			select {
			case <-received:
			case <-ctx.Done():
			}
		default:
		}
	}
	j.leave()
	s.SetReadDeadline(past) //nolint:errcheck // it is over
}

// receive takes stdin until the stream ends. What is not this one's to give, or
// not taken any more, is dropped.
func (j *joint) receive(in *bufio.Reader) {
	for {
		kind, n, err := wire.ReadFrame(in)
		switch {
		case err != nil || kind != wire.FrameStdin:
			return
		case j.giver == nil:
			_, err = in.Discard(n)
		case n == 0:
			j.e.input.end(j.giver)
		default:
			err = j.take(in, n)
		}
		if err != nil {
			return
		}
	}
}

func (j *joint) take(in *bufio.Reader, n int) error {
	if in.Buffered() == 0 { // no buffer is held before there is something for it
		if _, err := in.Peek(1); err != nil {
			return err
		}
	}
	buf := buffers.Get().(*[drainBuffer]byte)
	defer buffers.Put(buf)
	n, err := io.ReadFull(in, buf[:n])
	j.e.input.write(j.giver, buf[:n])
	return err
}

// send sends output until the end is told. Errors: errOver; errLost; the stream's.
func (j *joint) send(ctx context.Context, s io.Writer) error {
	ended, stdin := (<-chan struct{})(j.e.ended), (<-chan struct{})(nil)
	if j.giver != nil {
		stdin = j.giver.over
	}
	untilOut, untilErr := int64(math.MaxInt64), int64(math.MaxInt64)
	var next time.Time // of a small frame
	for {
		if ended != nil && done(ended) {
			ended = nil
			untilOut, untilErr = j.e.output.out.written(), j.e.output.err.written()
		}
		waiting := j.out.waiting(untilOut) + j.err.waiting(untilErr)
		if waiting == 0 && ended == nil {
			return j.sendEnd(s)
		}
		wake, until := j.wake, (<-chan time.Time)(nil)
		var timer *time.Timer
		if waiting > 0 {
			wake = nil
			if d := time.Until(next); d > 0 && waiting < smallFrame && ended != nil {
				timer = time.NewTimer(d)
				until = timer.C
			}
		}
		if waiting == 0 || until != nil {
			select {
			case <-wake:
			case <-until:
			case <-ended:
			case <-stdin:
				stdin = nil
				var b [wire.FrameHeader]byte
				wire.PutFrame(b[:], wire.FrameStdinClosed, 0)
				if _, err := s.Write(b[:]); err != nil {
					return err
				}
			case <-ctx.Done():
				return errOver
			}
			if timer != nil {
				timer.Stop()
			}
			continue
		}
		if ctx.Err() != nil {
			return errOver
		}
		if waiting < smallFrame {
			next = time.Now().Add(pace)
		}
		if err := sendFrame(s, wire.FrameStdout, j.out, untilOut); err != nil {
			return err
		}
		if err := sendFrame(s, wire.FrameStderr, j.err, untilErr); err != nil {
			return err
		}
	}
}

// sendFrame sends what there is, as much as fits a frame.
func sendFrame(s io.Writer, kind byte, c *cursor, until int64) error {
	if c.waiting(until) == 0 {
		return nil
	}
	buf := buffers.Get().(*[drainBuffer]byte)
	defer buffers.Put(buf)
	n, err := c.read(buf[wire.FrameHeader:], until)
	if err != nil || n == 0 {
		return err
	}
	wire.PutFrame(buf[:], kind, n)
	_, err = s.Write(buf[:wire.FrameHeader+n])
	return err
}

func (j *joint) sendEnd(s io.Writer) error {
	end := j.e.end
	end.OutputLost = j.e.output.lost()
	end.Cwd, end.CwdLost = end.Cwd[:min(len(end.Cwd), maxEndPath)], end.CwdLost[:min(len(end.CwdLost), maxEndPath)]
	text, err := json.Marshal(&end)
	if err != nil {
		return err
	}
	b := make([]byte, wire.FrameHeader+len(text))
	wire.PutFrame(b, wire.FrameEnd, len(text))
	copy(b[wire.FrameHeader:], text)
	_, err = s.Write(b)
	return err
}

// closeStdin ends an execution's input, behind what is being given.
func (r *runner) closeStdin(name string) error {
	e, err := r.begun(name)
	if err == nil && e.input != nil {
		e.input.finish()
	}
	return err
}

// resize sets the size of an execution's terminal.
func (r *runner) resize(name string, size *wire.TTY) error {
	if size == nil {
		return &wire.Error{Code: wire.CodeInvalid, Message: "no size"}
	}
	e, err := r.begun(name)
	switch {
	case err != nil:
		return err
	case e.input == nil:
		return errNoTTY
	}
	return e.input.resize(size)
}

// begun finds an execution whose start has been answered.
func (r *runner) begun(name string) (*execution, error) {
	e, err := r.find(name)
	if err == nil && !done(e.started) {
		err = errNoExec
	}
	return e, err
}

func setSize(fd int, size *wire.TTY) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: size.Cols, Row: size.Rows})
}
