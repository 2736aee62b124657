package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func TestWhileAHoldStandsThereIsNoCountdown(t *testing.T) {
	for _, row := range []struct {
		name string
		kind control.HoldKind
		hold func(f *fixture, id string) (release func())
	}{
		{"an open turn", control.HoldTurn, func(f *fixture, id string) func() {
			_, _, err := f.agent.TurnBegin(f.Context(), "t")
			f.must(err)
			return func() { f.endTurn("t") }
		}},
		{"a running command", control.HoldExec, func(f *fixture, id string) func() {
			f.runLater("t", "make", timeout(time.Hour))
			f.endTurn("t")
			return func() { f.end(control.ExecEnd{}) }
		}},
		{"a process that a command left", control.HoldProcess, func(f *fixture, id string) func() {
			f.runLater("t", "server &")
			f.end(control.ExecEnd{Left: 1})
			f.endTurn("t")
			s := f.guests.Starts()
			return func() { f.guests.LetGo(s[len(s)-1].Exec); synctest.Wait() }
		}},
		{"a pin", control.HoldPin, func(f *fixture, id string) func() {
			_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{})
			f.must(err)
			return func() {
				_, err := f.plane.Unpin(f.Context(), "operator:ada", id)
				f.must(err)
			}
		}},
	} {
		rule(t, row.name, func(f *fixture) {
			id := f.idle("t")
			f.dueIn(id, 5*time.Minute)
			release := row.hold(f, id)
			f.held(id, row.kind)
			f.dueIn(id, never)
			f.equal("the forecast", len(f.plane.Forecast(0)), 0)
			f.advance(50 * time.Minute)
			f.inState(id, control.Ready)
			release()
			f.held(id)
			f.dueIn(id, 5*time.Minute)
			f.advance(5 * time.Minute)
			f.inState(id, control.Dormant)
		})
	}
	rule(t, "the clock starts when the last of several goes", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.runLater("t", "make")
		f.advance(time.Minute)
		f.end(control.ExecEnd{})
		f.dueIn(id, never)
		f.advance(time.Minute)
		f.endTurn("t")
		f.dueIn(id, 5*time.Minute)
	})
}

func TestHoldsHaveBounds(t *testing.T) {
	until := func(f *fixture, id string, kind control.HoldKind) time.Duration {
		f.Helper()
		for _, h := range f.view(id).Holds {
			if h.Kind == kind {
				if h.Until == nil {
					f.Fatalf("no bound of %s is told", kind)
				}
				return h.Until.Sub(f.plane.Now())
			}
		}
		f.Fatalf("no hold %s", kind)
		return 0
	}
	rule(t, "a command: its timeout", func(f *fixture) {
		id := f.idle("t")
		f.runLater("t", "sleep 100", timeout(100*time.Second))
		f.equal("the bound", until(f, id, control.HoldExec), 100*time.Second)
	})
	rule(t, "a command: 24 h at most", func(f *fixture) {
		id := f.idle("t")
		f.runLater("t", "sleep 100", timeout(24*time.Hour))
		f.equal("the bound", until(f, id, control.HoldExec), 24*time.Hour)
	})
	rule(t, "a left process: background_max_age ends the hold, not the process", func(f *fixture) {
		id := f.idle("t")
		r := f.runLater("t", "server &")
		f.end(control.ExecEnd{Left: 1})
		<-r.done
		f.endTurn("t")
		f.equal("the bound", until(f, id, control.HoldProcess), 24*time.Hour)
		f.advance(24 * time.Hour)
		f.held(id)
		f.dueIn(id, 5*time.Minute)
		x, err := f.agent.Execs(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.equal("left", x[0].Left, true)
		f.advance(5 * time.Minute)
		f.inState(id, control.Dormant)
	})
	rule(t, "a turn: max_turn while somebody is connected", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.equal("the bound", until(f, id, control.HoldTurn), time.Hour)
	})
	rule(t, "a turn: the grace once everybody has gone", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.agent.Disconnect(f.sink)
		f.equal("the bound", until(f, id, control.HoldTurn), time.Minute)
	})
	rule(t, "a pin: its until", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "", f.plane.Now().Add(3*time.Hour))
		f.must(err)
		f.equal("the bound", until(f, id, control.HoldPin), 3*time.Hour)
	})
}

// A command whose end is never told holds no longer than its timeout.
func TestACommandThatNeverEndsHoldsNoLongerThanItsTimeout(t *testing.T) {
	rule(t, "with a timeout", func(f *fixture) {
		id := f.idle("t")
		f.guests.OnStart(controltest.Running)
		f.guests.Inject(controltest.Fault{Call: "Wait", Hang: make(chan struct{})})
		go f.tryRun("t", "sleep 100", timeout(100*time.Second)) //nolint:errcheck // ends with the plane
		synctest.Wait()
		f.endTurn("t")
		f.advance(100 * time.Second)
		f.held(id, control.HoldExec)
		f.advance(5 * time.Second)
		f.held(id)
		f.dueIn(id, 5*time.Minute)
		f.advance(5 * time.Minute)
		f.inState(id, control.Dormant)
	})
}

func TestMaxTurn(t *testing.T) {
	rule(t, "drops the hold, not the turn", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.mark()
		f.advance(time.Hour)
		f.told("turn.lapsed by server")
		f.held(id)
		f.dueIn(id, 5*time.Minute)
		f.equal("the turn is open", f.view(id).Turn.Open, true)
		f.advance(5 * time.Minute)
		f.inState(id, control.Dormant)
		f.equal("the turn is open", f.view(id).Turn.Open, true)
	})
	rule(t, "is told no earlier than the hold's until, to the millisecond", func(f *fixture) {
		f.advance(300 * time.Microsecond)
		until := f.acquire("t", persistent).Env.Holds[0].Until
		f.mark()
		f.advance(time.Hour + time.Millisecond)
		if at := f.told("turn.lapsed by server")[0].Time.String(); at < until.String() {
			f.Fatalf("lapsed at %s, and until is %s", at, until)
		}
	})
	rule(t, "the next activity sets the hold again", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.advance(time.Hour)
		_, err := f.agent.Touch(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.held(id, control.HoldTurn)
		f.dueIn(id, never)
	})
	rule(t, "counts from the last activity", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.advance(59 * time.Minute)
		f.run("t", "true")
		f.advance(59 * time.Minute)
		f.held(id, control.HoldTurn)
		f.advance(time.Minute)
		f.held(id)
	})
	rule(t, "stands still while a command runs, and counts from its end", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.runLater("t", "make", timeout(10*time.Hour))
		f.advance(9 * time.Hour)
		f.held(id, control.HoldTurn, control.HoldExec)
		f.end(control.ExecEnd{})
		f.advance(59 * time.Minute)
		f.held(id, control.HoldTurn)
		f.advance(time.Minute)
		f.held(id)
	})
	rule(t, "counts from the end of a command that was lost with its sandbox", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		other := f.acquire("t", persistent, named("other")).Env.ID
		f.runLater("t", "make", timeout(10*time.Hour))
		f.advance(9 * time.Hour)
		f.die(id, 1, false)
		f.advance(59 * time.Minute)
		f.held(other, control.HoldTurn)
	})
	rule(t, "an ephemeral one whose turn never ended is removed", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.mark()
		f.advance(time.Hour + 5*time.Minute)
		f.inState(id, control.Removed)
		f.told("turn.lapsed by server", "env.stopping by reaper", "env.removed by reaper", "reaper.removed by reaper")
	})
}

func TestActivity(t *testing.T) {
	ref := control.Ref{Task: "t"}
	for _, row := range []struct {
		name, kind, actor string
		do                func(f *fixture, id string) error
	}{
		{"env.acquire", "acquire", "agent:hermes", func(f *fixture, id string) error {
			_, err := f.tryAcquire("t")
			return err
		}},
		{"env.touch", "touch", "agent:hermes", func(f *fixture, id string) error {
			_, err := f.agent.Touch(f.Context(), ref)
			return err
		}},
		{"turn.begin", "turn", "agent:hermes", func(f *fixture, id string) error {
			_, _, err := f.agent.TurnBegin(f.Context(), "t")
			return err
		}},
		{"exec.run", "exec", "agent:hermes", func(f *fixture, id string) error {
			_, err := f.tryRun("t", "true")
			return err
		}},
		{"file.read", "file", "agent:hermes", func(f *fixture, id string) error {
			_, err := f.agent.StatFile(f.Context(), ref, "/workspace")
			return err
		}},
		{"file.write", "file", "agent:hermes", func(f *fixture, id string) error {
			_, err := f.agent.WriteFile(f.Context(), ref, control.FileWrite{Path: "f", Data: []byte("x")})
			return err
		}},
		{"an operator's touch", "touch", "operator:ada", func(f *fixture, id string) error {
			_, err := f.plane.TouchEnv(f.Context(), "operator:ada", id)
			return err
		}},
		{"unpin", "unpin", "operator:ada", func(f *fixture, id string) error {
			if _, err := f.plane.Pin(f.Context(), "operator:ada", id, "", time.Time{}); err != nil {
				return err
			}
			_, err := f.plane.Unpin(f.Context(), "operator:ada", id)
			return err
		}},
	} {
		rule(t, row.name+" counts", func(f *fixture) {
			id := f.idle("t")
			f.advance(4 * time.Minute)
			f.must(row.do(f, id))
			v := f.view(id)
			f.equal("the last activity", v.LastActivity.Kind+" "+v.LastActivity.Actor, row.kind+" "+row.actor)
			f.equal("its age", v.Now.Sub(v.LastActivity.At.Time), time.Duration(0))
			f.endTurn("t") // where it opened one
			if len(f.view(id).Holds) > 0 {
				f.Fatal("still held")
			}
			f.dueIn(id, 5*time.Minute)
		})
	}
	rule(t, "turn.end counts", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.advance(4 * time.Minute)
		f.endTurn("t")
		f.equal("the last activity", f.view(id).LastActivity.Kind, "turn")
		f.dueIn(id, 5*time.Minute)
	})
	rule(t, "the input of a command counts, reading its output does not", func(f *fixture) {
		f.guests.OnStart(controltest.Running)
		id := f.idle("t")
		st, err := f.agent.Start(f.Context(), control.StartRequest{Ref: control.Ref{Task: "t"}, Command: "cat", Stdin: true})
		f.must(err)
		began := f.view(id).LastActivity.At
		f.advance(time.Minute)
		f.guests.Write(st.Exec, control.Stdout, []byte("x"))
		_, _, err = st.Stream.Read(make([]byte, 1))
		f.must(err)
		f.equal("the last activity after a read", f.view(id).LastActivity.At, began)
		_, err = st.Stream.Write([]byte("y"))
		f.must(err)
		v := f.view(id)
		f.equal("its age after input", v.Now.Sub(v.LastActivity.At.Time), time.Duration(0))
		f.guests.End(st.Exec, control.ExecEnd{})
	})
	rule(t, "the end of a command counts, as its own agent's", func(f *fixture) {
		id := f.idle("t")
		f.runLater("t", "make")
		f.endTurn("t")
		_, err := f.plane.TouchEnv(f.Context(), "operator:ada", id)
		f.must(err)
		f.advance(time.Minute)
		f.end(control.ExecEnd{})
		v := f.view(id)
		f.equal("the last activity", v.LastActivity.Kind+" "+v.LastActivity.Actor, "exec agent:hermes")
		f.dueIn(id, 5*time.Minute)
	})
}

func TestLookingNeverExtends(t *testing.T) {
	rule(t, "a read moves no deadline", func(f *fixture) {
		id := f.idle("t")
		f.advance(time.Minute)
		ref := control.Ref{Env: id}
		_, err := f.agent.Env(f.Context(), ref)
		f.must(err)
		_, err = f.agent.Envs(f.Context(), "")
		f.must(err)
		_, err = f.agent.Execs(f.Context(), ref)
		f.must(err)
		_, _, err = f.plane.Envs(control.EnvFilter{})
		f.must(err)
		_, err = f.plane.EnvExecs(f.Context(), id)
		f.must(err)
		f.plane.Forecast(0)
		f.reconcile()
		f.plane.Housekeep(f.Context())
		f.agent.Disconnect(f.sink)
		f.agent, f.sink, _ = f.resume(f.agent.ID())
		f.dueIn(id, 4*time.Minute)
		f.equal("the last activity", f.view(id).LastActivity.Kind, "turn")
	})
	rule(t, "attaching to a command and waiting for it move no deadline", func(f *fixture) {
		id := f.idle("t")
		x := f.run("t", "make").Exec
		f.endTurn("t")
		due := f.view(id).Deadline
		f.advance(time.Minute)
		a, err := f.agent.Attach(f.Context(), control.AttachRequest{Exec: x})
		f.must(err)
		drain(f, a.Stream)
		f.must(a.Stream.Close())
		_, err = f.agent.WaitExec(f.Context(), x, 0)
		f.must(err)
		f.equal("the deadline", f.view(id).Deadline, due)
	})
	rule(t, "a refused call moves none", func(f *fixture) {
		id := f.idle("t")
		f.advance(time.Minute)
		_, err := f.tryRun("t", "")
		f.refused(err, control.KindInvalid)
		_, err = f.agent.ReadFile(f.Context(), control.Ref{Env: id}, "", 0, nil)
		f.refused(err, control.KindInvalid)
		_, err = f.plane.Pin(f.Context(), "operator:ada", id, "", f.plane.Now())
		f.refused(err, control.KindInvalid)
		f.dueIn(id, 4*time.Minute)
	})
}

func TestALifetimeAppliesAtOnce(t *testing.T) {
	for _, row := range []struct {
		name string
		ask  ask
		want time.Duration
	}{
		{"a longer one", lifetime(time.Hour), time.Hour},
		{"a shorter one", lifetime(10 * time.Second), 10 * time.Second},
		{"a max_age that comes first", maxAge(2 * time.Minute), time.Minute},
	} {
		rule(t, row.name, func(f *fixture) {
			id := f.idle("t")
			f.advance(time.Minute)
			f.acquire("t", row.ask)
			f.endTurn("t")
			f.dueIn(id, row.want)
			f.advance(row.want)
			f.inState(id, control.Dormant)
		})
	}
}
