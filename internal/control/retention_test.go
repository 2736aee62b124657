package control_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

const day = 24 * time.Hour

func TestRetention(t *testing.T) {
	rule(t, "a purge is announced a day ahead", func(f *fixture) {
		id := f.dormant("t")
		f.dueIn(id, 7*day)
		f.equal("the next action", *f.view(id).NextAction, "purge")
		f.mark()
		f.advance(6*day - time.Millisecond)
		f.told()
		f.advance(time.Millisecond)
		ev := f.told("env.expiring by reaper")
		f.equal("the deadline told", ev[0].Data["deadline"], f.view(id).Deadline)
		f.equal("the seconds left", ev[0].Data["seconds_left"], 86400)
		f.dueIn(id, day)
		f.advance(day - time.Millisecond)
		f.inState(id, control.Dormant)
		f.advance(time.Millisecond)
		f.told("env.stopping by reaper", "env.removed by reaper", "reaper.purged by reaper")
		f.inState(id, control.Removed)
		f.onEngine(id, "")
	})
	rule(t, "or half the retention ahead, where that is less", func(f *fixture) {
		id := f.dormant("t")
		f.mark()
		f.advance(30 * time.Minute)
		f.told("env.expiring by reaper")
		f.dueIn(id, 30*time.Minute)
		f.advance(30 * time.Minute)
		f.inState(id, control.Removed)
	}, func(o *control.Options) { o.Retention = time.Hour })
	rule(t, "of 0 keeps for ever", func(f *fixture) {
		id := f.dormant("t")
		f.dueIn(id, never)
		f.advance(1000 * day)
		f.inState(id, control.Dormant)
	}, func(o *control.Options) { o.Retention = 0 })
	rule(t, "counts from the last activity, and takes the announcement back", func(f *fixture) {
		id := f.dormant("t")
		f.advance(6*day + time.Hour)
		f.mark()
		_, err := f.plane.TouchEnv(f.Context(), "operator:ada", id)
		f.must(err)
		f.dueIn(id, 7*day)
		f.advance(6 * day)
		f.told("env.touched by operator:ada", "env.expiring by reaper")
		f.advance(day)
		f.inState(id, control.Removed)
	})
	rule(t, "a turn's end counts too", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		_, err := f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		f.advance(time.Minute)
		end := f.endTurn("t")
		f.equal("the deadline told", end.Decisions[0].Deadline, f.view(id).Deadline)
		f.dueIn(id, 7*day)
	})
	rule(t, "counts from the unpin", func(f *fixture) {
		id := f.dormant("t")
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{})
		f.must(err)
		f.dueIn(id, never)
		f.advance(30 * day)
		f.inState(id, control.Dormant)
		_, err = f.plane.Unpin(f.Context(), "operator:ada", id)
		f.must(err)
		f.dueIn(id, 7*day)
	})
}

func TestAClockAloneDeletesNoFiles(t *testing.T) {
	rule(t, "what was due while we were down is announced first", func(f *fixture) {
		id := f.dormant("t")
		f.mark()
		f.restart(100 * day)
		f.told("server.started by server", "env.expiring by reaper")
		f.dueIn(id, day)
		f.advance(day - time.Millisecond)
		f.inState(id, control.Dormant)
		f.advance(time.Millisecond)
		f.inState(id, control.Removed)
	})
	rule(t, "an announcement counts our running time alone", func(f *fixture) {
		id := f.dormant("t")
		f.advance(6*day + time.Hour)
		f.plane.Housekeep(f.Context())
		f.restart(30 * day)
		f.dueIn(id, 23*time.Hour)
		f.mark()
		f.advance(23*time.Hour - time.Millisecond)
		f.told()
		f.advance(time.Millisecond)
		f.inState(id, control.Removed)
	})
	rule(t, "a wall clock that goes ahead purges nothing", func(f *fixture) {
		id := f.dormant("t")
		f.wall = 100 * day
		f.plane.Housekeep(f.Context())
		f.alarms.Rearm()
		synctest.Wait()
		f.dueIn(id, 7*day)
		f.inState(id, control.Dormant)
	})
	rule(t, "one that was announced and then ran again is announced again", func(f *fixture) {
		id := f.dormant("t")
		f.advance(6*day + time.Hour)
		f.must(f.engine.Start(f.Context(), "sandkeeper-test-"+id)) // behind our back
		f.reconcile()
		f.inState(id, control.Ready)
		f.die(id, 0, false)
		f.mark()
		f.advance(6 * day)
		f.told("env.expiring by reaper")
	})
}

func TestAStartThatFails(t *testing.T) {
	rule(t, "while files are kept goes back to dormant, its retention counts on", func(f *fixture) {
		id := f.dormant("t")
		f.engine.Inject(controltest.Fault{Call: "Start", Err: errors.New("no space"), Times: 1})
		f.mark()
		_, err := f.tryAcquire("t")
		f.refused(err, control.KindInternal)
		f.told("turn.began", "env.starting", "env.failed by server")
		f.inState(id, control.Dormant)
		if v := f.view(id); v.Error == nil {
			f.Fatal("no error is shown")
		}
		f.dueIn(id, 7*day)
		a := f.acquire("t")
		f.equal("the outcome", a.Outcome, "resumed")
		f.equal("the generation", a.Env.Generation, 3)
		if a.Env.Error != nil {
			f.Fatal("the error stays")
		}
	})
	rule(t, "leaves nothing running", func(f *fixture) {
		id := f.dormant("t")
		f.guests.Inject(controltest.Fault{Call: "Ping", Hang: make(chan struct{}), Times: 1})
		_, err := f.tryAcquire("t")
		f.refused(err, control.KindEngineUnavailable)
		f.inState(id, control.Dormant)
		f.onEngine(id, control.SandboxExited)
		f.advance(time.Second)
		f.reconcile()
		f.inState(id, control.Dormant)
	})
	rule(t, "without files is failed, and the next acquire makes what it asks", func(f *fixture) {
		f.guests.Inject(controltest.Fault{Call: "Ping", Hang: make(chan struct{}), Times: 1})
		_, err := f.tryAcquire("t", image("alpine"))
		f.refused(err, control.KindEngineUnavailable)
		a := f.acquire("t", image("busybox"))
		f.equal("the outcome", a.Outcome, "created")
		f.equal("the image shown", *a.Env.Image, "busybox")
		spec, _ := f.engine.Spec("sandkeeper-test-" + a.Env.ID)
		f.equal("the image made", spec.Image, "busybox")
		f.told("turn.began", "env.starting", "env.failed by server", "env.starting", "env.ready")
	})
}
