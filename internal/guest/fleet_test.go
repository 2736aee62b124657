package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest/wire"
)

// scripted is a guest that answers as a test says.
type scripted struct {
	answer func(req *wire.Request) (resp any, payload []byte)
	dials  int
	fail   error         // of a dial
	served chan struct{} // told of the end of each connection
	mu     sync.Mutex
	conns  []net.Conn
}

func (g *scripted) dial(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dials++
	if g.fail != nil {
		return nil, g.fail
	}
	a, b := net.Pipe()
	g.conns = append(g.conns, b)
	go g.serve(b)
	return a, nil
}

func (g *scripted) dialled() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dials
}

func (g *scripted) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}

func (g *scripted) serve(c net.Conn) {
	mux, err := wire.Server(c)
	if err != nil {
		return
	}
	defer mux.Close()
	for {
		s, err := mux.AcceptStream()
		if err != nil {
			if g.served != nil {
				g.served <- struct{}{}
			}
			return
		}
		go func() {
			defer s.Close()
			for {
				var req wire.Request
				if _, err := wire.Read(s, &req, wire.MaxPayload); err != nil {
					return
				}
				var resp any = &wire.Response{Version: 1}
				var payload []byte
				if req.Method != wire.MethodHello {
					resp, payload = g.answer(&req)
				}
				if resp == nil {
					return
				}
				if err := wire.Write(s, resp, payload); err != nil {
					return
				}
			}
		}()
	}
}

func fine(*wire.Request) (any, []byte) { return &wire.Response{}, nil }

func newFleet(t *testing.T, g *scripted) control.Guest {
	f := NewFleet(g.dial, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { f.Close(); g.cut() })
	return f.Guest("box")
}

func TestOneConnectionForManyCalls(t *testing.T) {
	g := &scripted{answer: fine}
	box := newFleet(t, g)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := box.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := g.dialled(); n != 1 {
		t.Errorf("%d dials", n)
	}
}

func TestAnIdleConnectionIsClosedAndDialledAnew(t *testing.T) {
	release := make(chan struct{})
	called := make(chan struct{})
	g := &scripted{answer: func(req *wire.Request) (any, []byte) {
		if req.Method == wire.MethodGone {
			close(called)
			<-release
		}
		return &wire.Response{}, nil
	}, served: make(chan struct{}, 1)}
	f := NewFleet(g.dial, slog.New(slog.DiscardHandler))
	defer f.Close()
	f.idleFor = time.Millisecond
	box := f.Guest("box")
	gone := make(chan error, 1)
	go func() { gone <- box.Gone(t.Context(), "x") }()
	<-called
	if err := box.Ping(t.Context()); err != nil { // its end must not start the countdown
		t.Error(err)
	}
	f.lines["box"].hangUp() // as a countdown that ended just now
	if f.open() != 1 {
		t.Error("closed with a call open")
	}
	close(release)
	if err := <-gone; err != nil {
		t.Error(err)
	}
	<-g.served // the guest's end sees it closed
	if f.open() != 0 {
		t.Error("an idle connection is still open")
	}
	if err := box.Ping(t.Context()); err != nil || g.dialled() != 2 {
		t.Errorf("%v, %d dials", err, g.dialled())
	}
}

// open counts the sandboxes that there is a connection to.
func (f *Fleet) open() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.lines {
		l.mu.Lock()
		if l.conn != nil {
			n++
		}
		l.mu.Unlock()
	}
	return n
}

func TestACallIsMadeTwiceAtMost(t *testing.T) {
	calls := 0
	g := &scripted{answer: func(*wire.Request) (any, []byte) { calls++; return nil, nil }}
	box := newFleet(t, g)
	_, err := box.Start(t.Context(), control.ExecStart{Exec: "e", Shell: "true"})
	if !errors.Is(err, control.ErrGuestUnreachable) || calls != 2 || g.dialled() != 2 {
		t.Errorf("%v after %d calls and %d dials", err, calls, g.dialled())
	}
}

func TestWhatCannotBeDialledIsUnreachable(t *testing.T) {
	g := &scripted{fail: fmt.Errorf("gone: %w", control.ErrNoSandbox)}
	box := newFleet(t, g)
	for _, err := range []error{box.Ping(t.Context()), box.Mkdir(t.Context(), "d", false)} {
		if !errors.Is(err, control.ErrGuestUnreachable) || !errors.Is(err, control.ErrNoSandbox) {
			t.Errorf("%v", err)
		}
	}
}

func TestPingWaitsForAGuestThatIsNotThereYet(t *testing.T) {
	g := &scripted{answer: fine}
	attempts := 0
	ctx, cancel := context.WithCancel(t.Context())
	f := NewFleet(func(ctx context.Context, name string) (io.ReadWriteCloser, error) {
		if attempts++; attempts > 3 {
			return g.dial(ctx, name)
		}
		if attempts == 1 {
			cancel()
		}
		return nil, errors.New("nobody dialled in")
	}, slog.New(slog.DiscardHandler))
	defer g.cut()
	defer f.Close()
	if err := f.Guest("box").Ping(ctx); !errors.Is(err, control.ErrGuestUnreachable) || !errors.Is(err, context.Canceled) {
		t.Errorf("until its context ends: %v", err)
	}
	if err := f.Guest("box").Ping(t.Context()); err != nil || attempts != 4 {
		t.Errorf("%v after %d attempts", err, attempts)
	}
}

func TestForgetEndsWhatIsOpen(t *testing.T) {
	called := make(chan struct{})
	g := &scripted{answer: func(req *wire.Request) (any, []byte) {
		if req.Method == wire.MethodGone {
			close(called)
			select {}
		}
		return &wire.Response{}, nil
	}}
	f := NewFleet(g.dial, slog.New(slog.DiscardHandler))
	defer g.cut()
	defer f.Close()
	got := make(chan error, 1)
	go func() { got <- f.Guest("box").Gone(t.Context(), "x") }()
	<-called
	f.Forget("box")
	if err := <-got; !errors.Is(err, control.ErrGuestUnreachable) {
		t.Errorf("%v", err)
	}
	if n := g.dialled(); n != 1 {
		t.Errorf("the call dialled anew: %d", n)
	}
	if err := f.Guest("box").Ping(t.Context()); err != nil || g.dialled() != 2 {
		t.Errorf("a later call: %v, %d dials", err, g.dialled())
	}
	f.Forget("no such box")
}

func TestAnotherVersionOfTheGuest(t *testing.T) {
	g := &scripted{answer: func(req *wire.Request) (any, []byte) {
		switch req.Method {
		case wire.MethodPing:
			return map[string]any{"v": 1, "of_another_version": map[string]int{"x": 1}}, nil
		}
		return &wire.Response{Error: &wire.Error{Code: wire.CodeUnknown, Message: "this guest does not know the call"}}, nil
	}}
	box := newFleet(t, g)
	if err := box.Ping(t.Context()); err != nil {
		t.Errorf("an unknown field: %v", err)
	}
	if _, err := box.Execs(t.Context()); err == nil || errors.Is(err, control.ErrGuestUnreachable) {
		t.Errorf("an unknown method: %v", err)
	}
}

func TestAGuestIsNotBelieved(t *testing.T) {
	long := strings.Repeat("\xff", 5000)
	for name, resp := range map[string]*wire.Response{
		"nothing":              {},
		"too much":             {End: &wire.End{Stdout: 101}},
		"less than it says":    {End: &wire.End{Stdout: 3}},
		"negative":             {End: &wire.End{Stdout: -1, Stderr: 3}},
		"no exit code":         {End: &wire.End{ExitCode: 256, Stdout: 2}},
		"a negative exit code": {End: &wire.End{ExitCode: -1, Stdout: 2}},
		"a signal of its own":  {End: &wire.End{Signal: "<b>", Stdout: 2}},
	} {
		box := newFleet(t, &scripted{answer: func(*wire.Request) (any, []byte) { return resp, []byte("ab") }})
		if end, err := box.Wait(t.Context(), "x", 100); err == nil {
			t.Errorf("%s: %+v", name, end)
		}
	}
	box := newFleet(t, &scripted{answer: func(req *wire.Request) (any, []byte) {
		switch req.Method {
		case wire.MethodWait:
			return &wire.Response{End: &wire.End{Cwd: long, Left: -5, Duration: -1, OmittedOut: -3}}, nil
		case wire.MethodExecs:
			return &wire.Response{Execs: []wire.Exec{{Exec: long, Command: long, PID: -1, ExitCode: math.MaxInt}}}, nil
		case wire.MethodList:
			return &wire.Response{Files: []wire.File{{Name: long, Type: "<script>", Size: -1}}}, nil
		case wire.MethodMkdir:
			return &wire.Response{Error: &wire.Error{Code: wire.CodeErrno, Errno: "<b>", Message: long}}, nil
		case wire.MethodStart:
			return &wire.Response{}, nil
		}
		return &wire.Response{}, make([]byte, 1000)
	}})
	if e, err := box.Wait(t.Context(), "x", 100); err != nil || e.Left != 0 || e.Duration != 0 || e.OmittedOut != 0 || len(e.Cwd) > 4096*3 {
		t.Errorf("wait: %+v, %v", e, err)
	}
	if all, err := box.Execs(t.Context()); err != nil || all[0].PID != 0 || all[0].ExitCode != 255 || len(all[0].Command) > 1024*3 {
		t.Errorf("execs: %+v, %v", all, err)
	}
	if all, err := box.ListFiles(t.Context(), "."); err != nil || all[0].Type != "other" || all[0].Size != 0 {
		t.Errorf("list: %+v, %v", all, err)
	}
	if e, ok := errors.AsType[*control.FileError](box.Mkdir(t.Context(), "d", false)); !ok || e.Errno != "EIO" {
		t.Errorf("mkdir: %+v", e)
	}
	if _, err := box.Start(t.Context(), control.ExecStart{Exec: "x", Shell: "true"}); !errors.Is(err, control.ErrGuestUnreachable) {
		t.Errorf("start: %v", err)
	}
	if _, err := box.ReadFile(t.Context(), "f", 0, 10); !errors.Is(err, control.ErrGuestUnreachable) {
		t.Errorf("a read that brings too much: %v", err)
	}
}

func TestARequestThatIsTooLargeBreaksNothing(t *testing.T) {
	g := &scripted{answer: fine}
	box := newFleet(t, g)
	if _, err := box.WriteFile(t.Context(), control.FileWrite{Path: "f", Data: make([]byte, wire.MaxPayload+1)}); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if err := box.Ping(t.Context()); err != nil || g.dialled() != 1 {
		t.Errorf("%v, %d dials", err, g.dialled())
	}
}

func FuzzExecEnd(f *testing.F) {
	f.Add([]byte(`{"code":1,"out":2,"err":1,"sig":"KILL","took":5}`), []byte("abc"), 2)
	f.Add([]byte(`{"code":-1}`), []byte(""), 0)
	f.Add([]byte(`{"out":9223372036854775807,"err":9223372036854775807}`), []byte("x"), 100)
	f.Fuzz(func(t *testing.T, header, data []byte, limit int) {
		var e wire.End
		if json.Unmarshal(header, &e) != nil {
			return
		}
		limit = min(max(limit, 0), wire.MaxPayload/2)
		end, ok := execEnd(&e, data, limit)
		if ok && (len(end.Stdout)+len(end.Stderr) != len(data) || len(end.Stdout) > limit || len(end.Stderr) > limit || end.ExitCode < 0 || end.ExitCode > 255) {
			t.Fatalf("%+v of %s", end, header)
		}
	})
}
