package control_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// drain reads a stream to its end.
func drain(f *fixture, st control.ExecStream) (stdout, stderr string, exit control.ExecExit) {
	f.Helper()
	b := make([]byte, 3)
	for {
		n, out, err := st.Read(b)
		if errors.Is(err, io.EOF) {
			return stdout, stderr, st.Exit()
		}
		f.must(err)
		if out == control.Stderr {
			stderr += string(b[:n])
		} else {
			stdout += string(b[:n])
		}
	}
}

func TestStreamsOfACommand(t *testing.T) {
	start := func(f *fixture, r control.StartRequest) control.Started {
		f.Helper()
		r.Ref = control.Ref{Task: "t"}
		st, err := f.agent.Start(f.Context(), r)
		f.must(err)
		return st
	}
	rule(t, "its bytes come, and then its one end", func(f *fixture) {
		f.acquire("t")
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd {
			return &control.ExecEnd{ExitCode: 3, Stdout: []byte("out put"), Stderr: []byte("err")}
		})
		out, errs, exit := drain(f, start(f, control.StartRequest{Command: "make"}).Stream)
		f.equal("what came", []any{out, errs, *exit.ExitCode}, []any{"out put", "err", 3})
	})
	rule(t, "its bytes come as they are written, each once, also past a broken connection", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.guests.OnStart(controltest.Running)
		st := start(f, control.StartRequest{Command: "make"})
		var got string
		next := func(want string) {
			f.Helper()
			f.guests.Write(st.Exec, control.Stdout, []byte(want))
			b := make([]byte, 100)
			n, _, err := st.Stream.Read(b)
			f.must(err)
			got += string(b[:n])
		}
		next("one ")
		f.guests.Cut("sandkeeper-test-" + id)
		next("two ")
		next("three")
		f.equal("what came", got, "one two three")
		a, err := f.agent.Attach(f.Context(), control.AttachRequest{Exec: st.Exec, From: control.Offsets{Stdout: 4}})
		f.must(err)
		f.guests.End(st.Exec, control.ExecEnd{ExitCode: 3})
		for _, s := range []control.ExecStream{st.Stream, a.Stream} {
			out, _, exit := drain(f, s)
			f.equal("the exit code", *exit.ExitCode, 3)
			f.equal("what came of the rest", out, map[bool]string{s == a.Stream: "two three"}[true])
		}
	})
	rule(t, "one that nobody reads waits, and one that nobody has joined loses its oldest bytes, which is told", func(f *fixture) {
		f.acquire("t")
		f.guests.OnStart(controltest.Running)
		st := start(f, control.StartRequest{Command: "make"})
		f.equal("what it could write", f.guests.Write(st.Exec, control.Stdout, make([]byte, 3*controltest.Window)), controltest.Window)
		st.Stream.Close()
		for range 9 {
			f.guests.Write(st.Exec, control.Stdout, make([]byte, controltest.Window))
		}
		a, err := f.agent.Attach(f.Context(), control.AttachRequest{Exec: st.Exec, From: control.Offsets{Stdout: 100}})
		f.must(err)
		f.equal("what was skipped", a.Skipped, control.Offsets{Stdout: 10*controltest.Window - controltest.Kept - 100})
		f.guests.End(st.Exec, control.ExecEnd{})
		out, _, _ := drain(f, a.Stream)
		f.equal("what is kept", len(out), controltest.Kept)
	})
	rule(t, "a gap that a broken connection left is told in its place", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.guests.OnStart(controltest.Running)
		st := start(f, control.StartRequest{Command: "make"})
		f.guests.Cut("sandkeeper-test-" + id)
		for range 5 {
			f.guests.Write(st.Exec, control.Stdout, make([]byte, controltest.Window))
		}
		f.guests.End(st.Exec, control.ExecEnd{})
		_, _, err := st.Stream.Read(make([]byte, 10))
		gap, _ := errors.AsType[*control.Gap](err)
		if gap == nil || gap.Skipped != (control.Offsets{Stdout: 5*controltest.Window - controltest.Kept}) {
			f.Fatalf("the first read: %v", err)
		}
		out, _, _ := drain(f, st.Stream)
		f.equal("what is kept", len(out), controltest.Kept)
	})
	rule(t, "its input is the last attacher's, and comes once past a broken connection", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.guests.OnStart(controltest.Running)
		st := start(f, control.StartRequest{Command: "cat", Stdin: true})
		write := func(s control.ExecStream, text string) error {
			_, err := s.Write([]byte(text))
			return err
		}
		f.must(write(st.Stream, "one "))
		f.guests.Cut("sandkeeper-test-" + id)
		go st.Stream.Read(make([]byte, 1)) //nolint:errcheck // it joins anew
		f.must(write(st.Stream, "two "))
		a, err := f.agent.Attach(f.Context(), control.AttachRequest{Exec: st.Exec})
		f.must(err)
		f.equal("what it had of it", a.StdinTaken, int64(8))
		f.must(write(a.Stream, "three"))
		if err := write(st.Stream, "no"); !errors.Is(err, control.ErrStdinClosed) {
			f.Errorf("of who came before: %v", err)
		}
		f.must(a.Stream.CloseStdin())
		in, shut := f.guests.Input(st.Exec)
		f.equal("its input", []any{in, shut}, []any{"one two three", true})
		f.guests.End(st.Exec, control.ExecEnd{})
	})
	rule(t, "what was recorded of it comes behind the bytes that are had already", func(f *fixture) {
		f.acquire("t")
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd {
			return &control.ExecEnd{Stdout: []byte("out put"), Stderr: []byte("err")}
		})
		x := f.run("t", "make", withID("a")).Exec
		f.endTurn("t")
		f.restart(time.Second)
		agent, _ := f.connect("hermes")
		a, err := agent.Attach(f.Context(), control.AttachRequest{Exec: x, From: control.Offsets{Stdout: 4, Stderr: 9}})
		f.must(err)
		out, errs, exit := drain(f, a.Stream)
		f.equal("what came", []any{out, errs, exit.OutputLost}, []any{"put", "", false})
	})
	rule(t, "Run and Start of the same id are the same command, another is a conflict", func(f *fixture) {
		f.acquire("t")
		f.run("t", "make", withID("a"))
		st := start(f, control.StartRequest{Command: "make", ID: "a"})
		_, _, exit := drain(f, st.Stream)
		f.equal("the exit code", *exit.ExitCode, 0)
		f.equal("the commands that ran", len(f.guests.Starts()), 1)
		_, err := f.agent.Start(f.Context(), control.StartRequest{Ref: control.Ref{Task: "t"}, Command: "make all", ID: "a"})
		f.refused(err, control.KindConflict)
	})
	rule(t, "another owner's exec does not exist", func(f *fixture) {
		f.acquire("t")
		st := start(f, control.StartRequest{Command: "make"})
		other, _, err := f.plane.Hello(f.Context(), "zeus", control.Hello{Agent: "a"}, &sink{})
		f.must(err)
		_, err = other.Attach(f.Context(), control.AttachRequest{Exec: st.Exec})
		f.refused(err, control.KindNotFound)
		_, err = other.SignalExec(f.Context(), st.Exec, "KILL", true)
		f.refused(err, control.KindNotFound)
		_, err = other.WaitExec(f.Context(), st.Exec, time.Second)
		f.refused(err, control.KindNotFound)
	})
	rule(t, "an environment that goes ends it as lost, also for those who wait", func(f *fixture) {
		f.acquire("t")
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd { return nil })
		st := start(f, control.StartRequest{Command: "make"})
		f.endTurn("t")
		_, _, exit := drain(f, st.Stream)
		if exit.EnvLost == nil || exit.ExitCode != nil || exit.EnvLost.Tombstone == nil {
			f.Errorf("exit %+v", exit)
		}
		state, err := f.agent.WaitExec(f.Context(), st.Exec, 0)
		f.must(err)
		if state.Exit == nil || state.Exit.EnvLost == nil {
			f.Errorf("state %+v", state)
		}
	})
	rule(t, "a terminal holds while somebody is attached, an hour without input", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd { return nil })
		st := start(f, control.StartRequest{Command: "sh", TTY: &control.TTY{Cols: 80, Rows: 24}, Stdin: true})
		f.held(id, control.HoldTurn, control.HoldExec, control.HoldTerminal)
		st.Stream.Close()
		f.held(id, control.HoldTurn, control.HoldExec)
	})
	rule(t, "after a restart a terminal is still known as one", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd { return nil })
		term := start(f, control.StartRequest{Command: "sh", TTY: &control.TTY{Cols: 80, Rows: 24}, Stdin: true})
		plain := start(f, control.StartRequest{Command: "make"})
		f.crash(time.Second)
		f.reconcile()
		agent, _ := f.connect("hermes")
		a, err := agent.Attach(f.Context(), control.AttachRequest{Exec: plain.Exec})
		f.must(err)
		defer a.Stream.Close()
		f.held(id, control.HoldTurn, control.HoldExec, control.HoldExec)
		b, err := agent.Attach(f.Context(), control.AttachRequest{Exec: term.Exec})
		f.must(err)
		f.held(id, control.HoldTurn, control.HoldExec, control.HoldExec, control.HoldTerminal)
		b.Stream.Close()
		f.held(id, control.HoldTurn, control.HoldExec, control.HoldExec)
	})
	rule(t, "a background command holds as a process over the end of the turn", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.guests.OnStart(func(string, control.ExecStart) *control.ExecEnd { return nil })
		st := start(f, control.StartRequest{Command: "serve", Background: true})
		f.endTurn("t")
		f.held(id, control.HoldProcess)
		survivors, err := f.agent.SignalExec(f.Context(), st.Exec, "TERM", true)
		f.must(err)
		f.equal("the survivors", survivors, 0)
		drain(f, st.Stream)
		f.held(id)
	})
}
