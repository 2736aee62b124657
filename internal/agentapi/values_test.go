package agentapi

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// Every kind of bad value gets the error that the protocol names, and the
// socket lives on.
func TestBadValuesOnARealPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := serveReal(t)
		r.engine.MissImage("nowhere/none:1", errors.New("pull access denied for nowhere/none"))
		p := r.dial(t)
		p.call("hello", `{"agent":"a"}`)
		if a := p.until("env.acquire", `{"task":"t"}`); a.Error != nil {
			t.Fatal(a.Error)
		}
		long := strings.Repeat("x", 5000)
		for name, tt := range map[string]struct {
			method, params string
			code           int
		}{
			"a lifetime of none":                   {"env.acquire", `{"task":"t","lifetime_seconds":0}`, codeInvalidParams},
			"a negative lifetime":                  {"env.acquire", `{"task":"t","lifetime_seconds":-300}`, codeInvalidParams},
			"a lifetime over a year":               {"env.acquire", `{"task":"t","lifetime_seconds":31536001}`, codeInvalidParams},
			"a lifetime beyond all numbers":        {"env.acquire", `{"task":"t","lifetime_seconds":1e400}`, codeInvalidParams},
			"an age below all numbers":             {"env.acquire", `{"task":"t","max_age_seconds":-1e400}`, codeInvalidParams},
			"negative cpus":                        {"env.acquire", `{"task":"t","limits":{"cpus":-1}}`, codeInvalidParams},
			"memory beyond all":                    {"env.acquire", `{"task":"t","limits":{"memory_mb":9e18}}`, codeInvalidParams},
			"a network of another name":            {"env.acquire", `{"task":"t","network":"host"}`, codeInvalidParams},
			"an on_drift of another name":          {"env.acquire", `{"task":"t","on_drift":"explode"}`, codeInvalidParams},
			"a relative workdir":                   {"env.acquire", `{"task":"t","workdir":"here"}`, codeInvalidParams},
			"a workdir with a NUL":                 {"env.acquire", `{"task":"t","workdir":"/a\u0000"}`, codeInvalidParams},
			"an image with a control character":    {"env.acquire", `{"task":"t","image":"a\u0007"}`, codeInvalidParams},
			"an empty image":                       {"env.acquire", `{"task":"t","image":""}`, codeInvalidParams},
			"a variable that is no name":           {"env.acquire", `{"task":"t","variables":{"A=B":"c"}}`, codeInvalidParams},
			"a variable with a NUL":                {"env.acquire", `{"task":"t","variables":{"A":"\u0000"}}`, codeInvalidParams},
			"a label with a control character":     {"env.acquire", `{"task":"t","labels":{"a\n":"b"}}`, codeInvalidParams},
			"an unknown image":                     {"env.acquire", `{"task":"t2","image":"nowhere/none:1"}`, codeImage},
			"drift that is an error":               {"env.acquire", `{"task":"t","image":"other","on_drift":"error"}`, codeConflict},
			"a command with a NUL":                 {"exec.run", `{"task":"t","command":"a\u0000b"}`, codeInvalidParams},
			"an argument with a NUL":               {"exec.run", `{"task":"t","argv":["a","\u0000"]}`, codeInvalidParams},
			"a program without a name":             {"exec.run", `{"task":"t","argv":[""]}`, codeInvalidParams},
			"a timeout of none":                    {"exec.run", `{"task":"t","command":"true","timeout_seconds":0}`, codeInvalidParams},
			"a timeout over a day":                 {"exec.run", `{"task":"t","command":"true","timeout_seconds":86401}`, codeInvalidParams},
			"a negative output limit":              {"exec.run", `{"task":"t","command":"true","output_limit":-1}`, codeInvalidParams},
			"an output limit over the most":        {"exec.run", `{"task":"t","command":"true","output_limit":400001}`, codeInvalidParams},
			"an id with a control character":       {"exec.run", `{"task":"t","command":"true","id":"a\u0000"}`, codeInvalidParams},
			"a directory that is not there":        {"exec.run", `{"task":"t","command":"true","cwd":"/nowhere"}`, codeNotFound},
			"another generation":                   {"exec.run", `{"task":"t","command":"true","generation":7}`, codeGenerationGone},
			"a generation beyond all numbers":      {"exec.run", `{"task":"t","command":"true","generation":1e300}`, codeGenerationGone},
			"a bad timeout for an unknown task":    {"exec.run", `{"task":"none","command":"true","timeout_seconds":0}`, codeNotFound},
			"two commands for an unknown task":     {"exec.run", `{"task":"none","command":"true","argv":["true"]}`, codeNotFound},
			"an unknown env":                       {"env.get", `{"env":"none"}`, codeNotFound},
			"an env that is no id":                 {"env.get", `{"env":"a/../\u0000` + long + `"}`, codeNotFound},
			"another name of the task":             {"env.touch", `{"task":"t","name":"other"}`, codeNotFound},
			"a turn from the future":               {"turn.end", `{"task":"t","turn":2}`, codeInvalidParams},
			"a turn below all":                     {"turn.end", `{"task":"t","turn":-1}`, codeInvalidParams},
			"an outcome of another name":           {"turn.end", `{"task":"t","outcome":"meh"}`, codeInvalidParams},
			"a path with a NUL":                    {"file.read", `{"task":"t","path":"a\u0000"}`, codeInvalidParams},
			"a path without end":                   {"file.read", `{"task":"t","path":"` + long + `"}`, codeInvalidParams},
			"a path that is no file":               {"file.read", `{"task":"t","path":"/workspace"}`, codeInvalidParams},
			"a path that is not there":             {"file.stat", `{"task":"t","path":"/none"}`, codeNotFound},
			"a negative offset":                    {"file.read", `{"task":"t","path":"p","offset":-1}`, codeInvalidParams},
			"a length over the most":               {"file.read", `{"task":"t","path":"p","length":524289}`, codeInvalidParams},
			"a bad length for an unknown env":      {"file.read", `{"env":"none","path":"p","length":-1}`, codeNotFound},
			"a list of what is no directory":       {"file.list", `{"task":"t","path":"/none"}`, codeNotFound},
			"a directory in one that is not there": {"file.mkdir", `{"task":"t","path":"/none/below"}`, codeNotFound},
		} {
			a := p.until(tt.method, tt.params)
			switch {
			case a.Error == nil:
				t.Errorf("%s: taken: %s", name, a.Result)
			case a.Error.Code != tt.code:
				t.Errorf("%s: %v, want code %d", name, a.Error, tt.code)
			case a.Error.Code == codeImage && !strings.Contains(a.Error.Message, "pull access denied"):
				t.Errorf("%s: %q lacks the engine's own words", name, a.Error.Message)
			}
		}
		if a := p.until("env.get", `{"task":"t"}`); a.Error != nil {
			t.Errorf("after all that: %v", a.Error)
		}
	})
}

// until makes a call and skips the notifications before its answer.
func (p *peer) until(method, params string) reply {
	p.t.Helper()
	a := p.call(method, params)
	for a.Method != "" {
		a = p.receive()
	}
	return a
}

// Owners are apart: what is another's is answered like what is not there.
func TestAnotherOwnersEnvironmentIsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := serveReal(t)
		p := r.dial(t)
		p.call("hello", `{"agent":"a"}`)
		a := p.until("env.acquire", `{"task":"t"}`)
		_, rest, _ := strings.Cut(string(a.Result), `"id":"`)
		id, _, _ := strings.Cut(rest, `"`)

		other := dialAs(t, r.url, "operator", r.pipes.dial)
		other.call("hello", `{"agent":"b"}`)
		mine := other.until("env.get", `{"env":"`+id+`"}`)
		none := other.until("env.get", `{"env":"`+strings.Repeat("0", len(id))+`"}`)
		if mine.Error == nil || none.Error == nil || mine.Error.Code != codeNotFound {
			t.Fatalf("got %v and %v", mine.Error, none.Error)
		}
		if strings.ReplaceAll(mine.Error.Message, id, "") != strings.ReplaceAll(none.Error.Message, strings.Repeat("0", len(id)), "") {
			t.Errorf("%q tells that there is one, %q does not", mine.Error.Message, none.Error.Message)
		}
		if a := other.until("env.list", `{}`); string(a.Result) != `{"envs":[]}` {
			t.Errorf("it lists %s", a.Result)
		}
		for _, method := range []string{"env.touch", "env.release", "exec.list"} {
			if a := other.until(method, `{"env":"`+id+`"}`); a.Error == nil || a.Error.Code != codeNotFound {
				t.Errorf("%s: %v", method, a.Error)
			}
		}
	})
}
