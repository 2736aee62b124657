package test_test

import (
	"slices"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// fiveKinds leaves children that nothing but their descent ties to the command:
// one forked twice, one in a session of its own, one without its environment,
// one of another user, and one that is all of it. Each ignores what it can.
func fiveKinds(on test.On) string {
	as := "/bin/sh -c"
	if on.User != "" {
		as = "/bin/su -s /bin/sh " + on.User + " -c"
	}
	return `trap '' TERM HUP INT
(sleep 4711 & ) & wait $!
setsid sleep 4711 &
env -i /bin/sleep 4711 &
` + as + ` 'sleep 4711' &
(env -i /bin/setsid ` + as + ` 'trap "" TERM; (sleep 4711; true) & sleep 4711; true' &) &
while [ $(cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep$') -lt 6 ]; do sleep 0.05; done
echo up
`
}

// sleepers lists what runs of the sleeps above, as it is seen from outside.
func sleepers(t *testing.T, s *test.Server, env string) []string {
	t.Helper()
	c, ok := s.Container(t, env)
	if !ok || c.State != "running" {
		return nil
	}
	return slices.DeleteFunc(s.Processes(t, c), func(line string) bool { return !strings.Contains(line, "4711") })
}

func TestTimeoutLeavesNoProcess(t *testing.T) { test.Each(t, timeoutLeavesNoProcess) }

func timeoutLeavesNoProcess(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "tree", nil).Env.ID
	ran := w.RunWith(t, env, test.Params{"command": fiveKinds(on) + "sleep 4711", "timeout_seconds": 8}, 124)
	if !ran.TimedOut || ran.Stdout != "up\n" {
		t.Errorf("the command ended with %+v", ran)
	}
	if ran.DurationMS < 8000 || ran.DurationMS > 60_000 {
		t.Errorf("with a timeout of 8 s it took %d ms", ran.DurationMS)
	}
	if left := sleepers(t, s, env); len(left) > 0 {
		t.Errorf("the timeout left:\n%s", strings.Join(left, "\n"))
	}
	for _, x := range w.Execs(t, env) {
		if x.State == "running" || x.Left {
			t.Errorf("listed is %+v", x)
		}
	}
	// An argv is no different.
	ran = w.RunWith(t, env, test.Params{"argv": []string{"sh", "-c", fiveKinds(on) + "sleep 4711"}, "timeout_seconds": 8}, 124)
	if left := sleepers(t, s, env); !ran.TimedOut || len(left) > 0 {
		t.Errorf("the timeout of an argv (%+v) left:\n%s", ran, strings.Join(left, "\n"))
	}
}

func TestEndOfATurnLeavesNoProcess(t *testing.T) { test.Each(t, endOfATurnLeavesNoProcess) }

func endOfATurnLeavesNoProcess(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "tree", nil).Env.ID
	w.Run(t, env, fiveKinds(on))
	if n := len(sleepers(t, s, env)); n < 6 {
		t.Fatalf("%d processes were left behind; that proves nothing", n)
	}
	before, ok := s.Container(t, env)
	if !ok {
		t.Fatal("it has no container")
	}
	stillRun := s.Follow(t, before)
	w.EndTurn(t, "tree")
	s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, env))
	if c, ok := s.Container(t, env); ok {
		t.Errorf("the container %s is there", c.ID)
	}
	if left := stillRun(); len(left) > 0 {
		t.Errorf("the turn's end left:\n%s", strings.Join(left, "\n"))
	}
}

func TestReleaseLeavesNoProcessAndKeepsFiles(t *testing.T) {
	test.Each(t, releaseLeavesNoProcessAndKeepsFiles)
}

func releaseLeavesNoProcessAndKeepsFiles(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "tree", test.Params{"persistent": true}).Env.ID
	w.Run(t, env, "echo kept > /workspace/kept\n"+fiveKinds(on))
	running := w.Go(t, "exec.run", test.Params{"env": env, "command": "sleep 60"})
	awaitHold(t, s, env, control.HoldExec)
	w.Call(t, "env.release", test.Params{"env": env}, nil)
	if e := running.Refused(t); e.Data.Kind != "generation_gone" || e.Data.Tombstone == nil || e.Data.Tombstone.Reason != "released" {
		t.Errorf("what ran ends with %v, %+v", e, e.Data.Tombstone)
	}
	s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, env))
	if c, ok := s.Container(t, env); !ok || c.State != "exited" {
		t.Errorf("its container is %+v", c)
	}
	ran := w.Run(t, env, "cat kept")
	if ran.Stdout != "kept\n" || ran.Notice == nil || ran.Notice.Generation != 2 {
		t.Errorf("afterwards it has %q, with the notice %+v", ran.Stdout, ran.Notice)
	}
	if left := sleepers(t, s, env); len(left) > 0 {
		t.Errorf("the release left:\n%s", strings.Join(left, "\n"))
	}
	w.Call(t, "env.release", test.Params{"env": env, "purge": true}, nil)
	s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, env))
	engineHas(t, s, nil)
}

func TestZombiesAreReaped(t *testing.T) { test.Each(t, zombiesAreReaped) }

func zombiesAreReaped(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "zombies", nil).Env.ID
	w.Run(t, env, "for i in 1 2 3 4 5 6 7 8; do (sleep 0.2 &) ; done")
	test.Eventually(t, "no process is left", func() bool {
		ran := w.RunWith(t, env, test.Params{"argv": []string{"sh", "-c", "cat /proc/[0-9]*/stat"}}, test.AnyCode)
		return ran.Stdout != "" && !strings.Contains(ran.Stdout, "(sleep)") && !strings.Contains(ran.Stdout, ") Z ")
	})
}
