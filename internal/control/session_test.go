package control_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func TestASession(t *testing.T) {
	rule(t, "is resumed within its grace, and keeps its part in its turns", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.mark()
		f.agent.Disconnect(f.sink)
		f.held(id, control.HoldTurn)
		f.advance(time.Minute - time.Millisecond)
		s, k, ok := f.resume(f.agent.ID())
		f.equal("resumed", ok, true)
		f.told("agent.disconnected", "agent.resumed")
		f.advance(30 * time.Minute)
		f.held(id, control.HoldTurn)
		s.Disconnect(k)
		f.advance(time.Minute)
		f.told("agent.disconnected", "agent.abandoned by server", "turn.ended by server")
	})
	rule(t, "is a new one after its grace", func(f *fixture) {
		f.agent.Disconnect(f.sink)
		f.advance(time.Minute)
		s, _, ok := f.resume(f.agent.ID())
		f.equal("resumed", ok, false)
		if s.ID() == f.agent.ID() {
			f.Fatal("it has the old name")
		}
	})
	rule(t, "is its owner's alone", func(f *fixture) {
		_, ok, err := f.plane.Hello(f.Context(), "stranger", control.Hello{Agent: "x", Session: f.agent.ID()}, &sink{})
		f.must(err)
		f.equal("resumed", ok, false)
	})
	rule(t, "goes to the newer socket, and the older one's going changes nothing", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.mark()
		_, k, ok := f.resume(f.agent.ID())
		f.equal("resumed", ok, true)
		f.equal("the older was told", f.sink.replaced, 1)
		f.agent.Disconnect(f.sink)
		f.told("agent.resumed")
		f.advance(10 * time.Minute)
		f.held(id, control.HoldTurn)
		f.equal("the newer was told", k.replaced, 0)
	})
	rule(t, "may ask for a shorter grace, not for a longer", func(f *fixture) {
		s, k := f.connect("iris", func(h *control.Hello) { h.Grace = ptr(10 * time.Second) })
		f.equal("the grace", s.Grace(), 10*time.Second)
		s.Disconnect(k)
		f.advance(10 * time.Second)
		_, _, ok := f.resume(s.ID())
		f.equal("resumed", ok, false)
		s, _ = f.connect("iris", func(h *control.Hello) { h.Grace = ptr(time.Hour) })
		f.equal("the grace", s.Grace(), time.Minute)
	})
	rule(t, "is resumed across a restart, however it came, with the grace anew", func(f *fixture) {
		for _, down := range []func(time.Duration){f.restart, f.crash} {
			id := f.acquire("t", persistent).Env.ID
			f.agent.Disconnect(f.sink)
			f.advance(30 * time.Second)
			down(10 * time.Minute)
			f.reconcile()
			f.advance(50 * time.Second)
			f.held(id, control.HoldTurn)
			var ok bool
			f.agent, f.sink, ok = f.resume(f.agent.ID())
			f.equal("resumed", ok, true)
			f.advance(10 * time.Minute)
			f.held(id, control.HoldTurn)
		}
	})
}

func TestATurnIsAbandoned(t *testing.T) {
	rule(t, "but not while somebody else waits, or has asked, for its command by its id", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.runLater("t", "make", withID("a"))
		f.agent.Disconnect(f.sink)
		f.advance(2 * time.Minute)
		other, k := f.connect("iris")
		r := f.as(other).runLater("t", "make", withID("a"))
		f.end(control.ExecEnd{ExitCode: 3})
		<-r.done
		f.must(r.err)
		f.advance(10 * time.Minute)
		f.inState(id, control.Ready)
		third, k3 := f.connect("luna")
		f.as(third).run("t", "make", withID("a"))
		other.Disconnect(k)
		f.advance(10 * time.Minute)
		f.inState(id, control.Ready)
		third.Disconnect(k3)
		f.advance(time.Minute)
		f.inState(id, control.Removed)
	})
	rule(t, "when every participant has been gone for the grace", func(f *fixture) {
		eph := f.acquire("t").Env.ID
		per := f.acquire("t", named("p"), persistent).Env.ID
		other, k := f.connect("iris")
		_, err := other.Touch(f.Context(), control.Ref{Task: "t"})
		f.must(err)
		f.agent.Disconnect(f.sink)
		f.advance(10 * time.Minute)
		f.inState(eph, control.Ready)
		f.mark()
		other.Disconnect(k)
		f.advance(time.Minute - time.Millisecond)
		f.told("agent.disconnected")
		f.advance(time.Millisecond)
		f.told("agent.abandoned by server", "turn.ended by server", "env.stopping by server", "env.removed by server")
		f.inState(eph, control.Removed)
		f.dueIn(per, 5*time.Minute)
		f.equal("the turn is open", f.view(per).Turn.Open, false)
	})
	rule(t, "no earlier than the hold's until, to the millisecond", func(f *fixture) {
		f.advance(300 * time.Microsecond)
		id := f.acquire("t", persistent).Env.ID
		f.agent.Disconnect(f.sink)
		until := f.view(id).Holds[0].Until
		f.mark()
		f.advance(time.Minute + time.Millisecond)
		if at := f.told("agent.abandoned by server", "turn.ended by server")[0].Time.String(); at < until.String() {
			f.Fatalf("abandoned at %s, and until is %s", at, until)
		}
	})
	rule(t, "and is no activity: the clock starts when the hold goes", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.advance(10 * time.Second)
		f.agent.Disconnect(f.sink)
		f.advance(time.Minute)
		f.dueIn(id, 5*time.Minute)
		f.equal("the last activity", f.view(id).LastActivity.Kind, "acquire")
	})
	rule(t, "not while a foreground command runs, but at its end", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.runLater("t", "make", timeout(time.Hour))
		f.agent.Disconnect(f.sink)
		f.advance(30 * time.Minute)
		f.inState(id, control.Ready)
		f.mark()
		f.end(control.ExecEnd{})
		f.told("agent.abandoned by server", "turn.ended by server", "env.stopping by server", "env.removed by server")
	})
	rule(t, "also where the last command was lost with its sandbox", func(f *fixture) {
		lost := f.acquire("t", persistent).Env.ID
		other := f.acquire("t", named("other")).Env.ID
		f.runLater("t", "make", timeout(time.Hour))
		f.agent.Disconnect(f.sink)
		f.advance(30 * time.Minute)
		f.die(lost, 1, false)
		f.inState(other, control.Removed)
	})
	rule(t, "also after a restart that nobody came back from", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.mark()
		f.crash(time.Second)
		f.reconcile()
		f.advance(time.Minute)
		f.inState(id, control.Removed)
		f.told("server.started by server", "agent.abandoned by server", "turn.ended by server", "env.stopping by server", "env.removed by server")
	})
	rule(t, "not by a restart while a foreground command runs that nobody is there for", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.runLater("t", "make", timeout(time.Hour))
		f.agent.Disconnect(f.sink)
		f.advance(10 * time.Minute)
		for _, down := range []func(time.Duration){f.restart, f.crash} {
			down(time.Second)
			f.advance(time.Minute)
			f.reconcile()
			f.advance(time.Minute)
			f.inState(id, control.Ready)
			f.held(id, control.HoldExec)
		}
		f.end(control.ExecEnd{})
		f.inState(id, control.Removed)
	})
	rule(t, "a participant whose session has ended in the middle of a call holds nothing", func(f *fixture) {
		f.engine.Inject(controltest.Fault{Call: "Create", Delay: 5 * time.Minute})
		f.acquireLater("t")
		f.agent.Disconnect(f.sink)
		f.advance(10 * time.Minute)
		vs, err := f.agent.Envs(f.Context(), "t")
		f.must(err)
		f.equal("the environments left", len(vs), 0)
	}, func(o *control.Options) { o.StartTimeout = time.Hour })
}

func TestAgentsAreTold(t *testing.T) {
	rule(t, "also after a restart of the server, in the turn or after its end", func(f *fixture) {
		f.idle("t")
		f.acquire("u", persistent)
		f.connect("bystander")
		for _, down := range []func(time.Duration){f.restart, f.crash} {
			f.advance(10 * time.Second) // what is written behind is written
			down(time.Second)
			f.agent, f.sink, _ = f.resume(f.agent.ID())
			f.reconcile()
		}
		f.advance(10 * time.Minute)
		f.equal("of the idle one", f.sink.takeStates(), []control.State{control.Stopping, control.Dormant})
		f.equal("expiring", len(f.sink.takeExpiring()), 1)
		f.endTurn("u")
		f.advance(5 * time.Minute)
		f.equal("of the one in its turn", f.sink.takeStates(), []control.State{control.Stopping, control.Dormant})
	})
	rule(t, "of the states of what they used since its last turn began", func(f *fixture) {
		other, k := f.connect("iris")
		bystander, b := f.connect("luna")
		_ = bystander
		id := f.acquire("t", persistent).Env.ID
		f.equal("starting and ready", f.sink.takeStates(), []control.State{control.Starting, control.Ready})
		_, err := other.Touch(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.endTurn("t")
		_, err = f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		synctest.Wait()
		f.equal("the one", f.sink.takeStates(), []control.State{control.Stopping, control.Dormant})
		f.equal("the other", k.takeStates(), []control.State{control.Stopping, control.Dormant})
		f.acquire("t") // a new turn
		f.equal("the one", f.sink.takeStates(), []control.State{control.Starting, control.Ready})
		f.equal("the other", len(k.takeStates()), 0)
		f.equal("the bystander", len(b.takeStates()), 0)
	})
	rule(t, "of a pin, and of a change", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.sink.takeStates()
		f.pin(id, 0)
		f.acquire("t", lifetime(time.Minute))
		f.unpin(id)
		f.equal("how often", len(f.sink.takeStates()), 3)
	})
	rule(t, "of a reap, once, 30 s ahead", func(f *fixture) {
		id := f.idle("t")
		deadline := *f.view(id).Deadline
		f.advance(5*time.Minute - 30*time.Second - time.Millisecond)
		f.equal("too early", len(f.sink.takeExpiring()), 0)
		f.advance(time.Millisecond)
		f.equal("the deadline", f.sink.takeExpiring(), []control.Time{deadline})
		f.advance(29 * time.Second)
		f.equal("again", len(f.sink.takeExpiring()), 0)
		_, err := f.agent.Touch(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.advance(5 * time.Minute)
		f.equal("of the later deadline", len(f.sink.takeExpiring()), 1)
	})
	rule(t, "or half the lifetime ahead, where that is less", func(f *fixture) {
		f.idle("t", lifetime(10*time.Second))
		f.advance(5*time.Second - time.Millisecond)
		f.equal("too early", len(f.sink.takeExpiring()), 0)
		f.advance(time.Millisecond)
		f.equal("told", len(f.sink.takeExpiring()), 1)
	})
	rule(t, "nothing of a kept one", func(f *fixture) {
		id := f.idle("t")
		f.pin(id, 0)
		f.advance(10 * time.Minute)
		f.equal("told", len(f.sink.takeExpiring()), 0)
	})
}
