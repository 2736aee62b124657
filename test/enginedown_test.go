package test_test

import (
	"net/http"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

func readyz(t *testing.T, s *test.Server) (status int, body string) {
	t.Helper()
	status, b := s.Do(t, http.MethodGet, "/readyz", nil)
	return status, string(b)
}

// The engine's line is cut: it lives on, with its containers, and does not answer.
func TestEngineThatCannotBeReached(t *testing.T) { test.Each(t, engineThatCannotBeReached) }

func engineThatCannotBeReached(t *testing.T, on test.On) {
	proxy := test.NewEngineProxy(t)
	s := on.StartBehind(t, proxy)
	w := s.Wire(t)
	persistent := w.Acquire(t, "cut", test.Params{"persistent": true}).Env.ID
	ephemeral := w.Acquire(t, "gone", nil).Env.ID
	w.Run(t, persistent, "echo before > kept")
	if status, body := readyz(t, s); status != http.StatusOK {
		t.Errorf("GET /readyz: %d %s", status, body)
	}

	proxy.Down(t)
	down := s.Events().Wait(t, "the engine is down", test.Is(control.EngineDown, ""))
	if status, body := readyz(t, s); status != http.StatusServiceUnavailable || !strings.Contains(body, "engine") {
		t.Errorf("GET /readyz without the engine: %d %s", status, body)
	}
	if status, _ := s.Do(t, http.MethodGet, "/healthz", nil); status != http.StatusOK {
		t.Errorf("GET /healthz without the engine: %d", status)
	}
	var e struct{ Reachable bool }
	if s.Get(t, "/api/v1/engine", &e); e.Reachable {
		t.Error("GET /engine says that it is reachable")
	}
	refused := w.Refused(t, "engine_unavailable", "env.acquire", test.Params{"task": "new"})
	if refused.Data.RetryAfterMS <= 0 {
		t.Errorf("no time to try again comes with %v", refused)
	}
	// What needs no engine goes on: turns end, and the rest is a job for later.
	if d := only(t, w.EndTurn(t, "gone").Decisions); d.Decision != "removed" {
		t.Errorf("without the engine the turn's end decides %+v", d)
	}
	s.Events().Wait(t, "the teardown failed", test.Is(control.ReaperRetry, ephemeral))
	for _, v := range s.Envs(t) {
		if v.ID == persistent && v.State != control.Ready {
			t.Errorf("without the engine it is %s", v.State)
		}
	}

	proxy.Up(t)
	s.Events().WaitAfter(t, down.Seq, "the engine is back", test.Is(control.EngineUp, ""))
	test.Eventually(t, "GET /readyz answers 200", func() bool {
		status, _ := readyz(t, s)
		return status == http.StatusOK
	})
	s.Events().Wait(t, "the teardown was done after all", test.Is(control.EnvRemoved, ephemeral))
	if text := w.Run(t, persistent, "cat kept").Stdout; text != "before\n" {
		t.Errorf("the file says %q", text)
	}
	w.Acquire(t, "new", nil)
	for _, ev := range s.Events().All() {
		if ev.Kind == control.EnvLost {
			t.Errorf("while the engine did not answer, something was lost: %+v", ev)
		}
	}
	if v := s.Env(t, persistent); v.Generation != 1 {
		t.Errorf("it is in generation %d", v.Generation)
	}
}

func TestServerThatStartsWithoutItsEngine(t *testing.T) {
	test.Each(t, serverThatStartsWithoutItsEngine)
}

func serverThatStartsWithoutItsEngine(t *testing.T, on test.On) {
	proxy := test.NewEngineProxy(t)
	proxy.Down(t)
	s := on.StartBehind(t, proxy)
	if status, body := readyz(t, s); status != http.StatusServiceUnavailable {
		t.Errorf("GET /readyz: %d %s", status, body)
	}
	w := s.Wire(t)
	if e := w.Refused(t, "engine_unavailable", "env.acquire", test.Params{"task": "early"}); e.Data.RetryAfterMS <= 0 {
		t.Errorf("no time to try again comes with %v", e)
	}
	proxy.Up(t)
	test.Eventually(t, "GET /readyz answers 200", func() bool {
		status, _ := readyz(t, s)
		return status == http.StatusOK
	})
	w.Run(t, w.Acquire(t, "early", nil).Env.ID, "true")
}

func TestServerThatRestartsWithoutItsEngine(t *testing.T) {
	test.Each(t, serverThatRestartsWithoutItsEngine)
}

func serverThatRestartsWithoutItsEngine(t *testing.T, on test.On) {
	proxy := test.NewEngineProxy(t)
	s := on.StartBehind(t, proxy)
	w := s.Wire(t)
	env := w.Acquire(t, "through", test.Params{"persistent": true}).Env.ID
	w.Run(t, env, "echo before > kept")
	s.Kill(t)
	proxy.Down(t)
	s.Restart(t)
	s.Events().Wait(t, "the engine is down", test.Is(control.EngineDown, ""))
	w = s.WireAs(t, test.Identity{Session: w.Session})
	if v := w.Get(t, env); v.State != control.Ready || v.Generation != 1 {
		t.Errorf("while nothing is known of it, it is %s, generation %d", v.State, v.Generation)
	}
	proxy.Up(t)
	if text := w.Run(t, env, "cat kept").Stdout; text != "before\n" {
		t.Errorf("the file says %q", text)
	}
	if v := w.Get(t, env); v.Generation != 1 {
		t.Errorf("it is in generation %d", v.Generation)
	}
}

// A real engine is stopped and started: its containers die with it, and that is told.
func TestEngineStoppedAndStarted(t *testing.T) { test.Each(t, engineStoppedAndStarted) }

func engineStoppedAndStarted(t *testing.T, on test.On) {
	d := test.StartDockerd(t)
	s := test.StartOn(t, d.Docker)
	w := s.Wire(t)
	persistent := w.Acquire(t, "outage", test.Params{"persistent": true}).Env.ID
	ephemeral := w.Acquire(t, "outage", test.Params{"name": "scratch"}).Env.ID
	w.Run(t, persistent, "echo workspace > kept; echo root > /root/kept")

	d.Stop(t)
	down := s.Events().Wait(t, "the engine is down", test.Is(control.EngineDown, ""))
	if status, body := readyz(t, s); status != http.StatusServiceUnavailable {
		t.Errorf("GET /readyz: %d %s", status, body)
	}
	if e := w.Refused(t, "engine_unavailable", "env.acquire", test.Params{"task": "meanwhile"}); e.Data.RetryAfterMS <= 0 {
		t.Errorf("no time to try again comes with %v", e)
	}

	d.Start(t)
	s.Events().WaitAfter(t, down.Seq, "the engine is back", test.Is(control.EngineUp, ""))
	for _, env := range []string{persistent, ephemeral} {
		s.Events().Wait(t, "what died with the engine is lost", test.Is(control.EnvLost, env))
	}
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, ephemeral))
	ran := w.Run(t, persistent, "cat kept /root/kept")
	if ran.Stdout != "workspace\nroot\n" || ran.Notice == nil || ran.Notice.Generation != 2 {
		t.Errorf("after the outage it has %q, with the notice %+v", ran.Stdout, ran.Notice)
	}
	w.Run(t, w.Acquire(t, "afterwards", nil).Env.ID, "true")
	engineHas(t, s, map[string]string{persistent: "running", s.EnvOf(t, "afterwards").ID: "running"})
}
