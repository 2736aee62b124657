package reaper

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func run(t *testing.T, e *controltest.Engine, name string) {
	t.Helper()
	if _, err := e.Create(t.Context(), control.SandboxSpec{Name: name}); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// rounds lists when the plane got a listing.
func rounds(p *plane) (lines []string) { return p.told("reconcile") }

func TestTheEngineIsListedAtStartAndEvery30Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := newPlane(), controltest.NewEngine()
		run(t, e, "a")
		start(t, New(Options{Engine: e}), p)
		after(time.Minute)
		// The second is for the events' stream that stands now. began is on the plane's clock.
		want(t, slices.Compact(rounds(p)), []string{"0s reconcile 1 began 1h0m0s", "30s reconcile 1 began 1h0m30s", "1m0s reconcile 1 began 1h1m0s"})
		want(t, p.told("housekeep"), []string{"30s housekeep", "1m0s housekeep"})
		if seen := p.told("seen"); len(seen) == 0 || seen[0] != "0s seen docker" {
			t.Errorf("seen %q", seen)
		}
	})
}

func TestWhatTheEngineTellsIsObservedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := newPlane(), controltest.NewEngine()
		run(t, e, "a")
		after(time.Second)
		start(t, New(Options{Engine: e}), p)
		after(time.Second)
		e.Die("a", 1, false)
		synctest.Wait()
		want(t, p.told("observe"), []string{"2s observe a died"})
	})
}

func TestABrokenStreamIsTakenUpAgainWhereItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := newPlane(), controltest.NewEngine()
		run(t, e, "a")
		run(t, e, "b")
		after(time.Second)
		start(t, New(Options{Engine: e}), p)
		after(time.Second)
		e.BreakWatch(errors.New("unexpected EOF"))
		e.Die("a", 1, false) // while nobody listens
		after(firstRetry)
		e.Die("b", 1, false)
		synctest.Wait()
		want(t, p.told("observe"), []string{"2.1s observe a died", "2.1s observe b died"})
	})
}

func TestAnEngineThatIsDownIsAskedAgainSoonAndThenListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := newPlane(), controltest.NewEngine()
		start(t, New(Options{Engine: e}), p)
		after(10 * time.Second)
		up := e.Down()
		after(0)
		want(t, p.told("seen down"), []string{"10s seen down"})
		after(10 * time.Minute)
		if n, least := len(p.told("seen down")), 600; n < least/2 || n > 2*least {
			t.Errorf("asked %d times in 10 minutes", n)
		}
		before := len(rounds(p))
		up()
		after(longestRetry)
		if got := len(rounds(p)); got == before {
			t.Error("no listing within 2 s of the engine's return")
		}
		run(t, e, "a")
		e.Die("a", 1, false)
		synctest.Wait()
		if got := len(p.told("observe a died")); got != 1 {
			t.Errorf("observed %d deaths after the engine's return, want 1", got)
		}
	})
}

func TestAnEngineThatHangsIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := newPlane(), controltest.NewEngine()
		e.Inject(controltest.Fault{Call: "List", Hang: make(chan struct{})})
		start(t, New(Options{Engine: e, Timeout: 5 * time.Second}), p)
		after(5 * time.Second)
		want(t, p.told("seen down"), []string{"5s seen down"})
		want(t, rounds(p), nil)
	})
}

func TestAnErrorOfTheEngineIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := newPlane(), controltest.NewEngine()
		e.Inject(controltest.Fault{Call: "List", Times: 1, Err: errors.New("oops")})
		start(t, New(Options{Engine: e}), p)
		after(firstRetry)
		want(t, p.told("seen down"), nil)
		want(t, p.told("seen oops"), []string{"0s seen oops"})
		if len(rounds(p)) == 0 {
			t.Error("it was not asked again")
		}
	})
}

func TestADeadEngineDelaysNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := newPlane(), controltest.NewEngine()
		e.Inject(controltest.Fault{Hang: make(chan struct{})})
		r := New(Options{Engine: e})
		start(t, r, p)
		r.Set("a", p.in(time.Second))
		after(time.Minute)
		want(t, p.told("due"), []string{"1s due a"})
		want(t, p.told("housekeep"), []string{"30s housekeep", "1m0s housekeep"})
	})
}
