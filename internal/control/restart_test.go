package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func TestAfterARestart(t *testing.T) {
	for _, step := range []string{"Create", "Start", "Ping"} {
		rule(t, "what was starting is finished: killed in "+step, func(f *fixture) {
			faults := &f.engine.Faults
			if step == "Ping" {
				faults = &f.guests.Faults
			}
			remove := faults.Inject(controltest.Fault{Call: step, Hang: make(chan struct{})})
			a := f.acquireLater("t", persistent)
			f.mark()
			f.crash(time.Second)
			f.refused(a.err, control.KindDraining)
			remove()
			f.crash(time.Second) // again, so that it begins anew without the fault
			f.told("server.started by server", "server.started by server", "env.ready")
			f.agent, _ = f.connect("hermes")
			got := f.acquire("t")
			f.equal("the outcome", got.Outcome, "reused")
			f.equal("the generation", got.Env.Generation, 1)
			f.onEngine(got.Env.ID, control.SandboxRunning)
			list, err := f.engine.List(f.Context())
			f.must(err)
			f.equal("the sandboxes", len(list), 1)
		})
	}
	rule(t, "what was being torn down is finished", func(f *fixture) {
		eph, per := f.acquire("e").Env.ID, f.idle("p")
		remove := f.engine.Inject(controltest.Fault{Call: "Remove", Hang: make(chan struct{})})
		stop := f.engine.Inject(controltest.Fault{Call: "Stop", Hang: make(chan struct{})})
		f.endTurn("e")
		f.advance(5 * time.Minute)
		f.inState(eph, control.Stopping)
		f.inState(per, control.Stopping)
		f.crash(time.Hour)
		f.inState(eph, control.Stopping)
		f.inState(per, control.Stopping)
		remove()
		stop()
		f.mark()
		f.crash(time.Hour)
		f.equal("the events", len(f.log()), len([]string{"server.started", "env.removed", "env.dormant", "reaper.stopped"}))
		f.inState(eph, control.Removed)
		f.inState(per, control.Dormant)
		f.onEngine(eph, "")
		f.onEngine(per, control.SandboxExited)
	})
	rule(t, "a countdown that was running has the grace, shown, forecast and kept", func(f *fixture) {
		id := f.idle("t")
		f.crash(time.Hour)
		f.dueIn(id, time.Minute)
		f.equal("the forecast", f.plane.Forecast(0)[0].At, f.view(id).Deadline)
		f.reconcile()
		f.advance(time.Minute - time.Millisecond)
		f.inState(id, control.Ready)
		f.advance(time.Millisecond)
		f.inState(id, control.Dormant)
	})
	rule(t, "what was left of a countdown stays, where it is more than the grace", func(f *fixture) {
		id := f.idle("t")
		f.restart(time.Minute)
		f.dueIn(id, 4*time.Minute)
	})
	rule(t, "activity only moves the deadline later", func(f *fixture) {
		id := f.idle("t", lifetime(10*time.Second))
		f.crash(time.Second)
		f.reconcile()
		f.dueIn(id, time.Minute)
		f.advance(time.Second)
		f.agent, _ = f.connect("hermes")
		_, err := f.agent.Touch(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.dueIn(id, 59*time.Second)
		f.advance(55 * time.Second)
		_, err = f.agent.Touch(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.dueIn(id, 10*time.Second)
	})
	rule(t, "a countdown that was not running has no grace", func(f *fixture) {
		id := f.acquire("t", persistent, lifetime(10*time.Second)).Env.ID
		f.restart(0)
		f.reconcile()
		f.agent, f.sink, _ = f.resume(f.agent.ID())
		f.endTurn("t")
		f.dueIn(id, 10*time.Second)
	})
	rule(t, "nothing is reaped before its guest was asked what runs", func(f *fixture) {
		id := f.idle("t")
		f.runLater("t", "make", timeout(10*time.Hour))
		f.endTurn("t")
		f.crash(time.Hour)
		f.advance(time.Hour) // the engine was not listed yet
		f.inState(id, control.Ready)
		f.reconcile()
		f.held(id, control.HoldExec)
		f.dueIn(id, never)
		f.end(control.ExecEnd{})
		f.held(id)
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "no turn lapses before that, either", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.runLater("t", "make", timeout(10*time.Hour))
		f.advance(5 * time.Hour)
		f.mark()
		f.crash(time.Second)
		f.agent, f.sink, _ = f.resume(f.agent.ID())
		f.advance(time.Second)
		f.reconcile()
		f.told("server.started by server", "agent.resumed")
		f.held(id, control.HoldTurn, control.HoldExec)
	})
	rule(t, "a guest that does not answer is asked for a minute", func(f *fixture) {
		id := f.idle("t", lifetime(10*time.Second))
		f.guests.Inject(controltest.Fault{Call: "Execs", Err: control.ErrGuestUnreachable})
		f.crash(time.Second)
		f.reconcile()
		f.advance(50 * time.Second)
		f.inState(id, control.Ready)
		f.advance(time.Minute)
		f.inState(id, control.Dormant)
	})
	rule(t, "what a command had left goes on holding", func(f *fixture) {
		id := f.idle("t")
		f.runLater("t", "server &")
		f.end(control.ExecEnd{Left: 1})
		f.endTurn("t")
		f.crash(time.Hour)
		f.reconcile()
		f.held(id, control.HoldProcess)
		f.guests.LetGo(f.guests.Starts()[0].Exec)
		synctest.Wait()
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "what died meanwhile is lost, and its commands with it", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.runLater("t", "make", withID("a"))
		disk := f.store.Reopen()
		f.close()
		f.store = disk
		f.engine.Die("sandkeeper-test-"+id, 137, true)
		f.advance(time.Minute)
		f.open()
		f.mark()
		f.advance(time.Second)
		f.reconcile()
		ev := f.told("env.lost by reconciler", "env.dormant by reconciler")
		f.equal("the exit code and oom", []any{ev[0].Data["exit_code"], ev[0].Data["oom"]}, []any{137, true})
		f.agent, _ = f.connect("hermes")
		_, err := f.tryRun("t", "make", withID("a"))
		f.refused(err, control.KindGenerationGone)
		f.equal("the commands that ran", len(f.guests.Starts()), 1)
	})
	rule(t, "what was started again meanwhile is another generation, and no command runs twice", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.advance(time.Second)
		f.reconcile()
		f.runLater("t", "make", withID("a"))
		f.close()
		f.engine.Die("sandkeeper-test-"+id, 0, false)
		f.advance(time.Second)
		f.must(f.engine.Start(f.Context(), "sandkeeper-test-"+id))
		f.open()
		f.advance(time.Second)
		f.mark()
		f.reconcile()
		f.told("env.lost by reconciler", "env.dormant by reconciler")
		f.advance(time.Second)
		f.reconcile()
		f.told("env.starting by reconciler", "env.resumed by reconciler")
		f.agent, _ = f.connect("hermes")
		_, err := f.tryRun("t", "make", withID("a"))
		f.refused(err, control.KindGenerationGone)
		f.equal("the commands that ran", len(f.guests.Starts()), 1)
	})
	rule(t, "a pin stands", func(f *fixture) {
		id := f.idle("t")
		f.pin(id, 0)
		f.crash(100 * time.Hour)
		f.reconcile()
		f.advance(100 * time.Hour)
		f.inState(id, control.Ready)
	})
	rule(t, "a deadline that was moved is on disk within 5 s", func(f *fixture) {
		id := f.idle("t", lifetime(time.Hour))
		f.advance(30 * time.Minute)
		_, err := f.agent.Touch(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.advance(5 * time.Second)
		f.crash(0)
		f.dueIn(id, time.Hour-5*time.Second)
	})
	rule(t, "a wall clock that went back meanwhile keeps nobody for longer than a lifetime", func(f *fixture) {
		id := f.idle("t")
		f.wall = -100 * time.Hour
		f.restart(0)
		f.reconcile()
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "a decision that was not on disk was none", func(f *fixture) {
		id := f.acquire("t").Env.ID
		disk := f.store.Reopen()
		f.endTurn("t")
		f.close()
		f.store = disk // as if it had crashed before
		f.open()
		f.inState(id, control.Ready)
		f.advance(time.Second)
		f.reconcile() // the engine has it no more
		f.inState(id, control.Removed)
	})
}
