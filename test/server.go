package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
	"sandkeeper/test/need"
)

// patience bounds every wait of a test. It is no measure of anything: what
// takes so long does not come.
const patience = 3 * time.Minute

// Server is the real server as a process. Its fields change with a Restart.
type Server struct {
	URL        string // "http://127.0.0.1:40123"
	SignInLink string // signs an operator in, once
	Instance   string
	DataDir    string
	Docker     Docker
	PID        int

	args   []string // beyond those that each server has
	engine string   // the server's DOCKER_HOST; "" for the tests' own
	local  bool     // it is on the local engine, and Docker is none
	events *Events
	cmd    *exec.Cmd
	ended  chan struct{} // closed once the process has ended, and was waited for
	log    *os.File
}

// Start starts a server on this engine, with these flags beyond the harness's own. At the end of the
// test it is stopped, what is left of it on the engine is pruned, and that nothing remains is verified.
func (on On) Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := on.Prepare(t, args...)
	s.launch(t)
	return s
}

// StartBehind starts a server that reaches docker through a proxy.
func (on On) StartBehind(t testing.TB, p *EngineProxy, args ...string) *Server {
	t.Helper()
	s := on.Prepare(t, args...)
	s.engine = p.Host
	s.launch(t)
	return s
}

// StartOn starts a server on a docker of its own.
func StartOn(t testing.TB, d Docker, args ...string) *Server {
	t.Helper()
	s := prepare(t, d, args)
	s.engine = d.Host
	s.launch(t)
	return s
}

// Prepare readies a server without starting one, for what the binary says before it serves.
func (on On) Prepare(t testing.TB, args ...string) *Server {
	t.Helper()
	if on.Name == "local" {
		s := prepare(t, Docker{}, args)
		s.local = true
		return s
	}
	return prepare(t, OpenDocker(t), args)
}

func prepare(t testing.TB, d Docker, args []string) *Server {
	t.Helper()
	s := &Server{
		Instance: "test-" + strings.ToLower(rand.Text()[:10]),
		DataDir:  filepath.Join(t.TempDir(), "data"),
		Docker:   d,
		args:     args,
	}
	var err error
	if s.log, err = os.Create(filepath.Join(t.TempDir(), "server.log")); err != nil {
		t.Fatal(err)
	}
	s.events = newEvents(t)
	t.Cleanup(func() { s.cleanUp(t) })
	return s
}

func (s *Server) launch(t testing.TB) {
	t.Helper()
	args := []string{"serve", "--listen", "127.0.0.1:0", "--data-dir", s.DataDir, "--engine", s.engineName(), "--instance", s.Instance, "--log-level", "debug"}
	if !s.local {
		args = append(args, "--image", s.Docker.Image)
	}
	args = append(args, s.args...)
	cmd := exec.Command(Binary(t), args...)
	cmd.Env = append(environ(s.engine), "GORACE=halt_on_error=1")
	cmd.Stderr = s.log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	link := make(chan string, 1)
	s.cmd, s.ended, s.PID = cmd, make(chan struct{}), cmd.Process.Pid
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if i := strings.Index(lines.Text(), "http"); i >= 0 && strings.Contains(lines.Text(), "/sign-in?code=") {
				link <- strings.TrimSpace(lines.Text()[i:])
			}
		}
		_ = cmd.Wait() // its state says how it ended
		close(s.ended)
	}()
	select {
	case s.SignInLink = <-link:
	case <-s.ended:
		if _, why, cannot := strings.Cut(s.Log(t), "cannot isolate sandboxes on this machine"); cannot {
			need.Missing(t, "local", "sandboxes cannot be isolated here"+why)
		}
		t.Fatalf("the server ended at its start: %v", cmd.ProcessState)
	case <-time.After(patience):
		t.Fatal("the server printed no link to sign in with")
	}
	s.URL, _, _ = strings.Cut(s.SignInLink, "/sign-in")
	s.events.follow(s)
}

// environ is the environment of a process of ours. Settings of whoever runs
// the tests are not the server's. engine is its DOCKER_HOST, "" for the tests' own.
func environ(engine string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "SANDKEEPER_") || engine != "" && strings.HasPrefix(kv, "DOCKER_")
	})
	if engine != "" {
		env = append(env, "DOCKER_HOST="+engine)
	}
	return env
}

// Kill ends the process as kill -9 does.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.events.unfollow()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.ended
}

// Stop ends the process gracefully.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Error("the server does not stop; it is killed")
		s.Kill(t)
	}
	s.events.unfollow()
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the server stopped with %v", s.cmd.ProcessState)
	}
}

// Running reports whether the process runs.
func (s *Server) Running() bool {
	if s.ended == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// Restart starts a server on the same data. It stops one that runs.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if s.Running() {
		s.Stop(t)
	}
	s.launch(t)
}

// CLI runs another command of the binary on the server's data and returns what it printed.
func (s *Server) CLI(t testing.TB, args ...string) string {
	t.Helper()
	out, err := s.cli(t, args)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryCLI is CLI for a command that may fail: the error has what it said.
func (s *Server) TryCLI(t testing.TB, args ...string) error {
	t.Helper()
	_, err := s.cli(t, args)
	return err
}

func (s *Server) cli(t testing.TB, args []string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(t), append(args, "--data-dir", s.DataDir)...)
	cmd.Env = environ(s.Docker.Host)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("sandkeeper %s: %w: %s%s", strings.Join(args, " "), err, out, &stderr)
	}
	return strings.TrimSpace(string(out)), nil
}

// Status makes a call with another token ("" for none) and returns the answer's status alone.
func (s *Server) Status(t testing.TB, method, path, token string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// Token reads the token that the first start made for "agent" or "operator".
func (s *Server) Token(t testing.TB, role string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.DataDir, role+".token"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// Log returns what the server logged.
func (s *Server) Log(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(s.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Do calls the operator API and returns the answer's status and body. in is sent as JSON unless nil.
func (s *Server) Do(t testing.TB, method, path string, in any) (status int, body []byte) {
	t.Helper()
	var (
		r    io.Reader
		sent []byte
	)
	if in != nil {
		var err error
		if sent, err = json.Marshal(in); err != nil {
			t.Fatal(err)
		}
		r = bytes.NewReader(sent)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.URL+path, r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token(t, "operator"))
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err = io.ReadAll(res.Body); err != nil {
		t.Fatal(err)
	}
	if err := contracttest.Exchange(method, path, sent, res.StatusCode, body); err != nil {
		t.Errorf("%s %s: %d %s: %v", method, path, res.StatusCode, body, err)
	}
	return res.StatusCode, body
}

// call reads a call's answer, which must be 200, into out.
func (s *Server) call(t testing.TB, method, path string, in, out any) {
	t.Helper()
	status, body := s.Do(t, method, path, in)
	if status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", method, path, status, body)
	}
	if err := json.Unmarshal(body, out); err != nil {
		t.Fatalf("%s %s: %v: %s", method, path, err, body)
	}
}

// Get reads a path of the operator API, which must answer 200, into out.
func (s *Server) Get(t testing.TB, path string, out any) {
	t.Helper()
	s.call(t, http.MethodGet, path, nil, out)
}

// Env reads one environment as operators see it.
func (s *Server) Env(t testing.TB, id string) control.View {
	t.Helper()
	var v control.View
	s.call(t, http.MethodGet, "/api/v1/envs/"+url.PathEscape(id), nil, &v)
	return v
}

// Envs reads every environment that is not removed.
func (s *Server) Envs(t testing.TB) []control.View {
	t.Helper()
	var page struct{ Envs []control.View }
	s.call(t, http.MethodGet, "/api/v1/envs?limit=1000", nil, &page)
	return page.Envs
}

// EnvOf finds the one environment of a task that is not removed.
func (s *Server) EnvOf(t testing.TB, task string) control.View {
	t.Helper()
	var page struct{ Envs []control.View }
	s.Get(t, "/api/v1/envs?task="+url.QueryEscape(task), &page)
	if len(page.Envs) != 1 {
		t.Fatalf("the task %q has %d environments", task, len(page.Envs))
	}
	return page.Envs[0]
}

// Act does what a button does: "pin", "unpin", "touch", "stop" or "kill". in may be nil.
func (s *Server) Act(t testing.TB, id, action string, in any) control.View {
	t.Helper()
	var v control.View
	s.call(t, http.MethodPost, "/api/v1/envs/"+url.PathEscape(id)+"/"+action, in, &v)
	return v
}

// Container finds the container of an environment; ok is false where there is none.
func (s *Server) Container(t testing.TB, env string) (c Container, ok bool) {
	t.Helper()
	for _, c := range s.Containers(t) {
		if c.Env == env {
			return c, true
		}
	}
	return Container{}, false
}

func (s *Server) engineName() string {
	if s.local {
		return "local"
	}
	return "docker"
}

// ForgetEvents says that the server's log begins anew: its database was lost.
func (s *Server) ForgetEvents(t testing.TB) {
	t.Helper()
	if s.Running() {
		t.Fatal("the server runs, and would go on with its events")
	}
	s.events = newEvents(t)
}

// Events are the server's events since its first start, across restarts.
func (s *Server) Events() *Events { return s.events }

func (s *Server) cleanUp(t testing.TB) {
	if s.Running() {
		s.Stop(t)
	}
	s.events.unfollow()
	if s.ended != nil { // one that never ran has no database
		if err := s.TryCLI(t, "check", "--no-engine"); err != nil {
			t.Error(err)
		}
	}
	s.CLI(t, "prune", "--instance", s.Instance, "--engine", s.engineName())
	for _, c := range s.Containers(t) {
		t.Errorf("left on the engine: container %s (%s)", c.Name, c.Status)
	}
	for _, v := range s.Volumes(t) {
		t.Errorf("left on the engine: volume %s", v.Name)
	}
	if s.local {
		for _, group := range localGroups(t, s.Instance) {
			t.Errorf("left on the machine: control group %s", group)
		}
	}
	log := s.Log(t)
	if strings.Contains(log, "WARNING: DATA RACE") {
		t.Error("the server has a data race")
	}
	if t.Failed() {
		t.Logf("the server's log ends with:\n%s", tail(log, 80))
	}
	if err := s.log.Close(); err != nil {
		t.Error(err)
	}
}

func tail(s string, lines int) string {
	all := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(all) > lines {
		all = append([]string{fmt.Sprintf("(%d lines before)", len(all)-lines)}, all[len(all)-lines:]...)
	}
	return strings.Join(all, "\n")
}
