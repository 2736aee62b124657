package dashboard

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
)

// handler is the dashboard's echo, as the server mounts it.
func (h *house) handler() *echo.Echo {
	e := echo.New()
	e.IPExtractor = echo.ExtractIPDirect()
	h.Register(e)
	return e
}

// call asks with a bearer token ("" for none).
func call(t testing.TB, e http.Handler, method, target, token, body string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	if err := contracttest.Exchange(method, target, []byte(body), w.Code, w.Body.Bytes()); err != nil {
		t.Errorf("%s %s: %d %s: %v", method, target, w.Code, w.Body, err)
	}
	return w.Result()
}

func read(t testing.TB, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAPIAnswersEveryCallByRoleAndForm(t *testing.T) {
	tests := []struct {
		name, method, target, token, body string
		status                            int
		has                               []string
	}{
		{"no token", "GET", "/api/v1/envs", "", "", 401, []string{`"kind":"unauthorized"`}},
		{"wrong token", "GET", "/api/v1/envs", "nope", "", 401, []string{`"kind":"unauthorized"`}},
		{"agent looks", "GET", "/api/v1/envs", "tok-agent", "", 403, []string{`"kind":"forbidden"`, "websocket"}},
		{"agent acts", "POST", "/api/v1/envs/e1/kill", "tok-agent", "", 403, []string{`"kind":"forbidden"`}},
		{"viewer looks", "GET", "/api/v1/envs", "look", "", 200, []string{`"id":"e1"`, `"next":null`}},
		{"viewer acts", "POST", "/api/v1/envs/e1/touch", "look", "", 403, []string{`"kind":"forbidden"`}},
		{"list", "GET", "/api/v1/envs?state=ready&limit=1", "op", "", 200, []string{`"id":"e1"`, `"next":"e1"`}},
		{"list goes on", "GET", "/api/v1/envs?limit=1&after=e1", "op", "", 200, []string{`"id":"e2"`, `"next":null`}},
		{"limit is clamped", "GET", "/api/v1/envs?limit=99999999999999999999", "op", "", 200, []string{`"id":"e2"`}},
		{"limit 0", "GET", "/api/v1/envs?limit=0", "op", "", 400, []string{`"kind":"invalid_params"`, "limit"}},
		{"limit is no number", "GET", "/api/v1/envs?limit=ten", "op", "", 400, []string{"limit", "ten"}},
		{"unknown parameter", "GET", "/api/v1/envs?sate=ready", "op", "", 400, []string{"sate", "state"}},
		{"parameter given twice", "GET", "/api/v1/envs?q=a&q=b", "op", "", 400, []string{"more than once"}},
		{"unknown state", "GET", "/api/v1/envs?state=redy", "op", "", 400, []string{"redy", "dormant"}},
		{"NUL in a parameter", "GET", "/api/v1/envs?q=%00", "op", "", 400, []string{"not valid text"}},
		{"one", "GET", "/api/v1/envs/e1", "op", "", 200, []string{`"task":"t-1"`}},
		{"none", "GET", "/api/v1/envs/nope", "op", "", 404, []string{`"kind":"not_found"`}},
		{"removed", "GET", "/api/v1/envs/gone", "op", "", 410, []string{`"kind":"generation_gone"`, `"tombstone":{"reason":"turn ended"`}},
		{"pin without a body", "POST", "/api/v1/envs/e1/pin", "op", "", 200, []string{`"pinned":true`}},
		{"pin with reason and end", "POST", "/api/v1/envs/e1/pin", "op", `{"reason":"look at it","until":"2999-01-01T00:00:00Z"}`, 200, []string{`"reason":"look at it"`, `"until":"2999-01-01T00:00:00.000Z"`}},
		{"pin into the past", "POST", "/api/v1/envs/e1/pin", "op", `{"until":"2001-01-01T00:00:00Z"}`, 400, []string{"future"}},
		{"pin into the past of none", "POST", "/api/v1/envs/nope/pin", "op", `{"until":"2001-01-01T00:00:00Z"}`, 404, []string{`"kind":"not_found"`}},
		{"pin beyond the years", "POST", "/api/v1/envs/e1/pin", "op", `{"until":"9999-12-31T23:59:59-05:00"}`, 400, []string{"until"}},
		{"pin until no time", "POST", "/api/v1/envs/e1/pin", "op", `{"until":"soon"}`, 400, []string{"until", "RFC 3339"}},
		{"pin with control characters", "POST", "/api/v1/envs/e1/pin", "op", `{"reason":"a\u0000b"}`, 400, []string{"reason"}},
		{"unknown field", "POST", "/api/v1/envs/e1/pin", "op", `{"reson":"x"}`, 400, []string{"unknown field", "reson"}},
		{"field of the wrong type", "POST", "/api/v1/envs/e1/kill", "op", `{"purge":"yes"}`, 400, []string{"purge", "boolean", "string"}},
		{"body is no object", "POST", "/api/v1/envs/e1/unpin", "op", `[]`, 400, []string{"object"}},
		{"body is no JSON", "POST", "/api/v1/envs/e1/unpin", "op", `{`, 400, []string{"JSON"}},
		{"two bodies", "POST", "/api/v1/envs/e1/unpin", "op", `{}{}`, 400, []string{"more than one"}},
		{"huge body", "POST", "/api/v1/envs/e1/pin", "op", `{"reason":"` + strings.Repeat("x", maxBody) + `"}`, 413, []string{"too large"}},
		{"a POST takes no parameters", "POST", "/api/v1/envs/e1/kill?purge=true", "op", "", 400, []string{"purge"}},
		{"unpin", "POST", "/api/v1/envs/e1/unpin", "op", "{}", 200, []string{`"pinned":false`}},
		{"touch", "POST", "/api/v1/envs/e1/touch", "op", " ", 200, []string{`"id":"e1"`}},
		{"stop", "POST", "/api/v1/envs/e1/stop", "op", "", 200, []string{`"state":"dormant"`}},
		{"kill", "POST", "/api/v1/envs/e1/kill", "op", "", 200, []string{`"state":"dormant"`}},
		{"kill with purge", "POST", "/api/v1/envs/e1/kill", "op", `{"purge":true}`, 200, []string{`"state":"removed"`}},
		{"forecast", "GET", "/api/v1/forecast?within=600", "look", "", 200, []string{`"forecast":[{"env":"e1"`, `"now":"`}},
		{"nothing is due", "GET", "/api/v1/forecast?within=1", "op", "", 200, []string{`"forecast":[]`}},
		{"forecast without a bound", "GET", "/api/v1/forecast", "look", "", 200, []string{`"forecast":[{"env":"e1"`}},
		{"forecast beyond all bounds", "GET", "/api/v1/forecast?within=99999999999999999999", "op", "", 200, []string{`"forecast":[{"env":"e1"`}},
		{"forecast of what is due by now", "GET", "/api/v1/forecast?within=0", "op", "", 200, []string{`"forecast":[]`}},
		{"forecast of a negative time", "GET", "/api/v1/forecast?within=-1", "op", "", 400, []string{"within"}},
		{"events", "GET", "/api/v1/events?after=1&limit=1", "op", "", 200, []string{`"events":[{"seq":2`, `"first":1`, `"last":3`}},
		{"an event has every member", "GET", "/api/v1/events?limit=1", "op", "", 200, []string{`"env":"e1","owner":null,"task":null,"name":null,"actor":"operator:ann","reason":"","data":{}`}},
		{"events of a kind", "GET", "/api/v1/events?kind=env.ready", "op", "", 200, []string{`"kind":"env.ready"`}},
		{"events of no kind", "GET", "/api/v1/events?kind=Ready!", "op", "", 400, []string{"kind"}},
		{"events after no number", "GET", "/api/v1/events?after=-1", "op", "", 400, []string{"after"}},
		{"engine", "GET", "/api/v1/engine", "look", "", 200, []string{`"name":"docker"`, `"reachable":true`, `"enforces":["cpus"`}},
		{"orphans", "GET", "/api/v1/orphans", "look", "", 200, []string{`"orphans":[{"sandbox":"sk-lost","env":"lost","owner":"ann"`, `"stopped":true`}},
		{"adopt an orphan", "POST", "/api/v1/orphans/sk-lost/adopt", "op", "", 200, []string{`"id":"lost"`, `"state":"dormant"`}},
		{"purge an orphan", "POST", "/api/v1/orphans/sk-lost/purge", "op", "", 200, []string{`"orphans":[]`}},
		{"adopt none", "POST", "/api/v1/orphans/nope/adopt", "op", "", 404, []string{`"kind":"not_found"`}},
		{"a viewer purges an orphan", "POST", "/api/v1/orphans/sk-lost/purge", "look", "", 403, []string{`"kind":"forbidden"`}},
		{"a backup that nobody makes", "POST", "/api/v1/backup", "op", "", 400, []string{"no database"}},
		{"a viewer's backup", "POST", "/api/v1/backup", "look", "", 403, []string{`"kind":"forbidden"`}},
		{"nothing there", "GET", "/api/v1/nothing", "op", "", 404, []string{`"kind":"not_found"`}},
		{"another method", "DELETE", "/api/v1/envs/e1", "op", "", 405, []string{`"kind":"method_not_allowed"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t, nil)
			h.plane.orphans = []control.Orphan{{Name: "sk-lost", Env: "lost", Owner: "ann", Task: "t", EnvName: "main", FoundAt: time.Now(), Stopped: true}}
			h.plane.put(readyEnv("e1", "t-1"), control.Event{Kind: control.EnvTouched, Env: "e1", Actor: "operator:ann"}, control.Event{Kind: control.EnvReady, Env: "e1",
				Actor: "agent:hermes", Data: map[string]any{"generation": 1, "image_id": "sha256:0", "unenforced": []string{}}})
			e2 := readyEnv("e2", "t-2")
			e2.Deadline = nil
			h.plane.put(e2)
			h.plane.remove("gone", control.Tombstone{Reason: "turn ended", Actor: "agent:hermes", Generation: 1}, control.Event{Kind: control.EnvRemoved, Env: "gone"})

			res := call(t, h.handler(), tt.method, tt.target, tt.token, tt.body)
			body := read(t, res.Body)
			if res.StatusCode != tt.status {
				t.Fatalf("status %d, want %d: %s", res.StatusCode, tt.status, body)
			}
			if ct := res.Header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
				t.Errorf("content type %q", ct)
			}
			if tt.status >= 400 {
				var e errorBody
				if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error.Kind == "" || e.Error.Message == "" {
					t.Errorf("not an error with kind and message: %s", body)
				}
			}
			for _, want := range tt.has {
				if !strings.Contains(body, want) && !strings.Contains(strings.ReplaceAll(body, `\"`, `"`), want) {
					t.Errorf("%q is not in %s", want, body)
				}
			}
		})
	}
}

func TestAPIMapsEveryKindOfFailureToAStatus(t *testing.T) {
	tests := map[control.Kind]int{
		control.KindInvalid: 400, control.KindForbidden: 403, control.KindNotFound: 404, control.KindConflict: 409, control.KindGenerationGone: 410,
		control.KindQuota: 429, control.KindEngineUnavailable: 503, control.KindDraining: 503, control.KindInternal: 500,
	}
	for kind, status := range tests {
		h := newHouse(t, nil)
		h.plane.fail = &control.Error{Kind: kind, Message: "so it is", RetryAfter: 1500 * time.Millisecond, Err: io.ErrUnexpectedEOF}
		res := call(t, h.handler(), "POST", "/api/v1/envs/e1/stop", "op", "")
		body := read(t, res.Body)
		if res.StatusCode != status || !strings.Contains(body, `"kind":"`+string(kind)+`","message":"so it is"`) {
			t.Errorf("%s: status %d, want %d: %s", kind, res.StatusCode, status, body)
		}
		if res.Header.Get("Retry-After") != "2" {
			t.Errorf("%s: Retry-After %q, want 2", kind, res.Header.Get("Retry-After"))
		}
		if strings.Contains(body, "EOF") {
			t.Errorf("%s: the private cause is told: %s", kind, body)
		}
	}
}

func TestHealthAndReadinessNeedNoToken(t *testing.T) {
	h := newHouse(t, nil)
	e := h.handler()
	if res := call(t, e, "GET", "/healthz", "", ""); res.StatusCode != 200 {
		t.Errorf("healthz: %d", res.StatusCode)
	}
	if res := call(t, e, "GET", "/readyz", "", ""); res.StatusCode != 200 {
		t.Errorf("readyz: %d", res.StatusCode)
	}
	h.plane.engine.Reachable, h.plane.engine.Error = false, "connection refused"
	res := call(t, e, "GET", "/readyz", "", "")
	if body := read(t, res.Body); res.StatusCode != 503 || !strings.Contains(body, "connection refused") {
		t.Errorf("readyz with the engine down: %d %s", res.StatusCode, body)
	}
	if res := call(t, e, "GET", "/healthz", "", ""); res.StatusCode != 200 {
		t.Errorf("healthz with the engine down: %d", res.StatusCode)
	}
}
