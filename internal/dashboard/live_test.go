package dashboard

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandkeeper/internal/control"
)

// part reads the next message of a page's stream that holds all of these.
func (s *sse) part(want ...string) message {
	s.t.Helper()
	for {
		m := s.next()
		if m.event == "end" {
			s.t.Fatalf("the stream ended before %q", want)
		}
		if m.event == "" && !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(string(m.data), w) }) {
			return m
		}
	}
}

func TestThePagesStreamBringsItUpToDateAndThenSendsWhatChanges(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.plane.put(readyEnv("e1", "t-1"), control.Event{Kind: control.EnvReady, Env: "e1", Task: "t-1"})
	h.plane.put(readyEnv("e2", "t-2"))

	s := openSSE(t, base, "/stream?after=0", "")
	s.part(`hx-target="#rows" hx-swap="innerMorph"`, `id="env-e1"`, `id="env-e2"`, `hx-target="#summary"`)
	if m := s.part(`hx-target="#feed" hx-swap="afterbegin"`, `id="event-1"`); m.id != "1" {
		t.Errorf("the feed's message has id %q, want 1", m.id)
	}

	v := readyEnv("e1", "t-1")
	v.State, v.Deadline = control.Dormant, nil
	h.plane.put(v, control.Event{Kind: control.EnvDormant, Env: "e1", Task: "t-1"})
	m := s.part(`hx-target="#env-e1" hx-swap="outerMorph"`, `data-state="dormant"`, `id="event-2"`, `hx-target="#summary"`)
	if m.id != "2" || strings.Contains(string(m.data), "env-e2") || strings.Contains(string(m.data), `id="event-1"`) {
		t.Errorf("more than what changed: id %s, %s", m.id, m.data)
	}

	h.plane.put(readyEnv("e3", "t-3"))
	s.part(`hx-target="#arrivals" hx-swap="beforeend"`, `id="env-e3"`)

	h.plane.remove("e2", control.Tombstone{Reason: "turn ended"}, control.Event{Kind: control.EnvRemoved, Env: "e2", Task: "t-2"})
	s.part(`hx-target="#env-e2"`, `data-state="removed"`, "turn ended")

	h.plane.mu.Lock()
	h.plane.engine.Reachable, h.plane.engine.Error = false, "no route"
	h.plane.mu.Unlock()
	h.plane.happen(control.Event{Kind: control.EngineDown, Actor: "reconciler"})
	s.part(`hx-target="#alarm"`, "no route")
}

func TestThePagesFeedResumesWithoutGapOrRepeat(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.happened(5)
	s := openSSE(t, base, "/stream?after=0", "3") // the header is the later word
	m := s.part(`hx-target="#feed"`)
	for seq := 1; seq <= 5; seq++ {
		if has := strings.Contains(string(m.data), fmt.Sprintf(`id="event-%d"`, seq)); has != (seq > 3) {
			t.Errorf("event %d is there: %v", seq, has)
		}
	}
	if i, j := strings.Index(string(m.data), "event-5"), strings.Index(string(m.data), "event-4"); i > j {
		t.Error("the newest is not first")
	}
	s.close()

	h.plane.prune(5)
	s = openSSE(t, base, "/stream", "2")
	s.part(`hx-target="#feed" hx-swap="innerHTML"`, `id="event-5"`)
	s.close()

	// The log was restored to an older one: the page is filled anew.
	s = openSSE(t, base, "/stream", "70")
	if m := s.part(`hx-target="#feed" hx-swap="innerHTML"`, `id="event-5"`); m.id != "5" {
		t.Errorf("id %q, want 5", m.id)
	}
}

// streamOf is the address of a page's stream, as the page has it.
func streamOf(t *testing.T, h *house, page string) string {
	t.Helper()
	body := read(t, call(t, h.handler(), "GET", page, "look", "").Body)
	_, rest, ok := strings.Cut(body, `hx-sse:connect="`)
	if !ok {
		t.Fatal("the page has no stream")
	}
	address, _, _ := strings.Cut(rest, `"`)
	return strings.ReplaceAll(address, "&amp;", "&")
}

func TestRowsThatThePageHasAreNotSentAgain(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.plane.put(readyEnv("e1", "t-1"))
	fresh := streamOf(t, h, "/")
	if m := openSSE(t, base, fresh, "").part(`hx-target="#summary"`); strings.Contains(string(m.data), "env-e1") {
		t.Error("the rows came again though nothing changed")
	}
	// On a reconnect nobody knows what the page has.
	openSSE(t, base, fresh, "0").part(`hx-target="#rows"`, "env-e1")
	// What changed between the page and its stream comes.
	v := readyEnv("e1", "t-1")
	v.State = control.Stopping
	h.plane.put(v)
	openSSE(t, base, fresh, "").part(`hx-target="#rows"`, `data-state="stopping"`)
}

func TestAViewersStreamHasNoButtons(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.plane.put(readyEnv("e1", "t-1"))
	s := openSSE(t, base, "/stream", "")
	if m := s.part(`id="env-e1"`); strings.Contains(string(m.data), "<button") {
		t.Errorf("buttons: %s", m.data)
	}
}

func TestTheStreamOfOneEnvironmentFollowsItToItsEnd(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.plane.put(readyEnv("e1", "t-1"), control.Event{Kind: control.EnvReady, Env: "e1", Task: "t-1", Name: "main"})
	s := openSSE(t, base, "/envs/e1/stream?after=1", "")
	s.part(`hx-target="#env"`, `id="env"`, "t-1")
	h.plane.put(readyEnv("e2", "t-2"), control.Event{Kind: control.EnvReady, Env: "e2", Task: "t-2"})
	h.plane.put(readyEnv("e1", "t-1"), control.Event{Kind: control.EnvTouched, Env: "e1", Task: "t-1", Actor: "operator:ann"})
	if m := s.part(`id="event-3"`); strings.Contains(string(m.data), "event-2") {
		t.Error("another's event is in its feed")
	}
	h.plane.remove("e1", control.Tombstone{Reason: "killed", Actor: "operator:ann"})
	s.part(`hx-target="#env"`, "It is gone", "killed")
}

// The board that follows changes is, after each, the board that is made anew.
func TestTheBoardFollowsAsIfMadeAnew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := filter{}
		switch rapid.IntRange(0, 3).Draw(t, "filter") {
		case 1:
			f.state = control.Ready
		case 2:
			f.query = "a"
		case 3:
			f.before = "0000000000005"
		}
		const size = 3
		envs := map[string]control.View{}
		list := func() (out []control.View) {
			for _, v := range envs {
				out = append(out, v)
			}
			return out
		}
		born := map[string]int64{}
		b := newBoard(f, size, nil)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			id := rapid.SampledFrom([]string{"a1", "a2", "b1", "b2", "c1", "c2", "a3", "b3"}).Draw(t, "id")
			if _, ok := envs[id]; ok && rapid.Bool().Draw(t, "remove") {
				delete(envs, id)
				b.apply(id, nil)
			} else {
				if _, ok := born[id]; !ok {
					born[id] = rapid.Int64Range(0, 9).Draw(t, "born")
				}
				v := control.View{ID: id, Task: "t", CreatedAt: control.At(time.UnixMilli(born[id])), State: rapid.SampledFrom([]control.State{control.Ready, control.Dormant}).Draw(t, "state")}
				envs[id] = v
				b.apply(id, &v)
			}
			if len(b.order) > size || len(b.shown) != len(b.order) || len(b.states) != len(envs) {
				t.Fatalf("%d rows of at most %d, %d shown, %d of %d counted", len(b.order), size, len(b.shown), len(b.states), len(envs))
			}
			anew := newBoard(f, size, list())
			// A page keeps its floor; made anew it may reach further down.
			var want []string
			for _, order := range newBoard(f, len(envs)+1, list()).order {
				if order >= b.floor {
					want = append(want, order)
				}
			}
			if !slices.Equal(b.order, want) {
				t.Fatalf("rows %v above %q, want %v", b.order, b.floor, want)
			}
			if b.wanting() {
				if b = anew; b.wanting() {
					t.Fatal("a page made anew wants rows")
				}
			}
			if fmt.Sprint(b.summary()) != fmt.Sprint(anew.summary()) {
				t.Fatalf("counts %v, made anew %v", b.summary(), anew.summary())
			}
		}
	})
}
