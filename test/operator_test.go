package test_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// failure is how the operator API says no.
type failure struct {
	Error     struct{ Kind, Message string }
	Tombstone *control.Tombstone
}

// refused makes a call that must be answered with a status and a kind.
func refused(t *testing.T, s *test.Server, status int, method, path string, body any) failure {
	t.Helper()
	got, b := s.Do(t, method, path, body)
	var f failure
	if err := json.Unmarshal(b, &f); err != nil {
		t.Errorf("%s %s: %v: %.300s", method, path, err, b)
	}
	if got != status || f.Error.Kind == "" || f.Error.Message == "" {
		t.Errorf("%s %s answers %d %.300s, not %d", method, path, got, b, status)
	}
	return f
}

func TestOperatorsListPageByPage(t *testing.T) { test.Each(t, operatorsListPageByPage) }

func operatorsListPageByPage(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	other := s.WireAs(t, test.Identity{Token: s.CLI(t, "token", "create", "--role", "agent", "--owner", "other")})
	var ids []string
	for i := range 4 {
		ids = append(ids, w.Acquire(t, fmt.Sprintf("page %d", i), test.Params{"persistent": true, "labels": test.Params{"n": fmt.Sprint(i)}}).Env.ID)
	}
	ids = append(ids, other.Acquire(t, "page 0", nil).Env.ID)
	slices.Sort(ids)
	type page struct {
		Envs []control.View
		Next *string
	}
	list := func(query string) (p page) {
		t.Helper()
		s.Get(t, "/api/v1/envs"+query, &p)
		return p
	}
	idsOf := func(vs []control.View) (ids []string) {
		for _, v := range vs {
			ids = append(ids, v.ID)
		}
		return ids
	}
	var paged []string
	after := ""
	for range 10 {
		p := list("?limit=2&after=" + after)
		paged = append(paged, idsOf(p.Envs)...)
		if p.Next == nil {
			break
		}
		if len(p.Envs) != 2 {
			t.Errorf("a page that is not the last has %d", len(p.Envs))
		}
		after = *p.Next
	}
	if slices.Sort(paged); !slices.Equal(paged, ids) {
		t.Errorf("the pages have %v, not %v", paged, ids)
	}
	for query, n := range map[string]int{
		"": 5, "?limit=100000": 5, "?task=page+0": 2, "?owner=other": 1, "?task=page+0&owner=default": 1, "?q=PAGE": 5, "?q=page+3": 1,
		"?q=nothing": 0, "?state=ready": 5, "?state=dormant": 0, "?state=removed": 0, "?q=" + ids[0]: 1,
	} {
		if got := list(query).Envs; len(got) != n {
			t.Errorf("GET /envs%s has %d, not %d", query, len(got), n)
		}
	}
	for _, query := range []string{"?limit=-1", "?limit=ten", "?state=happy", "?colour=red", "?limit=1&limit=2"} {
		refused(t, s, 400, http.MethodGet, "/api/v1/envs"+query, nil)
	}
	other.EndTurn(t, "page 0")
	removed := s.Events().Wait(t, "one is removed", test.Is(control.EnvRemoved, ""))
	if got := list("?state=removed").Envs; len(got) != 1 || got[0].ID != removed.Env || got[0].State != control.Removed {
		t.Errorf("removed are %+v", got)
	}
	if got := list("").Envs; len(got) != 4 {
		t.Errorf("without the removed there are %d", len(got))
	}
}

func TestOperatorsAct(t *testing.T) { test.Each(t, operatorsAct) }

func operatorsAct(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	persistent := w.Acquire(t, "acted on", test.Params{"persistent": true, "lifetime_seconds": 1000}).Env.ID
	ephemeral := w.Acquire(t, "acted on", test.Params{"name": "scratch"}).Env.ID
	w.WriteFile(t, persistent, "kept", "kept")
	at := func(id, action string) string { return "/api/v1/envs/" + id + "/" + action }
	post := http.MethodPost

	// What makes no sense.
	refused(t, s, 404, post, at("nosuchenv0", "pin"), nil)
	refused(t, s, 404, http.MethodGet, "/api/v1/envs/nosuchenv0", nil)
	refused(t, s, 400, post, at(persistent, "pin"), test.Params{"until": "2001-01-01T00:00:00Z"})
	refused(t, s, 400, post, at(persistent, "pin"), test.Params{"until": "tomorrow"})
	refused(t, s, 400, post, at(persistent, "pin"), test.Params{"reason": 5})
	refused(t, s, 400, post, at(persistent, "pin"), test.Params{"raison": "typo"})
	refused(t, s, 400, post, at(persistent, "pin"), []int{1})
	refused(t, s, 400, post, at(persistent, "kill"), test.Params{"purge": "yes"})
	if f := refused(t, s, 409, post, at(ephemeral, "stop"), nil); f.Error.Kind != "conflict" {
		t.Errorf("stopping an ephemeral one is a %s", f.Error.Kind)
	}
	if status, _ := s.Do(t, http.MethodGet, at(persistent, "pin"), nil); status != 404 && status != 405 {
		t.Errorf("GET of an action answers %d", status)
	}

	// A release of what is pinned is a conflict that names the pin.
	s.Act(t, persistent, "pin", test.Params{"reason": "evidence"})
	if e := w.Refused(t, "conflict", "env.release", test.Params{"env": persistent}); !strings.Contains(e.Message, "evidence") {
		t.Errorf("the pin is not named: %v", e)
	}
	w.EndTurn(t, "acted on")

	// Touch counts as activity, told once.
	before := s.Act(t, persistent, "unpin", nil)
	after := s.Act(t, persistent, "touch", nil)
	if after.LastActivity.Kind != "touch" || !strings.HasPrefix(after.LastActivity.Actor, "operator:") || !after.Deadline.After(before.Deadline.Add(-time.Millisecond)) {
		t.Errorf("touched, it shows %+v, due at %s", after.LastActivity, after.Deadline)
	}
	// A removed one: 410 with its tombstone.
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, ephemeral))
	f := refused(t, s, 410, http.MethodGet, "/api/v1/envs/"+ephemeral, nil)
	if f.Tombstone == nil || f.Tombstone.Reason != "turn ended" || f.Tombstone.Generation != 1 || f.Tombstone.Actor != "agent:tester" {
		t.Errorf("its tombstone is %+v", f.Tombstone)
	}
	refused(t, s, 410, post, at(ephemeral, "pin"), nil)
	// Stop, and a stop of what is stopped.
	if v := s.Act(t, persistent, "stop", nil); v.State != control.Stopping && v.State != control.Dormant {
		t.Errorf("stopped, it is %s", v.State)
	}
	s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, persistent))
	if v := s.Act(t, persistent, "stop", nil); v.State != control.Dormant {
		t.Errorf("stopped again, it is %s", v.State)
	}
	// A pin survives a kill; the files do too.
	w.Run(t, persistent, "sleep 1000 & cat kept")
	s.Act(t, persistent, "pin", nil)
	n := lastOf(s.Events().All(), control.EnvPinned).Seq
	s.Act(t, persistent, "kill", nil)
	s.Events().WaitAfter(t, n, "killed, it is dormant", test.Is(control.EnvDormant, persistent))
	if v := s.Env(t, persistent); !v.Pinned || v.Deadline != nil {
		t.Errorf("killed, it is pinned %t, due at %v", v.Pinned, v.Deadline)
	}
	if text := w.ReadFile(t, persistent, "kept"); text != "kept" {
		t.Errorf("killed, the file says %q", text)
	}
	// With purge everything goes, pinned or not.
	s.Act(t, persistent, "kill", test.Params{"purge": true})
	s.Events().Wait(t, "purged, it is removed", test.Is(control.EnvRemoved, persistent))
	engineHas(t, s, nil)
}

func TestForecastIsInOrderAndTrue(t *testing.T) { test.Each(t, forecastIsInOrderAndTrue) }

func forecastIsInOrderAndTrue(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	for i, lifetime := range []int{300, 6, 3000, 60} {
		w.Acquire(t, "forecast", test.Params{"name": fmt.Sprint(i), "persistent": true, "lifetime_seconds": lifetime})
	}
	dormant := w.Acquire(t, "forecast", test.Params{"name": "dormant", "persistent": true}).Env.ID
	s.Act(t, dormant, "stop", nil)
	s.Events().Wait(t, "one is dormant", test.Is(control.EnvDormant, dormant))
	pinned := w.Acquire(t, "forecast", test.Params{"name": "pinned", "persistent": true, "lifetime_seconds": 1}).Env.ID
	s.Act(t, pinned, "pin", nil)
	w.EndTurn(t, "forecast")
	var all struct {
		Forecast []control.Forecast
		Now      control.Time
	}
	s.Get(t, "/api/v1/forecast?within=31536000", &all)
	if len(all.Forecast) != 5 {
		t.Errorf("the forecast is %+v", all.Forecast)
	}
	if !slices.IsSortedFunc(all.Forecast, func(a, b control.Forecast) int { return a.At.Compare(b.At.Time) }) {
		t.Errorf("out of order: %+v", all.Forecast)
	}
	for i, f := range all.Forecast {
		if v := s.Env(t, f.Env); v.Deadline == nil || !v.Deadline.Equal(f.At.Time) || *v.NextAction != f.Action || f.Rule == "" {
			t.Errorf("forecast is %+v, shown is %v", f, v.Deadline)
		}
		want := "stop"
		if f.Env == dormant {
			want = "purge"
		}
		if f.Action != want || f.Env == pinned || f.Task != "forecast" {
			t.Errorf("entry %d is %+v", i, f)
		}
	}
	first := all.Forecast[0]
	reapedAt(t, s, first.Env, first.At.Time)
	var soon struct{ Forecast []control.Forecast }
	s.Get(t, "/api/v1/forecast?within=100", &soon)
	if len(soon.Forecast) != 1 {
		t.Errorf("within 100 s the forecast is %+v", soon.Forecast)
	}
	for _, within := range []string{"-1", "soon", "1e99"} {
		refused(t, s, 400, http.MethodGet, "/api/v1/forecast?within="+within, nil)
	}
}

func TestEventLogIsReadInPieces(t *testing.T) { test.Each(t, eventLogIsReadInPieces) }

func eventLogIsReadInPieces(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "logged", nil).Env.ID
	w.EndTurn(t, "logged")
	s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, env))
	type log struct {
		Events      []control.Event
		First, Last uint64
	}
	read := func(query string) (l log) {
		t.Helper()
		s.Get(t, "/api/v1/events"+query, &l)
		return l
	}
	all := read("")
	if all.First != 1 || len(all.Events) != int(all.Last) || len(all.Events) < 8 {
		t.Fatalf("the log is %d..%d with %d events", all.First, all.Last, len(all.Events))
	}
	for i, ev := range all.Events {
		if ev.Seq != uint64(i+1) {
			t.Errorf("event %d has the number %d", i+1, ev.Seq)
		}
	}
	if two := read("?after=3&limit=2").Events; len(two) != 2 || two[0].Seq != 4 || two[1].Seq != 5 {
		t.Errorf("after 3 come %+v", two)
	}
	if none := read(fmt.Sprintf("?after=%d", all.Last)); len(none.Events) > 0 || none.Last != all.Last {
		t.Errorf("after the last comes %+v", none)
	}
	if got := read("?kind=env.removed").Events; len(got) != 1 || got[0].Env != env {
		t.Errorf("of one kind are %+v", got)
	}
	for _, ev := range read("?limit=1000000&env=" + env).Events {
		if ev.Env != env {
			t.Errorf("of one environment is %+v", ev)
		}
	}
	for _, query := range []string{"?after=-1", "?after=x", "?limit=-5", "?limit=0x10", "?sort=up", "?after=99999999999999999999"} {
		refused(t, s, 400, http.MethodGet, "/api/v1/events"+query, nil)
	}
}

// stream reads server-sent events as fields by message until n have come.
func stream(t *testing.T, s *test.Server, lastID string, n int) (messages []map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/events/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token(t, "operator"))
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if ct := res.Header.Get("Content-Type"); res.StatusCode != 200 || !strings.HasPrefix(ct, "text/event-stream") {
		t.Fatalf("the stream answers %s, %s", res.Status, ct)
	}
	m := map[string]string{}
	for lines := bufio.NewScanner(res.Body); len(messages) < n && lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		switch {
		case lines.Text() == "" && len(m) > 0:
			messages = append(messages, m)
			m = map[string]string{}
		case ok && key != "":
			m[key] = strings.TrimPrefix(value, " ")
		}
	}
	if len(messages) < n {
		t.Fatalf("the stream ended after %d messages", len(messages))
	}
	return messages
}

func TestEventStreamResumesWithoutGapOrRepeat(t *testing.T) {
	test.Each(t, eventStreamResumesWithoutGapOrRepeat)
}

func eventStreamResumesWithoutGapOrRepeat(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "streamed", nil).Env.ID
	w.EndTurn(t, "streamed")
	removed := s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, env))
	first := stream(t, s, "1", 3)
	for i, m := range first {
		var ev control.Event
		if err := json.Unmarshal([]byte(m["data"]), &ev); err != nil || m["id"] != fmt.Sprint(ev.Seq) || ev.Seq != uint64(i+2) {
			t.Errorf("message %d after 1 is %v (%v)", i, m, err)
		}
	}
	rest := stream(t, s, first[2]["id"], int(removed.Seq)-4)
	if rest[0]["id"] != "5" || rest[len(rest)-1]["id"] != fmt.Sprint(removed.Seq) {
		t.Errorf("after %s come %s to %s", first[2]["id"], rest[0]["id"], rest[len(rest)-1]["id"])
	}
	// Over a restart, too.
	s.Kill(t)
	s.Restart(t)
	next := stream(t, s, fmt.Sprint(removed.Seq), 1)
	if next[0]["id"] != fmt.Sprint(removed.Seq+1) {
		t.Errorf("after the restart comes %v", next[0])
	}
	// Where the log does not reach, one reset.
	for _, lastID := range []string{"999999"} {
		if m := stream(t, s, lastID, 1)[0]; m["event"] != "reset" {
			t.Errorf("after %s, which never was, comes %v", lastID, m)
		}
	}
}

func TestErrorsOfTheWebAreErrors(t *testing.T) { test.Each(t, errorsOfTheWebAreErrors) }

func errorsOfTheWebAreErrors(t *testing.T, on test.On) {
	s := on.Start(t)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{http.MethodGet, "/api/v1/nothing", 404},
		{http.MethodDelete, "/api/v1/envs", 405},
		{http.MethodGet, "/api/v1/envs/" + strings.Repeat("x", 5000), 404},
		{http.MethodGet, "/api/v1/envs/%00", 404},
		{http.MethodGet, "/api/v1/envs/..%2f..%2fetc", 404},
	} {
		if status, body := s.Do(t, c.method, c.path, nil); status != c.status {
			t.Errorf("%s %.60s answers %d %.200s, not %d", c.method, c.path, status, body, c.status)
		}
	}
	env := s.Wire(t).Acquire(t, "big", nil).Env.ID
	if status, _ := s.Do(t, http.MethodPost, "/api/v1/envs/"+env+"/pin", test.Params{"reason": strings.Repeat("x", 5<<20)}); status != 400 && status != 413 {
		t.Errorf("a body of 5 MiB answers %d", status)
	}
	if v := s.Env(t, env); v.Pinned {
		t.Error("what was refused was done")
	}
}
