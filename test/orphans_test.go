package test_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

func TestLostDatabaseMakesOrphansThatAreKept(t *testing.T) {
	test.Each(t, lostDatabaseMakesOrphansThatAreKept)
}

func lostDatabaseMakesOrphansThatAreKept(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	running := w.Acquire(t, "lost", test.Params{"persistent": true}).Env.ID
	stopped := w.Acquire(t, "lost", test.Params{"name": "stopped", "persistent": true}).Env.ID
	w.Run(t, running, "echo kept > /workspace/kept; echo root > /root/kept")
	s.Act(t, stopped, "stop", nil)
	s.Events().Wait(t, "one is dormant", test.Is(control.EnvDormant, stopped))
	s.Stop(t)
	if err := os.Remove(filepath.Join(s.DataDir, "sandkeeper.db")); err != nil {
		t.Fatal(err)
	}
	s.ForgetEvents(t)
	s.Restart(t)
	for _, env := range []string{running, stopped} {
		ev := s.Events().Wait(t, "an orphan is found", test.Is(control.OrphanFound, env))
		if ev.Owner != "default" || ev.Task != "lost" || ev.Actor != control.ActorReconciler {
			t.Errorf("the orphan is told as %+v", ev)
		}
	}
	test.Eventually(t, "the orphan that ran is stopped", func() bool {
		c, ok := s.Container(t, running)
		return ok && c.State == "exited"
	})
	engineHas(t, s, map[string]string{running: "exited", stopped: "exited"})
	if len(s.Envs(t)) > 0 {
		t.Error("orphans are listed as environments")
	}
	if status, page := s.Do(t, "GET", "/", nil); status != 200 || !strings.Contains(string(page), running) {
		t.Errorf("the page (%d) does not show the orphan %s", status, running)
	}
	// Its key is free, and the old files are nobody's.
	w = s.Wire(t)
	got := w.Acquire(t, "lost", test.Params{"persistent": true})
	if got.Outcome != "created" || got.Env.ID == running {
		t.Errorf("the next acquire gives %s, %s", got.Env.ID, got.Outcome)
	}
	if ran := w.Run(t, got.Env.ID, "ls /workspace"); ran.Stdout != "" {
		t.Errorf("the new one has %q", ran.Stdout)
	}
	n := len(s.Events().All())
	s.Kill(t)
	s.Restart(t)
	s.Events().WaitAfter(t, uint64(n), "the server is back", test.Is(control.ServerStarted, ""))
	engineHas(t, s, map[string]string{running: "exited", stopped: "exited", got.Env.ID: "running"})
}

func TestPruneRemovesOneInstanceAndNothingElse(t *testing.T) {
	test.Each(t, pruneRemovesOneInstanceAndNothingElse)
}

func pruneRemovesOneInstanceAndNothingElse(t *testing.T, on test.On) {
	doomed, other := on.Start(t), on.Start(t)
	ours := doomed.Wire(t)
	ours.Acquire(t, "pruned", test.Params{"persistent": true})
	ours.Acquire(t, "pruned", test.Params{"name": "scratch"})
	dormant := ours.Acquire(t, "pruned", test.Params{"name": "dormant", "persistent": true}).Env.ID
	doomed.Act(t, dormant, "stop", nil)
	doomed.Events().Wait(t, "one is dormant", test.Is(control.EnvDormant, dormant))
	theirs := other.Wire(t)
	kept := theirs.Acquire(t, "kept", test.Params{"persistent": true}).Env.ID
	theirs.Run(t, kept, "echo kept > kept")
	var foreign string // of an instance with a longer name; local ones are apart by their data
	if on.Name == "docker" {
		foreign = other.Docker.Run(t, "create", "--label", "sandkeeper.instance="+doomed.Instance+"-not", other.Docker.Image, "true")
		defer other.Docker.Run(t, "rm", foreign)
	}

	if err := doomed.TryCLI(t, "prune", "--instance", doomed.Instance, "--engine", on.Name); err == nil {
		t.Error("an instance was pruned under its running server")
	}
	doomed.Stop(t)
	doomed.CLI(t, "prune", "--instance", doomed.Instance, "--engine", on.Name)
	if cs := doomed.Containers(t); len(cs) > 0 {
		t.Errorf("prune left the containers %+v", cs)
	}
	if vs := doomed.Volumes(t); len(vs) > 0 {
		t.Errorf("prune left the volumes %v", vs)
	}
	engineHas(t, other, map[string]string{kept: "running"})
	if text := theirs.Run(t, kept, "cat kept").Stdout; text != "kept\n" {
		t.Errorf("the other instance's file says %q", text)
	}
	if on.Name == "docker" {
		if got := other.Docker.Run(t, "ps", "--all", "--quiet", "--no-trunc", "--filter", "id="+foreign); got != foreign {
			t.Error("prune removed a container of an instance with a longer name")
		}
	}
	if i := slices.IndexFunc(other.Events().All(), func(ev control.Event) bool { return ev.Kind == control.EnvLost }); i >= 0 {
		t.Error("the other instance lost something")
	}
	// Started again, the pruned instance tells the truth: it is all gone.
	doomed.Restart(t)
	if v := doomed.Env(t, dormant); v.State != control.Dormant {
		t.Errorf("its files are gone, and it is %s", v.State)
	}
	ours = doomed.Wire(t)
	if got := ours.Acquire(t, "pruned", test.Params{"name": "dormant"}); got.Outcome != "recreated" {
		t.Errorf("what was pruned is %s", got.Outcome)
	}
}
