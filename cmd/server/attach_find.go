package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sandkeeper/client"
)

// serverVariable names the server for the commands that are its clients.
const serverVariable = envPrefix + "_SERVER"

// destination is a server, and as whom to go there.
type destination struct {
	url   string
	token string
	from  string // where the token is from, for people
	owner string // "" for the token's own
}

// whereTo finds the server and a token for it.
func whereTo(ctx context.Context, c *config, spec attachSpec) (destination, error) {
	d := destination{url: spec.server, owner: spec.owner}
	if d.url == "" {
		var st adminStatus
		err := callAdmin(ctx, c.dataDir, http.MethodGet, "/status", nil, &st)
		switch {
		case errors.Is(err, errNoServer):
			return d, fmt.Errorf("no server runs on the data in %s: start one, name its --data-dir, or say where it is by --server", c.dataDir)
		case err != nil:
			return d, err
		case st.URL == "":
			return d, errors.New("the server is starting: try again in a moment")
		}
		d.url = st.URL
	}
	var err error
	if d.token, d.from, err = findToken(c); err != nil {
		return d, err
	}
	if d.owner == "" {
		d.owner = ownerOf(ctx, d, spec.env)
	}
	return d, nil
}

// findToken prefers an operator's, which reaches every owner's environments.
func findToken(c *config) (token, from string, err error) {
	for _, t := range []struct{ preset, role string }{{c.operatorToken, "operator"}, {c.agentToken, "agent"}} {
		if t.preset != "" {
			return t.preset, "the setting " + t.role + "-token", nil
		}
	}
	for _, role := range []string{"operator", "agent"} {
		file := filepath.Join(c.dataDir, role+".token")
		b, err := os.ReadFile(file)
		if tok := strings.TrimSpace(string(b)); err == nil && tok != "" {
			return tok, file, nil
		}
	}
	return "", "", usagef("no token: set SANDKEEPER_OPERATOR_TOKEN or SANDKEEPER_AGENT_TOKEN, or name the server's --data-dir")
}

// maxEnvBody bounds what is read of one environment.
const maxEnvBody = 4 << 20

// ownerOf asks whose environment an id is, which operators alone may. "" is
// for whatever the server then says of it.
func ownerOf(ctx context.Context, d destination, id string) string {
	u, err := url.Parse(d.url)
	if err != nil {
		return ""
	}
	u = u.JoinPath("/api/v1/envs", url.PathEscape(id))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return ""
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	var env struct {
		Owner string `json:"owner"`
	}
	if res.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(res.Body, maxEnvBody)).Decode(&env) != nil {
		return ""
	}
	return env.Owner
}

// explain says what a failed connection means.
func (d destination) explain(err error) error {
	if h, ok := errors.AsType[*client.HandshakeError](err); ok {
		switch h.Status {
		case http.StatusUnauthorized:
			return fmt.Errorf("%s does not know the token of %s", d.url, d.from)
		case http.StatusForbidden:
			return fmt.Errorf("%s does not allow it with the token of %s: %s", d.url, d.from, cmp.Or(h.Message, "forbidden"))
		}
		return err
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		err = e // without how it was asked
	}
	return fmt.Errorf("no server answers at %s: %w", d.url, err)
}

// find turns what the user calls an environment into a reference: an id, or
// task and name, which may have slashes of their own, or a task.
func (a *attachment) find(ctx context.Context) (client.Ref, error) {
	var failed error
	for _, r := range meanings(a.spec.env) {
		env, err := a.client.Env(ctx, r)
		if err == nil {
			return env.Ref(), nil
		}
		switch {
		case errors.Is(err, client.KindNotFound):
		case errors.Is(err, client.KindGenerationGone):
			failed = cmp.Or(failed, goneError(a.spec.env, err))
		case errors.Is(err, client.KindInvalidParams): // no name of anything
		default:
			return r, err
		}
	}
	return client.Ref{}, cmp.Or(failed, fmt.Errorf("there is no environment %q", a.spec.env))
}

// meanings are what a user may mean, the likeliest first.
func meanings(s string) []client.Ref {
	var all []client.Ref
	if !strings.Contains(s, "/") {
		all = append(all, client.ByID(s))
	}
	all = append(all, client.ByTask(s))
	for i, c := range s {
		if c == '/' && i > 0 && i < len(s)-1 {
			all = append(all, client.Ref{Task: s[:i], Name: s[i+1:]})
		}
	}
	return all
}

func goneError(env string, err error) error {
	if e, ok := errors.AsType[*client.Error](err); ok && e.Tombstone != nil {
		return fmt.Errorf("the environment %q is gone: %s, by %s at %s", env, e.Tombstone.Reason, e.Tombstone.Actor, e.Tombstone.At.Local().Format("15:04:05"))
	}
	return fmt.Errorf("the environment %q is gone", env)
}

// runsThere sees to it that a command is of the environment that was named.
func (a *attachment) runsThere(ctx context.Context, r client.Ref) error {
	execs, err := a.client.Execs(ctx, r)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(execs, func(e client.Exec) bool { return e.Exec == a.spec.exec }) {
		return fmt.Errorf("no command %s runs in the environment %q, nor has lately ended there", a.spec.exec, a.spec.env)
	}
	return nil
}
