package test_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// What the empty page tells a newcomer to run makes it come alive, on each engine.
func TestFirstTurnOfANewcomer(t *testing.T) { test.Each(t, firstTurnOfANewcomer) }

func firstTurnOfANewcomer(t *testing.T, on test.On) {
	s := on.Start(t)
	if _, page := s.Do(t, "GET", "/", nil); !strings.Contains(string(page), "go run ./examples/agent") {
		t.Error("the empty page does not tell of the example")
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "./examples/agent", "--url", s.URL, "--tasks", "2", "--rounds", "1", "--think", "10ms")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "SANDKEEPER_AGENT_TOKEN="+s.Token(t, "agent"))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "done; ") {
		t.Fatalf("the example: %v: %s", err, out)
	}
	var kept int
	for _, v := range s.Envs(t) {
		if v.Engine != on.Name || v.Isolation != map[string]string{"docker": "container", "local": "namespaces"}[on.Name] {
			t.Errorf("%s runs on %s, isolated by %q", v.Task, v.Engine, v.Isolation)
		}
		if (v.Image == nil) != (on.Name == "local") {
			t.Errorf("on %s its image is %v", on.Name, v.Image)
		}
		if v.Persistent && v.State == control.Ready && v.Deadline != nil {
			kept++
		}
	}
	if kept != 1 {
		t.Errorf("%d count down, want the persistent one", kept)
	}
}

// A server that is killed leaves its sandboxes to the next; killed with their
// files, nothing is left of them on the engine.
func TestSandboxesOutliveAKilledServer(t *testing.T) { test.Each(t, sandboxesOutliveAKilledServer) }

func sandboxesOutliveAKilledServer(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "long", test.Params{"persistent": true}).Env.ID
	w.Run(t, env, "echo kept > note")
	s.Kill(t)
	if c, ok := s.Container(t, env); !ok || c.State != "running" {
		t.Fatalf("without its server it is %+v", c)
	}
	s.Restart(t)
	w = s.Wire(t)
	if got := w.Run(t, env, "cat note").Stdout; got != "kept\n" {
		t.Errorf("its file has %q", got)
	}
	if v := s.Env(t, env); v.State != control.Ready || v.Generation != 1 {
		t.Errorf("it is %s, generation %d", v.State, v.Generation)
	}
	s.Act(t, env, "kill", map[string]any{"purge": true})
	s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, env))
	engineHas(t, s, nil)
}

// Root without some of its rights gets a sentence, and no weaker sandboxes.
func TestServerWithoutRootsRightsSaysWhatToDo(t *testing.T) {
	test.Each(t, serverWithoutRootsRightsSaysWhatToDo)
}

func serverWithoutRootsRightsSaysWhatToDo(t *testing.T, on test.On) {
	if os.Geteuid() != 0 {
		t.Skip("root: only it has rights to drop")
	}
	for _, right := range []string{"chown", "sys_admin"} {
		s := on.Prepare(t)
		cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set", "-"+right, test.Binary(t), "serve",
			"--listen", "127.0.0.1:0", "--data-dir", s.DataDir, "--engine", "local", "--instance", s.Instance)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "cannot isolate sandboxes on this machine") || !strings.Contains(string(out), "or use --engine docker") {
			t.Errorf("without %s: %v: %s", right, err, out)
		}
	}
}

func TestAnImageIsUnavailableOnLocal(t *testing.T) { test.Each(t, anImageIsUnavailableOnLocal) }

func anImageIsUnavailableOnLocal(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	_, err := w.Go(t, "env.acquire", test.Params{"task": "image", "image": "debian:bookworm-slim"}).Wait(t)
	if err == nil || !strings.Contains(err.Error(), "has no images") {
		t.Errorf("got %v", err)
	}
}
