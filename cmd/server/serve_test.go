package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/control"
)

// served is a server in this process, whose engine does not answer.
type served struct {
	link string
	url  string
	stop func() (code int, stderr string)
}

func startServer(t *testing.T, dir string, args ...string) *served {
	t.Helper()
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(dir, "no-engine.sock"))
	ctx, cancel := context.WithCancel(t.Context())
	stdout, w := io.Pipe()
	var stderr strings.Builder
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0"}, args...), w, &stderr)
		w.Close()
	}()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("it printed no link: exit %d: %s", <-code, stderr.String())
	}
	go io.Copy(io.Discard, stdout)
	s := &served{link: strings.TrimSpace(line[strings.Index(line, "http"):])}
	s.url, _, _ = strings.Cut(s.link, "/sign-in")
	stopped := false
	s.stop = func() (int, string) {
		stopped = true
		cancel()
		return <-code, stderr.String()
	}
	t.Cleanup(func() {
		if !stopped {
			s.stop()
		}
	})
	return s
}

func TestServerStartsStopsAndStartsAgainWithoutItsEngine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := startServer(t, dir)
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 503, "/api/v1/envs": 401, "/api/v1/agent": 401, "/nowhere": 404} {
		if status, body := do(t, http.MethodGet, s.url+path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	token, err := os.ReadFile(filepath.Join(dir, "operator.token"))
	if err != nil {
		t.Fatal(err)
	}
	if status, body := do(t, http.MethodGet, s.url+"/api/v1/envs", "", "Authorization", "Bearer "+strings.TrimSpace(string(token))); status != http.StatusOK {
		t.Errorf("with the operator's token: %d %s", status, body)
	}
	made, out, errs := sandkeeper(t, "token", "create", "--data-dir", dir, "--role", "viewer")
	if made != 0 {
		t.Fatalf("token create: exit %d: %s", made, errs)
	}
	if status, _ := do(t, http.MethodGet, s.url+"/api/v1/envs", "", "Authorization", "Bearer "+strings.TrimSpace(out)); status != http.StatusOK {
		t.Errorf("with a token made meanwhile: %d", status)
	}
	if code, stderr := s.stop(); code != 0 {
		t.Fatalf("stopped with %d: %s", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, adminSocket)); !os.IsNotExist(err) {
		t.Errorf("the admin socket is left: %v", err)
	}

	s = startServer(t, dir)
	if code, stderr := s.stop(); code != 0 {
		t.Fatalf("stopped again with %d: %s", code, stderr)
	}
	down := 0
	kinds := ""
	events, _, _, err := openStore(t, dir).Events(0, 1000, control.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		if ev.Kind == control.ServerStarted || ev.Kind == control.ServerStopping {
			kinds += string(ev.Kind) + " "
		}
		if ev.Kind == control.EngineDown {
			down++
		}
	}
	if down != 2 {
		t.Errorf("that the engine is down is told %d times in two starts", down)
	}
	if want := "server.started server.stopping server.started server.stopping "; kinds != want {
		t.Errorf("the log says %s", kinds)
	}
}

func TestLinkSignsInOnce(t *testing.T) {
	s := startServer(t, t.TempDir())
	stay := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	get := func() *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.link, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := stay.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res
	}
	if first := get(); first.StatusCode != http.StatusSeeOther || len(first.Cookies()) == 0 || strings.Contains(first.Header.Get("Location"), "code") {
		t.Errorf("first: %s to %q", first.Status, first.Header.Get("Location"))
	}
	if again := get(); len(again.Cookies()) > 0 && again.StatusCode == http.StatusSeeOther {
		t.Errorf("again: %s", again.Status)
	}
}

func TestSecondServerIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := startServer(t, dir)
	addr := strings.TrimPrefix(s.url, "http://")
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"on the same data":    {[]string{"--data-dir", dir, "--listen", "127.0.0.1:0"}, 1, dir},
		"on the same address": {[]string{"--data-dir", t.TempDir(), "--listen", addr}, 1, addr},
		"as another instance": {[]string{"--data-dir", dir, "--instance", "another"}, 2, "another"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := sandkeeper(t, append([]string{"serve", "--log-level", "error"}, tc.args...)...)
			if code != tc.code || out != "" || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, tc.want) {
				t.Errorf("exit %d, printed %q, %q", code, out, errs)
			}
		})
	}
	if status, _ := do(t, http.MethodGet, s.url+"/healthz", ""); status != http.StatusOK {
		t.Errorf("the first one: %d", status)
	}
}
