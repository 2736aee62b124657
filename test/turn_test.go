package test_test

import (
	"slices"
	"testing"
	"time"

	"sandkeeper/client"
	"sandkeeper/internal/control"
	"sandkeeper/test"
)

func TestMain(m *testing.M) { test.Main(m) }

// From an agent's turn to the reaper and back, as an operator sees it.
func TestTurnEndsAndTheReaperActsOnTime(t *testing.T) { test.Each(t, turnEndsAndTheReaperActsOnTime) }

func turnEndsAndTheReaperActsOnTime(t *testing.T, on test.On) {
	s := on.Start(t, "--lifetime", "8s")
	agent := s.Agent(t, "hermes")

	kept := agent.Acquire(client.AcquireRequest{Task: "t-1", Name: "kept", Persistent: new(true)})
	gone := agent.Acquire(client.AcquireRequest{Task: "t-1", Name: "gone"})
	if kept.Outcome != "created" || gone.Outcome != "created" {
		t.Fatalf("outcomes %q and %q; want created", kept.Outcome, gone.Outcome)
	}
	agent.Sh(kept.Env.ID, "echo from the workspace > note && echo installed > "+on.Tool)
	agent.Sh(gone.Env.ID, "echo from the workspace > note")
	if v := s.Env(t, kept.Env.ID); v.Deadline != nil || len(v.Holds) == 0 {
		t.Errorf("in an open turn: deadline %v, holds %v", v.Deadline, v.Holds)
	}

	end := agent.EndTurn("t-1")
	var deadline time.Time
	want := map[string][2]string{kept.Env.ID: {"kept", "persistent"}, gone.Env.ID: {"removed", "ephemeral"}}
	for _, d := range end.Decisions {
		if want[d.Env] != [2]string{d.Decision, d.Reason} {
			t.Errorf("decision on %s: %s, %s; want %v", d.Name, d.Decision, d.Reason, want[d.Env])
		}
		if d.Env == kept.Env.ID && d.Deadline != nil {
			deadline = *d.Deadline
		}
		delete(want, d.Env)
	}
	if len(want) > 0 {
		t.Errorf("no decision on %v", want)
	}

	// The persistent one runs and counts down, the ephemeral one is gone from the engine.
	v := s.Env(t, kept.Env.ID)
	if v.State != control.Ready || v.Deadline == nil || !v.Deadline.Equal(deadline) || v.NextAction == nil || *v.NextAction != "stop" || len(v.Holds) > 0 {
		t.Fatalf("the persistent one does not count down to %v: %+v", deadline, v)
	}
	if c, ok := s.Container(t, kept.Env.ID); !ok || c.State != "running" {
		t.Errorf("the persistent one's container: %+v, %v", c, ok)
	}
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, gone.Env.ID))
	if c, ok := s.Container(t, gone.Env.ID); ok {
		t.Errorf("its container is there: %+v", c)
	}

	// It is reaped at its deadline, and not before.
	stopping := s.Events().Wait(t, "the reaper acts", test.Is(control.EnvStopping, kept.Env.ID))
	if late := stopping.Time.Sub(deadline); late < 0 || late > atOnce || stopping.Actor != control.ActorReaper {
		t.Errorf("%s acted %v after the deadline", stopping.Actor, late)
	}
	s.Events().Wait(t, "it is dormant", test.Is(control.ReaperStopped, kept.Env.ID))
	if c, ok := s.Container(t, kept.Env.ID); !ok || c.State != "exited" {
		t.Errorf("the dormant one's container: %+v, %v", c, ok)
	}
	if v := s.Env(t, kept.Env.ID); v.State != control.Dormant || v.NextAction == nil || *v.NextAction != "purge" {
		t.Errorf("after the reaper: %s, next %v", v.State, v.NextAction)
	}

	// The next acquire brings it back with all of its files, as the next generation.
	back := agent.Acquire(client.AcquireRequest{Task: "t-1", Name: "kept"})
	if back.Outcome != "resumed" || back.Env.ID != kept.Env.ID || back.Env.Generation != kept.Env.Generation+1 || !back.Env.Persistent {
		t.Errorf("%s as %s, generation %d, persistent %v", back.Outcome, back.Env.ID, back.Env.Generation, back.Env.Persistent)
	}
	if got := agent.Sh(back.Env.ID, "cat note "+on.Tool); got != "from the workspace\ninstalled\n" {
		t.Errorf("its files say %q", got)
	}
	agent.EndTurn("t-1")

	transitions := slices.DeleteFunc(s.Events().Of(kept.Env.ID), func(k control.EventKind) bool {
		return !slices.Contains([]control.EventKind{control.EnvStarting, control.EnvReady, control.EnvStopping, control.EnvDormant, control.ReaperStopped, control.EnvResumed}, k)
	})
	if want := []control.EventKind{control.EnvStarting, control.EnvReady, control.EnvStopping, control.EnvDormant, control.ReaperStopped, control.EnvStarting, control.EnvResumed}; !slices.Equal(transitions, want) {
		t.Errorf("its events are %v; want %v", transitions, want)
	}
}
