package control_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// bring makes an environment of the task "t" in a state, its turn open.
func (f *fixture) bring(state control.State, persistent bool) (id string) {
	f.Helper()
	return f.bringTask("t", state, persistent)
}

func (f *fixture) bringTask(task string, state control.State, persistent bool) (id string) {
	f.Helper()
	mode := func(r *control.AcquireRequest) { r.Persistent = &persistent }
	never := make(chan struct{})
	switch state {
	case control.Starting:
		f.engine.Inject(controltest.Fault{Call: "Create", Hang: never, Times: 1})
		f.acquireLater(task, mode)
	case control.Failed:
		remove := f.engine.Inject(controltest.Fault{Call: "Create", Err: errors.New("boom")})
		_, err := f.tryAcquire(task, mode)
		f.refused(err, control.KindInternal)
		remove()
	default:
		f.acquire(task, mode)
	}
	vs, err := f.agent.Envs(f.Context(), task)
	f.must(err)
	id = vs[0].ID
	switch state {
	case control.Stopping:
		f.engine.Inject(controltest.Fault{Call: "Stop", Hang: never})
		f.engine.Inject(controltest.Fault{Call: "Remove", Hang: never})
		_, err = f.agent.Release(f.Context(), control.Ref{Env: id}, false)
	case control.Dormant, control.Removed:
		_, err = f.agent.Release(f.Context(), control.Ref{Env: id}, false)
	}
	f.must(err)
	synctest.Wait()
	f.inState(id, state)
	return id
}

// The decision table of turn end, DESIGN.md §2.
func TestTurnEndDecides(t *testing.T) {
	for _, row := range []struct {
		name       string
		state      control.State
		persistent bool
		pinned     bool
		want       string        // "" for no row
		after      control.State // once all has settled; stopping hangs
	}{
		{"pinned ephemeral", control.Ready, false, true, "kept pinned", control.Ready},
		{"pinned persistent", control.Ready, true, true, "kept pinned", control.Ready},
		{"pinned ephemeral starting", control.Starting, false, true, "kept pinned", control.Starting},
		{"pinned ephemeral failed", control.Failed, false, true, "kept pinned", control.Failed},
		{"persistent starting", control.Starting, true, false, "kept persistent", control.Starting},
		{"persistent ready", control.Ready, true, false, "kept persistent", control.Ready},
		{"persistent failed", control.Failed, true, false, "kept persistent", control.Failed},
		{"persistent stopping", control.Stopping, true, false, "kept persistent", control.Stopping},
		{"persistent dormant", control.Dormant, true, false, "kept persistent", control.Dormant},
		{"ephemeral starting", control.Starting, false, false, "removed ephemeral", control.Removed},
		{"ephemeral ready", control.Ready, false, false, "removed ephemeral", control.Removed},
		{"ephemeral failed", control.Failed, false, false, "removed ephemeral", control.Removed},
		{"ephemeral stopping", control.Stopping, false, false, "", control.Stopping},
		{"removed", control.Removed, false, false, "", control.Removed},
	} {
		rule(t, row.name, func(f *fixture) {
			id := f.bring(row.state, row.persistent)
			if row.pinned {
				_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{})
				f.must(err)
			}
			end := f.endTurn("t")
			f.equal("the turn", *end.Turn, 1)
			got := ""
			for _, d := range end.Decisions {
				f.equal("the row's env", d.Env, id)
				f.equal("the row's name", d.Name, "main")
				got += d.Decision + " " + d.Reason
			}
			f.equal("the decision", got, row.want)
			f.inState(id, row.after)
		})
	}
}

func TestTurnEnd(t *testing.T) {
	rule(t, "an ephemeral environment goes with its files, a persistent one starts its countdown", func(f *fixture) {
		e := f.acquire("t", named("e")).Env.ID
		p := f.acquire("t", named("p"), persistent).Env.ID
		f.mark()
		end := f.endTurn("t")
		f.told("turn.ended", "env.stopping", "env.removed")
		f.onEngine(e, "")
		f.onEngine(p, control.SandboxRunning)
		f.dueIn(p, 5*time.Minute)
		f.equal("the deadline told", end.Decisions[1].Deadline, f.view(p).Deadline)
	})
	rule(t, "the decisions are in the event, with the outcome", func(f *fixture) {
		f.acquire("t")
		f.mark()
		_, err := f.agent.TurnEnd(f.Context(), control.TurnEndRequest{Task: "t", Outcome: "cancelled"})
		f.must(err)
		synctest.Wait()
		ev := f.told("turn.ended", "env.stopping", "env.removed")[0]
		f.equal("the outcome", ev.Data["outcome"], "cancelled")
		f.equal("the decisions", len(ev.Data["decisions"].([]any)), 1)
	})
	rule(t, "it answers once the decision is on disk, the teardown goes on behind it", func(f *fixture) {
		id := f.acquire("t").Env.ID
		hang := make(chan struct{})
		f.engine.Inject(controltest.Fault{Call: "Remove", Hang: hang, Times: 1})
		f.mark()
		f.endTurn("t")
		f.told("turn.ended", "env.stopping")
		f.inState(id, control.Stopping)
		close(hang)
		synctest.Wait()
		f.told("env.removed")
	})
	rule(t, "a decision that cannot be written is none", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.store.OnCommit(func(*control.Batch) error { return errors.New("disk full") })
		_, err := f.tryEnd("t")
		f.refused(err, control.KindInternal)
		f.inState(id, control.Ready)
		f.store.OnCommit(nil)
		f.equal("the rows", len(f.endTurn("t").Decisions), 1)
	})
	rule(t, "a waiting acquire gets generation_gone", func(f *fixture) {
		hang := make(chan struct{})
		f.engine.Inject(controltest.Fault{Call: "Create", Hang: hang})
		a := f.acquireLater("t")
		f.mark()
		f.endTurn("t")
		if !answered(a.done) {
			f.Fatal("the acquire still waits")
		}
		f.equal("the reason", f.refused(a.err, control.KindGenerationGone).Tombstone.Reason, "turn ended")
		f.told("turn.ended", "env.stopping", "env.removed")
	})
	rule(t, "a running command of an ephemeral one ends as lost, with the reason", func(f *fixture) {
		f.acquire("t")
		r := f.runLater("t", "sleep 1000", withID("a"))
		f.endTurn("t")
		if !answered(r.done) {
			f.Fatal("the command still runs")
		}
		f.equal("the reason", f.refused(r.err, control.KindGenerationGone).Tombstone.Reason, "turn ended")
		_, err := f.tryRun("t", "sleep 1000", withID("a"))
		f.equal("the reason, asked again", f.refused(err, control.KindGenerationGone).Tombstone.Reason, "turn ended")
		f.equal("the commands that ran", len(f.guests.Starts()), 1)
	})
	rule(t, "a running command of a persistent one goes on, and the countdown starts after it", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		r := f.runLater("t", "make", timeout(20*time.Minute))
		f.endTurn("t")
		f.dueIn(id, never)
		f.held(id, control.HoldExec)
		f.advance(15 * time.Minute)
		f.end(control.ExecEnd{})
		if !answered(r.done) || r.err != nil {
			f.Fatal("the command did not end", r.err)
		}
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "it acts on every environment of the task, whoever acquired it, and on no other", func(f *fixture) {
		other, _ := f.connect("iris")
		mine := f.acquire("t", named("mine")).Env.ID
		theirs := f.as(other).acquire("t", named("theirs")).Env.ID
		unrelated := f.acquire("u").Env.ID
		stranger, _, err := f.plane.Hello(f.Context(), "stranger", control.Hello{Agent: "x"}, &sink{})
		f.must(err)
		foreign := f.as(stranger).acquire("t").Env.ID
		f.equal("the rows", len(f.endTurn("t").Decisions), 2)
		f.inState(mine, control.Removed)
		f.inState(theirs, control.Removed)
		f.inState(unrelated, control.Ready)
		f.inState(foreign, control.Ready)
	})
	rule(t, "without a turn, or of an unknown task, it is no error", func(f *fixture) {
		end := f.endTurn("nobody")
		if end.Turn != nil || end.Stale || len(end.Decisions) != 0 || end.Decisions == nil {
			f.Fatalf("got %+v", end)
		}
		f.acquire("t")
		f.endTurn("t")
		again := f.endTurn("t")
		f.equal("the turn", *again.Turn, 1)
		f.equal("the rows", len(again.Decisions), 0)
	})
	rule(t, "an older turn than the open one changes nothing", func(f *fixture) {
		f.acquire("t")
		f.endTurn("t")
		id := f.acquire("t").Env.ID
		end, err := f.tryEnd("t", 1)
		f.must(err)
		if !end.Stale || *end.Turn != 2 || len(end.Decisions) != 0 {
			f.Fatalf("got %+v", end)
		}
		f.inState(id, control.Ready)
	})
	rule(t, "one from the future is refused", func(f *fixture) {
		f.acquire("t")
		for _, n := range []int64{2, 0, -1} {
			_, err := f.tryEnd("t", n)
			f.refused(err, control.KindInvalid)
		}
	})
	rule(t, "numbers never repeat, also when the task was forgotten, or the server restarted", func(f *fixture) {
		f.acquire("t")
		f.endTurn("t")
		f.plane.Housekeep(f.Context()) // drops the task from memory
		n, opened, err := f.agent.TurnBegin(f.Context(), "t")
		f.must(err)
		f.equal("the turn", n, 2)
		f.equal("opened", opened, true)
		n, opened, err = f.agent.TurnBegin(f.Context(), "t")
		f.must(err)
		f.equal("the turn", n, 2)
		f.equal("opened again", opened, false)
		f.endTurn("t")
		f.crash(0)
		f.agent, _ = f.connect("hermes")
		n, _, err = f.agent.TurnBegin(f.Context(), "t")
		f.must(err)
		f.equal("the turn", n, 3)
	})
	rule(t, "an outcome that is none is refused", func(f *fixture) {
		_, err := f.agent.TurnEnd(f.Context(), control.TurnEndRequest{Task: "t", Outcome: "great"})
		f.refused(err, control.KindInvalid)
	})
}

func TestATurnOpens(t *testing.T) {
	rule(t, "with the first acquire", func(f *fixture) {
		f.acquire("t")
		f.told("turn.began", "env.starting", "env.ready")
		f.acquire("t", named("second"))
		f.told("env.starting", "env.ready")
	})
	rule(t, "with turn.begin", func(f *fixture) {
		_, _, err := f.agent.TurnBegin(f.Context(), "t")
		f.must(err)
		f.told("turn.began")
	})
	rule(t, "with the first command of a task that has none open", func(f *fixture) {
		id := f.idle("t")
		f.mark()
		f.run("t", "true")
		f.told("turn.began")
		f.held(id, control.HoldTurn)
		f.equal("the turn", f.view(id).Turn.Number, 2)
	})
	rule(t, "not with a file call, a touch, or a command that is known", func(f *fixture) {
		f.acquire("t", persistent)
		f.run("t", "true", withID("a"))
		f.endTurn("t")
		f.mark()
		_, err := f.agent.WriteFile(f.Context(), control.Ref{Task: "t"}, control.FileWrite{Path: "f"})
		f.must(err)
		_, err = f.agent.Touch(f.Context(), control.Ref{Task: "t"})
		f.must(err)
		f.run("t", "true", withID("a"))
		f.told()
	})
	rule(t, "not where the acquire is refused for what it asks", func(f *fixture) {
		_, err := f.tryAcquire("t", lifetime(0))
		f.refused(err, control.KindInvalid)
		f.told()
	})
}
