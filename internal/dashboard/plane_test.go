package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// realHouse is a dashboard over the real plane, whose world is in memory.
func realHouse(t *testing.T) (*Dashboard, *control.Plane, *controltest.Engine) {
	t.Helper()
	engine, alarms := controltest.NewEngine(), controltest.NewAlarms()
	plane, err := control.Open(t.Context(), control.Options{
		Instance: "test", Store: controltest.NewMemoryStore(), Engine: engine, Guests: controltest.NewGuests(engine), Alarms: alarms,
		EngineInfo: control.EngineInfo{Name: "docker", Version: "1", Isolation: "container"}, Image: "busybox", Retention: 7 * 24 * time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var reaper sync.WaitGroup
	reaper.Go(func() { alarms.Run(ctx, plane) })
	tokens := newFakeTokens()
	d, err := New(Options{Plane: ForPlane(plane), Auth: tokens, Sessions: tokens, FrameGap: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		stop()
		reaper.Wait()
		if err := plane.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d, plane, engine
}

// quiet is a socket that wants to hear nothing.
type quiet struct{}

func (quiet) EnvState(control.View)                           {}
func (quiet) EnvExpiring(string, control.Time, time.Duration) {}
func (quiet) Replaced()                                       {}

func TestAnAgentsWorkIsSeenAndStoppedThroughTheDashboard(t *testing.T) {
	d, plane, _ := realHouse(t)
	h := &house{Dashboard: d, plane: newFakePlane()} // the fake only counts its own watches: none
	base := serve(t, h)
	page := openSSE(t, base, "/stream", "")
	page.part(`hx-target="#rows"`, "No environments yet")
	log := openSSE(t, base, "/api/v1/events/stream", "0")

	s, _, err := plane.Hello(t.Context(), "default", control.Hello{Agent: "hermes"}, quiet{})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	a, err := s.Acquire(t.Context(), control.AcquireRequest{Task: "t-1", Persistent: &yes})
	if err != nil {
		t.Fatal(err)
	}
	id := a.Env.ID
	page.part(`id="env-`+id+`"`, "is-ready", "turn 1 is open")
	if _, err := s.TurnEnd(t.Context(), control.TurnEndRequest{Task: "t-1"}); err != nil {
		t.Fatal(err)
	}
	page.part(`hx-target="#env-`+id+`"`, `data-left="`, "until stop", "<progress")

	e := h.handler()
	acts := []struct{ path, body, want string }{
		{"pin", `{"reason":"look"}`, `"pinned":true`},
		{"unpin", "", `"pinned":false`},
		{"touch", "", `"kind":"touch","actor":"operator:ann"`},
		{"stop", "", `"state":"stopping"`},
	}
	for _, a := range acts {
		res := call(t, e, "POST", "/api/v1/envs/"+id+"/"+a.path, "op", a.body)
		if body := read(t, res.Body); res.StatusCode != 200 || !strings.Contains(body, a.want) {
			t.Fatalf("%s: %d %s", a.path, res.StatusCode, body)
		}
	}
	page.part(`hx-target="#env-`+id+`"`, "is-dormant", "until purge")
	if res := call(t, e, "POST", "/api/v1/envs/"+id+"/kill", "op", `{"purge":true}`); res.StatusCode != 200 {
		t.Fatalf("kill: %d %s", res.StatusCode, read(t, res.Body))
	}
	page.part(`hx-target="#env-`+id+`"`, `data-state="removed"`)

	res := call(t, e, "GET", "/api/v1/envs/"+id, "op", "")
	var gone errorBody
	if err := json.NewDecoder(res.Body).Decode(&gone); err != nil || res.StatusCode != 410 || gone.Tombstone == nil || gone.Tombstone.Actor != "operator:ann" {
		t.Errorf("after it: %d %+v %v", res.StatusCode, gone, err)
	}
	if body := read(t, call(t, e, "GET", "/envs/"+id, "look", "").Body); !strings.Contains(body, "It is gone") {
		t.Error("its page does not say that it is gone")
	}
	if body := read(t, call(t, e, "GET", "/?state=removed", "look", "").Body); !strings.Contains(body, `id="env-`+id+`"`) {
		t.Error("it is not among the removed ones")
	}

	// The log told every step of it once, and in order.
	var kinds []string
	for seq := uint64(1); ; seq++ {
		m, ev := log.event()
		if m.id != fmt.Sprint(seq) {
			t.Fatalf("event %s, want %d", m.id, seq)
		}
		if kinds = append(kinds, string(ev.Kind)); ev.Kind == control.EnvRemoved {
			break
		}
	}
	told := strings.Join(kinds, " ")
	for _, want := range []string{"env.starting env.ready", "turn.ended", "env.pinned env.unpinned env.touched env.stopping env.dormant"} {
		if !strings.Contains(told, want) {
			t.Errorf("the log told %s, without %q", told, want)
		}
	}
}

// Looking never extends a deadline.
func TestLookingMovesNoDeadline(t *testing.T) {
	d, plane, _ := realHouse(t)
	h := &house{Dashboard: d, plane: newFakePlane()}
	base := serve(t, h)
	s, _, err := plane.Hello(t.Context(), "default", control.Hello{Agent: "hermes"}, quiet{})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	a, err := s.Acquire(t.Context(), control.AcquireRequest{Task: "t-1", Persistent: &yes})
	if err != nil {
		t.Fatal(err)
	}
	end, err := s.TurnEnd(t.Context(), control.TurnEndRequest{Task: "t-1"})
	if err != nil {
		t.Fatal(err)
	}
	id, want := a.Env.ID, end.Decisions[0].Deadline
	e := h.handler()
	for _, path := range []string{"/", "/envs/" + id, "/envs/" + id + "/kill", "/api/v1/envs", "/api/v1/envs/" + id, "/api/v1/forecast?within=9999", "/api/v1/events", "/api/v1/engine"} {
		if res := call(t, e, "GET", path, "op", ""); res.StatusCode != 200 {
			t.Fatalf("%s: %d", path, res.StatusCode)
		}
	}
	openSSE(t, base, "/stream", "").part(`id="env-` + id + `"`)
	openSSE(t, base, "/envs/"+id+"/stream", "").part(`id="env"`)
	v, err := plane.Env(id)
	if err != nil || want == nil || v.Deadline == nil || *v.Deadline != *want {
		t.Errorf("the deadline was %v and is %v (%v)", want, v.Deadline, err)
	}
}
