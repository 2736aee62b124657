package test_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

func TestOwnersAreApart(t *testing.T) { test.Each(t, ownersAreApart) }

func ownersAreApart(t *testing.T, on test.On) {
	s := on.Start(t)
	alice := s.WireAs(t, test.Identity{Token: s.CLI(t, "token", "create", "--role", "agent", "--owner", "alice")})
	bob := s.WireAs(t, test.Identity{Token: s.CLI(t, "token", "create", "--role", "agent", "--owner", "bob")})
	env := alice.Acquire(t, "shared name", test.Params{"persistent": true}).Env
	alice.Run(t, env.ID, "echo secret > secret")
	if env.Owner != "alice" {
		t.Errorf("the owner is %q", env.Owner)
	}
	ref := func(p test.Params) test.Params {
		p["env"] = env.ID
		return p
	}
	unknown := bob.Refused(t, "not_found", "env.get", test.Params{"env": "nosuchenv0"})
	for method, p := range map[string]test.Params{
		"env.get": {}, "env.touch": {}, "env.release": {"purge": true}, "exec.list": {},
		"exec.run":  {"command": "cat secret"},
		"file.read": {"path": "secret"}, "file.stat": {"path": "secret"}, "file.list": {"path": "."},
		"file.write": {"path": "secret", "data": ""}, "file.remove": {"path": "secret"}, "file.mkdir": {"path": "d"},
	} {
		e := bob.Refused(t, "not_found", method, ref(p))
		if strings.ReplaceAll(e.Message, env.ID, "ID") != strings.ReplaceAll(unknown.Message, "nosuchenv0", "ID") || e.Code != unknown.Code {
			t.Errorf("%s tells another's environment from an unknown one: %q, %q", method, e.Message, unknown.Message)
		}
	}
	// Also where the rest of the call makes no sense.
	bob.Refused(t, "not_found", "exec.run", ref(test.Params{"command": "x\x00y"}))
	bob.Refused(t, "not_found", "exec.run", ref(test.Params{"command": "true", "generation": 99}))
	bob.Refused(t, "not_found", "env.get", test.Params{"task": "shared name"})
	var list struct{ Envs []control.View }
	if bob.Call(t, "env.list", test.Params{}, &list); len(list.Envs) > 0 {
		t.Errorf("bob sees %+v", list.Envs)
	}
	if rows := bob.EndTurn(t, "shared name").Decisions; len(rows) > 0 {
		t.Errorf("bob's turn end decides %+v", rows)
	}
	if v := alice.Get(t, env.ID); !v.Turn.Open || v.State != control.Ready {
		t.Errorf("after bob's turn end alice's is %s, its turn %+v", v.State, v.Turn)
	}
	theirs := bob.Acquire(t, "shared name", nil).Env
	if theirs.ID == env.ID || theirs.Generation != 1 {
		t.Errorf("bob's own is %s, generation %d", theirs.ID, theirs.Generation)
	}
	// A session's name is its owner's alone.
	stranger := s.WireAs(t, test.Identity{Token: s.CLI(t, "token", "create", "--role", "agent", "--owner", "bob"), Session: alice.Session})
	if stranger.Resumed || stranger.Session == alice.Session {
		t.Error("a session was resumed by another owner")
	}
	alice.Run(t, env.ID, "cat secret")

	// An operator acts for the owner that the header names.
	op := s.WireAs(t, test.Identity{Token: s.Token(t, "operator"), Header: http.Header{"Sandkeeper-Owner": {"alice"}}})
	if text := op.Run(t, env.ID, "cat secret").Stdout; text != "secret\n" {
		t.Errorf("for alice an operator reads %q", text)
	}
	op = s.WireAs(t, test.Identity{Token: s.Token(t, "operator")})
	op.Refused(t, "not_found", "env.get", test.Params{"env": env.ID})
}

func TestRolesAtTheDoors(t *testing.T) { test.Each(t, rolesAtTheDoors) }

func rolesAtTheDoors(t *testing.T, on test.On) {
	s := on.Start(t)
	env := s.Wire(t).Acquire(t, "roles", test.Params{"persistent": true}).Env.ID
	viewer := s.CLI(t, "token", "create", "--role", "viewer", "--name", "wall")
	operator := s.CLI(t, "token", "create", "--role", "operator", "--name", "olga")
	tokens := map[string]string{"agent": s.Token(t, "agent"), "viewer": viewer, "operator": operator, "none": "", "wrong": "sk_operator_wrong"}
	gets := []string{"/api/v1/envs", "/api/v1/envs/" + env, "/api/v1/forecast", "/api/v1/events", "/api/v1/events/stream", "/api/v1/engine"}
	posts := []string{"pin", "unpin", "touch", "stop", "kill"}
	want := map[string]struct{ get, post int }{
		"agent": {403, 403}, "viewer": {200, 403}, "operator": {200, 0}, "none": {401, 401}, "wrong": {401, 401},
	}
	for role, token := range tokens {
		for _, path := range gets {
			if status := s.Status(t, http.MethodGet, path, token); status != want[role].get {
				t.Errorf("%s: GET %s answers %d, not %d", role, path, status, want[role].get)
			}
		}
		if want[role].post == 0 {
			continue
		}
		for _, action := range posts {
			if status := s.Status(t, http.MethodPost, "/api/v1/envs/"+env+"/"+action, token); status != want[role].post {
				t.Errorf("%s: POST %s answers %d, not %d", role, action, status, want[role].post)
			}
		}
		for _, path := range []string{"/healthz", "/readyz"} {
			if status := s.Status(t, http.MethodGet, path, token); status != 200 {
				t.Errorf("%s: GET %s answers %d", role, path, status)
			}
		}
	}
	if v := s.Env(t, env); v.Pinned || v.State != control.Ready {
		t.Errorf("what was refused was done: it is %s, pinned %t", v.State, v.Pinned)
	}
	for _, action := range []string{"pin", "unpin", "touch"} {
		if status := s.Status(t, http.MethodPost, "/api/v1/envs/"+env+"/"+action, operator); status != 200 {
			t.Errorf("operator: POST %s answers %d", action, status)
		}
	}
	pinned := s.Events().Wait(t, "it was pinned", test.Is(control.EnvPinned, env))
	if pinned.Actor != "operator:olga" {
		t.Errorf("it was pinned by %q", pinned.Actor)
	}

	// The agents' socket.
	for role, status := range map[string]int{"none": 401, "wrong": 401, "viewer": 403} {
		header := http.Header{"Authorization": {"Bearer " + tokens[role]}}
		if got := s.UpgradeRefused(t, test.Identity{Header: header}); got != status {
			t.Errorf("%s: the upgrade answers %d, not %d", role, got, status)
		}
	}
	own := strings.TrimPrefix(s.URL, "http://")
	for origin, status := range map[string]int{"https://evil.example": 403, "null": 403, "http://" + own: 0} {
		who := test.Identity{Header: http.Header{"Origin": {origin}}}
		if status == 0 {
			s.WireAs(t, who)
		} else if got := s.UpgradeRefused(t, who); got != status {
			t.Errorf("Origin %s: the upgrade answers %d, not %d", origin, got, status)
		}
	}
}

func TestTokensAreMadeWithAndWithoutAServer(t *testing.T) {
	test.Each(t, tokensAreMadeWithAndWithoutAServer)
}

func tokensAreMadeWithAndWithoutAServer(t *testing.T, on test.On) {
	s := on.Start(t)
	running := s.CLI(t, "token", "create", "--role", "agent", "--owner", "alice", "--name", "laptop")
	s.WireAs(t, test.Identity{Token: running})
	s.Stop(t)
	stopped := s.CLI(t, "token", "create", "--role", "viewer")
	if strings.ContainsAny(running+stopped, " \n") || running == stopped {
		t.Errorf("the tokens are %q and %q", running, stopped)
	}
	s.Restart(t)
	s.WireAs(t, test.Identity{Token: running})
	if status := s.Status(t, http.MethodGet, "/api/v1/envs", stopped); status != 200 {
		t.Errorf("the token that was made without a server gets %d", status)
	}
	for _, role := range []string{"agent", "operator"} {
		info, err := os.Stat(filepath.Join(s.DataDir, role+".token"))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("the %s's token is kept with the mode %o", role, mode)
		}
	}
	for _, args := range [][]string{{"--role", "emperor"}, {}, {"--role", "agent", "--owner", "a\nb"}, {"--role", "agent", "--owner", strings.Repeat("x", 129)}} {
		if err := s.TryCLI(t, append([]string{"token", "create"}, args...)...); err == nil {
			t.Errorf("token create %q makes a token", args)
		}
	}
	db, err := os.ReadFile(filepath.Join(s.DataDir, "sandkeeper.db"))
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{running, stopped, s.Token(t, "agent"), s.Token(t, "operator")} {
		if strings.Contains(string(db), token) || strings.Contains(s.Log(t), token) {
			t.Error("a token is in the database or in the log")
		}
	}
}

func TestListeningBeyondLoopbackIsSaidTwice(t *testing.T) {
	test.Each(t, listeningBeyondLoopbackIsSaidTwice)
}

func listeningBeyondLoopbackIsSaidTwice(t *testing.T, on test.On) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		s := on.Prepare(t)
		err := s.TryCLI(t, "serve", "--listen", addr, "--engine", on.Name)
		if err == nil || !strings.Contains(err.Error(), "--insecure-listen-beyond-loopback") {
			t.Errorf("--listen %s: %v", addr, err)
		}
	}
	s := on.Start(t, "--listen", "0.0.0.0:0", "--insecure-listen-beyond-loopback")
	if status, _ := s.Do(t, http.MethodGet, "/healthz", nil); status != 200 {
		t.Errorf("said twice, GET /healthz answers %d", status)
	}
}
