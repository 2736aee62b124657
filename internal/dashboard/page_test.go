package dashboard

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// Somebody else's text is shown as text, apart from what is around it.
func TestTextOfOthersIsEscapedAndIsolatedEverywhere(t *testing.T) {
	const evil = `</bdi><script>alert(1)</script><hx-partial hx-target="body">` + "\u202e"
	h := newHouse(t, nil)
	v := readyEnv("e1", evil)
	v.Owner, v.Name, v.Image, v.Error = evil, evil, ptr(evil), ptr(evil)
	v.LastActivity.Actor = "agent:" + evil
	v.Pinned, v.Pin = true, &control.PinView{By: "operator:" + evil, Reason: evil}
	v.Rule, v.Workdir, v.Labels = evil, evil, map[string]string{evil: evil}
	v.Holds = []control.Hold{{Kind: control.HoldExec, Ref: evil}}
	v.Teardown = &control.TeardownView{Reason: evil, Error: evil}
	h.plane.execs["e1"] = []control.ExecView{{Exec: "x1", Command: evil, State: "running"}}
	h.plane.orphans = []control.Orphan{{Name: evil, Task: evil, Image: evil}}
	h.plane.engine.Error, h.plane.engine.Reachable = evil, false
	var events []control.Event
	for _, kind := range allKinds {
		events = append(events, control.Event{Kind: kind, Env: "e1", Owner: evil, Task: evil, Name: evil, Actor: "agent:" + evil, Reason: evil})
	}
	h.plane.put(v, events...)
	e := h.handler()
	for _, page := range []string{"/", "/envs/e1", "/envs/e1/kill", "/?q=" + url.QueryEscape(evil), "/?state=" + url.QueryEscape(evil), "/envs/" + url.PathEscape(evil)} {
		body := read(t, call(t, e, "GET", page, "op", "").Body)
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "</bdi><script") || strings.Contains(body, `<hx-partial hx-target="body"`) {
			t.Errorf("%s: markup of others is markup", page)
		}
		for i := 0; ; {
			j := strings.Index(body[i:], "\u202e")
			if j < 0 {
				break
			}
			i += j + len("\u202e")
			if !isolatedAt(body, i) {
				t.Errorf("%s: not isolated: …%q", page, body[max(0, i-160):min(len(body), i+40)])
				break
			}
		}
	}
}

// isolatedAt reports whether a place in a page is within a <bdi>, within an
// attribute, or between Unicode isolates.
func isolatedAt(body string, i int) bool {
	before := body[:i]
	if strings.LastIndex(before, "<bdi") > strings.LastIndex(before, "</bdi>") {
		return true
	}
	if strings.LastIndex(before, "<") > strings.LastIndex(before, ">") {
		return true
	}
	return strings.LastIndex(before, "\u2068") > strings.LastIndex(before, "\u2069")
}

var allKinds = []control.EventKind{
	control.EnvStarting, control.EnvReady, control.EnvResumed, control.EnvRecreated, control.EnvChanged, control.EnvStopping, control.EnvDormant,
	control.EnvRemoved, control.EnvFailed, control.EnvLost, control.EnvPinned, control.EnvUnpinned, control.EnvTouched, control.EnvExpiring,
	control.TurnBegan, control.TurnEnded, control.TurnLapsed, control.ReaperStopped, control.ReaperRemoved, control.ReaperPurged, control.ReaperRetry,
	control.OrphanFound, control.OrphanAdopted, control.OrphanRemoved, control.ImagePulling, control.ImagePulled,
	control.AgentConnected, control.AgentResumed, control.AgentDisconnected, control.AgentAbandoned, control.EngineDown, control.EngineUp,
	control.ClockJumped, control.OperatorLogin, control.OperatorRefused, control.ServerStarted, control.ServerStopping, "a.later_kind",
}

func TestEveryKindOfEventIsASentence(t *testing.T) {
	for _, kind := range allKinds {
		e := entryOf(control.Event{Seq: 7, Kind: kind, Env: "e1", Task: "t-1", Actor: "agent:hermes", Reason: "so it was"})
		var s strings.Builder
		for _, p := range e.Parts {
			s.WriteString(p.Text)
		}
		if s.Len() < 10 || strings.HasPrefix(s.String(), string(kind)) != (kind == "a.later_kind") {
			t.Errorf("%s: %q", kind, s.String())
		}
	}
}

func TestSentencesTellWhatTheDataSays(t *testing.T) {
	tests := []struct {
		ev   control.Event
		want string
	}{
		{control.Event{Kind: control.EnvLost, Task: "t", Env: "e", Data: map[string]any{"exit_code": 137.0, "oom": true}}, "t died by itself with exit code 137, out of memory"},
		{control.Event{Kind: control.TurnEnded, Task: "t", Data: map[string]any{"turn": 3, "outcome": "done", "decisions": []any{map[string]any{"decision": "kept"}, map[string]any{"decision": "removed"}}}}, "A turn of t ended (turn 3, done): 1 kept, 1 removed"},
		{control.Event{Kind: control.ReaperStopped, Task: "t", Name: "db", Env: "e", Reason: "idle 300 s"}, "The reaper stopped \u2068t\u2069 / \u2068db\u2069: idle 300 s"},
		{control.Event{Kind: control.OperatorLogin, Actor: "operator:ann"}, "Operator ann signed in"},
		{control.Event{Kind: control.EnvPinned, Task: "t", Env: "e", Actor: "operator:ann"}, "t was pinned by operator ann"},
	}
	for _, tt := range tests {
		var s strings.Builder
		for _, p := range sentence(tt.ev) {
			s.WriteString(p.Text)
		}
		if s.String() != tt.want {
			t.Errorf("%q, want %q", s.String(), tt.want)
		}
	}
}

func TestTheBoardShowsWhatStandsInTheWayOfACountdown(t *testing.T) {
	now := time.Now()
	in := func(d time.Duration) *control.Time { return control.AtPtr(now.Add(d)) }
	tests := []struct {
		name   string
		change func(v *control.View)
		kind   string
		has    string
	}{
		{"idle", func(v *control.View) { v.Deadline = in(222 * time.Second) }, "runs", "3:42"},
		{"held", func(v *control.View) {
			v.Deadline, v.Turn = nil, &control.TurnView{Number: 3, Open: true}
			v.Holds = []control.Hold{{Kind: control.HoldTurn}, {Kind: control.HoldExec}, {Kind: control.HoldExec}}
		}, "held", "turn 3 is open · 2 commands run"},
		{"held with a longest age", func(v *control.View) { v.Holds = []control.Hold{{Kind: control.HoldTerminal}} }, "held", "a terminal is attached"},
		{"pinned", func(v *control.View) { v.Pinned, v.Deadline = true, nil }, "pinned", "no countdown"},
		{"starting", func(v *control.View) { v.State = control.Starting }, "working", "starting"},
		{"a teardown that failed", func(v *control.View) {
			v.State, v.Teardown = control.Stopping, &control.TeardownView{Attempts: 2, Error: "no", NextAt: in(time.Second)}
		}, "working", "attempt 2 failed"},
		{"dormant", func(v *control.View) {
			v.State, v.Deadline, v.NextAction = control.Dormant, in(50*time.Hour), ptr("purge")
		}, "runs", "2 d 2 h"},
		{"dormant for ever", func(v *control.View) { v.State, v.Deadline = control.Dormant, nil }, "never", "until they are purged"},
	}
	for _, tt := range tests {
		v := readyEnv("e1", "t")
		v.Now = control.At(now)
		tt.change(&v)
		c := clockOf(&v, now)
		if string(c.Kind) != tt.kind || !strings.Contains(c.Word+c.LeftText, tt.has) {
			t.Errorf("%s: %+v, want %s with %q", tt.name, c, tt.kind, tt.has)
		}
		if c.Kind == "runs" && (c.Total < c.Left || c.Left == 0) {
			t.Errorf("%s: the bar is %d of %d", tt.name, c.Left, c.Total)
		}
	}
}

func TestRowsHaveTheNamesThatScriptsRelyOn(t *testing.T) {
	h := newHouse(t, nil)
	h.plane.put(readyEnv("k3v9x2m7qd", "t-1"), control.Event{Kind: control.EnvReady, Env: "k3v9x2m7qd"})
	pinned := readyEnv("p1", "t-2")
	pinned.Pinned, pinned.Pin = true, &control.PinView{By: "operator:ann"}
	h.plane.put(pinned)
	body := read(t, call(t, h.handler(), "GET", "/", "op", "").Body)
	for _, want := range []string{
		`<tr id="env-k3v9x2m7qd"`, `>Pin</button>`, `>Unpin</button>`, `>Stop</button>`, `>Kill</button>`, `role="log"`, `id="event-1"`,
		`hx-sse:connect="/stream?after=1&amp;seen=`, `data-left="`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, not := range []string{"<style", " style=", "onclick", "javascript:", "hx-on"} {
		if strings.Contains(body, not) {
			t.Errorf("the page has %q, which its content policy forbids", not)
		}
	}
}

func TestFormsWorkWithoutScripts(t *testing.T) {
	tests := []struct {
		name, path string
		form       url.Values
		call       string
	}{
		{"pin", "/envs/e1/pin", url.Values{}, `pin operator:ann e1 "" until=false`},
		{"pin with reason and end", "/envs/e1/pin", url.Values{"reason": {"why"}, "hours": {"8"}}, `pin operator:ann e1 "why" until=true`},
		{"unpin", "/envs/e1/unpin", url.Values{}, "unpin operator:ann e1"},
		{"stop", "/envs/e1/stop", url.Values{}, "stop operator:ann e1"},
		{"kill", "/envs/e1/kill", url.Values{"confirm": {"yes"}}, "kill operator:ann e1 purge=false"},
		{"kill and purge", "/envs/e1/kill", url.Values{"confirm": {"yes"}, "purge": {"yes"}}, "kill operator:ann e1 purge=true"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t, nil)
			h.plane.put(readyEnv("e1", "t-1"))
			b := signedIn(t, h, "op")
			tt.form.Set("csrf", csrf(t, read(t, b.do("GET", "/", nil).Body)))
			res := b.do("POST", tt.path, tt.form)
			if res.StatusCode != 303 || !strings.HasPrefix(res.Header.Get("Location"), "/") {
				t.Fatalf("%d %s", res.StatusCode, read(t, res.Body))
			}
			if len(h.plane.calls) != 1 || h.plane.calls[0] != tt.call {
				t.Errorf("calls %q, want %q", h.plane.calls, tt.call)
			}
		})
	}
}

func TestAFormThatFailsSaysWhy(t *testing.T) {
	h := newHouse(t, nil)
	h.plane.put(readyEnv("e1", "t-1"))
	h.plane.fail = control.Errorf(control.KindConflict, "an ephemeral one")
	b := newBrowser(t, h.handler())
	b.headers["Authorization"] = "Bearer op"
	if res := b.do("POST", "/envs/e1/stop", url.Values{}); res.StatusCode != 409 || !strings.Contains(read(t, res.Body), "an ephemeral one") {
		t.Errorf("as a page: %d", res.StatusCode)
	}
	b.headers["HX-Request"] = "true"
	res := b.do("POST", "/envs/e1/stop", url.Values{})
	if body := read(t, res.Body); res.StatusCode != 409 || !strings.HasPrefix(body, "<hx-partial") || !strings.Contains(body, "#notice") || !strings.Contains(body, "an ephemeral one") {
		t.Errorf("to the script: %d %s", res.StatusCode, body)
	}
}

func TestKillTakesTwoStepsAndNamesWhatIsLost(t *testing.T) {
	h := newHouse(t, nil)
	v := readyEnv("e1", "t-1")
	v.Turn = &control.TurnView{Number: 3, Open: true}
	h.plane.put(v)
	h.plane.execs["e1"] = []control.ExecView{
		{Exec: "x1", Command: "make all", State: "running"}, {Exec: "x2", Command: "sleepd &", State: "exited", Left: true}, {Exec: "x3", Command: "over", State: "exited"},
	}
	e := v
	e.ID, e.Persistent = "e2", false
	h.plane.put(e)
	b := newBrowser(t, h.handler())
	b.headers["Authorization"] = "Bearer op"
	has := func(body string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(body, w) {
				t.Errorf("%q is not in %s", w, body)
			}
		}
	}
	body := read(t, b.do("POST", "/envs/e1/kill", url.Values{}).Body)
	has(body, "make all", "sleepd", "2 commands end", "turn 3", "files are kept", `name="purge"`, `autofocus>Cancel`)
	if strings.Contains(body, ">over<") {
		t.Error("a command that ended is told as lost")
	}
	b.headers["HX-Request"] = "true"
	has(read(t, b.do("POST", "/envs/e1/kill", url.Values{}).Body), `<hx-partial hx-target="#dialog"`, `<form method="dialog">`)
	body = read(t, b.do("POST", "/envs/e2/kill", url.Values{}).Body)
	has(body, "ephemeral: all its files go")
	if strings.Contains(body, `name="purge"`) {
		t.Error("an ephemeral one offers a choice to keep files")
	}
	if len(h.plane.calls) != 0 {
		t.Errorf("the first step did something: %v", h.plane.calls)
	}
	if res := b.do("POST", "/envs/e1/kill", url.Values{"confirm": {"yes"}}); res.StatusCode != 204 || len(h.plane.calls) != 1 {
		t.Errorf("second step: %d %v", res.StatusCode, h.plane.calls)
	}
}

func TestEmptyTablesSayWhatToDo(t *testing.T) {
	h := newHouse(t, nil)
	e := h.handler()
	if body := read(t, call(t, e, "GET", "/", "op", "").Body); !strings.Contains(body, "No environments yet") || !strings.Contains(body, "go run ./examples/agent") {
		t.Error("nothing yet: how to begin is not told")
	}
	h.plane.put(readyEnv("e1", "t-1"))
	if body := read(t, call(t, e, "GET", "/?q=zzz", "op", "").Body); !strings.Contains(body, "Nothing matches") {
		t.Error("nothing matches: that is not told")
	}
	if body := read(t, call(t, e, "GET", "/?q=T-1&state=ready", "op", "").Body); !strings.Contains(body, `id="env-e1"`) {
		t.Error("a filter whatever the case finds nothing")
	}
}

func TestARemovedEnvironmentsPageShowsItsTombstone(t *testing.T) {
	h := newHouse(t, nil)
	h.plane.put(readyEnv("e1", "t-1"), control.Event{Kind: control.EnvReady, Env: "e1", Task: "t-1", Name: "main"})
	h.plane.remove("e1", control.Tombstone{Reason: "turn ended", Actor: "agent:hermes", At: control.At(time.Now()), ExitCode: ptr(137), OOM: true})
	res := call(t, h.handler(), "GET", "/envs/e1", "op", "")
	body := read(t, res.Body)
	if res.StatusCode != 410 {
		t.Errorf("status %d", res.StatusCode)
	}
	for _, want := range []string{"It is gone", "turn ended", "agent:hermes", "Exit code 137. Out of memory", "t-1", `id="event-1"`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

func TestTheEngineDownAndOrphansAreShown(t *testing.T) {
	h := newHouse(t, nil)
	h.plane.engine = control.EngineStatus{Since: time.Now(), Error: "connection refused"}
	h.plane.orphans = []control.Orphan{{Name: "sandkeeper-x-y", Task: "t-9", Stopped: true}}
	body := read(t, call(t, h.handler(), "GET", "/", "look", "").Body)
	for _, want := range []string{"The engine does not answer", "connection refused", "1 orphan", "sandkeeper-x-y", "stopped"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(body, "Adopt") {
		t.Error("a viewer sees what only operators may do")
	}
	body = read(t, call(t, h.handler(), "GET", "/", "op", "").Body)
	for _, want := range []string{`action="/orphans/sandkeeper-x-y/adopt"`, `formaction="/orphans/sandkeeper-x-y/purge"`, "Its files go for good."} {
		if !strings.Contains(body, want) {
			t.Errorf("an operator's page lacks %q", want)
		}
	}
}

func TestThePageSaysWhatAWeakIsolationMeansAndWhatToDo(t *testing.T) {
	for isolation, want := range map[string]string{"namespaces": "this machine&#39;s own programs and kernel", "none": "Nothing stands between", "container": ""} {
		h := newHouse(t, nil)
		h.plane.engine.Isolation = isolation
		body := read(t, call(t, h.handler(), "GET", "/", "look", "").Body)
		if said := strings.Contains(body, `class="banner caution"`); said != (want != "") {
			t.Errorf("%s: a caution is there: %v", isolation, said)
		}
		if !strings.Contains(body, want) || want != "" && !strings.Contains(body, "--engine docker") {
			t.Errorf("%s: the page lacks %q", isolation, want)
		}
	}
}

func TestTheTableIsPagedNewestFirst(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.PageRows = 2 })
	for i := range 5 {
		v := readyEnv(fmt.Sprintf("e%d", i), "t")
		v.CreatedAt = control.At(time.Now().Add(time.Duration(i) * time.Second))
		h.plane.put(v)
	}
	e := h.handler()
	var got []string
	for page := "/"; page != ""; {
		body := read(t, call(t, e, "GET", page, "op", "").Body)
		for _, row := range strings.Split(body, `<tr id="env-`)[1:] {
			id, _, _ := strings.Cut(row, `"`)
			got = append(got, id)
		}
		page = ""
		if link, _, ok := strings.Cut(body, `rel="next"`); ok {
			link = link[strings.LastIndex(link, `href="`)+6:]
			page, _, _ = strings.Cut(link, `"`)
			page = strings.ReplaceAll(page, "&amp;", "&")
		}
		got = append(got, "|")
	}
	if s := strings.Join(got, " "); s != "e4 e3 | e2 e1 | e0 |" {
		t.Errorf("pages: %s", s)
	}
}
