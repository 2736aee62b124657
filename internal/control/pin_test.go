package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func (f *fixture) pin(id string, d time.Duration) control.View {
	f.Helper()
	var until time.Time
	if d > 0 {
		until = f.plane.Now().Add(d)
	}
	v, err := f.plane.Pin(f.Context(), "operator:ada", id, "under study", until)
	f.must(err)
	return v
}

func (f *fixture) unpin(id string) control.View {
	f.Helper()
	v, err := f.plane.Unpin(f.Context(), "operator:ada", id)
	f.must(err)
	return v
}

func TestAPin(t *testing.T) {
	rule(t, "is shown and told", func(f *fixture) {
		id := f.idle("t")
		f.mark()
		v := f.pin(id, time.Hour)
		f.equal("pinned", v.Pinned, true)
		f.equal("the pin", v.Pin.By+" "+v.Pin.Reason, "operator:ada under study")
		f.equal("its until", v.Pin.Until.Sub(v.Now.Time), time.Hour)
		f.equal("the reason told", f.told("env.pinned by operator:ada")[0].Reason, "under study")
		f.equal("pinned", f.unpin(id).Pinned, false)
		f.told("env.unpinned by operator:ada")
		f.unpin(id)
		f.told()
	})
	rule(t, "is no activity itself, and letting go starts the countdown in full", func(f *fixture) {
		id := f.idle("t")
		f.advance(4 * time.Minute)
		f.pin(id, 0)
		f.equal("the last activity", f.view(id).LastActivity.Kind, "turn")
		f.advance(time.Hour)
		f.unpin(id)
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "whose until passes is unpinned by the server", func(f *fixture) {
		id := f.idle("t")
		f.pin(id, time.Hour)
		f.mark()
		f.advance(time.Hour - time.Millisecond)
		f.told()
		f.advance(time.Millisecond)
		f.told("env.unpinned by server")
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "is told with the until that is shown, rounded up to the millisecond", func(f *fixture) {
		f.advance(300 * time.Microsecond)
		id := f.idle("t")
		f.mark()
		v := f.pin(id, time.Hour)
		f.equal("the until told", f.told("env.pinned by operator:ada")[0].Data["until"], v.Pin.Until)
	})
	rule(t, "whose until passes while it is dormant is unpinned too", func(f *fixture) {
		id := f.dormant("t")
		f.pin(id, time.Hour)
		f.mark()
		f.advance(time.Hour)
		f.told("env.unpinned by server")
		f.dueIn(id, 7*24*time.Hour)
	})
	rule(t, "whose until passed while we were down is unpinned at the start", func(f *fixture) {
		id := f.dormant("t")
		f.pin(id, time.Hour)
		f.mark()
		f.crash(2 * time.Hour)
		f.told("server.started by server", "env.unpinned by server")
	})
	rule(t, "on a failed one leaves it its 10 min in full", func(f *fixture) {
		id := f.bring(control.Failed, true)
		f.pin(id, time.Hour)
		f.mark()
		f.advance(time.Hour)
		f.told("turn.lapsed by server", "env.unpinned by server")
		f.dueIn(id, 10*time.Minute)
	})
	rule(t, "is replaced by a later one", func(f *fixture) {
		id := f.idle("t")
		f.pin(id, time.Hour)
		f.pin(id, 0)
		f.advance(2 * time.Hour)
		f.equal("pinned", f.view(id).Pinned, true)
	})
	rule(t, "outlives a stop, a kill and a restart, and ends with removal", func(f *fixture) {
		id := f.idle("t")
		f.pin(id, 0)
		_, err := f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		synctest.Wait()
		f.equal("pinned and dormant", f.view(id).Pinned, true)
		f.acquire("t")
		_, err = f.plane.Kill(f.Context(), "operator:ada", id, false)
		f.must(err)
		synctest.Wait()
		f.inState(id, control.Dormant)
		f.crash(0)
		f.equal("pinned", f.view(id).Pinned, true)
		_, err = f.plane.Kill(f.Context(), "operator:ada", id, true)
		f.must(err)
		synctest.Wait()
		f.inState(id, control.Removed)
		vs, _, err := f.plane.Envs(control.EnvFilter{State: control.Removed})
		f.must(err)
		f.equal("pinned", vs[0].Pinned, false)
	})
	rule(t, "keeps what was lost, also an ephemeral one", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.pin(id, 0)
		f.endTurn("t")
		f.mark()
		f.die(id, 3, false)
		f.told("env.lost by reconciler", "env.dormant by reconciler")
		f.onEngine(id, control.SandboxExited)
		f.equal("the outcome", f.acquire("t").Outcome, "resumed")
		f.endTurn("t")
		f.inState(id, control.Ready)
		f.unpin(id)
		f.advance(5 * time.Minute)
		f.inState(id, control.Removed)
	})
	rule(t, "on an ephemeral one that is being torn down is a conflict", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.engine.Inject(controltest.Fault{Call: "Remove", Hang: make(chan struct{})})
		f.endTurn("t")
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{})
		f.refused(err, control.KindConflict)
	})
	rule(t, "takes an until that is to come, and a reason of 512 characters", func(f *fixture) {
		id := f.idle("t")
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", f.plane.Now())
		f.refused(err, control.KindInvalid)
		_, err = f.plane.Pin(f.Context(), "operator:ada", id, "a\x00b", time.Time{})
		f.refused(err, control.KindInvalid)
		f.equal("pinned", f.view(id).Pinned, false)
	})
	rule(t, "that cannot be written is none", func(f *fixture) {
		id := f.idle("t")
		f.store.OnCommit(func(*control.Batch) error { return errDisk })
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{})
		f.refused(err, control.KindInternal)
		f.store.OnCommit(nil)
		f.equal("pinned", f.view(id).Pinned, false)
		f.advance(5 * time.Minute)
		f.inState(id, control.Dormant)
	})
}

func TestAnOperator(t *testing.T) {
	stop := func(f *fixture, id string) error {
		_, err := f.plane.Stop(f.Context(), "operator:ada", id)
		synctest.Wait()
		return err
	}
	kill := func(purge bool) func(f *fixture, id string) error {
		return func(f *fixture, id string) error {
			_, err := f.plane.Kill(f.Context(), "operator:ada", id, purge)
			synctest.Wait()
			return err
		}
	}
	for _, row := range []struct {
		name       string
		persistent bool
		do         func(f *fixture, id string) error
		refused    control.Kind
		after      control.State
		told       []string
	}{
		{"stop of a persistent one", true, stop, "", control.Dormant, []string{"env.stopping by operator:ada", "env.dormant by operator:ada"}},
		{"stop of an ephemeral one", false, stop, control.KindConflict, control.Ready, nil},
		{"kill of a persistent one", true, kill(false), "", control.Dormant, []string{"env.stopping by operator:ada", "env.dormant by operator:ada"}},
		{"kill of an ephemeral one", false, kill(false), "", control.Removed, []string{"env.stopping by operator:ada", "env.removed by operator:ada"}},
		{"kill with purge of a persistent one", true, kill(true), "", control.Removed, []string{"env.stopping by operator:ada", "env.removed by operator:ada"}},
	} {
		rule(t, row.name+", whatever holds it", func(f *fixture) {
			id := f.acquire("t", func(r *control.AcquireRequest) { r.Persistent = &row.persistent }).Env.ID
			f.pin(id, 0)
			f.runLater("t", "make")
			f.mark()
			if err := row.do(f, id); row.refused != "" {
				f.refused(err, row.refused)
			} else {
				f.must(err)
			}
			f.inState(id, row.after)
			f.told(row.told...)
		})
	}
	for _, state := range []control.State{control.Starting, control.Ready, control.Failed, control.Dormant} {
		rule(t, "kills and purges one that is "+string(state), func(f *fixture) {
			id := f.bring(state, true)
			f.must(kill(true)(f, id))
			f.inState(id, control.Removed)
			f.onEngine(id, "")
		})
		rule(t, "kills one that is "+string(state), func(f *fixture) {
			id := f.bring(state, true)
			f.must(kill(false)(f, id))
			f.inState(id, control.Dormant)
			f.acquire("t")
			f.inState(id, control.Ready)
		})
	}
	for name, do := range map[string]func(f *fixture, id string) error{
		"stopped": stop, "killed": kill(false),
		"released": func(f *fixture, id string) error {
			_, err := f.agent.Release(f.Context(), control.Ref{Env: id}, false)
			synctest.Wait()
			return err
		},
	} {
		rule(t, "a persistent one that failed becomes dormant when it is "+name+", and starts again as one that was never there", func(f *fixture) {
			id := f.bring(control.Failed, true)
			f.mark()
			f.must(do(f, id))
			f.inState(id, control.Dormant)
			f.equal("events", len(f.log()), 2)
			f.equal("the last event", f.log()[1].Kind, control.EnvDormant)
			f.onEngine(id, "")
			f.dueIn(id, 7*day)
			f.equal("the outcome", f.acquire("t").Outcome, "created")
		})
	}
	rule(t, "finds the tombstone of a removed one for 24 h", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.must(kill(false)(f, id))
		_, err := f.plane.Env(id)
		tomb := f.refused(err, control.KindGenerationGone).Tombstone
		f.equal("the tombstone", []any{tomb.Actor, tomb.Reason, tomb.Generation}, []any{"operator:ada", "killed by an operator", 1})
		_, err = f.plane.TouchEnv(f.Context(), "operator:ada", id)
		f.refused(err, control.KindGenerationGone)
		f.endTurn("t")
		f.advance(24*time.Hour + time.Second)
		_, err = f.plane.Env(id)
		f.refused(err, control.KindNotFound)
		f.plane.Housekeep(f.Context())
		vs, _, err := f.plane.Envs(control.EnvFilter{State: control.Removed})
		f.must(err)
		f.equal("the tombstones", len(vs), 0)
	})
}
