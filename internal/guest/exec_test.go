package guest_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

func TestCommandsEndAsInAShell(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		s.sh(t, "printf '' > /workspace/plain; printf 'no program' > /workspace/bad; chmod +x /workspace/bad")
		big := strings.Repeat("0123456789", 30_000)
		for _, tc := range []struct {
			name        string
			start       control.ExecStart
			code        int
			signal      string
			out, errOut string // parts of them
		}{
			{name: "true", start: control.ExecStart{Argv: []string{"true"}}},
			{name: "an exit code", start: control.ExecStart{Shell: "exit 7"}, code: 7},
			{name: "streams apart", start: control.ExecStart{Shell: "echo one; echo two >&2"}, out: "one\n", errOut: "two\n"},
			{name: "arguments as they are", start: control.ExecStart{Argv: []string{"printf", "%s|", "a b", "", "$x", "ü"}}, out: "a b||$x|ü|"},
			{name: "stdin, then its end", start: control.ExecStart{Argv: []string{"cat"}, Stdin: []byte("in")}, out: "in"},
			{name: "stdin beyond a pipe", start: control.ExecStart{Argv: []string{"wc", "-c"}, Stdin: []byte(big)}, out: "300000"},
			{name: "stdin that nobody reads", start: control.ExecStart{Argv: []string{"true"}, Stdin: []byte(big)}},
			{name: "no stdin is an end of file", start: control.ExecStart{Argv: []string{"cat"}}},
			{name: "a signal", start: control.ExecStart{Shell: "kill -USR1 $$"}, code: 138, signal: "USR1"},
			{name: "missing", start: control.ExecStart{Argv: []string{"no-such-program"}}, code: 127, errOut: "no-such-program"},
			{name: "missing path", start: control.ExecStart{Argv: []string{"/no/such"}}, code: 127, errOut: "/no/such"},
			{name: "not executable", start: control.ExecStart{Argv: []string{"/workspace/plain"}}, code: 126, errOut: "permission denied"},
			{name: "a directory", start: control.ExecStart{Argv: []string{"/workspace"}}, code: 126},
			{name: "no program format", start: control.ExecStart{Argv: []string{"/workspace/bad"}}, code: 126, errOut: "exec format"},
			{name: "missing in a shell", start: control.ExecStart{Shell: "no-such-program"}, code: 127, errOut: "not found"},
			{name: "a NUL byte", start: control.ExecStart{Argv: []string{"echo", "a\x00b"}}, code: 126, errOut: "NUL"},
			{name: "the image's environment", start: control.ExecStart{Shell: `echo "$FROM_IMAGE-$SANDKEEPER_GUEST-"`}, out: "yes--"},
			{name: "variables", start: control.ExecStart{Argv: []string{"sh", "-c", "echo $A"}, Variables: map[string]string{"A": "b c"}}, out: "b c"},
			{name: "the workdir", start: control.ExecStart{Argv: []string{"pwd"}, Workdir: "/usr"}, out: "/usr\n"},
			{name: "a cwd", start: control.ExecStart{Argv: []string{"pwd"}, Cwd: "/usr/bin", Workdir: "/usr"}, out: "/usr/bin\n"},
			{name: "a relative cwd", start: control.ExecStart{Argv: []string{"pwd"}, Cwd: "bin", Workdir: "/usr"}, out: "/usr/bin\n"},
		} {
			t.Run(tc.name, func(t *testing.T) {
				end := s.do(t, tc.start)
				if end.ExitCode != tc.code || end.Signal != tc.signal || end.TimedOut || end.Left != 0 {
					t.Errorf("ended %d %q, timed out %v, left %d; want %d %q. stderr: %s", end.ExitCode, end.Signal, end.TimedOut, end.Left, tc.code, tc.signal, end.Stderr)
				}
				if !strings.Contains(string(end.Stdout), tc.out) || !strings.Contains(string(end.Stderr), tc.errOut) {
					t.Errorf("stdout %q, stderr %q; want %q and %q in them", end.Stdout, end.Stderr, tc.out, tc.errOut)
				}
			})
		}
	})
}

func TestACwdThatIsNotThereIsAnErrorOfStart(t *testing.T) {
	s := start(t, "socket", options{})
	for cwd, errno := range map[string]string{"/no/such": "ENOENT", "/etc/passwd": "ENOTDIR"} {
		_, err := s.Start(t.Context(), control.ExecStart{Exec: "x", Argv: []string{"true"}, Cwd: cwd})
		if e, ok := errors.AsType[*control.FileError](err); !ok || e.Errno != errno {
			t.Errorf("%s: %v, want a FileError %s", cwd, err, errno)
		}
		if _, err := s.Wait(t.Context(), "x", 0); !errors.Is(err, control.ErrNoExec) {
			t.Errorf("wait: %v, want ErrNoExec", err)
		}
	}
}

func TestStartTwiceRunsOnce(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		c := control.ExecStart{Exec: "once", Shell: "echo ran >> /workspace/log; sleep 0.05; exit 3"}
		first, err := s.Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		second, err := s.Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if first.Existed || !second.Existed || first.PID != second.PID || first.PID <= 1 {
			t.Errorf("first %+v, second %+v", first, second)
		}
		if end := s.end(t, "once"); end.ExitCode != 3 {
			t.Errorf("exit code %d", end.ExitCode)
		}
		if third, err := s.Start(t.Context(), c); err != nil || !third.Existed {
			t.Errorf("after its end: %+v, %v", third, err)
		}
		if end := s.sh(t, "cat /workspace/log"); string(end.Stdout) != "ran\n" {
			t.Errorf("it ran %q", end.Stdout)
		}
	})
}

// A control plane that had no answer asks again, and may ask the wrong one by then.
func TestACommandForAnotherRunIsNotStarted(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s, other := start(t, over, options{}), start(t, over, options{})
		run, err := s.Run(t.Context())
		if err != nil || run == "" {
			t.Fatalf("run %q, %v", run, err)
		}
		s.cut()
		if again, err := s.Run(t.Context()); err != nil || again != run {
			t.Errorf("over another connection it is %q, %v; want %q", again, err, run)
		}
		c := control.ExecStart{Exec: "once", Run: run, Shell: "echo ran >> /workspace/log"}
		if _, err := other.Start(t.Context(), c); !errors.Is(err, control.ErrOtherRun) {
			t.Errorf("started in another run: %v, want ErrOtherRun", err)
		}
		if _, err := other.Wait(t.Context(), "once", 0); !errors.Is(err, control.ErrNoExec) {
			t.Errorf("the other knows it: %v", err)
		}
		if end := s.do(t, c); end.ExitCode != 0 {
			t.Errorf("ended %d: %s", end.ExitCode, end.Stderr)
		}
	})
}

func TestACallSurvivesALostConnection(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		c := control.ExecStart{Exec: "long", Shell: "while [ ! -e /workspace/go ]; do sleep 0.02; done; echo result; exit 5"}
		if _, err := s.Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		dials := s.dialled()
		type ended struct {
			end control.ExecEnd
			err error
		}
		got := make(chan ended, 1)
		go func() {
			end, err := s.Wait(t.Context(), "long", 1000)
			got <- ended{end, err}
		}()
		s.cut()
		if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "go"}); err != nil {
			t.Fatal(err)
		}
		e := <-got
		if e.err != nil || e.end.ExitCode != 5 || string(e.end.Stdout) != "result\n" {
			t.Errorf("%+v, %v", e.end, e.err)
		}
		if s.dialled() == dials {
			t.Error("nothing was dialled anew: the test cut nothing")
		}
	})
}

func TestWaitEndsWithItsContext(t *testing.T) {
	s := start(t, "socket", options{})
	if _, err := s.Start(t.Context(), control.ExecStart{Exec: "s", Argv: []string{"sleep", "100"}}); err != nil {
		t.Fatal(err)
	}
	for _, call := range []func() error{
		func() error { _, err := s.Wait(ended(t), "s", 10); return err },
		func() error { return s.Gone(ended(t), "s") },
	} {
		if err := call(); !errors.Is(err, errOver) && err != nil && !strings.Contains(err.Error(), "context") {
			t.Errorf("%v, want the context's error", err)
		}
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("the connection did not outlive it: %v", err)
	}
}

func TestUnknownExecs(t *testing.T) {
	s := start(t, "socket", options{})
	_, waitErr := s.Wait(t.Context(), "nobody", 10)
	_, signalErr := s.Signal(t.Context(), "nobody", "TERM", true)
	for _, err := range []error{waitErr, signalErr, s.Gone(t.Context(), "nobody")} {
		if !errors.Is(err, control.ErrNoExec) {
			t.Errorf("%v, want ErrNoExec", err)
		}
	}
}

func TestOutputIsBounded(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		const total = 100 << 20
		c := control.ExecStart{Exec: "much", Shell: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo; echo last", total)}
		if _, err := s.Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		end, err := s.Wait(t.Context(), "much", 50_000)
		if err != nil {
			t.Fatal(err)
		}
		if len(end.Stdout) != 50_000 || end.OmittedOut != total+6-50_000 {
			t.Errorf("%d bytes and %d omitted", len(end.Stdout), end.OmittedOut)
		}
		if !bytes.HasPrefix(end.Stdout, []byte("xxx")) || !bytes.HasSuffix(end.Stdout, []byte("x\nlast\n")) {
			t.Error("its beginning or its end is missing")
		}
		if kb := residentKB(t, s.cmd.Process.Pid); kb > 16<<10 {
			t.Errorf("the guest has %d KiB resident after %d MiB of output", kb, total>>20)
		}
	})
}

func TestAWriteAfterTheEndDoesNotFail(t *testing.T) {
	s := start(t, "socket", options{})
	// Were the end told at end of file alone, this would wait for ever.
	end := s.sh(t, "(while [ ! -e /workspace/go ]; do sleep 0.02; done; echo late && touch /workspace/wrote; sleep 100) & echo now")
	if string(end.Stdout) != "now\n" || end.Left == 0 {
		t.Errorf("stdout %q, left %d", end.Stdout, end.Left)
	}
	s.sh(t, "touch /workspace/go; while [ ! -e /workspace/wrote ]; do sleep 0.02; done")
}

func TestListTellsWhatRunsAndWhatIsLeft(t *testing.T) {
	s := start(t, "socket", options{})
	begin := func(name string, c control.ExecStart) {
		c.Exec = name
		if _, err := s.Start(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	begin("running", control.ExecStart{Argv: []string{"sleep", "100"}, Background: true, Timeout: time.Hour})
	begin("leaver", control.ExecStart{Shell: "sleep 100 >/dev/null 2>&1 & exit 4"})
	begin("over", control.ExecStart{Argv: []string{"false"}})
	s.end(t, "leaver")
	s.end(t, "over")
	all, err := s.Execs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]control.ExecStatus)
	for _, e := range all {
		got[e.Exec] = e
	}
	if e := got["running"]; !e.Running || e.Left || e.Command != "sleep 100" || e.PID < 2 || !e.Background || e.Timeout != time.Hour || e.StartedAt.IsZero() || !e.EndedAt.IsZero() {
		t.Errorf("running: %+v", e)
	}
	if e := got["leaver"]; e.Running || !e.Left || e.ExitCode != 4 || e.EndedAt.IsZero() {
		t.Errorf("leaver: %+v", e)
	}
	if e := got["over"]; e.Running || e.Left || e.ExitCode != 1 || e.EndedAt.Before(e.StartedAt) {
		t.Errorf("over: %+v", e)
	}
}

func TestManyAtOnce(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		const n = 40
		for i := range n {
			if _, err := s.Start(t.Context(), control.ExecStart{
				Exec: fmt.Sprint("m", i), Shell: fmt.Sprintf("echo %d; exit %d", i, i),
			}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range n {
			if end := s.end(t, fmt.Sprint("m", i)); end.ExitCode != i || string(end.Stdout) != fmt.Sprintln(i) {
				t.Errorf("%d ended %d with %q, %q", i, end.ExitCode, end.Stdout, end.Stderr)
			}
		}
	})
}
