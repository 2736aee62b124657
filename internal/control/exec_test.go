package control_test

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func TestACommandNeverRunsTwice(t *testing.T) {
	started := func(f *fixture, want int) {
		f.Helper()
		f.equal("the commands that ran", len(f.guests.Starts()), want)
	}
	answer := func(string, control.ExecStart) *control.ExecEnd {
		return &control.ExecEnd{ExitCode: 3, Stdout: []byte("out")}
	}
	rule(t, "the same id answers with the recorded result", func(f *fixture) {
		f.acquire("t")
		f.guests.OnStart(answer)
		first := f.run("t", "make", withID("a"))
		again := f.run("t", "make", withID("a"))
		f.equal("the exec", again.Exec, first.Exec)
		f.equal("the result", []any{again.End.ExitCode, string(again.End.Stdout)}, []any{3, "out"})
		started(f, 1)
	})
	rule(t, "the same id attaches to what runs", func(f *fixture) {
		f.acquire("t")
		a := f.runLater("t", "make", withID("a"))
		b := f.runLater("t", "make", withID("a"))
		f.end(control.ExecEnd{ExitCode: 3})
		<-a.done
		<-b.done
		f.must(errors.Join(a.err, b.err))
		f.equal("the exec", b.Exec, a.Exec)
		f.equal("the exit code", b.End.ExitCode, 3)
		started(f, 1)
	})
	rule(t, "an id of another command is a conflict, running or ended", func(f *fixture) {
		f.acquire("t")
		r := f.runLater("t", "make", withID("a"))
		_, err := f.tryRun("t", "make all", withID("a"))
		f.refused(err, control.KindConflict)
		f.end(control.ExecEnd{})
		<-r.done
		_, err = f.tryRun("t", "make all", withID("a"))
		f.refused(err, control.KindConflict)
		_, err = f.tryRun("t", "make", withID("a"), func(r *control.RunRequest) { r.Stdin = "y" })
		f.refused(err, control.KindConflict)
		started(f, 1)
	})
	rule(t, "a known id answers first, whatever generation says", func(f *fixture) {
		f.acquire("t")
		f.run("t", "make", withID("a"))
		f.run("t", "make", withID("a"), inGeneration(99))
		started(f, 1)
	})
	rule(t, "an id is remembered across a restart, while it runs and after", func(f *fixture) {
		f.acquire("t", persistent)
		r := f.runLater("t", "make", withID("a"))
		f.crash(time.Second)
		<-r.done
		f.refused(r.err, control.KindDraining)
		f.agent, _, _ = f.resume(f.agent.ID())
		f.reconcile()
		again := f.runLater("t", "make", withID("a"))
		if answered(again.done) {
			f.Fatal("it does not wait", again.err)
		}
		f.end(control.ExecEnd{ExitCode: 3})
		<-again.done
		f.must(again.err)
		f.equal("the exit code", again.End.ExitCode, 3)
		f.crash(time.Second)
		f.agent, _ = f.connect("hermes")
		f.equal("the exit code", f.run("t", "make", withID("a")).End.ExitCode, 3)
		started(f, 1)
	})
	rule(t, "one that ended while we were down is found by its id, also before the guest was asked", func(f *fixture) {
		f.acquire("t", persistent)
		f.runLater("t", "make", withID("a"))
		disk := f.store.Reopen()
		f.close()
		f.store = disk
		f.end(control.ExecEnd{ExitCode: 3, Stdout: []byte("out")})
		f.open()
		f.agent, _, _ = f.resume(f.agent.ID())
		f.guests.OnStart(nil)
		f.equal("the exit code", f.run("t", "make", withID("a")).End.ExitCode, 3)
		started(f, 1)
	})
	rule(t, "an id is remembered across generations, and after the environment has gone", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.guests.OnStart(answer)
		f.run("t", "make", withID("a"))
		f.endTurn("t")
		f.advance(5 * time.Minute)
		f.equal("the exit code", f.run("t", "make", withID("a")).End.ExitCode, 3)
		f.inState(id, control.Dormant)
		_, err := f.plane.Kill(f.Context(), "operator:ada", id, true)
		f.must(err)
		synctest.Wait()
		f.equal("the exit code", f.run("t", "make", withID("a")).End.ExitCode, 3)
		f.equal("the exit code", f.run("", "make", withID("a"), inEnv(id)).End.ExitCode, 3)
		started(f, 1)
	})
	rule(t, "an id of a removed environment is still its command's, and its end's", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		r := f.runLater("t", "make", withID("a"))
		f.die(id, 137, true)
		<-r.done
		f.guests.OnStart(answer)
		f.run("t", "make", withID("b"))
		_, err := f.plane.Kill(f.Context(), "operator:ada", id, true)
		f.must(err)
		synctest.Wait()
		f.inState(id, control.Removed)
		_, err = f.tryRun("t", "make", withID("a"))
		f.equal("the reason", f.refused(err, control.KindGenerationGone).Tombstone.Reason, "out of memory")
		_, err = f.tryRun("t", "make all", withID("b"))
		f.refused(err, control.KindConflict)
		_, err = f.tryRun("t", "make", withID("c"))
		f.equal("the reason", f.refused(err, control.KindGenerationGone).Tombstone.Reason, "killed and purged by an operator")
	})
	rule(t, "no variables are no variables, however they are written", func(f *fixture) {
		f.acquire("t")
		f.run("t", "make", withID("a"))
		f.run("t", "make", withID("a"), func(r *control.RunRequest) { r.Variables = map[string]string{} })
		started(f, 1)
	})
	rule(t, "what was never started leaves its id free, in this generation and the next", func(f *fixture) {
		for range 2 {
			f.acquire("t", persistent)
			_, err := f.tryRun("t", "make", withID("a"), func(r *control.RunRequest) { r.Cwd = "/nowhere" })
			f.refused(err, control.KindNotFound)
			f.endTurn("t")
			f.advance(5 * time.Minute)
		}
		f.run("t", "make", withID("a"))
		started(f, 1)
	})
	rule(t, "one that may have started is found by its id once the guest answers", func(f *fixture) {
		f.acquire("t", persistent)
		f.guests.OnStart(controltest.Running)
		f.guests.Inject(controltest.Fault{Call: "Start", Err: control.ErrGuestUnreachable, After: true})
		_, err := f.tryRun("t", "make", withID("a"))
		f.refused(err, control.KindEngineUnavailable)
		f.guests.Clear()
		f.reconcile()
		r := f.runLater("t", "make", withID("a"))
		f.end(control.ExecEnd{ExitCode: 3})
		<-r.done
		f.must(r.err)
		f.equal("the exit code", r.End.ExitCode, 3)
		started(f, 1)
	})
	rule(t, "an id is forgotten 24 h after the end", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.run("t", "make", withID("a"))
		f.pin(id, 0)
		f.advance(23 * time.Hour)
		f.plane.Housekeep(f.Context())
		f.run("t", "make", withID("a"))
		started(f, 1)
		f.advance(2 * time.Hour)
		f.plane.Housekeep(f.Context())
		f.run("t", "make", withID("a"))
		started(f, 2)
	})
	rule(t, "the id is on disk before the command starts", func(f *fixture) {
		f.acquire("t")
		f.store.OnCommit(func(b *control.Batch) error {
			if len(b.Execs) > 0 {
				return errDisk
			}
			return nil
		})
		_, err := f.tryRun("t", "make", withID("a"))
		f.refused(err, control.KindInternal)
		started(f, 0)
	})
	rule(t, "a result that cannot be written is kept by the guest", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.guests.OnStart(answer)
		f.store.OnCommit(func(b *control.Batch) error {
			if len(b.Execs) > 0 && b.Execs[0].End != nil {
				return errDisk
			}
			return nil
		})
		_, err := f.tryRun("t", "make", withID("a"))
		f.refused(err, control.KindInternal)
		f.endTurn("t")
		f.store.OnCommit(nil)
		f.equal("the exit code", f.run("t", "make", withID("a")).End.ExitCode, 3)
		started(f, 1)
		f.endTurn("t")
		f.advance(6 * time.Minute)
		f.inState(id, control.Dormant)
	})
	rule(t, "a start whose answer was lost is repeated by the same name", func(f *fixture) {
		f.acquire("t")
		f.guests.Inject(controltest.Fault{Call: "Start", Err: control.ErrGuestUnreachable, After: true, Times: 3})
		f.run("t", "make")
		started(f, 1)
	})
	rule(t, "without ids, each is a command of its own", func(f *fixture) {
		f.acquire("t")
		a, b := f.run("t", "make"), f.run("t", "make")
		if a.Exec == b.Exec {
			f.Fatal("one name for two")
		}
		started(f, 2)
	})
	for _, id := range []string{"", "once"} {
		rule(t, "not where its start was not answered, and the sandbox was started again since, id "+strconv.Quote(id), func(f *fixture) {
			env := f.acquire("t", persistent).Env.ID
			f.guests.Inject(controltest.Fault{Call: "Start", Times: 1, After: true, Err: control.ErrGuestUnreachable})
			r := f.runLater("t", "echo", withID(id))
			f.engine.Die("sandkeeper-test-"+env, 1, false)
			f.must(f.engine.Start(f.Context(), "sandkeeper-test-"+env))
			<-r.done
			e := f.refused(r.err, control.KindGenerationGone)
			if e.Tombstone == nil || e.Tombstone.Generation != 1 {
				f.Fatalf("tombstone %+v", e.Tombstone)
			}
			f.equal("it was started, times", len(f.guests.Starts()), 1)
			f.advance(time.Second)
			f.reconcile() // the next generation is taken up
			f.guests.OnStart(nil)
			f.run("t", "another")
			f.equal("generation", f.view(env).Generation, int64(2))
			f.equal("started, times", len(f.guests.Starts()), 2)
		})
	}
}

func TestEveryCommandHasOneEnd(t *testing.T) {
	rule(t, "its sandbox's, told with what became of that", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		r := f.runLater("t", "make", withID("a"))
		f.die(id, 137, true)
		if !answered(r.done) {
			f.Fatal("it still waits")
		}
		tomb := f.refused(r.err, control.KindGenerationGone).Tombstone
		f.equal("the tombstone", []any{tomb.Reason, tomb.OOM, *tomb.ExitCode, tomb.Generation}, []any{"out of memory", true, 137, 1})
		f.acquire("t")
		_, err := f.tryRun("t", "make", withID("a"))
		f.equal("the reason, asked again", f.refused(err, control.KindGenerationGone).Tombstone.Reason, "out of memory")
	})
	rule(t, "also after what it left lives on", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		r := f.runLater("t", "server &")
		f.end(control.ExecEnd{Left: 2})
		<-r.done
		f.must(r.err)
		f.held(id, control.HoldTurn, control.HoldProcess)
		f.die(id, 1, false)
		f.inState(id, control.Dormant)
	})
	rule(t, "a guest that cannot be reached for a while is waited for", func(f *fixture) {
		f.acquire("t")
		r := f.runLater("t", "make")
		f.guests.Inject(controltest.Fault{Call: "Wait", Err: control.ErrGuestUnreachable, Times: 5})
		f.end(control.ExecEnd{ExitCode: 3})
		f.advance(time.Minute)
		if !answered(r.done) || r.err != nil || r.End.ExitCode != 3 {
			f.Fatal(r.err, r.End)
		}
	})
	rule(t, "its end is the same after a restart, to the signal and the timeout", func(f *fixture) {
		f.acquire("t", persistent)
		f.guests.OnStart(controltest.Running)
		st, err := f.agent.Start(f.Context(), control.StartRequest{Ref: control.Ref{Task: "t"}, Command: "make", TimeoutS: ptr(int64(5))})
		f.must(err)
		f.advance(10 * time.Second)
		before, err := f.agent.WaitExec(f.Context(), st.Exec, 0)
		f.must(err)
		f.crash(time.Second)
		f.reconcile()
		agent, _ := f.connect("hermes")
		after, err := agent.WaitExec(f.Context(), st.Exec, 0)
		f.must(err)
		f.equal("the exit code", *after.Exit.ExitCode, 124)
		before.Exit.ExitCode, after.Exit.ExitCode = nil, nil
		f.equal("the end", *after.Exit, *before.Exit)
	})
	rule(t, "of which its sandbox no longer knows is lost with the run that it was of", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.guests.OnStart(controltest.Running)
		st, err := f.agent.Start(f.Context(), control.StartRequest{Ref: control.Ref{Task: "t"}, Command: "make"})
		f.must(err)
		f.engine.Die("sandkeeper-test-"+id, 1, false)
		f.must(f.engine.Start(f.Context(), "sandkeeper-test-"+id)) // at the same instant: nobody sees it by the times
		f.advance(10 * time.Minute)
		x, err := f.agent.WaitExec(f.Context(), st.Exec, 0)
		f.must(err)
		if x.Exit.EnvLost == nil || x.Exit.ExitCode != nil {
			f.Errorf("the end is %+v", x.Exit)
		}
		_, _, exit := drain(f, st.Stream)
		f.equal("as its stream tells it", exit.EnvLost.Reason, x.Exit.EnvLost.Reason)
	})
	rule(t, "the caller's going stops nothing", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.guests.OnStart(controltest.Running)
		ctx, cancel := contextWithCancel(f)
		done := make(chan error, 1)
		go func() {
			_, err := f.agent.Run(ctx, control.RunRequest{Ref: control.Ref{Env: id}, Command: "make", ID: "a"})
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; err == nil {
			f.Fatal("no error")
		}
		f.held(id, control.HoldTurn, control.HoldExec)
		f.end(control.ExecEnd{ExitCode: 3})
		f.equal("the exit code", f.run("t", "make", withID("a")).End.ExitCode, 3)
	})
}

func TestACommandAndItsEnvironment(t *testing.T) {
	rule(t, "it resumes a dormant one", func(f *fixture) {
		id := f.dormant("t")
		f.mark()
		f.run("t", "true")
		f.told("turn.began", "env.starting", "env.resumed")
		f.equal("the generation", f.view(id).Generation, 2)
	})
	rule(t, "a file call resumes a dormant one, and a start that fails is told", func(f *fixture) {
		id := f.dormant("t")
		f.engine.Inject(controltest.Fault{Call: "Start", Err: control.ErrEngineUnavailable, Times: 1})
		_, err := f.agent.ListFiles(f.Context(), control.Ref{Env: id}, ".")
		f.refused(err, control.KindEngineUnavailable)
		_, err = f.agent.ListFiles(f.Context(), control.Ref{Env: id}, ".")
		f.must(err)
		f.inState(id, control.Ready)
	})
	rule(t, "it never creates one", func(f *fixture) {
		_, err := f.tryRun("t", "true")
		f.refused(err, control.KindNotFound)
		_, err = f.agent.ReadFile(f.Context(), control.Ref{Task: "t"}, "f", 0, nil)
		f.refused(err, control.KindNotFound)
		f.told()
	})
	rule(t, "of a removed one without successor gives the tombstone for 24 h, then not_found", func(f *fixture) {
		f.acquire("t")
		f.endTurn("t")
		_, err := f.tryRun("t", "true")
		f.equal("the reason", f.refused(err, control.KindGenerationGone).Tombstone.Reason, "turn ended")
		f.advance(25 * time.Hour)
		f.plane.Housekeep(f.Context())
		_, err = f.tryRun("t", "true")
		f.refused(err, control.KindNotFound)
	})
	rule(t, "it starts in the generation that was named, or not at all", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.run("t", "true", inGeneration(1))
		_, err := f.tryRun("t", "true", inGeneration(2))
		f.refused(err, control.KindGenerationGone)
		_, err = f.plane.Stop(f.Context(), "operator:ada", id)
		f.must(err)
		synctest.Wait()
		_, err = f.tryRun("t", "true", inGeneration(1))
		f.equal("the reason", f.refused(err, control.KindGenerationGone).Tombstone.Reason, "stopped by an operator")
		f.inState(id, control.Dormant)
		f.acquire("t")
		_, err = f.tryRun("t", "true", inGeneration(1))
		f.refused(err, control.KindGenerationGone)
		f.run("t", "true", inGeneration(2))
		f.equal("the commands that ran", len(f.guests.Starts()), 2)
	})
	rule(t, "of a failed one is a conflict", func(f *fixture) {
		f.engine.Inject(controltest.Fault{Call: "Create", Err: errDisk, Times: 1})
		_, err := f.tryAcquire("t")
		f.refused(err, control.KindInternal)
		_, err = f.tryRun("t", "true")
		f.refused(err, control.KindConflict)
	})
	rule(t, "runs with the environment's variables under its own, and its workdir", func(f *fixture) {
		f.acquire("t", func(r *control.AcquireRequest) {
			r.Variables, r.Workdir = map[string]string{"A": "1", "B": "1"}, ptr("/srv")
		})
		f.run("t", "true", func(r *control.RunRequest) { r.Variables = map[string]string{"B": "2"} })
		s := f.guests.Starts()[0]
		f.equal("the environment's variables", s.Env, map[string]string{"A": "1", "B": "1"})
		f.equal("the call's variables", s.Variables, map[string]string{"B": "2"})
		f.equal("the workdir", s.Workdir, "/srv")
		f.equal("the timeout", s.Timeout, 180*time.Second)
	})
	rule(t, "variables are in no event and no view", func(f *fixture) {
		f.acquire("t", func(r *control.AcquireRequest) { r.Variables = map[string]string{"TOKEN": "hunter2"} })
		f.acquire("t", func(r *control.AcquireRequest) { r.Variables = map[string]string{"TOKEN": "hunter3"} })
		f.run("t", "true", func(r *control.RunRequest) { r.Variables = map[string]string{"TOKEN": "hunter4"} })
		vs, err := f.agent.Envs(f.Context(), "")
		f.must(err)
		ev, _, _, err := f.plane.Events(0, 1000, control.EventFilter{})
		f.must(err)
		if strings.Contains(asJSON(f, vs)+asJSON(f, ev), "hunter") {
			f.Fatal("a secret is shown")
		}
	})
	rule(t, "an explicit cwd that is not there is not_found", func(f *fixture) {
		f.acquire("t")
		_, err := f.tryRun("t", "true", func(r *control.RunRequest) { r.Cwd = "/nowhere" })
		f.refused(err, control.KindNotFound)
	})
	rule(t, "more at once than are allowed are refused with the number", func(f *fixture) {
		f.acquire("t")
		f.runLater("t", "a")
		f.runLater("t", "b")
		_, err := f.tryRun("t", "c")
		if e := f.refused(err, control.KindQuota); !strings.Contains(e.Message, "2") {
			f.Fatal(e.Message)
		}
		f.end(control.ExecEnd{})
		f.runLater("t", "c")
	}, func(o *control.Options) { o.MaxExecsPerEnv = 2 })
	rule(t, "the guest that cannot be reached at all is given up", func(f *fixture) {
		f.acquire("t")
		f.guests.Inject(controltest.Fault{Call: "Start", Err: control.ErrGuestUnreachable})
		_, err := f.tryRun("t", "true")
		f.refused(err, control.KindEngineUnavailable)
	})
}

func TestExecList(t *testing.T) {
	rule(t, "has what runs, what is left, and what has lately ended", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		for _, r := range []struct {
			command string
			end     *control.ExecEnd
		}{{"ended", &control.ExecEnd{ExitCode: 3}}, {"left", &control.ExecEnd{Left: 1}}, {"running", nil}} {
			f.runLater("t", r.command, timeout(time.Hour))
			if r.end != nil {
				f.end(*r.end)
			}
			f.advance(time.Second)
		}
		vs, err := f.agent.Execs(f.Context(), control.Ref{Env: id})
		f.must(err)
		got := []string{}
		for _, v := range vs {
			s := v.Command + " " + v.State
			if v.Left {
				s += " left"
			}
			got = append(got, s)
		}
		f.equal("the list", got, []string{"ended exited", "left exited left", "running running"})
		f.advance(11 * time.Minute)
		vs, err = f.agent.Execs(f.Context(), control.Ref{Env: id})
		f.must(err)
		f.equal("later", len(vs), 2)
	})
	rule(t, "has them after a restart too, from the guest", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.run("t", "ended", withID("a"))
		f.runLater("t", "running", withID("b"), timeout(time.Hour))
		for _, down := range []func(time.Duration){f.restart, f.crash} {
			down(time.Second)
			f.agent, f.sink, _ = f.resume(f.agent.ID())
			type list struct {
				vs  []control.ExecView
				err error
			}
			got := make(chan list, 1)
			go func() {
				vs, err := f.agent.Execs(f.Context(), control.Ref{Env: id})
				got <- list{vs, err}
			}()
			synctest.Wait()
			f.reconcile() // asks the guest
			l := <-got
			f.must(l.err)
			var said []string
			for _, v := range l.vs {
				said = append(said, v.ID+" "+v.Command+" "+v.State)
			}
			slices.Sort(said) // they began in one instant
			f.equal("the list", said, []string{"a ended exited", "b running running"})
		}
	})
	rule(t, "is not told short where the guest was not asked yet", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.restart(time.Second)
		f.agent, f.sink, _ = f.resume(f.agent.ID())
		_, err := f.agent.Execs(f.Context(), control.Ref{Env: id})
		f.refused(err, control.KindEngineUnavailable)
	})
}

func TestOutputIsBounded(t *testing.T) {
	rule(t, "the first 40 % and the last 60 % are kept, the rest is counted", func(f *fixture) {
		f.acquire("t")
		out := bytes.Repeat([]byte("0123456789"), 1000)
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd { return &control.ExecEnd{Stdout: out} })
		limit := func(n int64) func(r *control.RunRequest) { return func(r *control.RunRequest) { r.OutputLimit = &n } }
		r := f.run("t", "seq", limit(100))
		f.equal("kept", string(r.End.Stdout), string(out[:40])+string(out[len(out)-60:]))
		f.equal("left out", r.End.OmittedOut, len(out)-100)
		r = f.run("t", "seq", limit(0))
		f.equal("kept and left out", []any{len(r.End.Stdout), r.End.OmittedOut}, []any{0, len(out)})
		r = f.run("t", "seq")
		f.equal("kept and left out", []any{len(r.End.Stdout), r.End.OmittedOut}, []any{len(out), 0})
	})
	rule(t, "a result too large for the record comes from the guest while that has it", func(f *fixture) {
		f.acquire("t", persistent)
		out := bytes.Repeat([]byte("x"), 300_000)
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd { return &control.ExecEnd{Stdout: out} })
		all := func(r *control.RunRequest) { r.ID, r.OutputLimit = "a", ptr(int64(400_000)) }
		f.equal("bytes", len(f.run("t", "seq", all).End.Stdout), len(out))
		f.equal("bytes, asked again", len(f.run("t", "seq", all).End.Stdout), len(out))
		f.endTurn("t")
		f.advance(5 * time.Minute)
		r := f.run("t", "seq", all)
		f.equal("lost, in the next generation", []any{r.End.OutputLost, r.End.OmittedOut}, []any{true, len(out)})
	})
	rule(t, "what is no text is cut at the byte", func(f *fixture) {
		f.acquire("t")
		for _, b := range []string{"\x80", "\xff", "\xe2\x82"} {
			f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd {
				return &control.ExecEnd{Stdout: bytes.Repeat([]byte(b), 100)}
			})
			r := f.run("t", "x", func(r *control.RunRequest) { r.OutputLimit = ptr(int64(50)) })
			f.equal("kept", len(r.End.Stdout), 50)
		}
	})
	rule(t, "a character is not cut in two", func(f *fixture) {
		f.acquire("t")
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd {
			return &control.ExecEnd{Stdout: bytes.Repeat([]byte("€"), 100)}
		})
		for n := range int64(40) {
			r := f.run("t", "x", func(r *control.RunRequest) { r.OutputLimit = &n })
			if s := string(r.End.Stdout); strings.ToValidUTF8(s, "") != s {
				f.Fatalf("%d bytes: %q", n, s)
			}
			f.equal("all bytes", int64(len(r.End.Stdout))+r.End.OmittedOut, 300)
		}
	})
}

func TestANotice(t *testing.T) {
	rule(t, "tells once what was lost and what was kept", func(f *fixture) {
		f.acquire("t", persistent)
		if n := f.run("t", "true").Notice; n != nil {
			f.Fatalf("at first: %+v", n)
		}
		f.endTurn("t")
		f.advance(5 * time.Minute)
		f.acquire("t") // in between
		n := f.run("t", "true").Notice
		if n == nil {
			f.Fatal("none")
		}
		f.equal("the generation", n.Generation, 2)
		f.equal("what was kept", n.Kept, []string{"root file system", "workspace"})
		if n := f.run("t", "true").Notice; n != nil {
			f.Fatalf("twice: %+v", n)
		}
	})
	rule(t, "comes also where the session had run nothing yet", func(f *fixture) {
		for name, use := range map[string]func(id string) error{
			"acquire": func(string) error { f.acquire("acquire", persistent); return nil },
			"file": func(id string) error {
				_, err := f.agent.StatFile(f.Context(), control.Ref{Env: id}, ".")
				return err
			},
		} {
			other, _ := f.connect("iris")
			id := f.as(other).acquire(name, persistent).Env.ID
			f.must(use(id))
			f.endTurn(name)
			f.advance(5 * time.Minute)
			_, err := f.agent.StatFile(f.Context(), control.Ref{Env: id}, ".")
			f.must(err)
			if n := f.run(name, "true").Notice; n == nil || n.Generation != 2 {
				f.Fatalf("%s: %+v", name, n)
			}
		}
	})
	rule(t, "is each session's own", func(f *fixture) {
		f.acquire("t", persistent)
		f.run("t", "true")
		f.endTurn("t")
		f.advance(5 * time.Minute)
		other, _ := f.connect("iris")
		if n := f.as(other).run("t", "true").Notice; n != nil {
			f.Fatalf("a newcomer got %+v", n)
		}
		if n := f.run("t", "true").Notice; n == nil {
			f.Fatal("none")
		}
	})
	for _, row := range []struct {
		name    string
		change  func(f *fixture, id string)
		kept    []string
		missing []string
	}{
		{"recreated: the workspace alone is kept", func(f *fixture, id string) {
			f.acquire("t", image("alpine"), onDrift("recreate"))
		}, []string{"workspace"}, []string{"root file system"}},
		{"the sandbox vanished: the workspace alone is kept", func(f *fixture, id string) {
			f.engine.Vanish("sandkeeper-test-"+id, false)
			f.reconcile()
			f.acquire("t")
		}, []string{"workspace"}, []string{"root file system"}},
		{"all of it vanished: nothing is kept", func(f *fixture, id string) {
			f.engine.Vanish("sandkeeper-test-"+id, true)
			f.reconcile()
			f.acquire("t")
		}, []string{}, []string{"root file system", "workspace"}},
		{"a successor: nothing is kept", func(f *fixture, id string) {
			_, err := f.plane.Kill(f.Context(), "operator:ada", id, true)
			f.must(err)
			f.acquire("t")
		}, []string{}, []string{"root file system", "workspace"}},
	} {
		rule(t, row.name, func(f *fixture) {
			id := f.acquire("t", persistent).Env.ID
			f.run("t", "true")
			f.advance(time.Second)
			row.change(f, id)
			n := f.run("t", "true").Notice
			if n == nil {
				f.Fatal("none")
			}
			f.equal("what was kept", n.Kept, row.kept)
			for _, m := range row.missing {
				if !strings.Contains(strings.Join(n.Lost, ","), m) {
					f.Fatalf("lost is %v, without %s", n.Lost, m)
				}
			}
		})
	}
	rule(t, "is remembered across a restart", func(f *fixture) {
		f.acquire("t", persistent)
		f.run("t", "true")
		f.endTurn("t")
		f.advance(5 * time.Minute)
		f.restart(0)
		f.agent, _, _ = f.resume(f.agent.ID())
		if n := f.run("t", "true").Notice; n == nil {
			f.Fatal("none")
		}
	})
}
