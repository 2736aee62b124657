package test_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/client"
	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// flaky dials connections that it can break.
type flaky struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (f *flaky) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			f.mu.Lock()
			f.conns = append(f.conns, c)
			f.mu.Unlock()
		}
		return c, err
	}}}
}

func (f *flaky) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
}

func dial(t *testing.T, s *test.Server, f *flaky) *client.Client {
	t.Helper()
	o := client.Options{URL: s.URL, Token: s.Token(t, "agent"), Agent: "streams"}
	if f != nil {
		o.HTTPClient = f.client()
	}
	c, err := client.Dial(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestStreams(t *testing.T) { test.Each(t, streams) }

func streams(t *testing.T, on test.On) {
	s := on.Start(t)
	whole, f := t, new(flaky)
	c := dial(t, s, f)
	ctx := within(t)
	got, err := c.Acquire(ctx, client.AcquireRequest{Task: "t", Persistent: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	env := got.Env.Ref()
	start := func(t *testing.T, r client.StartRequest) *client.Process {
		t.Helper()
		p, err := c.Start(ctx, env, r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}

	t.Run("both streams come apart and the end comes once behind them", func(t *testing.T) {
		p := start(t, client.StartRequest{Command: "echo out; echo err >&2; exit 3"})
		var out, errs bytes.Buffer
		e, err := p.Copy(ctx, &out, &errs)
		if err != nil || e.ExitCode != 3 || out.String() != "out\n" || errs.String() != "err\n" {
			t.Errorf("%+v %v %q %q", e, err, &out, &errs)
		}
	})

	t.Run("input goes to its end of file", func(t *testing.T) {
		p := start(t, client.StartRequest{Argv: []string{"sh", "-c", "cat; echo end"}, Stdin: true})
		in := strings.Repeat("0123456789abcdef", 200_000) // more than every buffer on the way
		go func() {
			io.WriteString(p.Stdin(), in)
			p.Stdin().Close()
		}()
		var out bytes.Buffer
		e, err := p.Copy(ctx, &out, nil)
		if err != nil || e.ExitCode != 0 || out.String() != in+"end\n" {
			t.Errorf("%+v %v, %d bytes of %d", e, err, out.Len(), len(in)+4)
		}
	})

	t.Run("a stream is whole and in order across dropped lines", func(t *testing.T) {
		const lines = 100_000 // less than is kept of what nobody reads
		p := start(t, client.StartRequest{Command: fmt.Sprintf("seq 1 %d", lines)})
		r := bufio.NewScanner(p.Stdout())
		n := 0
		for r.Scan() {
			if n++; r.Text() != fmt.Sprint(n) {
				t.Fatalf("line %d is %q", n, r.Text())
			}
			if n%10_000 == 0 {
				f.drop()
			}
		}
		if r.Err() != nil || n != lines {
			t.Fatalf("%d lines of %d, %v", n, lines, r.Err())
		}
		if e, err := p.Wait(ctx); err != nil || e.ExitCode != 0 {
			t.Errorf("%+v %v", e, err)
		}
	})

	t.Run("what nobody kept is told as a gap, exactly", func(t *testing.T) {
		const size = 40_000_000
		p := start(t, client.StartRequest{Command: fmt.Sprintf("head -c %d /dev/zero", size)})
		n, gaps := int64(0), int64(0)
		b := make([]byte, 64<<10)
		for {
			k, err := p.Stdout().Read(b)
			if before := n; before/10_000_000 != (n+int64(k))/10_000_000 {
				f.drop()
			}
			n += int64(k)
			if g, ok := err.(*client.GapError); ok {
				gaps += g.Bytes
				continue
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if n+gaps != size {
			t.Errorf("%d bytes and %d told as lost, of %d", n, gaps, size)
		}
	})

	t.Run("a reader that stops slows its own command, and no other", func(t *testing.T) {
		p := start(t, client.StartRequest{Command: "yes", Window: 64 << 10})
		if _, err := io.ReadFull(p.Stdout(), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			q := start(t, client.StartRequest{Command: "seq 1 20000", Window: 64 << 10})
			var out bytes.Buffer
			if e, err := q.Copy(ctx, &out, nil); err != nil || e.ExitCode != 0 || !strings.HasSuffix(out.String(), "\n20000\n") {
				t.Fatalf("%+v %v", e, err)
			}
		}
		if survivors, err := p.Signal(ctx, "KILL"); err != nil || survivors != 0 {
			t.Errorf("%d survivors, %v", survivors, err)
		}
		p.Close()
		if e, err := c.WaitExec(ctx, p.Exec, 0); err != nil || e.Signal != "KILL" || e.ExitCode != 137 {
			t.Errorf("%+v %v", e, err)
		}
	})

	t.Run("the same id attaches, another command is a conflict", func(t *testing.T) {
		r := client.StartRequest{Command: "echo ran >> count; cat count; sleep 1000", ID: "once"}
		p, q := start(t, r), start(t, r)
		if p.Exec != q.Exec || p.PID != q.PID {
			t.Errorf("%s and %s", p.Exec, q.Exec)
		}
		for _, p := range []*client.Process{p, q} {
			b := make([]byte, 4)
			if _, err := io.ReadFull(p.Stdout(), b); err != nil || string(b) != "ran\n" {
				t.Errorf("%q %v", b, err)
			}
		}
		if _, err := c.Start(ctx, env, client.StartRequest{Command: "true", ID: "once"}); !isKind(err, client.KindConflict) {
			t.Errorf("another command: %v", err)
		}
		if _, err := p.Signal(ctx, "TERM"); err != nil {
			t.Error(err)
		}
		for _, p := range []*client.Process{p, q} {
			if e, err := p.Wait(ctx); err != nil || e.Signal != "TERM" {
				t.Errorf("%+v %v", e, err)
			}
		}
	})

	t.Run("after its end it can be attached to, from an offset", func(t *testing.T) {
		p := start(t, client.StartRequest{Command: "echo 0123456789"})
		if _, err := p.Copy(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		q, err := c.Attach(ctx, p.Exec, client.Offsets{Stdout: 4})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if e, err := q.Copy(ctx, &out, nil); err != nil || e.ExitCode != 0 || out.String() != "456789\n" {
			t.Errorf("%+v %v %q", e, err, &out)
		}
		if _, err := c.Attach(ctx, "xnosuch", client.Offsets{}); !isKind(err, client.KindNotFound) {
			t.Errorf("no such exec: %v", err)
		}
	})

	t.Run("a command outlives a killed server, and its stream goes on", func(t *testing.T) {
		p := start(t, client.StartRequest{Command: "for i in 1 2 3 4 5; do echo $i; read x; done", Stdin: true})
		r := bufio.NewScanner(p.Stdout())
		for i := 1; i <= 5; i++ {
			if !r.Scan() || r.Text() != fmt.Sprint(i) {
				t.Fatalf("line %d: %q %v", i, r.Text(), r.Err())
			}
			if i == 3 { // the server comes back at another address, and another client goes on
				s.Kill(t)
				s.Restart(t)
				c = dial(whole, s, nil)
				q, err := c.Attach(ctx, p.Exec, p.Offsets())
				if err != nil {
					t.Fatal(err)
				}
				p, r = q, bufio.NewScanner(q.Stdout())
			}
			if _, err := io.WriteString(p.Stdin(), "\n"); err != nil {
				t.Fatal(err)
			}
		}
		if e, err := p.Wait(ctx); err != nil || e.ExitCode != 0 {
			t.Errorf("%+v %v", e, err)
		}
	})

	t.Run("a terminal echoes, knows its size, and holds while somebody is attached", func(t *testing.T) {
		p := start(t, client.StartRequest{Argv: []string{"sh"}, TTY: &client.TTY{Cols: 100, Rows: 30}, Stdin: true})
		screen := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(p.Stdout())
			screen <- string(b)
		}()
		io.WriteString(p.Stdin(), "stty size\n")
		v := s.Env(t, got.Env.ID)
		held := false
		for _, h := range v.Holds {
			held = held || h.Kind == control.HoldTerminal && h.Ref == p.Exec && h.Until != nil
		}
		if !held {
			t.Errorf("holds %+v", v.Holds)
		}
		if err := p.Resize(ctx, client.TTY{Cols: 50, Rows: 20}); err != nil {
			t.Error(err)
		}
		io.WriteString(p.Stdin(), "stty size; exit 4\n")
		e, err := p.Wait(ctx)
		out := <-screen
		if err != nil || e.ExitCode != 4 || !strings.Contains(out, "20 50") || !strings.Contains(out, "stty size; exit 4") {
			t.Errorf("%+v %v %q", e, err, out)
		}
	})

	t.Run("a background command holds its environment over the end of the turn", func(t *testing.T) {
		p := start(t, client.StartRequest{Command: "sleep 1000", Background: true})
		if _, err := c.EndTurn(ctx, "t", client.TurnDone); err != nil {
			t.Fatal(err)
		}
		v := s.Env(t, got.Env.ID)
		held := false
		for _, h := range v.Holds {
			held = held || h.Kind == control.HoldProcess && h.Ref == p.Exec
		}
		if !held || v.Deadline != nil {
			t.Errorf("holds %+v, deadline %v", v.Holds, v.Deadline)
		}
	})

	t.Run("the environment's end is told as such", func(t *testing.T) {
		p := start(t, client.StartRequest{Command: "sleep 1000"})
		s.Act(t, got.Env.ID, "kill", map[string]any{"purge": true})
		e, err := p.Copy(ctx, nil, nil)
		if err != nil || e.Lost == nil || e.ExitCode != -1 || e.Lost.Tombstone == nil {
			t.Fatalf("%+v %v", e, err)
		}
		if e, err := c.WaitExec(ctx, p.Exec, 0); err != nil || e.Lost == nil {
			t.Errorf("%+v %v", e, err)
		}
	})
}

func isKind(err error, k client.Kind) bool {
	e, ok := err.(*client.Error)
	return ok && e.Kind == k
}
