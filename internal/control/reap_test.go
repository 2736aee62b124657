package control_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func TestTheReaper(t *testing.T) {
	rule(t, "stops a persistent one at its deadline, and not before", func(f *fixture) {
		id := f.idle("t")
		f.mark()
		deadline := f.view(id).Deadline
		f.advance(5*time.Minute - time.Millisecond)
		f.inState(id, control.Ready)
		f.told()
		f.advance(time.Millisecond)
		f.inState(id, control.Dormant)
		f.onEngine(id, control.SandboxExited)
		ev := f.told("env.stopping by reaper", "env.dormant by reaper", "reaper.stopped by reaper")
		f.equal("the reason", ev[0].Reason, "idle 300 s")
		f.equal("the reason", ev[2].Reason, "idle 300 s")
		if ev[0].Time.Before(deadline.Time) {
			f.Fatalf("stamped %s, before the deadline %s", ev[0].Time, deadline)
		}
	})
	rule(t, "removes an ephemeral one that was unpinned after its turn", func(f *fixture) {
		id := f.acquire("t").Env.ID
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{})
		f.must(err)
		f.endTurn("t")
		_, err = f.plane.Unpin(f.Context(), "operator:ada", id)
		f.must(err)
		f.equal("the next action", *f.view(id).NextAction, "remove")
		f.mark()
		f.advance(5 * time.Minute)
		f.told("env.stopping by reaper", "env.removed by reaper", "reaper.removed by reaper")
		f.onEngine(id, "")
	})
	rule(t, "waits for each environment alone", func(f *fixture) {
		hang := make(chan struct{})
		first := f.idle("a")
		f.engine.Inject(controltest.Fault{Call: "Stop", Name: "sandkeeper-test-" + first, Hang: hang})
		second := f.idle("b")
		f.advance(5 * time.Minute)
		f.inState(first, control.Stopping)
		f.inState(second, control.Dormant)
	})
	rule(t, "a pin exempts from it", func(f *fixture) {
		id := f.idle("t", maxAge(time.Hour))
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{})
		f.must(err)
		f.dueIn(id, never)
		f.advance(1000 * time.Hour)
		f.inState(id, control.Ready)
	})
	rule(t, "removes a failed one without files after 10 min, whatever its turn", func(f *fixture) {
		for _, mode := range []ask{persistent, ephemeral} {
			f.engine.Inject(controltest.Fault{Call: "Create", Err: errors.New("boom"), Times: 1})
			_, err := f.tryAcquire("t", mode)
			f.refused(err, control.KindInternal)
			vs, err := f.agent.Envs(f.Context(), "t")
			f.must(err)
			f.dueIn(vs[0].ID, 10*time.Minute)
			f.mark()
			f.advance(10 * time.Minute)
			f.inState(vs[0].ID, control.Removed)
			f.told("env.stopping by reaper", "env.removed by reaper", "reaper.removed by reaper")
		}
	})
}

func TestMaxAge(t *testing.T) {
	rule(t, "counts from the generation's start, holds or not", func(f *fixture) {
		id := f.acquire("t", persistent, maxAge(time.Hour)).Env.ID
		f.dueIn(id, time.Hour)
		f.advance(time.Minute)
		r := f.runLater("t", "make", timeout(10*time.Hour))
		f.dueIn(id, 59*time.Minute)
		f.mark()
		f.advance(59 * time.Minute)
		f.inState(id, control.Dormant)
		ev := f.told("env.stopping by reaper", "env.dormant by reaper", "reaper.stopped by reaper")
		f.equal("the rule", ev[0].Data["rule"], "max_age")
		if !answered(r.done) {
			f.Fatal("the command was not told")
		}
		f.refused(r.err, control.KindGenerationGone)
		f.acquire("t")
		f.dueIn(id, time.Hour)
	})
	rule(t, "begins when the start is done: a pull may take longer than the age", func(f *fixture) {
		pulled := make(chan struct{})
		f.engine.MissImage("slow", nil)
		f.engine.Inject(controltest.Fault{Call: "Pull", Hang: pulled})
		a := f.acquireLater("t", persistent, maxAge(time.Minute), image("slow"))
		f.advance(5 * time.Minute)
		close(pulled)
		if !answered(a.done) {
			f.Fatal("the acquire is not answered")
		}
		f.must(a.err)
		f.dueIn(a.Env.ID, time.Minute)
	})
	rule(t, "the earlier of the two is the deadline", func(f *fixture) {
		id := f.idle("t", maxAge(time.Hour))
		f.dueIn(id, 5*time.Minute)
		f.equal("the rule", f.plane.Forecast(0)[0].Rule, "idle")
		f.advance(4 * time.Minute)
		f.acquire("t", lifetime(2*time.Hour))
		f.endTurn("t")
		f.dueIn(id, 56*time.Minute)
		f.equal("the rule", f.plane.Forecast(0)[0].Rule, "max_age")
	})
}

func TestReapOrExecNeverBoth(t *testing.T) {
	rule(t, "a command at the deadline's instant runs, or finds the environment stopped", func(f *fixture) {
		for range 20 {
			id := f.idle("t")
			time.Sleep(5 * time.Minute) // both are now runnable
			_, err := f.tryRun("t", "true")
			f.must(err)
			synctest.Wait()
			f.inState(id, control.Ready)
			f.endTurn("t")
		}
	})
	rule(t, "a command that comes while a persistent one is being stopped waits and resumes it", func(f *fixture) {
		id := f.idle("t")
		hang := make(chan struct{})
		f.engine.Inject(controltest.Fault{Call: "Stop", Hang: hang, Times: 1})
		f.advance(5 * time.Minute)
		f.inState(id, control.Stopping)
		r := f.runLater("t", "true")
		if answered(r.done) {
			f.Fatal("it did not wait", r.err)
		}
		f.mark()
		close(hang)
		synctest.Wait()
		f.told("env.dormant by reaper", "reaper.stopped by reaper", "env.starting", "env.resumed")
		f.end(control.ExecEnd{})
		<-r.done
		f.must(r.err)
		f.equal("the generation", f.view(id).Generation, 2)
	})
	rule(t, "one that comes while an ephemeral one is being removed gets generation_gone", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.engine.Inject(controltest.Fault{Call: "Remove", Hang: make(chan struct{})})
		f.endTurn("t")
		_, err := f.tryRun("t", "true")
		f.equal("the reason", f.refused(err, control.KindGenerationGone).Tombstone.Reason, "turn ended")
		_, err = f.tryRun("", "true", inEnv(id))
		f.refused(err, control.KindGenerationGone)
	})
	rule(t, "one that waits for longer than 30 s is told when to come again", func(f *fixture) {
		id := f.idle("t")
		f.engine.Inject(controltest.Fault{Call: "Stop", Hang: make(chan struct{})})
		f.advance(5 * time.Minute)
		f.inState(id, control.Stopping)
		_, err := f.tryRun("t", "true")
		if f.refused(err, control.KindConflict).RetryAfter <= 0 {
			f.Fatal("no retry_after")
		}
		_, err = f.tryAcquire("t")
		if f.refused(err, control.KindConflict).RetryAfter <= 0 {
			f.Fatal("no retry_after")
		}
	})
}

func TestATeardownIsADurableJob(t *testing.T) {
	rule(t, "a failed one is retried with backoff until the engine says it is done", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.engine.Inject(controltest.Fault{Call: "Remove", Err: errors.New("device busy"), Times: 3})
		f.mark()
		f.endTurn("t")
		f.told("turn.ended", "env.stopping", "reaper.retry by reaper")
		v := f.view(id)
		if v.Teardown == nil || v.Teardown.Attempts != 1 || v.Teardown.Error == "" {
			f.Fatalf("the teardown shows %+v", v.Teardown)
		}
		f.advance(500 * time.Millisecond)
		f.told("reaper.retry by reaper")
		f.advance(999 * time.Millisecond)
		f.told()
		f.advance(time.Millisecond)
		f.told("reaper.retry by reaper")
		f.advance(2 * time.Second)
		f.told("env.removed")
		f.onEngine(id, "")
	})
	rule(t, "backoff is bounded, and no attempt is the last", func(f *fixture) {
		id := f.acquire("t").Env.ID
		remove := f.engine.Inject(controltest.Fault{Call: "Remove", Err: errors.New("device busy")})
		f.endTurn("t")
		f.advance(5 * time.Hour)
		f.inState(id, control.Stopping)
		if n := f.view(id).Teardown.Attempts; n < 5*60 || n > 5*60+10 {
			f.Fatalf("%d attempts in five hours", n)
		}
		remove()
		f.advance(time.Minute)
		f.inState(id, control.Removed)
	})
	rule(t, "one that hangs is given up after its time, and tried again", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.engine.Inject(controltest.Fault{Call: "Remove", Hang: make(chan struct{}), Times: 1})
		f.endTurn("t")
		f.mark()
		f.advance(30 * time.Second)
		f.told("reaper.retry by reaper")
		f.advance(time.Second)
		f.told("env.removed")
		f.inState(id, control.Removed)
	})
	rule(t, "one whose answer was lost is done again, and told once", func(f *fixture) {
		f.acquire("t")
		f.engine.Inject(controltest.Fault{Call: "Remove", Err: errors.New("EOF"), After: true, Times: 1})
		f.mark()
		f.endTurn("t")
		f.advance(time.Second)
		f.told("turn.ended", "env.stopping", "reaper.retry by reaper", "env.removed")
	})
	rule(t, "a stronger one takes over from one that hangs", func(f *fixture) {
		id := f.idle("t")
		f.engine.Inject(controltest.Fault{Call: "Stop", Hang: make(chan struct{})})
		_, err := f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		synctest.Wait()
		f.inState(id, control.Stopping)
		_, err = f.plane.Kill(f.Context(), "operator:ada", id, false)
		f.must(err)
		synctest.Wait()
		f.inState(id, control.Dormant)
	})
	rule(t, "a purge takes over from a stop, and a stop not from a purge", func(f *fixture) {
		id := f.idle("t")
		hang := f.engine.Inject(controltest.Fault{Call: "Stop", Hang: make(chan struct{})})
		slow := f.engine.Inject(controltest.Fault{Call: "Remove", Hang: make(chan struct{})})
		_, err := f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		synctest.Wait()
		_, err = f.plane.Kill(f.Context(), "operator:ada", id, true)
		f.must(err)
		synctest.Wait()
		_, err = f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		hang()
		slow()
		f.advance(time.Minute)
		f.inState(id, control.Removed)
		f.onEngine(id, "")
	})
	rule(t, "an engine that is down is one event, and the teardown comes when it is back", func(f *fixture) {
		id := f.acquire("t").Env.ID
		up := f.engine.Down()
		f.mark()
		f.endTurn("t")
		f.told("turn.ended", "env.stopping", "engine.down by reconciler", "reaper.retry by reaper")
		f.equal("reachable", f.plane.Engine().Reachable, false)
		up()
		f.plane.EngineSeen(f.Context(), f.o.EngineInfo, nil)
		f.equal("reachable", f.plane.Engine().Reachable, true)
		f.advance(time.Minute)
		f.told("engine.up by reconciler", "env.removed")
		f.inState(id, control.Removed)
	})
}

func TestForecast(t *testing.T) {
	rule(t, "lists what the reaper will do, in order", func(f *fixture) {
		late := f.idle("late", lifetime(time.Hour))
		soon := f.idle("soon")
		f.acquire("held", persistent)
		kept := f.dormant("kept")
		fs := f.plane.Forecast(0)
		if len(fs) != 3 {
			f.Fatalf("got %+v", fs)
		}
		for i, want := range []struct{ env, task, action, rule string }{
			{soon, "soon", "stop", "idle"}, {late, "late", "stop", "idle"}, {kept, "kept", "purge", "retention"},
		} {
			f.equal("the row", struct{ env, task, action, rule string }{fs[i].Env, fs[i].Task, fs[i].Action, fs[i].Rule}, want)
			f.equal("the time", fs[i].At, f.view(want.env).Deadline)
		}
		f.equal("the rows within 10 min", len(f.plane.Forecast(10*time.Minute)), 1)
	})
}
