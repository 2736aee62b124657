package test_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// lostAtOnce waits until the end of an environment is told, which must be soon
// after that time, by which it had died.
func lostAtOnce(t *testing.T, s *test.Server, env string, moment time.Time) control.Event {
	t.Helper()
	ev := s.Events().Wait(t, "it is lost", test.Is(control.EnvLost, env))
	if late := ev.Time.Sub(moment); late > atOnce {
		t.Errorf("it is lost %s after it died", late)
	}
	if ev.Actor != control.ActorReconciler {
		t.Errorf("it is lost by %s", ev.Actor)
	}
	return ev
}

func TestSandboxStoppedBehindOurBack(t *testing.T) { test.Each(t, sandboxStoppedBehindOurBack) }

func sandboxStoppedBehindOurBack(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	persistent := w.Acquire(t, "stopped", test.Params{"persistent": true}).Env.ID
	ephemeral := w.Acquire(t, "stopped", test.Params{"name": "scratch"}).Env.ID
	w.Run(t, persistent, "echo workspace > kept; echo root > /root/kept; export LATER=yes; cd /root")
	running := w.Go(t, "exec.run", test.Params{"env": persistent, "id": "running", "command": "trap '' TERM; while :; do sleep 1; done"})
	awaitHold(t, s, persistent, control.HoldExec)

	stopped, _ := s.Container(t, persistent)
	s.StopBehind(t, stopped)
	at, code := s.Ended(t, stopped)
	ev := lostAtOnce(t, s, persistent, at)
	if ev.Data["exit_code"] != float64(code) || ev.Data["oom"] != false {
		t.Errorf("it is lost with %v; the engine says exit code %d", ev.Data, code)
	}
	e := running.Refused(t)
	if tomb := e.Data.Tombstone; e.Data.Kind != "generation_gone" || tomb == nil || tomb.ExitCode == nil || tomb.Generation != 1 {
		t.Errorf("what ran in it ends with %v, %+v", e, tomb)
	}

	killed, _ := s.Container(t, ephemeral)
	s.KillBehind(t, killed)
	ev = lostAtOnce(t, s, ephemeral, time.Now())
	if ev.Data["exit_code"] != float64(137) || ev.Data["oom"] != false {
		t.Errorf("killed, it is lost with %v", ev.Data)
	}
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, ephemeral))
	e = w.Refused(t, "generation_gone", "env.get", test.Params{"env": ephemeral})
	if tomb := e.Data.Tombstone; tomb == nil || tomb.ExitCode == nil || *tomb.ExitCode != 137 || tomb.OOM {
		t.Errorf("its tombstone is %+v", tomb)
	}

	// A guard on the old generation holds; without one it is resumed, and told.
	if v := s.Env(t, persistent); v.State != control.Dormant {
		t.Errorf("lost, the persistent one is %s", v.State)
	}
	w.Refused(t, "generation_gone", "exec.run", test.Params{"env": persistent, "generation": 1, "command": "true"})
	ran := w.Run(t, persistent, "pwd; cat /workspace/kept /root/kept; echo ${LATER-unset}")
	if ran.Stdout != "/workspace\nworkspace\nroot\nunset\n" {
		t.Errorf("resumed, it has %q", ran.Stdout)
	}
	if n := ran.Notice; n == nil || n.Generation != 2 || len(n.Lost) == 0 || len(n.Kept) == 0 {
		t.Errorf("its notice is %+v", n)
	}
	if again := w.Run(t, persistent, "true"); again.Notice != nil {
		t.Errorf("the notice comes again: %+v", again.Notice)
	}
	e = w.Refused(t, "generation_gone", "exec.run", test.Params{"env": persistent, "id": "running", "command": "trap '' TERM; while :; do sleep 1; done"})
	if e.Data.Tombstone == nil || e.Data.Tombstone.Generation != 1 {
		t.Errorf("asked again by id, what was lost answers %v, %+v", e, e.Data.Tombstone)
	}
}

func TestContainerRemovedBehindOurBack(t *testing.T) { test.Each(t, containerRemovedBehindOurBack) }

func containerRemovedBehindOurBack(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "removed", test.Params{"persistent": true}).Env.ID
	w.Run(t, env, "echo workspace > /workspace/kept; echo root > /root/gone")
	c, _ := s.Container(t, env)
	before := time.Now()
	s.Docker.Run(t, "rm", "--force", c.ID)
	ev := s.Events().Wait(t, "it is lost", test.Is(control.EnvLost, env))
	if late := ev.Time.Sub(before); late > atOnce {
		t.Errorf("it is lost %s after the removal began", late)
	}
	s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, env))
	got := w.Acquire(t, "removed", nil)
	if got.Env.ID != env || got.Outcome != "recreated" || got.Env.Generation != 2 {
		t.Errorf("the next acquire gives %s, %s, generation %d", got.Env.ID, got.Outcome, got.Env.Generation)
	}
	ran := w.Run(t, env, "cat /workspace/kept; ls /root")
	if ran.Stdout != "workspace\n" {
		t.Errorf("recreated, it has %q", ran.Stdout)
	}
	if n := ran.Notice; n == nil || n.Generation != 2 {
		t.Errorf("its notice is %+v", n)
	}
	want := []control.EventKind{control.EnvStarting, control.EnvReady, control.EnvLost, control.EnvDormant, control.EnvStarting, control.EnvRecreated}
	eventsAre(t, s, env, want)
}

func TestDiedWhileNoServerRan(t *testing.T) { test.Each(t, diedWhileNoServerRan) }

func diedWhileNoServerRan(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	stopped := w.Acquire(t, "alone", test.Params{"persistent": true}).Env.ID
	removed := w.Acquire(t, "alone", test.Params{"name": "removed", "persistent": true}).Env.ID
	ephemeral := w.Acquire(t, "alone", test.Params{"name": "scratch"}).Env.ID
	for _, env := range []string{stopped, removed} {
		w.WriteFile(t, env, "kept", env)
	}
	s.Kill(t)
	c, _ := s.Container(t, stopped)
	s.StopBehind(t, c)
	outcome := "resumed"
	for _, env := range []string{removed, ephemeral} {
		c, _ := s.Container(t, env)
		if on.Name == "docker" {
			s.Docker.Run(t, "rm", "--force", c.ID)
			outcome = "recreated"
		} else { // who removes a local one removes its files
			s.KillBehind(t, c)
		}
	}
	s.Restart(t)
	for _, env := range []string{stopped, removed, ephemeral} {
		s.Events().Wait(t, "it is lost", test.Is(control.EnvLost, env))
	}
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, ephemeral))
	w = s.WireAs(t, test.Identity{Session: w.Session})
	if got := w.Acquire(t, "alone", nil); got.Outcome != "resumed" || w.ReadFile(t, stopped, "kept") != stopped {
		t.Errorf("the stopped one was %s", got.Outcome)
	}
	if got := w.Acquire(t, "alone", test.Params{"name": "removed"}); got.Outcome != outcome || w.ReadFile(t, removed, "kept") != removed {
		t.Errorf("the removed one was %s", got.Outcome)
	}
	engineHas(t, s, map[string]string{stopped: "running", removed: "running"})
}

func TestStartedBehindOurBack(t *testing.T) { test.Each(t, startedBehindOurBack) }

func startedBehindOurBack(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "started", test.Params{"persistent": true}).Env.ID
	w.EndTurn(t, "started")
	s.Act(t, env, "stop", nil)
	s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, env))
	c, _ := s.Container(t, env)
	s.Docker.Run(t, "restart", c.ID)
	ran := w.RunWith(t, env, test.Params{"command": "echo here"}, 0)
	if v := s.Env(t, env); ran.Stdout != "here\n" || v.Generation != 2 || v.State != control.Ready {
		t.Errorf("it is %s, generation %d", v.State, v.Generation)
	}
}

func TestOutOfMemoryIsTold(t *testing.T) { test.Each(t, outOfMemoryIsTold) }

func outOfMemoryIsTold(t *testing.T, on test.On) {
	s := on.Start(t)
	if !enforces(t, s, "memory_mb") {
		t.Skip(on.Name + ": this host does not enforce memory_mb")
	}
	w := s.Wire(t)
	got := w.Acquire(t, "greedy", test.Params{"persistent": true, "limits": test.Params{"memory_mb": 32}})
	if len(got.Env.Unenforced) > 0 {
		t.Fatalf("unenforced is %v", got.Env.Unenforced)
	}
	env := got.Env.ID
	// A child that is killed for want of memory ends alone.
	ran := w.RunWith(t, env, test.Params{"argv": []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"}}, 137)
	if ran.Signal != "KILL" {
		t.Errorf("what memory ran out for ended with %+v", ran)
	}
	if !ran.OOM {
		t.Errorf("out of memory is not told of the command: %+v", ran)
	}
	if v := s.Env(t, env); v.State != control.Ready || v.Generation != 1 {
		t.Errorf("its child was killed, and it is %s, generation %d", v.State, v.Generation)
	}
	// Stopped later by hand, it did not end for want of memory. For two seconds
	// the local engine cannot tell the one from the other.
	w.Run(t, env, "sleep 3")
	c, _ := s.Container(t, env)
	s.KillBehind(t, c)
	ev := lostAtOnce(t, s, env, time.Now())
	if ev.Data["oom"] != false {
		t.Errorf("killed by hand, it is lost with %v", ev.Data)
	}
}

// A file system in memory is part of the sandbox's share of it. What fills it
// is told, one way or the other: a full disk, a killed command, or a lost sandbox.
func TestTmpThatFillsTheMemory(t *testing.T) { test.Each(t, tmpThatFillsTheMemory) }

func tmpThatFillsTheMemory(t *testing.T, on test.On) {
	s := on.Start(t)
	if !enforces(t, s, "memory_mb") {
		t.Skip(on.Name + ": this host does not enforce memory_mb")
	}
	w := s.Wire(t)
	env := w.Acquire(t, "full", test.Params{"persistent": true, "limits": test.Params{"memory_mb": 32}}).Env.ID
	w.WriteFile(t, env, "kept", "kept")
	result, err := w.Go(t, "exec.run", test.Params{"env": env, "command": "dd if=/dev/zero of=/tmp/full bs=1M count=100"}).Wait(t)
	if err != nil {
		e, ok := errors.AsType[*test.WireError](err)
		if !ok || e.Data.Tombstone == nil || !e.Data.Tombstone.OOM {
			t.Errorf("the command ends with %v", err)
		}
	} else {
		var ran test.Ran
		if err := json.Unmarshal(result, &ran); err != nil {
			t.Fatal(err)
		}
		full := ran.ExitCode != nil && *ran.ExitCode == 1 && strings.Contains(ran.Stderr, "No space left")
		if !full && !ran.OOM {
			t.Errorf("100 MiB went into /tmp of 32 MiB: %+v", ran)
		}
	}
	if text := w.ReadFile(t, env, "kept"); text != "kept" {
		t.Errorf("afterwards the file says %q", text)
	}
}

func enforces(t *testing.T, s *test.Server, limit string) bool {
	t.Helper()
	var e struct{ Enforces []string }
	s.Get(t, "/api/v1/engine", &e)
	return slices.Contains(e.Enforces, limit)
}
