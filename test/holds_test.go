package test_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// What is due is acted upon at once, and what happened is told at once: before a
// round of reconciliation would find it, however busy the machine. How soon that
// is, the benchmarks say.
const atOnce = 20 * time.Second

func TestCommandPastTheLifetimeIsNotReaped(t *testing.T) {
	test.Each(t, commandPastTheLifetimeIsNotReaped)
}

func commandPastTheLifetimeIsNotReaped(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "long", test.Params{"persistent": true, "lifetime_seconds": 1}).Env.ID
	running := w.Go(t, "exec.run", test.Params{"env": env, "command": "sleep 3; echo survived"})
	awaitHold(t, s, env, control.HoldExec)
	w.EndTurn(t, "long")

	held := s.Env(t, env)
	if held.Deadline != nil || held.RemainingMS != nil {
		t.Errorf("while a command runs the deadline is %v", held.Deadline)
	}
	hold := only(t, held.Holds)
	if hold.Kind != control.HoldExec || hold.Ref == "" || hold.Until == nil {
		t.Errorf("it is held by %+v", hold)
	}
	if got := hold.Until.Sub(hold.Since.Time); got < 180*time.Second || got > 180*time.Second+2*time.Millisecond {
		t.Errorf("an exec's hold is bounded by %s, not by its timeout", got)
	}
	var ran test.Ran
	running.Into(t, &ran)
	if ran.ExitCode == nil || *ran.ExitCode != 0 || ran.Stdout != "survived\n" {
		t.Fatalf("the command ended with %+v", ran)
	}
	reapedInFull(t, s, env, time.Second)
}

// reapedInFull waits for the idle stop of an environment whose last hold is
// gone and checks that it came a whole lifetime after the last activity.
func reapedInFull(t *testing.T, s *test.Server, env string, lifetime time.Duration) {
	t.Helper()
	v := s.Env(t, env)
	if v.Deadline == nil { // it is over already
		reapedAt(t, s, env, v.LastActivity.At.Add(lifetime))
		return
	}
	if got := v.Deadline.Sub(v.LastActivity.At.Time); got < lifetime || got > lifetime+2*time.Millisecond {
		t.Errorf("the deadline is %s after the last activity (%s), not a lifetime of %s", got, v.LastActivity.Kind, lifetime)
	}
	reapedAt(t, s, env, v.Deadline.Time)
}

// reapedAt waits for an environment's idle stop or removal and checks its time.
func reapedAt(t *testing.T, s *test.Server, env string, deadline time.Time) control.Event {
	t.Helper()
	ev := s.Events().Wait(t, env+" is stopped by the reaper", func(ev control.Event) bool {
		return ev.Kind == control.EnvStopping && ev.Env == env && ev.Actor == control.ActorReaper
	})
	if late := ev.Time.Sub(deadline); late < 0 || late > atOnce {
		t.Errorf("the reaper acted %s after the deadline", late)
	}
	return ev
}

func TestPinnedIsNotReaped(t *testing.T) { test.Each(t, pinnedIsNotReaped) }

func pinnedIsNotReaped(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	quick := test.Params{"persistent": true, "lifetime_seconds": 1}
	pinned := w.Acquire(t, "pinned", quick).Env.ID
	pinnedEphemeral := w.Acquire(t, "pinned", test.Params{"name": "scratch", "lifetime_seconds": 1}).Env.ID
	s.Act(t, pinned, "pin", test.Params{"reason": "a look inside"})
	s.Act(t, pinnedEphemeral, "pin", nil)
	for _, d := range w.EndTurn(t, "pinned").Decisions {
		if d.Decision != "kept" || d.Reason != "pinned" || d.Deadline != nil {
			t.Errorf("the turn's end decides %+v", d)
		}
	}
	outlive(t, s, w, time.Second)
	for _, env := range []string{pinned, pinnedEphemeral} {
		if v := s.Env(t, env); v.State != control.Ready || v.Deadline != nil {
			t.Errorf("pinned, it is %s with the deadline %v", v.State, v.Deadline)
		}
	}

	v := s.Act(t, pinned, "unpin", nil)
	if v.LastActivity.Kind != "unpin" {
		t.Errorf("after the unpin the last activity is %+v", v.LastActivity)
	}
	s.Act(t, pinnedEphemeral, "unpin", nil)
	reapedInFull(t, s, pinned, time.Second)
	s.Events().Wait(t, "the ephemeral one is removed at its deadline", test.Is(control.ReaperRemoved, pinnedEphemeral))
	if c, ok := s.Container(t, pinnedEphemeral); ok {
		t.Errorf("it is removed, and its container is %s", c.Status)
	}
}

// outlive returns after another environment has lived through an idle lifetime
// and was reaped.
func outlive(t *testing.T, s *test.Server, w *test.Wire, lifetime time.Duration) {
	t.Helper()
	env := w.Acquire(t, "hourglass", test.Params{"persistent": true, "lifetime_seconds": int(lifetime / time.Second)}).Env.ID
	w.EndTurn(t, "hourglass")
	s.Events().Wait(t, "the hourglass ran out", test.Is(control.ReaperStopped, env))
}

func TestOpenTurnOfAConnectedAgentIsNotReaped(t *testing.T) {
	test.Each(t, openTurnOfAConnectedAgentIsNotReaped)
}

func openTurnOfAConnectedAgentIsNotReaped(t *testing.T, on test.On) {
	s := on.Start(t, "--disconnect-grace", "1s")
	thinking, other := s.WireAs(t, test.Identity{Agent: "thinking"}), s.Wire(t)
	persistent := thinking.Acquire(t, "think", test.Params{"persistent": true, "lifetime_seconds": 1}).Env.ID
	ephemeral := thinking.Acquire(t, "think", test.Params{"name": "scratch", "lifetime_seconds": 1}).Env.ID
	outlive(t, s, other, time.Second)
	for _, env := range []string{persistent, ephemeral} {
		v := thinking.Get(t, env)
		if hold := only(t, v.Holds); v.State != control.Ready || v.Deadline != nil || hold.Kind != control.HoldTurn {
			t.Errorf("in an open turn it is %s, held by %+v, with the deadline %v", v.State, v.Holds, v.Deadline)
		}
	}

	// Gone for its grace, the agent has abandoned the turn.
	thinking.Drop()
	gone := s.Events().Wait(t, "the agent is gone", func(ev control.Event) bool {
		return ev.Kind == control.AgentDisconnected && ev.Actor == "agent:thinking"
	})
	abandoned := s.Events().Wait(t, "the turn is abandoned", test.Is(control.AgentAbandoned, ""))
	if got := abandoned.Time.Sub(gone.Time.Time); got < time.Second || got > atOnce {
		t.Errorf("the turn is abandoned %s after the agent went; the grace is 1 s", got)
	}
	s.Events().Wait(t, "the ephemeral one goes with the turn", test.Is(control.EnvRemoved, ephemeral))
	s.Events().Wait(t, "the persistent one is stopped later", test.Is(control.ReaperStopped, persistent))
}

func TestTurnWithoutActivityLapses(t *testing.T) { test.Each(t, turnWithoutActivityLapses) }

func turnWithoutActivityLapses(t *testing.T, on test.On) {
	s := on.Start(t, "--max-turn", "1s")
	w := s.Wire(t)
	env := w.Acquire(t, "asleep", test.Params{"lifetime_seconds": 1}).Env.ID
	lapsed := s.Events().Wait(t, "the turn lapsed", test.Is(control.TurnLapsed, ""))
	removed := s.Events().Wait(t, "the reaper removes what its turn no longer holds", test.Is(control.ReaperRemoved, env))
	if got := removed.Time.Sub(lapsed.Time.Time); got < time.Second {
		t.Errorf("it is removed %s after the turn lapsed, with a lifetime of 1 s", got)
	}
	// It lost its hold, and is open all the same.
	var turn struct {
		Turn   int64
		Opened bool
	}
	if w.Call(t, "turn.begin", test.Params{"task": "asleep"}, &turn); turn.Turn != 1 || turn.Opened {
		t.Errorf("the turn after the lapse is %+v", turn)
	}
}

func TestLookingMovesNoDeadline(t *testing.T) { test.Each(t, lookingMovesNoDeadline) }

func lookingMovesNoDeadline(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "watched", test.Params{"persistent": true, "lifetime_seconds": 10}).Env.ID
	w.Run(t, env, "true")
	end := w.EndTurn(t, "watched")
	deadline := end.Decisions[0].Deadline
	if deadline == nil {
		t.Fatalf("the turn's end says %+v", end.Decisions)
	}
	for _, path := range []string{
		"/", "/envs/" + env, "/api/v1/envs", "/api/v1/envs?q=watched", "/api/v1/envs/" + env, "/api/v1/forecast", "/api/v1/events",
		"/api/v1/events?env=" + env, "/api/v1/engine", "/healthz", "/readyz",
	} {
		if status, body := s.Do(t, http.MethodGet, path, nil); status != http.StatusOK {
			t.Errorf("GET %s: %d %.200s", path, status, body)
		}
	}
	w.Call(t, "env.get", test.Params{"task": "watched"}, nil)
	w.Call(t, "env.list", test.Params{}, nil)
	w.Call(t, "exec.list", test.Params{"env": env}, nil)
	if v := w.Get(t, env); v.Deadline == nil || !v.Deadline.Equal(deadline.Time) {
		t.Errorf("after being looked at the deadline is %v; it was %v", v.Deadline, deadline)
	}
	reapedAt(t, s, env, deadline.Time)
}

func TestProcessLeftBehindHolds(t *testing.T) { test.Each(t, processLeftBehindHolds) }

func processLeftBehindHolds(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "server", test.Params{"persistent": true, "lifetime_seconds": 1}).Env.ID
	ran := w.Run(t, env, "sleep 1000 & echo $! > /workspace/pid; echo started")
	if ran.Stdout != "started\n" {
		t.Errorf("the command printed %q", ran.Stdout)
	}
	w.EndTurn(t, "server")
	v := awaitHold(t, s, env, control.HoldProcess)
	if v.Deadline != nil {
		t.Errorf("while a process lives the deadline is %v", v.Deadline)
	}
	listed := only(t, w.Execs(t, env))
	if listed.Exec != ran.Exec || !listed.Left || listed.State != "exited" || listed.ExitCode == nil || *listed.ExitCode != 0 {
		t.Errorf("what was left behind is listed as %+v", listed)
	}
	outlive(t, s, w, time.Second)
	if v := s.Env(t, env); v.State != control.Ready {
		t.Fatalf("with a process left behind it is %s", v.State)
	}

	w.Run(t, env, "kill $(cat /workspace/pid)")
	w.EndTurn(t, "server")
	ev := s.Events().Wait(t, "it is stopped once the process is gone", test.Is(control.ReaperStopped, env))
	if last := s.Env(t, env).LastActivity.At; ev.Time.Sub(last.Time) < time.Second {
		t.Errorf("it was stopped %s after the last activity", ev.Time.Sub(last.Time))
	}
}

// awaitHold waits until the environment is held by that and nothing else.
func awaitHold(t *testing.T, s *test.Server, env string, kind control.HoldKind) (v control.View) {
	t.Helper()
	test.Eventually(t, "it is held by "+string(kind), func() bool {
		v = s.Env(t, env)
		return slices.ContainsFunc(v.Holds, func(h control.Hold) bool { return h.Kind == kind })
	})
	return v
}

func only[E any](t *testing.T, list []E) E {
	t.Helper()
	if len(list) != 1 {
		t.Fatalf("there are %d, not one: %+v", len(list), list)
	}
	return list[0]
}

func TestPinWithAnEndPasses(t *testing.T) { test.Each(t, pinWithAnEndPasses) }

func pinWithAnEndPasses(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "lunch", test.Params{"persistent": true, "lifetime_seconds": 1}).Env.ID
	until := s.Env(t, env).Now.Add(5 * time.Second)
	v := s.Act(t, env, "pin", test.Params{"reason": "until after lunch", "until": control.At(until)})
	if v.Pin == nil || v.Pin.Reason != "until after lunch" || v.Pin.Until == nil || !strings.HasPrefix(v.Pin.By, "operator:") {
		t.Errorf("the pin is shown as %+v", v.Pin)
	}
	w.EndTurn(t, "lunch")
	unpinned := s.Events().Wait(t, "the pin's end came", test.Is(control.EnvUnpinned, env))
	if late := unpinned.Time.Sub(until.Truncate(time.Millisecond)); unpinned.Actor != control.ActorServer || late < 0 || late > atOnce {
		t.Errorf("it is unpinned by %s, %s after the pin's end", unpinned.Actor, late)
	}
	stopped := s.Events().Wait(t, "then the countdown ran out", test.Is(control.EnvStopping, env))
	if got := stopped.Time.Sub(unpinned.Time.Time); got < time.Second {
		t.Errorf("it is stopped %s after the unpin, with a lifetime of 1 s", got)
	}
}
