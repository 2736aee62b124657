package control_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func TestASandboxThatDied(t *testing.T) {
	for _, row := range []struct {
		name string
		mode ask
		code int
		oom  bool
		told []string
	}{
		{"persistent becomes dormant", persistent, 1, false, []string{"env.lost by reconciler", "env.dormant by reconciler"}},
		{"ephemeral is removed", ephemeral, 137, true, []string{"env.lost by reconciler", "env.removed by reconciler"}},
	} {
		check := func(f *fixture, id string) {
			f.Helper()
			ev := f.told(row.told...)
			f.equal("the exit code and oom", []any{ev[0].Data["exit_code"], ev[0].Data["oom"]}, []any{row.code, row.oom})
		}
		rule(t, row.name+", by the engine's event", func(f *fixture) {
			id := f.acquire("t", row.mode).Env.ID
			f.mark()
			f.die(id, row.code, row.oom)
			check(f, id)
			f.reconcile() // has nothing to add
			f.told()
		})
		rule(t, row.name+", by a listing", func(f *fixture) {
			id := f.acquire("t", row.mode).Env.ID
			f.mark()
			f.advance(time.Second)
			f.engine.Die("sandkeeper-test-"+id, row.code, row.oom)
			f.reconcile()
			check(f, id)
		})
	}
	rule(t, "one whose guest was not asked yet has its retention all the same", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.crash(time.Second)
		f.die(id, 1, false)
		f.dueIn(id, 7*24*time.Hour)
		f.advance(7 * 24 * time.Hour)
		f.inState(id, control.Removed)
	})
	for _, row := range []struct {
		name string
		mode ask
		want control.State
		told []string
	}{
		{"persistent is stopped", persistent, control.Dormant, []string{"env.stopping by reconciler", "env.dormant by reconciler"}},
		{"ephemeral is removed", ephemeral, control.Removed, []string{"env.stopping by reconciler", "env.removed by reconciler"}},
	} {
		rule(t, "one that a failed start left running, and whose kill failed too: "+row.name, func(f *fixture) {
			f.guests.Inject(controltest.Fault{Call: "Ping", Err: errors.New("boom"), Times: 1})
			f.engine.Inject(controltest.Fault{Call: "Kill", Err: errors.New("boom"), Times: 1})
			_, err := f.tryAcquire("t", row.mode)
			f.refused(err, control.KindInternal)
			vs, err := f.agent.Envs(f.Context(), "t")
			f.must(err)
			id := vs[0].ID
			f.onEngine(id, control.SandboxRunning)
			f.advance(time.Second)
			f.mark()
			f.reconcile()
			f.told(row.told...)
			f.inState(id, row.want)
		})
	}
	rule(t, "the tombstone of an ephemeral one has its exit code", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.die(id, 137, true)
		_, err := f.plane.Env(id)
		tomb := f.refused(err, control.KindGenerationGone).Tombstone
		f.equal("the tombstone", []any{*tomb.ExitCode, tomb.OOM, tomb.Reason, tomb.Actor}, []any{137, true, "out of memory", "reconciler"})
		f.onEngine(id, "")
	})
	rule(t, "one that was removed has no exit code", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.mark()
		name := "sandkeeper-test-" + id
		f.engine.Vanish(name, false)
		f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: id, Kind: control.SandboxRemoved, At: time.Now()})
		ev := f.told("env.lost by reconciler", "env.dormant by reconciler")
		if c, ok := ev[0].Data["exit_code"]; ok {
			f.Fatalf("exit code %v", c)
		}
	})
	rule(t, "is told once, however often it is heard", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.mark()
		f.die(id, 1, false)
		name := "sandkeeper-test-" + id
		f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: id, Kind: control.SandboxDied, ExitCode: 1, At: time.Now()})
		f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: id, Kind: control.SandboxRemoved, At: time.Now()})
		f.advance(time.Second)
		f.reconcile()
		f.told("env.lost by reconciler", "env.dormant by reconciler")
	})
	rule(t, "an event of an earlier run, of a teardown of ours, or of another sandbox changes nothing", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.endTurn("t")
		f.advance(5 * time.Minute)
		name := "sandkeeper-test-" + id
		stopped := time.Now()
		f.advance(time.Second)
		f.acquire("t")
		f.mark()
		f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: id, Kind: control.SandboxDied, At: stopped})
		f.plane.Observe(f.Context(), control.EngineEvent{Name: "other", Env: id, Kind: control.SandboxDied, At: time.Now()})
		f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: "other", Kind: control.SandboxDied, At: time.Now()})
		f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: id, Kind: control.SandboxStarted, At: time.Now()})
		f.told()
		f.engine.Inject(controltest.Fault{Call: "Stop", Hang: make(chan struct{})})
		_, err := f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		f.plane.Observe(f.Context(), control.EngineEvent{Name: name, Env: id, Kind: control.SandboxDied, At: time.Now()})
		f.told("env.stopping by operator:ada")
	})
}

func TestReconciliation(t *testing.T) {
	rule(t, "what changed since the listing began is left alone", func(f *fixture) {
		began := f.plane.Now()
		f.advance(time.Second)
		f.acquire("t")
		f.mark()
		f.must(f.plane.Reconcile(f.Context(), nil, began))
		f.told()
	})
	rule(t, "one that is gone although its files are there is recreated by the next acquire, and told", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.advance(time.Second)
		f.engine.Vanish("sandkeeper-test-"+id, false)
		f.mark()
		f.reconcile()
		f.told("env.lost by reconciler", "env.dormant by reconciler")
		f.equal("the outcome", f.acquire("t").Outcome, "recreated")
		f.told("env.starting", "env.recreated")
	})
	rule(t, "one that was started behind our back is the next generation", func(f *fixture) {
		id := f.dormant("t")
		f.advance(time.Second)
		f.must(f.engine.Start(f.Context(), "sandkeeper-test-"+id))
		f.mark()
		f.reconcile()
		f.told("env.starting by reconciler", "env.resumed by reconciler")
		f.equal("the generation", f.view(id).Generation, 2)
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "one that was started again behind our back is lost first, also where we did not hear of it", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.advance(time.Second)
		f.reconcile()
		f.advance(time.Second)
		name := "sandkeeper-test-" + id
		f.engine.Die(name, 0, false)
		f.must(f.engine.Start(f.Context(), name))
		f.mark()
		f.reconcile()
		f.told("env.lost by reconciler", "env.dormant by reconciler")
		f.advance(time.Second)
		f.reconcile()
		f.equal("the generation", f.view(id).Generation, 2)
	})
	rule(t, "while the engine is unreachable nothing is lost", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.mark()
		up := f.engine.Down()
		_, err := f.engine.List(f.Context())
		f.plane.EngineSeen(f.Context(), control.EngineInfo{}, err)
		f.plane.EngineSeen(f.Context(), control.EngineInfo{}, err)
		f.advance(10 * time.Minute)
		f.inState(id, control.Ready)
		up()
		f.plane.EngineSeen(f.Context(), f.o.EngineInfo, nil)
		f.reconcile()
		f.told("engine.down by reconciler", "engine.up by reconciler")
		f.inState(id, control.Ready)
	})
	rule(t, "an error that is not of the engine's absence says nothing of it", func(f *fixture) {
		f.plane.EngineSeen(f.Context(), control.EngineInfo{}, errDisk)
		f.told()
		f.equal("reachable", f.plane.Engine().Reachable, true)
	})
	rule(t, "a start whose end could not be written is finished by the next round", func(f *fixture) {
		f.engine.Inject(controltest.Fault{Call: "Create", Delay: time.Second})
		a := f.acquireLater("t")
		f.store.OnCommit(func(*control.Batch) error { return errDisk })
		f.advance(time.Second)
		if !answered(a.done) {
			f.Fatal("it still waits")
		}
		f.refused(a.err, control.KindInternal)
		f.store.OnCommit(nil)
		f.reconcile()
		f.advance(time.Second)
		f.equal("the outcome", f.acquire("t").Outcome, "reused")
	})
}

func TestOrphans(t *testing.T) {
	put := func(f *fixture, s control.SandboxState) string {
		f.engine.Put(control.SandboxStatus{Name: "sandkeeper-test-lost", Env: "lost", Owner: "default", Task: "t", EnvName: "main", State: s, CreatedAt: time.Now()})
		f.advance(time.Second)
		f.mark()
		return "sandkeeper-test-lost"
	}
	rule(t, "one that runs is stopped, kept and shown", func(f *fixture) {
		name := put(f, control.SandboxRunning)
		f.reconcile()
		f.told("orphan.found by reconciler")
		s, _ := f.engine.Sandbox(name)
		f.equal("the engine's state", s.State, control.SandboxExited)
		os := f.plane.Orphans()
		if len(os) != 1 || os[0].Name != name || !os[0].Stopped || os[0].Task != "t" {
			f.Fatalf("shown as %+v", os)
		}
		f.reconcile()
		f.told()
		f.crash(0)
		f.mark()
		f.advance(30 * 24 * time.Hour)
		f.reconcile()
		f.told()
		f.equal("shown", len(f.plane.Orphans()), 1)
	})
	rule(t, "one that cannot be stopped is shown, and stopped later", func(f *fixture) {
		put(f, control.SandboxRunning)
		f.engine.Inject(controltest.Fault{Call: "Stop", Err: errDisk, Times: 1})
		f.reconcile()
		f.equal("stopped", f.plane.Orphans()[0].Stopped, false)
		f.reconcile()
		f.equal("stopped", f.plane.Orphans()[0].Stopped, true)
		f.told("orphan.found by reconciler")
	})
	rule(t, "one that was never started is removed, 10 min after its creation", func(f *fixture) {
		name := put(f, control.SandboxCreated)
		f.reconcile()
		f.told()
		f.advance(10 * time.Minute)
		f.reconcile()
		f.told("orphan.removed by reconciler")
		if _, ok := f.engine.Sandbox(name); ok {
			f.Fatal("it is still there")
		}
	})
	rule(t, "files alone are kept and shown", func(f *fixture) {
		name := put(f, control.SandboxFiles)
		f.advance(time.Hour)
		f.reconcile()
		f.told("orphan.found by reconciler")
		if _, ok := f.engine.Sandbox(name); !ok {
			f.Fatal("they are gone")
		}
	})
	rule(t, "one that somebody else removed is no longer shown", func(f *fixture) {
		name := put(f, control.SandboxExited)
		f.reconcile()
		f.engine.Vanish(name, true)
		f.reconcile()
		f.told("orphan.found by reconciler", "orphan.removed by reconciler")
		f.equal("shown", len(f.plane.Orphans()), 0)
	})
	rule(t, "one that an operator adopts is a dormant environment of its task", func(f *fixture) {
		name := put(f, control.SandboxRunning)
		f.reconcile()
		v, err := f.plane.AdoptOrphan(f.Context(), "operator:ada", name)
		f.must(err)
		f.equal("what it is", []any{v.ID, v.State, v.Persistent, v.Task, v.Name, v.Generation}, []any{"lost", control.Dormant, true, "t", "main", int64(1)})
		f.told("orphan.found by reconciler", "orphan.adopted by operator:ada")
		f.dueIn("lost", 168*time.Hour)
		f.equal("shown", len(f.plane.Orphans()), 0)
		f.advance(time.Second)
		f.reconcile()
		f.told()
		f.crash(time.Second)
		f.reconcile()
		f.equal("shown after a crash", len(f.plane.Orphans()), 0)
		f.agent, f.sink = f.connect("hermes")
		got := f.acquire("t")
		f.equal("acquired", []any{got.Env.ID, got.Outcome, got.Env.Generation}, []any{"lost", "resumed", int64(2)})
	})
	rule(t, "none is adopted whose key is taken, that is not stopped, or whose labels do not fit", func(f *fixture) {
		f.engine.Inject(controltest.Fault{Call: "Stop", Err: errDisk, Times: 1})
		name := put(f, control.SandboxRunning)
		f.engine.Put(control.SandboxStatus{Name: "another-name", Env: "lost2", Owner: "default", Task: "t", EnvName: "x", State: control.SandboxExited})
		f.reconcile()
		_, err := f.plane.AdoptOrphan(f.Context(), "operator:ada", name)
		f.refused(err, control.KindConflict)
		f.reconcile()
		f.acquire("t")
		_, err = f.plane.AdoptOrphan(f.Context(), "operator:ada", name)
		f.refused(err, control.KindConflict)
		_, err = f.plane.AdoptOrphan(f.Context(), "operator:ada", "another-name")
		f.refused(err, control.KindConflict)
		_, err = f.plane.AdoptOrphan(f.Context(), "operator:ada", "nothing")
		f.refused(err, control.KindNotFound)
		f.equal("shown", len(f.plane.Orphans()), 2)
	})
	rule(t, "one that an operator purges goes with its files, and is told when it cannot", func(f *fixture) {
		name := put(f, control.SandboxExited)
		f.reconcile()
		f.mark()
		before, err := f.engine.List(f.Context())
		f.must(err)
		began := f.plane.Now()
		f.engine.Inject(controltest.Fault{Call: "Remove", Err: errDisk, Times: 1})
		f.refused(f.plane.PurgeOrphan(f.Context(), "operator:ada", name), control.KindEngineUnavailable)
		f.told()
		f.must(f.plane.PurgeOrphan(f.Context(), "operator:ada", name))
		f.told("orphan.removed by operator:ada")
		if _, ok := f.engine.Sandbox(name); ok {
			f.Fatal("it is still there")
		}
		f.must(f.plane.Reconcile(f.Context(), before, began)) // a listing from before
		f.told()
		f.equal("shown", len(f.plane.Orphans()), 0)
		f.refused(f.plane.PurgeOrphan(f.Context(), "operator:ada", name), control.KindNotFound)
	})
	rule(t, "what is left of a removed one is removed", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.endTurn("t")
		f.engine.Put(control.SandboxStatus{Name: "sandkeeper-test-" + id, Env: id, State: control.SandboxExited})
		f.advance(time.Second)
		f.mark()
		f.reconcile()
		f.told("orphan.removed by reconciler")
		f.onEngine(id, "")
	})
	rule(t, "one that is recorded is none, whatever its state", func(f *fixture) {
		for _, s := range []control.State{control.Starting, control.Ready, control.Failed, control.Dormant, control.Stopping} {
			f.bringTask(string(s), s, true)
		}
		f.advance(time.Second)
		f.mark()
		f.reconcile()
		f.equal("shown", len(f.plane.Orphans()), 0)
	})
}

func TestTheWallClock(t *testing.T) {
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 100 * 24 * time.Hour, 2 * time.Second} {
		rule(t, "that jumps by "+jump.String()+" moves every deadline along", func(f *fixture) {
			ready := f.idle("t")
			aged := f.acquire("aged", persistent, maxAge(time.Hour)).Env.ID
			kept := f.dormant("kept")
			pinned := f.idle("pinned")
			f.pin(pinned, 200*24*time.Hour)
			until := f.view(pinned).Pin.Until
			f.advance(time.Minute)
			before := f.view(ready).Deadline
			f.wall = jump
			f.mark()
			f.plane.Housekeep(f.Context())
			f.alarms.Rearm()
			synctest.Wait()
			f.told("clock.jumped by server")
			f.dueIn(ready, 4*time.Minute)
			f.dueIn(aged, 59*time.Minute)
			f.dueIn(kept, 7*24*time.Hour-time.Minute)
			f.equal("the deadline moved by", f.view(ready).Deadline.Sub(before.Time), jump)
			f.equal("the pin's end", f.view(pinned).Pin.Until, until)
			f.plane.Housekeep(f.Context())
			f.told()
			f.advance(4*time.Minute - time.Millisecond)
			f.inState(ready, control.Ready)
			f.advance(time.Millisecond)
			f.inState(ready, control.Dormant)
		})
		rule(t, "that jumps by "+jump.String()+" is re-based on disk", func(f *fixture) {
			id := f.idle("t", lifetime(time.Hour))
			f.advance(time.Minute)
			f.wall = jump
			f.plane.Housekeep(f.Context())
			f.crash(0)
			f.dueIn(id, 59*time.Minute)
		})
	}
	rule(t, "that jumps by less than a second is left alone", func(f *fixture) {
		f.wall = 900 * time.Millisecond
		f.plane.Housekeep(f.Context())
		f.told()
	})
	rule(t, "that jumps leaves sessions their grace", func(f *fixture) {
		f.acquire("t")
		f.agent.Disconnect(f.sink)
		f.advance(30 * time.Second)
		f.wall = time.Hour
		f.plane.Housekeep(f.Context())
		f.alarms.Rearm()
		f.advance(29 * time.Second)
		_, _, ok := f.resume(f.agent.ID())
		f.equal("resumed", ok, true)
	})
	rule(t, "that jumps leaves commands and turns what they had", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.runLater("t", "make", timeout(10*time.Minute))
		f.wall = 2 * time.Hour
		f.plane.Housekeep(f.Context())
		f.alarms.Rearm()
		f.advance(9 * time.Minute)
		f.held(id, control.HoldTurn, control.HoldExec)
	})
	rule(t, "that jumps does not shorten an announcement", func(f *fixture) {
		id := f.dormant("t")
		f.advance(6*24*time.Hour + time.Hour)
		f.plane.Housekeep(f.Context())
		f.restart(10 * time.Hour)
		f.dueIn(id, 23*time.Hour)
		f.wall = 50 * time.Hour
		f.plane.Housekeep(f.Context())
		f.alarms.Rearm()
		f.dueIn(id, 23*time.Hour)
	})
}

func TestAWatch(t *testing.T) {
	next := func(f *fixture, w *control.Watch) control.Changes {
		f.Helper()
		c, err := w.Next(f.Context())
		f.must(err)
		return c
	}
	rule(t, "has each event once, from where it stood, and the environments that changed", func(f *fixture) {
		_, _, last, err := f.plane.Events(0, 1, control.EventFilter{})
		f.must(err)
		w := f.plane.Watch(last)
		defer w.Close()
		id := f.acquire("t").Env.ID
		var seqs []uint64
		seen := false
		for len(seqs) < 3 {
			c := next(f, w)
			for _, e := range c.Events {
				seqs = append(seqs, e.Seq)
			}
			for _, e := range c.Envs {
				seen = seen || e == id
			}
		}
		f.equal("the sequence", seqs, []uint64{last + 1, last + 2, last + 3})
		f.equal("the environment was named", seen, true)
		ctx, cancel := contextWithCancel(f)
		cancel()
		if _, err := w.Next(ctx); err == nil {
			f.Fatal("something more")
		}
	})
	rule(t, "that is slow misses nothing", func(f *fixture) {
		w := f.plane.Watch(0)
		defer w.Close()
		const events = 5000
		for range events / 5 {
			f.must(f.plane.Record(f.Context(), control.Event{Kind: control.OperatorLogin, Actor: "operator:ada"}))
		}
		var last uint64
		for last < events/5 {
			for _, e := range next(f, w).Events {
				f.equal("the next", e.Seq, last+1)
				last = e.Seq
			}
		}
	})
	rule(t, "that the log no longer reaches is reset once", func(f *fixture) {
		for range 3000 {
			f.must(f.plane.Record(f.Context(), control.Event{Kind: control.OperatorLogin, Actor: "operator:ada"}))
		}
		f.must(f.store.Prune(f.Context(), control.PruneLimits{EventsKeep: 2900}))
		w := f.plane.Watch(5)
		defer w.Close()
		_, first, last, err := f.plane.Events(0, 1, control.EventFilter{})
		f.must(err)
		resets, at := 0, first-1
		for at < last {
			c := next(f, w)
			if c.Reset {
				resets++
			}
			for _, e := range c.Events {
				f.equal("the next", e.Seq, at+1)
				at = e.Seq
			}
		}
		f.equal("the resets", resets, 1)
	})
	rule(t, "that stood in another log is reset once", func(f *fixture) {
		w := f.plane.Watch(5000)
		defer w.Close()
		c := next(f, w)
		f.equal("reset", c.Reset, true)
		c2 := next(f, w)
		f.equal("reset again", c2.Reset, false)
		f.equal("the first", append(c.Events, c2.Events...)[0].Seq, 1)
	})
}
