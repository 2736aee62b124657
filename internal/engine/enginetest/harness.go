// Package enginetest holds an engine against the rules that each must keep. The
// rules are the subtests' names. The suite looks into sandboxes by the
// harness's own means, so it needs no guest but for the rules of Dial.
package enginetest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
)

// Harness is one engine with an instance of its own, which its maker cleans up.
// Fields that may be empty say what is skipped then.
type Harness struct {
	Engine   engine.Engine
	Instance string // part of the sandboxes' names

	// Reopen makes another Engine over the same instance and data, as a restart
	// of the server does. The old one is closed before.
	Reopen func(t *testing.T) engine.Engine
	// Dead is an Engine whose other end does not answer; nil: that cannot be.
	Dead engine.Engine
	// Inside runs a command in a running sandbox as its root, by other means
	// than the guest, and returns its output and exit code.
	Inside func(t *testing.T, name string, argv ...string) (string, int)
	// KillMain ends a sandbox's PID 1 by SIGKILL, behind the engine's back.
	KillMain func(t *testing.T, name string)
	// Talk has a word with a guest over a stream that Dial opened. It may close it.
	Talk func(t *testing.T, conn io.ReadWriteCloser)
	// Foreign makes something of that name that is not the instance's; alive
	// says whether it is still as it was. nil: there are no such things.
	Foreign func(t *testing.T, name string) (alive func() bool)

	Image         string         // "": the engine has no images
	MissingImage  string         // of the engine's kind, not there and not to be pulled
	Unenforceable control.Limits // limits that this host cannot enforce; zero: none is known
	ReadOnlyRoot  bool           // sandboxes cannot change their root file system
	Memory        bool           // memory limits are enforced, and deaths by them told
}

// patience bounds each wait of the suite.
const patience = 5 * time.Minute

// suite is one rule's test.
type suite struct {
	*testing.T
	Harness
	ctx  context.Context
	made func(*testing.T) Harness
}

var sandboxes atomic.Int64

// spec is a small sandbox of a name that no other has.
func (s *suite) spec() control.SandboxSpec {
	n := sandboxes.Add(1)
	env := fmt.Sprintf("env%d", n)
	return control.SandboxSpec{
		Name:    "sandkeeper-" + s.Instance + "-" + env,
		Env:     env,
		Owner:   "default",
		Task:    "a task, with 日本語 & <b>",
		EnvName: "main",
		Image:   s.Image,
		Network: "none",
		Workdir: "/workspace",
		Limits:  control.Limits{CPUs: 1, MemoryMB: 64, Pids: 64},
	}
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// created makes a sandbox.
func (s *suite) created() control.SandboxSpec {
	s.Helper()
	spec := s.spec()
	s.create(spec)
	return spec
}

func (s *suite) create(spec control.SandboxSpec) control.Created {
	s.Helper()
	created, err := s.Engine.Create(s.ctx, spec)
	s.must(err)
	return created
}

// running makes a sandbox and starts it.
func (s *suite) running() control.SandboxSpec {
	s.Helper()
	spec := s.created()
	s.must(s.Engine.Start(s.ctx, spec.Name))
	return spec
}

// status returns what List says of a sandbox, nil if nothing.
func (s *suite) status(name string) *control.SandboxStatus {
	s.Helper()
	listed, err := s.Engine.List(s.ctx)
	s.must(err)
	i := slices.IndexFunc(listed, func(st control.SandboxStatus) bool { return st.Name == name })
	if i < 0 {
		return nil
	}
	return &listed[i]
}

// wantState fails unless List shows the sandbox in that state, "" for not at all.
func (s *suite) wantState(name string, want control.SandboxState) {
	s.Helper()
	var got control.SandboxState
	if st := s.status(name); st != nil {
		got = st.State
	}
	if got != want {
		s.Fatalf("%s is listed as %q, want %q", name, got, want)
	}
}

// inside runs a command that must succeed.
func (s *suite) inside(name string, argv ...string) string {
	s.Helper()
	out, code := s.Inside(s.T, name, argv...)
	if code != 0 {
		s.Fatalf("%q in %s: exit code %d: %s", argv, name, code, out)
	}
	return out
}

// watch follows the engine's events until the test ends.
func (s *suite) watch(since time.Time) <-chan control.EngineEvent {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	events := make(chan control.EngineEvent, 100)
	ready := make(chan struct{})
	done := make(chan struct{})
	var ended error // read once done is closed
	go func() {
		defer close(done)
		ended = s.Engine.Watch(ctx, since, func() { close(ready) }, func(ev control.EngineEvent) { events <- ev })
	}()
	s.Cleanup(func() {
		cancel()
		<-done
	})
	select {
	case <-ready:
	case <-done:
		s.Fatalf("watch: %v", ended)
	case <-s.ctx.Done():
		s.Fatal("watch: the stream does not stand")
	}
	return events
}

// await returns the next event of a kind for a sandbox.
func (s *suite) await(events <-chan control.EngineEvent, kind control.EngineEventKind, name string) control.EngineEvent {
	s.Helper()
	for {
		select {
		case ev := <-events:
			if ev.Name == name && ev.Kind == kind {
				return ev
			}
		case <-s.ctx.Done():
			s.Fatalf("no event %q of %s", kind, name)
		}
	}
}
