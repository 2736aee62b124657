package test_test

import (
	"fmt"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

func TestManyDueAtOnceAreEachOnTime(t *testing.T) { test.Each(t, manyDueAtOnceAreEachOnTime) }

func manyDueAtOnceAreEachOnTime(t *testing.T, on test.On) {
	const many = 12
	s := on.Start(t)
	w := s.Wire(t)
	var pending []*test.Pending
	for i := range many {
		pending = append(pending, w.Go(t, "env.acquire", test.Params{"task": fmt.Sprint("crowd ", i), "persistent": true, "lifetime_seconds": 3}))
	}
	for _, p := range pending {
		p.Into(t, nil)
	}
	for i := range many {
		pending[i] = w.Go(t, "turn.end", test.Params{"task": fmt.Sprint("crowd ", i)})
	}
	type due struct {
		env string
		at  time.Time
	}
	var all []due
	for _, p := range pending {
		var end control.TurnEnd
		p.Into(t, &end)
		d := only(t, end.Decisions)
		all = append(all, due{d.Env, d.Deadline.Time})
	}
	for _, d := range all {
		reapedAt(t, s, d.env, d.at)
	}
	for _, d := range all {
		s.Events().Wait(t, d.env+" is stopped", test.Is(control.ReaperStopped, d.env))
		if v := s.Env(t, d.env); v.State != control.Dormant {
			t.Errorf("%s is %s", d.env, v.State)
		}
	}
	for _, c := range s.Containers(t) {
		if c.Env != "" && c.State != "exited" {
			t.Errorf("the container of %s is %s", c.Env, c.State)
		}
	}
}

func TestMaxAgeEndsWhatIsHeld(t *testing.T) { test.Each(t, maxAgeEndsWhatIsHeld) }

func maxAgeEndsWhatIsHeld(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	persistent := w.Acquire(t, "old", test.Params{"persistent": true, "max_age_seconds": 2}).Env
	ephemeral := w.Acquire(t, "old", test.Params{"name": "scratch", "max_age_seconds": 2}).Env
	pinned := w.Acquire(t, "old", test.Params{"name": "pinned"}).Env
	s.Act(t, pinned.ID, "pin", nil)
	w.Acquire(t, "old", test.Params{"name": "pinned", "max_age_seconds": 1}) // applies at once
	running := w.Go(t, "exec.run", test.Params{"env": persistent.ID, "command": "sleep 60"})
	for _, v := range []control.View{persistent, ephemeral} {
		if v.Deadline == nil {
			t.Fatalf("with a max_age there is no deadline: %+v", v)
		}
		if ev := reapedAt(t, s, v.ID, v.Deadline.Time); ev.Data["rule"] != "max_age" {
			t.Errorf("it was reaped by %v", ev.Data)
		}
	}
	e := running.Refused(t)
	if e.Data.Kind != "generation_gone" || e.Data.Tombstone == nil || e.Data.Tombstone.Actor != control.ActorReaper {
		t.Errorf("the command that ran in it ends with %v, %+v", e, e.Data.Tombstone)
	}
	s.Events().Wait(t, "the persistent one is kept", test.Is(control.ReaperStopped, persistent.ID))
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.ReaperRemoved, ephemeral.ID))
	if v := s.Env(t, pinned.ID); v.State != control.Ready || v.Deadline != nil {
		t.Errorf("a pin exempts from max_age, but it is %s with the deadline %v", v.State, v.Deadline)
	}
}

func TestReapIsToldAhead(t *testing.T) { test.Each(t, reapIsToldAhead) }

func reapIsToldAhead(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "warned", test.Params{"persistent": true, "lifetime_seconds": 10}).Env.ID
	deadline := w.EndTurn(t, "warned").Decisions[0].Deadline
	type expiring struct {
		Env         string       `json:"env"`
		Deadline    control.Time `json:"deadline"`
		SecondsLeft int64        `json:"seconds_left"`
	}
	told := test.Notification[expiring](t, w, "env.expiring", func(e expiring) bool { return e.Env == env })
	if !told.Deadline.Equal(deadline.Time) || told.SecondsLeft < 0 || told.SecondsLeft > 5 {
		t.Errorf("told is %+v; it is due at %s", told, deadline)
	}
	s.Events().Wait(t, "it is stopped", test.Is(control.ReaperStopped, env))
	type state struct{ Env control.View }
	test.Notification[state](t, w, "env.state", func(e state) bool { return e.Env.ID == env && e.Env.State == control.Dormant })
	if n := count(w, "env.expiring"); n != 1 {
		t.Errorf("it was told %d times", n)
	}
}

func count(w *test.Wire, method string) (n int) {
	for _, told := range w.Told() {
		if told.Method == method {
			n++
		}
	}
	return n
}

func TestKeptFilesArePurgedOnceAnnounced(t *testing.T) { test.Each(t, keptFilesArePurgedOnceAnnounced) }

func keptFilesArePurgedOnceAnnounced(t *testing.T, on test.On) {
	s := on.Start(t, "--retention", "6s")
	w := s.Wire(t)
	env := w.Acquire(t, "forgotten", test.Params{"persistent": true, "lifetime_seconds": 1}).Env.ID
	w.WriteFile(t, env, "kept", "for a while")
	w.EndTurn(t, "forgotten")
	dormant := s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, env))
	v := s.Env(t, env)
	if v.Deadline == nil || v.NextAction == nil || *v.NextAction != "purge" {
		t.Errorf("dormant, its deadline is %v and the next action %v", v.Deadline, v.NextAction)
	}
	announced := s.Events().Wait(t, "the purge is announced", test.Is(control.EnvExpiring, env))
	stopping := s.Events().WaitAfter(t, announced.Seq, "the purge begins", test.Is(control.EnvStopping, env))
	if lead := stopping.Time.Sub(announced.Time.Time); lead < 3*time.Second {
		t.Errorf("the purge begins %s after its announcement; half of the retention is 3 s", lead)
	}
	if kept := stopping.Time.Sub(dormant.Time.Time); kept < 6*time.Second {
		t.Errorf("the files are purged after %s, with a retention of 6 s", kept)
	}
	s.Events().Wait(t, "the files are purged", test.Is(control.ReaperPurged, env))
	if c, ok := s.Container(t, env); ok {
		t.Errorf("purged, and its container is %s", c.Status)
	}
	if vols := volumesOf(t, s, env); len(vols) > 0 {
		t.Errorf("purged, and the volumes %v are there", vols)
	}
	want := []control.EventKind{
		control.EnvStarting, control.EnvReady, control.EnvStopping, control.EnvDormant, control.ReaperStopped,
		control.EnvExpiring, control.EnvStopping, control.EnvRemoved, control.ReaperPurged,
	}
	eventsAre(t, s, env, want)
}

// volumesOf lists the volumes of one environment.
func volumesOf(t *testing.T, s *test.Server, env string) (names []string) {
	t.Helper()
	for _, v := range s.Volumes(t) {
		if v.Env == env {
			names = append(names, v.Name)
		}
	}
	return names
}

func TestPurgeTakenBackByAnAcquire(t *testing.T) { test.Each(t, purgeTakenBackByAnAcquire) }

func purgeTakenBackByAnAcquire(t *testing.T, on test.On) {
	s := on.Start(t, "--retention", "20s")
	w := s.Wire(t)
	env := w.Acquire(t, "back", test.Params{"persistent": true, "lifetime_seconds": 1}).Env.ID
	w.WriteFile(t, env, "kept", "just in time")
	w.EndTurn(t, "back")
	s.Events().Wait(t, "the purge is announced", test.Is(control.EnvExpiring, env))
	got := w.Acquire(t, "back", nil)
	if got.Env.ID != env || got.Outcome != "resumed" {
		t.Errorf("the acquire gives %s, %s", got.Env.ID, got.Outcome)
	}
	if text := w.ReadFile(t, env, "kept"); text != "just in time" {
		t.Errorf("the file says %q", text)
	}
}

func TestFailedTeardownIsTriedUntilAbsent(t *testing.T) {
	test.Each(t, failedTeardownIsTriedUntilAbsent)
}

func failedTeardownIsTriedUntilAbsent(t *testing.T, on test.On) {
	proxy := test.NewEngineProxy(t)
	s := on.StartBehind(t, proxy)
	w := s.Wire(t)
	env := w.Acquire(t, "stubborn", nil).Env.ID
	fault := proxy.Fail("DELETE /containers/*", 2, 500)
	if d := only(t, w.EndTurn(t, "stubborn").Decisions); d.Decision != "removed" {
		t.Errorf("a teardown that will fail changes the turn's end: %+v", d)
	}
	retry := s.Events().Wait(t, "the teardown failed", test.Is(control.ReaperRetry, env))
	if status, body := s.Do(t, "GET", "/api/v1/envs/"+env, nil); status != 200 && status != 410 {
		t.Errorf("while it fails it is shown with %d %s", status, body)
	}
	// A name for its successor is free meanwhile.
	next := w.Acquire(t, "stubborn", nil)
	if next.Env.ID == env || next.Outcome != "created" || next.Env.Generation != 2 {
		t.Errorf("acquired meanwhile is %s, %s, generation %d", next.Env.ID, next.Outcome, next.Env.Generation)
	}
	removed := s.Events().WaitAfter(t, retry.Seq, "it is gone in the end", test.Is(control.EnvRemoved, env))
	if n := proxy.Hits(fault); n != 2 {
		t.Errorf("it is removed after %d failures; the engine refuses twice", n)
	}
	if got := removed.Time.Sub(retry.Time.Time); got < 500*time.Millisecond {
		t.Errorf("it is tried again within %s, without backing off", got)
	}
	if c, ok := s.Container(t, env); ok {
		t.Errorf("removed, and its container is %s", c.Status)
	}
	if vols := volumesOf(t, s, env); len(vols) > 0 {
		t.Errorf("removed, and the volumes %v are there", vols)
	}
}

func TestHungTeardownDelaysNoOther(t *testing.T) { test.Each(t, hungTeardownDelaysNoOther) }

func hungTeardownDelaysNoOther(t *testing.T, on test.On) {
	proxy := test.NewEngineProxy(t)
	s := on.StartBehind(t, proxy)
	w := s.Wire(t)
	stuck := w.Acquire(t, "stuck", test.Params{"persistent": true, "lifetime_seconds": 1}).Env.ID
	c, ok := s.Container(t, stuck)
	if !ok {
		t.Fatal("there is no container")
	}
	others := make([]string, 3)
	for i := range others {
		others[i] = w.Acquire(t, "others", test.Params{"name": fmt.Sprint(i), "persistent": true, "lifetime_seconds": 2}).Env.ID
	}
	hung := proxy.Hold("POST /containers/" + c.Name + "/stop")
	byID := proxy.Hold("POST /containers/" + c.ID + "/stop")
	w.EndTurn(t, "stuck")
	s.Events().Wait(t, "the stop of one is begun", test.Is(control.EnvStopping, stuck))
	w.EndTurn(t, "others")
	for _, env := range others {
		s.Events().Wait(t, "the others are stopped", test.Is(control.ReaperStopped, env))
	}
	// It hangs for half a minute, if nobody lets go of it.
	if v := s.Env(t, stuck); v.State != control.Stopping {
		t.Errorf("the one that hangs is %s", v.State)
	}
	if proxy.Hits(hung)+proxy.Hits(byID) != 1 {
		t.Error("the stop did not hang")
	}
	hung.Release()
	byID.Release()
	s.Events().Wait(t, "the one that hung is stopped", test.Is(control.ReaperStopped, stuck))
}
