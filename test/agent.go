package test

import (
	"context"
	"testing"

	"sandkeeper/client"
)

// Agent is the public client, connected, whose calls fail the test where they
// fail. Client has the rest, for calls that are to fail.
type Agent struct {
	*client.Client
	t testing.TB
}

// Agent connects an agent by the token of the first start.
func (s *Server) Agent(t testing.TB, name string) *Agent {
	t.Helper()
	return s.AgentBy(t, name, s.Token(t, "agent"))
}

// AgentBy connects an agent by another token.
func (s *Server) AgentBy(t testing.TB, name, token string) *Agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := client.Dial(ctx, client.Options{URL: s.URL, Token: token, Agent: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // its server may be gone by then
	return &Agent{Client: c, t: t}
}

// Acquire acquires an environment.
func (a *Agent) Acquire(r client.AcquireRequest) *client.Acquired {
	a.t.Helper()
	return must(a, func(ctx context.Context) (*client.Acquired, error) { return a.Client.Acquire(ctx, r) })
}

// Run runs a command to its end, whatever that is.
func (a *Agent) Run(env string, r client.RunRequest) *client.RunResult {
	a.t.Helper()
	return must(a, func(ctx context.Context) (*client.RunResult, error) {
		return a.Client.Run(ctx, client.ByID(env), r)
	})
}

// Sh runs shell text, which must end with 0, and returns what it printed.
func (a *Agent) Sh(env, command string) string {
	a.t.Helper()
	r := a.Run(env, client.RunRequest{Command: command})
	if r.ExitCode != 0 {
		a.t.Fatalf("%s: exit %d: %s%s", command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return string(r.Stdout)
}

// EndTurn ends the task's turn as done.
func (a *Agent) EndTurn(task string) *client.TurnEnded {
	a.t.Helper()
	return must(a, func(ctx context.Context) (*client.TurnEnded, error) {
		return a.Client.EndTurn(ctx, task, client.TurnDone)
	})
}

// must makes a call that is to succeed.
func must[T any](a *Agent, call func(context.Context) (T, error)) T {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := call(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	return v
}
