package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"sandkeeper/internal/control"
)

// TestStreamInvariants is TestInvariants for what streams are about alone, so
// that it gets far into them: each byte comes once, in its place, or a gap is
// told exactly; an exec has one end, whoever asks.
func TestStreamInvariants(t *testing.T) {
	check(t, func(m *model) map[string]func(*rapid.T) {
		for _, task := range []string{"a", "b"} {
			m.acquire(task, persistent)
		}
		all := m.actions()
		some := m.streamActions(func(string) *int64 { return nil })
		for _, name := range []string{"end a command", "die", "guest fault", "crash", "restart", "connect", "disconnect", "time", "run by id", "reconcile"} {
			some[name] = all[name]
		}
		for _, name := range []string{"start", "write", "read", "links break"} {
			some[name+" again"] = some[name]
		}
		return some
	})
}

// letter is the byte at an offset of a stream of any command: whoever knows
// where it reads knows what it must read.
func letter(out control.Output, at int64) byte { return byte('a' + (at*7+at/26+int64(out)*5)%26) }

func letters(out control.Output, at int64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = letter(out, at+int64(i))
	}
	return b
}

// modelStream is a client's channel: it reads as it is granted, and knows where.
type modelStream struct {
	exec   string
	stream control.ExecStream
	m      *model
	grants chan int // reads

	mu     sync.Mutex // guards the fields below
	at     control.Offsets
	over   bool // nothing more comes
	closed bool // we closed it
}

// streams are what the model knows of execs that are streamed.
type streams struct {
	mu    sync.Mutex // guards the fields below
	open  []*modelStream
	known []string          // execs, in the order of their starts
	ends  map[string]string // by exec: how anybody was told that it ended
}

// opened takes a channel in, whose first byte is the one at from.
func (m *model) opened(exec string, stream control.ExecStream, from control.Offsets) {
	c := &modelStream{exec: exec, stream: stream, m: m, grants: make(chan int, 1000), at: from}
	m.streams.mu.Lock()
	m.streams.open = append(m.streams.open, c)
	if !slices.Contains(m.streams.known, exec) {
		m.streams.known = append(m.streams.known, exec)
	}
	m.streams.mu.Unlock()
	m.readers.Go(c.read)
}

func (c *modelStream) read() {
	b := make([]byte, 300)
	for n := range c.grants {
		for ; n > 0; n-- {
			if c.step(b) {
				return
			}
		}
	}
}

// step reads once, and reports whether nothing more comes.
func (c *modelStream) step(b []byte) bool {
	n, out, err := c.stream.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if gap, ok := errors.AsType[*control.Gap](err); ok {
		c.at.Stdout += gap.Skipped.Stdout
		c.at.Stderr += gap.Skipped.Stderr
		return false
	}
	if err != nil {
		c.over = true
		switch {
		case errors.Is(err, io.EOF):
			c.ended(c.stream.Exit())
		case !c.closed && control.AsError(err).Kind == control.KindInternal:
			c.m.fail("the streams of %s broke: %v", c.exec, err)
		}
		return true
	}
	at := &c.at.Stdout
	if out == control.Stderr {
		at = &c.at.Stderr
	}
	if want := letters(out, *at, n); string(b[:n]) != string(want) {
		c.m.fail("%s brought %q at %d of stream %d, and there is %q", c.exec, b[:n], *at, out, want)
	}
	*at += int64(n)
	return false
}

// ended holds an end against all that was read, and against what others were told.
func (c *modelStream) ended(x control.ExecExit) {
	c.m.told(c.exec, x)
	wrote, ok := c.m.guests.Wrote(c.exec)
	if ok && x.ExitCode != nil && !x.OutputLost && c.at != wrote {
		c.m.fail("%s ended after %+v, and had written %+v", c.exec, c.at, wrote)
	}
}

// told notes how an exec is said to have ended: it is one end, whoever asks.
func (m *model) told(exec string, x control.ExecExit) {
	end := fmt.Sprint("signal ", x.Signal, " timed out ", x.TimedOut)
	switch {
	case x.EnvLost != nil && x.ExitCode == nil:
		end = "lost: " + x.EnvLost.Reason
	case x.EnvLost == nil && x.ExitCode != nil:
		end = fmt.Sprint("exit ", *x.ExitCode, " ", end)
	default:
		m.fail("%s ended as %+v", exec, x)
	}
	m.streams.mu.Lock()
	before, again := m.streams.ends[exec]
	m.streams.ends[exec] = end
	m.streams.mu.Unlock()
	if again && before != end {
		m.fail("%s ended as %q, and before that as %q", exec, end, before)
	}
}

// channel draws one of those that are open, and known, an exec that was streamed.
func (m *model) channel() *modelStream {
	m.streams.mu.Lock()
	var open []*modelStream
	for _, c := range m.streams.open {
		c.mu.Lock()
		if !c.over {
			open = append(open, c)
		}
		c.mu.Unlock()
	}
	m.streams.open = open
	m.streams.mu.Unlock()
	if len(open) == 0 {
		return nil
	}
	return open[rapid.IntRange(0, len(open)-1).Draw(m.rt, "channel")]
}

func (m *model) known() string {
	m.streams.mu.Lock()
	known := slices.Clone(m.streams.known)
	m.streams.mu.Unlock()
	if len(known) == 0 {
		return ""
	}
	return known[rapid.IntRange(0, len(known)-1).Draw(m.rt, "exec")]
}

// running draws one of those that run; "" where none does.
func (m *model) running() string {
	m.streams.mu.Lock()
	running := slices.DeleteFunc(slices.Clone(m.streams.known), func(exec string) bool { return !m.guests.Runs(exec) })
	m.streams.mu.Unlock()
	if len(running) == 0 {
		return ""
	}
	return running[rapid.IntRange(0, len(running)-1).Draw(m.rt, "exec")]
}

func (m *model) start(r control.StartRequest) {
	s := m.agent().session
	m.later(func(ctx context.Context) error {
		st, err := s.Start(ctx, r)
		if err == nil {
			m.opened(st.Exec, st.Stream, control.Offsets{})
		}
		return err
	})
}

func (m *model) streamActions(timeout func(string) *int64) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"start": func(*rapid.T) {
			r := control.StartRequest{Ref: m.ref(), Command: m.pick("command", "long", "long", "short"), TimeoutS: timeout("timeout"), Stdin: true, Background: m.chance("background", 4)}
			if m.chance("tty", 4) {
				r.TTY = &control.TTY{Cols: 80, Rows: 24}
			}
			if rapid.Bool().Draw(m.rt, "of task a") {
				r.Ref = control.Ref{Task: "a"}
			}
			m.start(r)
		},
		"start by id": func(*rapid.T) {
			id := m.pick("id", "1", "2", "3", "4", "5")
			m.start(control.StartRequest{Ref: m.ref(), Command: m.pick("command", "short", "long") + id, ID: id})
		},
		"attach": func(*rapid.T) {
			exec := m.known()
			if exec == "" {
				return
			}
			from := control.Offsets{}
			m.streams.mu.Lock()
			for _, c := range m.streams.open { // a client goes on where another stands
				if c.mu.Lock(); c.exec == exec {
					from = c.at
				}
				c.mu.Unlock()
			}
			m.streams.mu.Unlock()
			s, look := m.agent().session, m.chance("read only", 3)
			m.later(func(ctx context.Context) error {
				a, err := s.Attach(ctx, control.AttachRequest{Exec: exec, From: from, ReadOnly: look})
				if err == nil {
					m.opened(exec, a.Stream, control.Offsets{Stdout: from.Stdout + a.Skipped.Stdout, Stderr: from.Stderr + a.Skipped.Stderr})
				}
				return err
			})
		},
		"write": func(*rapid.T) {
			exec, n := m.running(), rapid.IntRange(1, 2000).Draw(m.rt, "bytes")
			out := control.Output(rapid.IntRange(1, 2).Draw(m.rt, "stream"))
			wrote, ok := m.guests.Wrote(exec)
			if !ok {
				return
			}
			at := wrote.Stdout
			if out == control.Stderr {
				at = wrote.Stderr
			}
			m.guests.Write(exec, out, letters(out, at, n))
			synctest.Wait()
		},
		"read": func(*rapid.T) {
			if c := m.channel(); c != nil {
				c.grants <- rapid.IntRange(1, 10).Draw(m.rt, "reads")
				synctest.Wait()
			}
		},
		"give input": func(*rapid.T) {
			if c := m.channel(); c != nil {
				text := m.pick("text", "a", "bc")
				m.readers.Go(func() { c.stream.Write([]byte(text)) }) //nolint:errcheck // refusals are part of it
				synctest.Wait()
			}
		},
		"leave a channel": func(*rapid.T) {
			if c := m.channel(); c != nil {
				c.leave()
				synctest.Wait()
			}
		},
		"links break": func(*rapid.T) {
			if v, ok := m.env(); ok {
				m.guests.Cut("sandkeeper-test-" + v.ID)
				synctest.Wait()
			}
		},
		"wait": func(*rapid.T) {
			exec := m.known()
			if exec == "" {
				return
			}
			s, patience := m.agent().session, m.duration("for", time.Millisecond, time.Minute)
			m.later(func(ctx context.Context) error {
				x, err := s.WaitExec(ctx, exec, patience)
				if err == nil && x.Exit != nil {
					m.told(exec, *x.Exit)
				}
				return err
			})
		},
		"signal": func(*rapid.T) {
			exec := m.known()
			if exec == "" {
				return
			}
			s, signal := m.agent().session, m.pick("signal", "TERM", "KILL", "USR1")
			m.later(func(ctx context.Context) error {
				survivors, err := s.SignalExec(ctx, exec, signal, true)
				if err == nil && signal == "KILL" && (survivors != 0 || m.guests.Runs(exec)) {
					m.fail("%s was killed, and %d live", exec, survivors)
				}
				return err
			})
		},
	}
}

func (c *modelStream) leave() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stream.Close()
	c.grants <- 1
}

// finish has every channel read to its end: of a plane that lives that is the
// exec's one end.
func (m *model) finish() {
	m.streams.mu.Lock()
	open := m.streams.open
	m.streams.mu.Unlock()
	for _, c := range open {
		c.grants <- 1 << 20
	}
	m.passes(time.Minute)
	for _, c := range open {
		c.mu.Lock()
		over := c.over
		c.mu.Unlock()
		if !over {
			m.Fatalf("%s has ended, and a channel of it has not: %s", c.exec, strings.Join(m.streams.known, " "))
		}
	}
	m.readers.Wait()
}

// letGo ends the channels' readers, also those of a model that failed.
func (m *model) letGo() {
	m.streams.mu.Lock()
	defer m.streams.mu.Unlock()
	for _, c := range m.streams.open {
		c.stream.Close()
		close(c.grants)
	}
}
