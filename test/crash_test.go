package test_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"sandkeeper/client"
	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// crashed is a server that was warmed up by an environment, and dies.
type crashed struct {
	*test.Server
	agent *test.Wire
}

func readyToCrash(t *testing.T, s *test.Server) *crashed {
	t.Helper()
	c := &crashed{s, s.Wire(t)}
	c.agent.Acquire(t, "warm-up", nil)
	c.agent.EndTurn(t, "warm-up")
	s.Events().Wait(t, "the warm-up is over", test.Is(control.EnvRemoved, ""))
	return c
}

// crash kills the server while the engine waits, starts it again on an engine
// that no longer does, and resumes the agent's session.
func (c *crashed) crash(t *testing.T, held *test.Fault) {
	t.Helper()
	held.Arrived(t)
	c.Kill(t)
	held.Release()
	c.comeBack(t)
}

func (c *crashed) comeBack(t *testing.T) {
	t.Helper()
	boot := c.agent.Boot
	c.Restart(t)
	c.agent = c.WireAs(t, test.Identity{Session: c.agent.Session})
	if !c.agent.Resumed {
		t.Error("the session was not resumed after the crash")
	}
	if c.agent.Boot == boot {
		t.Error("the server started again and has the same boot")
	}
}

// engineHas checks what there is of the instance, beside what all its
// environments share: a container in a state for each of these, and nothing else.
func engineHas(t *testing.T, s *test.Server, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, c := range s.Containers(t) {
		if c.Env == "" {
			continue
		}
		if _, twice := got[c.Env]; twice {
			t.Errorf("two containers are of the environment %q", c.Env)
		}
		got[c.Env] = c.State
	}
	for env, state := range want {
		if got[env] != state {
			t.Errorf("the container of %s is %q, not %q", env, got[env], state)
		}
		if vols := volumesOf(t, s, env); len(vols) != 1 {
			t.Errorf("the volumes of %s are %v", env, vols)
		}
		delete(got, env)
	}
	if len(got) > 0 {
		t.Errorf("there are containers of %v too", got)
	}
	for _, v := range s.Volumes(t) {
		if _, wanted := want[v.Env]; v.Env != "" && !wanted {
			t.Errorf("there is a volume of %s too", v.Env)
		}
	}
}

// eventsAre checks all that was told of an environment. What its agent knows
// already may yet be on its way to us.
func eventsAre(t *testing.T, s *test.Server, env string, want []control.EventKind) {
	t.Helper()
	test.Eventually(t, fmt.Sprintf("as much is told of it as %v", want), func() bool { return len(s.Events().Of(env)) >= len(want) })
	if kinds := s.Events().Of(env); !slices.Equal(kinds, want) {
		t.Errorf("its events are %v, not %v", kinds, want)
	}
}

func TestCrashInTheMiddleOfACreate(t *testing.T) { test.Each(t, crashInTheMiddleOfACreate) }

func crashInTheMiddleOfACreate(t *testing.T, on test.On) {
	const create, start = "POST /containers/create", "POST /containers/*/start"
	for _, c := range []struct {
		name string
		hold func(p *test.EngineProxy) *test.Fault
	}{
		{"before the container is made", func(p *test.EngineProxy) *test.Fault { return p.Hold(create) }},
		{"once the container is made", func(p *test.EngineProxy) *test.Fault { return p.HoldAnswer(create) }},
		{"before it is started", func(p *test.EngineProxy) *test.Fault { return p.Hold(start) }},
		{"once it is started", func(p *test.EngineProxy) *test.Fault { return p.HoldAnswer(start) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proxy := test.NewEngineProxy(t)
			s := readyToCrash(t, on.StartBehind(t, proxy))
			held := c.hold(proxy)
			s.agent.Go(t, "env.acquire", test.Params{"task": "made", "persistent": true})
			begun := s.Events().Wait(t, "the start is on disk", func(ev control.Event) bool {
				return ev.Kind == control.EnvStarting && ev.Task == "made"
			})
			s.crash(t, held)
			got := s.agent.Acquire(t, "made", nil)
			if got.Env.ID != begun.Env || got.Env.Generation != 1 {
				t.Errorf("after the crash %s is acquired, generation %d; begun was %s, generation 1", got.Env.ID, got.Env.Generation, begun.Env)
			}
			if turn := got.Env.Turn; turn == nil || turn.Number != 1 || !turn.Open {
				t.Errorf("after the crash the turn is %+v", turn)
			}
			s.agent.Run(t, got.Env.ID, "echo hello > /workspace/hello")
			engineHas(t, s.Server, map[string]string{begun.Env: "running"})
			want := []control.EventKind{control.EnvStarting, control.EnvReady}
			eventsAre(t, s.Server, begun.Env, want)
		})
	}
}

func TestCrashInTheMiddleOfAnExec(t *testing.T) { test.Each(t, crashInTheMiddleOfAnExec) }

func crashInTheMiddleOfAnExec(t *testing.T, on test.On) {
	s := readyToCrash(t, on.Start(t))
	env := s.agent.Acquire(t, "work", test.Params{"persistent": true}).Env.ID
	long := test.Params{"env": env, "id": "long", "command": "echo ran >> /workspace/long; while [ ! -e /workspace/go ]; do sleep 0.05; done; echo finished"}
	short := test.Params{"env": env, "id": "short", "command": "echo ran >> /workspace/short; while [ ! -e /workspace/crashed ]; do sleep 0.05; done; echo ended alone; exit 3"}
	anonymous := test.Params{"env": env, "command": "echo ran >> /workspace/anonymous; while [ ! -e /workspace/go ]; do sleep 0.05; done"}
	var before test.Ran
	s.agent.Call(t, "exec.run", test.Params{"env": env, "id": "before", "command": "echo ran | tee -a /workspace/before"}, &before)
	for _, p := range []test.Params{long, short, anonymous} {
		s.agent.Go(t, "exec.run", p)
	}
	s.agent.Run(t, env, "while [ ! -s /workspace/long ] || [ ! -s /workspace/short ] || [ ! -s /workspace/anonymous ]; do sleep 0.05; done")
	s.Kill(t)

	// One comes to its end while no server runs.
	c, ok := s.Container(t, env)
	if !ok {
		t.Fatal("with the server its container has gone")
	}
	s.TouchBehind(t, c, "crashed")
	s.comeBack(t)

	var ran test.Ran
	s.agent.Call(t, "exec.run", short, &ran)
	if ran.ExitCode == nil || *ran.ExitCode != 3 || ran.Stdout != "ended alone\n" {
		t.Errorf("what ended without a server ended with %+v", ran)
	}
	again := s.agent.Go(t, "exec.run", long)
	// Another asks for the same.
	second := s.Wire(t).Go(t, "exec.run", long)
	awaitHold(t, s.Server, env, control.HoldExec)
	test.Eventually(t, "what runs on is listed with its process", func() bool {
		return slices.ContainsFunc(s.agent.Execs(t, env), func(x control.ExecView) bool {
			return x.ID == "long" && x.State == "running" && x.PID != 0
		})
	})
	s.agent.Run(t, env, "touch /workspace/go")
	for _, p := range []*test.Pending{again, second} {
		var ran test.Ran
		p.Into(t, &ran)
		if ran.ExitCode == nil || *ran.ExitCode != 0 || ran.Stdout != "finished\n" {
			t.Errorf("what ran on ended with %+v", ran)
		}
	}
	var after test.Ran
	s.agent.Call(t, "exec.run", test.Params{"env": env, "id": "before", "command": "echo ran | tee -a /workspace/before"}, &after)
	if after.Exec != before.Exec || after.Stdout != "ran\n" {
		t.Errorf("what ended before the crash is remembered as %+v", after)
	}
	s.agent.Refused(t, "conflict", "exec.run", test.Params{"env": env, "id": "before", "command": "echo something else"})
	for _, name := range []string{"long", "short", "anonymous", "before"} {
		if text := s.agent.ReadFile(t, env, "/workspace/"+name); text != "ran\n" {
			t.Errorf("the command %s left %q: it ran %d times", name, text, strings.Count(text, "ran"))
		}
	}
}

func TestCrashInTheMiddleOfATeardown(t *testing.T) { test.Each(t, crashInTheMiddleOfATeardown) }

func crashInTheMiddleOfATeardown(t *testing.T, on test.On) {
	const stop, remove, volume = "POST /containers/*/stop", "DELETE /containers/*", "DELETE /volumes/*"
	for _, c := range []struct {
		name       string
		persistent bool
		hold       func(p *test.EngineProxy) *test.Fault
	}{
		{"ephemeral, before it is removed", false, func(p *test.EngineProxy) *test.Fault { return p.Hold(remove) }},
		{"ephemeral, once it is removed", false, func(p *test.EngineProxy) *test.Fault { return p.HoldAnswer(remove) }},
		{"ephemeral, before its volume goes", false, func(p *test.EngineProxy) *test.Fault { return p.Hold(volume) }},
		{"ephemeral, once its volume is gone", false, func(p *test.EngineProxy) *test.Fault { return p.HoldAnswer(volume) }},
		{"persistent, before it is stopped", true, func(p *test.EngineProxy) *test.Fault { return p.Hold(stop) }},
		{"persistent, once it is stopped", true, func(p *test.EngineProxy) *test.Fault { return p.HoldAnswer(stop) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proxy := test.NewEngineProxy(t)
			s := readyToCrash(t, on.StartBehind(t, proxy))
			env := s.agent.Acquire(t, "ending", test.Params{"persistent": c.persistent, "lifetime_seconds": 1}).Env.ID
			s.agent.WriteFile(t, env, "kept", "by "+env)
			held := c.hold(proxy)
			s.agent.EndTurn(t, "ending")
			s.crash(t, held)
			if !c.persistent {
				s.Events().Wait(t, "it is removed after the crash", test.Is(control.EnvRemoved, env))
				engineHas(t, s.Server, nil)
				e := s.agent.Refused(t, "generation_gone", "env.get", test.Params{"env": env})
				if e.Data.Tombstone == nil || e.Data.Tombstone.Reason != "turn ended" || e.Data.Tombstone.Actor != "agent:tester" {
					t.Errorf("its tombstone is %+v", e.Data.Tombstone)
				}
				want := []control.EventKind{control.EnvStarting, control.EnvReady, control.EnvStopping, control.EnvRemoved}
				eventsAre(t, s.Server, env, want)
				return
			}
			s.Events().Wait(t, "it is dormant after the crash", test.Is(control.ReaperStopped, env))
			engineHas(t, s.Server, map[string]string{env: "exited"})
			got := s.agent.Acquire(t, "ending", nil)
			if got.Env.ID != env || got.Outcome != "resumed" || got.Env.Generation != 2 {
				t.Errorf("the next acquire gives %s, %s, generation %d", got.Env.ID, got.Outcome, got.Env.Generation)
			}
			if text := s.agent.ReadFile(t, env, "kept"); text != "by "+env {
				t.Errorf("the file says %q", text)
			}
			want := []control.EventKind{
				control.EnvStarting, control.EnvReady, control.EnvStopping, control.EnvDormant, control.ReaperStopped,
				control.EnvStarting, control.EnvResumed,
			}
			eventsAre(t, s.Server, env, want)
		})
	}
}

func TestCrashInTheMiddleOfAResume(t *testing.T) { test.Each(t, crashInTheMiddleOfAResume) }

func crashInTheMiddleOfAResume(t *testing.T, on test.On) {
	const start = "POST /containers/*/start"
	for _, c := range []struct {
		name string
		hold func(p *test.EngineProxy) *test.Fault
	}{
		{"before it is started", func(p *test.EngineProxy) *test.Fault { return p.Hold(start) }},
		{"once it is started", func(p *test.EngineProxy) *test.Fault { return p.HoldAnswer(start) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			proxy := test.NewEngineProxy(t)
			s := readyToCrash(t, on.StartBehind(t, proxy))
			env := s.agent.Acquire(t, "back", test.Params{"persistent": true}).Env.ID
			s.agent.Run(t, env, "echo workspace > /workspace/a; echo root > /root/b")
			s.Act(t, env, "stop", nil)
			s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, env))
			held := c.hold(proxy)
			s.agent.Go(t, "exec.run", test.Params{"env": env, "id": "resuming", "command": "echo ran >> /workspace/n"})
			s.crash(t, held)
			// The same again: it starts at most once, in the same generation.
			s.agent.Call(t, "exec.run", test.Params{"env": env, "id": "resuming", "command": "echo ran >> /workspace/n"}, nil)
			if ran := s.agent.Run(t, env, "cat /workspace/a /root/b /workspace/n"); ran.Stdout != "workspace\nroot\nran\n" {
				t.Errorf("after the crash it has %q", ran.Stdout)
			}
			if v := s.Env(t, env); v.Generation != 2 || v.State != control.Ready {
				t.Errorf("it is %s in generation %d", v.State, v.Generation)
			}
			engineHas(t, s.Server, map[string]string{env: "running"})
			want := []control.EventKind{
				control.EnvStarting, control.EnvReady, control.EnvStopping, control.EnvDormant, control.EnvStarting, control.EnvResumed,
			}
			eventsAre(t, s.Server, env, want)
		})
	}
}

func TestAgentThatDoesNotComeBackAfterACrashHasAbandonedItsTurn(t *testing.T) {
	test.Each(t, agentThatDoesNotComeBackAfterACrashHasAbandonedItsTurn)
}

func agentThatDoesNotComeBackAfterACrashHasAbandonedItsTurn(t *testing.T, on test.On) {
	s := readyToCrash(t, on.Start(t, "--disconnect-grace", "1s"))
	ephemeral := s.agent.Acquire(t, "left", nil).Env.ID
	persistent := s.agent.Acquire(t, "left", test.Params{"name": "kept", "persistent": true}).Env.ID
	s.Kill(t)
	s.Restart(t)
	s.Events().Wait(t, "the turn is abandoned", test.Is(control.AgentAbandoned, ""))
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, ephemeral))
	engineHas(t, s.Server, map[string]string{persistent: "running"})
	if w := s.WireAs(t, test.Identity{Session: s.agent.Session}); w.Resumed || w.Session == s.agent.Session {
		t.Error("a session is resumed after its grace")
	}
}

func TestCountdownSurvivesACrash(t *testing.T) { test.Each(t, countdownSurvivesACrash) }

func countdownSurvivesACrash(t *testing.T, on test.On) {
	const grace = 12 * time.Second // enough to ask the guests in, on a busy machine too
	s := readyToCrash(t, on.Start(t, "--restart-grace", grace.String()))
	soon := s.agent.Acquire(t, "soon", test.Params{"persistent": true, "lifetime_seconds": 5}).Env.ID
	late := s.agent.Acquire(t, "late", test.Params{"persistent": true, "lifetime_seconds": 3000}).Env.ID
	s.agent.EndTurn(t, "soon")
	shown := s.agent.EndTurn(t, "late").Decisions[0].Deadline
	s.Kill(t)
	s.comeBack(t)
	started := lastOf(s.Events().All(), control.ServerStarted)
	if v := s.Env(t, late); v.Deadline == nil || !v.Deadline.Equal(shown.Time) {
		t.Errorf("over the crash the deadline moved from %s to %s", shown, v.Deadline)
	}
	v := s.Env(t, soon)
	if v.Deadline == nil || v.Deadline.Sub(started.Time.Time) < grace {
		t.Fatalf("with a restart grace of %s from %s the deadline is %s", grace, started.Time, v.Deadline)
	}
	reapedAt(t, s.Server, soon, v.Deadline.Time)
}

// The public client asks again by itself, by an id that it made.
func TestClientRidesOutACrash(t *testing.T) { test.Each(t, clientRidesOutACrash) }

func clientRidesOutACrash(t *testing.T, on test.On) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String() // the same after the crash
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := on.Start(t, "--listen", addr)
	agent := s.Agent(t, "rider")
	env := agent.Acquire(client.AcquireRequest{Task: "ride", Persistent: new(true)}).Env.ID
	type outcome struct {
		ran *client.RunResult
		err error
	}
	c := make(chan outcome, 1)
	go func() {
		ran, err := agent.Client.Run(t.Context(), client.ByID(env), client.RunRequest{
			Command: "echo ran >> log; while [ ! -e go ]; do sleep 0.05; done; echo finished",
		})
		c <- outcome{ran, err}
	}()
	agent.Sh(env, "while [ ! -s log ]; do sleep 0.05; done")
	session := agent.Session()
	s.Kill(t)
	s.Restart(t)
	agent.Sh(env, "touch go")
	got := <-c
	if got.err != nil || got.ran.ExitCode != 0 || string(got.ran.Stdout) != "finished\n" {
		t.Errorf("over the crash the command ended with %+v, %v", got.ran, got.err)
	}
	if log := agent.Sh(env, "cat log"); log != "ran\n" {
		t.Errorf("the command left %q", log)
	}
	if agent.Session() != session {
		t.Error("the session was not resumed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if v, err := agent.Env(ctx, client.ByID(env)); err != nil || v.Generation != 1 || v.Turn == nil || v.Turn.Number != 1 {
		t.Errorf("afterwards it is %+v, %v", v, err)
	}
}

func lastOf(evs []control.Event, kind control.EventKind) (last control.Event) {
	for _, ev := range evs {
		if ev.Kind == kind {
			last = ev
		}
	}
	return last
}

func TestPresentClientsLearnOfAStop(t *testing.T) { test.Each(t, presentClientsLearnOfAStop) }

func presentClientsLearnOfAStop(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "polite", test.Params{"persistent": true}).Env.ID
	running := w.Go(t, "exec.run", test.Params{"env": env, "id": "through", "command": "while [ ! -e /workspace/go ]; do sleep 0.05; done; echo through"})
	awaitHold(t, s, env, control.HoldExec)
	s.Stop(t)
	if code := w.Closed(t); code != 1001 {
		t.Errorf("a stop closes sockets with %d", code)
	}
	if _, err := running.Wait(t); err == nil {
		t.Error("a command that runs was answered at the stop")
	}
	s.Restart(t)
	back := s.WireAs(t, test.Identity{Session: w.Session})
	if !back.Resumed {
		t.Error("the session was not resumed after the stop")
	}
	back.Run(t, env, "touch /workspace/go")
	var ran test.Ran
	back.Call(t, "exec.run", test.Params{"env": env, "id": "through", "command": "while [ ! -e /workspace/go ]; do sleep 0.05; done; echo through"}, &ran)
	if ran.Stdout != "through\n" {
		t.Errorf("the command ended with %+v", ran)
	}
	if lastOf(s.Events().All(), control.ServerStopping).Seq == 0 {
		t.Error("no event tells of the stop")
	}
}
