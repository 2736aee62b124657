package reaper_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
	"sandkeeper/internal/engine"
	"sandkeeper/internal/reaper"
)

var (
	_ reaper.Plane  = (*control.Plane)(nil)
	_ reaper.Engine = engine.Engine(nil)
)

const lifetime = 5 * time.Minute

// house is a plane with its reaper, on an engine in memory.
type house struct {
	*testing.T
	engine *controltest.Engine
	plane  *control.Plane
	agent  *control.Session
	wall   atomic.Int64 // how far the wall clock was set ahead, in nanoseconds
}

type deafSink struct{}

func (deafSink) EnvState(control.View)                           {}
func (deafSink) EnvExpiring(string, control.Time, time.Duration) {}
func (deafSink) Replaced()                                       {}

// inHouse runs a test in a bubble of fake time.
func inHouse(t *testing.T, test func(h *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &house{T: t, engine: controltest.NewEngine()}
		r := reaper.New(reaper.Options{Engine: h.engine})
		info, err := h.engine.Info(t.Context())
		h.must(err)
		h.plane, err = control.Open(t.Context(), control.Options{
			Instance: "test", Store: controltest.NewMemoryStore(), Engine: h.engine, Guests: controltest.NewGuests(h.engine),
			Alarms: r, EngineInfo: info, Image: "busybox", Lifetime: lifetime, Retention: 168 * time.Hour,
			Wall: func() time.Time { return time.Now().Add(time.Duration(h.wall.Load())) },
		})
		h.must(err)
		r.Start(t.Context(), h.plane)
		h.agent, _, err = h.plane.Hello(t.Context(), "default", control.Hello{Agent: "hermes"}, deafSink{})
		h.must(err)
		test(h)
		r.Stop()
		h.must(h.plane.Close(context.WithoutCancel(t.Context())))
	})
}

func (h *house) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// idle makes a persistent environment whose countdown begins now.
func (h *house) idle(task string) (id string) {
	h.Helper()
	persistent := true
	a, err := h.agent.Acquire(h.Context(), control.AcquireRequest{Task: task, Persistent: &persistent})
	h.must(err)
	_, err = h.agent.TurnEnd(h.Context(), control.TurnEndRequest{Task: task})
	h.must(err)
	return a.Env.ID
}

func (h *house) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *house) inState(id string, want control.State) {
	h.Helper()
	v, err := h.plane.Env(id)
	h.must(err)
	if v.State != want {
		h.Fatalf("%s is %s, want %s", v.Task, v.State, want)
	}
}

// stopsIn wants an environment to be ready until just before a time has passed, and dormant then.
func (h *house) stopsIn(id string, d time.Duration) {
	h.Helper()
	h.pass(d - time.Millisecond)
	h.inState(id, control.Ready)
	h.pass(time.Millisecond)
	h.inState(id, control.Dormant)
}

func TestAnIdleEnvironmentIsStoppedAtItsDeadline(t *testing.T) {
	inHouse(t, func(h *house) {
		h.stopsIn(h.idle("t"), lifetime)
	})
}

func TestADeadlineKeepsItsDistanceWhenTheWallClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 90 * time.Second} {
		t.Run(jump.String(), func(t *testing.T) {
			inHouse(t, func(h *house) {
				id := h.idle("t")
				h.pass(time.Minute + time.Second)
				h.wall.Add(int64(jump))
				h.stopsIn(id, lifetime-time.Minute-time.Second)
			})
		})
	}
}

func TestATeardownThatHangsDelaysNoOtherEnvironment(t *testing.T) {
	inHouse(t, func(h *house) {
		hangs := h.idle("hangs")
		release := make(chan struct{})
		h.engine.Inject(controltest.Fault{Call: "Stop", Name: "sandkeeper-test-" + hangs, Hang: release})
		var others []string
		for i := range 100 {
			others = append(others, h.idle(fmt.Sprint("t", i)))
		}
		h.pass(lifetime)
		for _, id := range others {
			h.inState(id, control.Dormant)
		}
		h.inState(hangs, control.Stopping)
		close(release)
		h.pass(10 * time.Minute) // it is tried again until it has gone through
		h.inState(hangs, control.Dormant)
	})
}

func TestAnEngineThatWasDownIsCaughtUpWith(t *testing.T) {
	inHouse(t, func(h *house) {
		idle, dies := h.idle("idle"), h.idle("dies")
		h.pass(lifetime - time.Second)
		up := h.engine.Down()
		h.engine.Die("sandkeeper-test-"+dies, 137, false)
		h.pass(time.Minute)
		h.inState(idle, control.Stopping)
		h.inState(dies, control.Stopping)
		if h.plane.Engine().Reachable {
			t.Error("the engine is said to answer")
		}
		up()
		h.pass(2 * time.Second)
		if !h.plane.Engine().Reachable {
			t.Error("the engine is said not to answer")
		}
		h.pass(10 * time.Minute)
		h.inState(idle, control.Dormant)
		h.inState(dies, control.Dormant)
	})
}

func TestAStartBehindOurBackIsSeenAtOnce(t *testing.T) {
	inHouse(t, func(h *house) {
		id := h.idle("t")
		h.pass(lifetime + time.Second)
		h.inState(id, control.Dormant)
		h.must(h.engine.Start(h.Context(), "sandkeeper-test-"+id))
		synctest.Wait()
		h.inState(id, control.Ready)
	})
}

func TestADeathIsSeenAtOnce(t *testing.T) {
	inHouse(t, func(h *house) {
		id := h.idle("t")
		h.pass(time.Second)
		h.engine.Die("sandkeeper-test-"+id, 1, false)
		synctest.Wait()
		h.inState(id, control.Dormant)
	})
}
