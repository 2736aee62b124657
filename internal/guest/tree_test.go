package guest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
)

// What tries to get away from its command. Each leaves a process "sleep N".
var escapes = []struct{ name, script string }{
	{"a child", `sleep %s & wait`},
	{"forked twice", `(sleep %s &) ; (exec sh -c 'sleep %s & exit') ; sleep 1000`},
	{"a session of its own", `setsid sleep %s & setsid -f sleep %s; wait`},
	{"a cleared environment", `env -i /usr/bin/sleep %s & (env -i setsid -f /usr/bin/sleep %s); wait`},
	{"another user", `setpriv --reuid=12345 --regid=12345 --clear-groups sleep %s & (setpriv --reuid=1 --clear-groups setsid -f sleep %s); wait`},
	{"one that ignores TERM", `trap '' TERM; (setsid -f sleep %s); while :; do sleep %s; done`},
}

func script(text, n string) string {
	return strings.ReplaceAll(text, "%s", n)
}

// untilAlive waits for n processes of that command; each look follows a call to the guest.
func (s *sandbox) untilAlive(t *testing.T, command string, n int) {
	t.Helper()
	for s.count(t, command) < n {
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *sandbox) count(t *testing.T, command string) (n int) {
	for _, c := range s.alive(t) {
		if strings.TrimPrefix(c, "/usr/bin/") == command {
			n++
		}
	}
	return n
}

func TestKillReachesTheWholeTree(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		for i, tc := range escapes {
			t.Run(tc.name, func(t *testing.T) {
				n := fmt.Sprint(7000 + i)
				name := newName()
				if _, err := s.Start(t.Context(), control.ExecStart{Exec: name, Shell: script(tc.script, n)}); err != nil {
					t.Fatal(err)
				}
				s.untilAlive(t, "sleep "+n, strings.Count(tc.script, "%s"))
				left, err := s.Signal(t.Context(), name, "KILL", true)
				if err != nil || left != 0 {
					t.Errorf("%d survivors, %v", left, err)
				}
				if all := s.alive(t); len(all) > 0 {
					t.Errorf("alive after the kill: %q", all)
				}
				s.reaped(t)
				if end := s.end(t, name); end.ExitCode != 137 || end.Signal != "KILL" || end.Left != 0 {
					t.Errorf("ended %d %q, left %d", end.ExitCode, end.Signal, end.Left)
				}
				if err := s.Gone(t.Context(), name); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

func TestATimeoutLeavesNothing(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		for i, tc := range escapes {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				n := fmt.Sprint(8000 + i)
				end := s.do(t, control.ExecStart{Shell: script(tc.script, n), Timeout: time.Second})
				if s.count(t, "sleep "+n) > 0 {
					t.Errorf("alive after the timeout: %q", s.alive(t))
				}
				if !end.TimedOut || end.ExitCode != 124 || end.Left != 0 {
					t.Errorf("timed out %v, code %d, left %d", end.TimedOut, end.ExitCode, end.Left)
				}
				if end.Duration < time.Second {
					t.Errorf("it took %v", end.Duration)
				}
			})
		}
	})
}

func TestOutputBeforeATimeoutIsKept(t *testing.T) {
	t.Parallel()
	s := start(t, "socket", options{})
	end := s.do(t, control.ExecStart{Shell: "echo so far; exec sleep 100", Timeout: 5 * time.Second})
	if string(end.Stdout) != "so far\n" || !end.TimedOut {
		t.Errorf("%+v", end)
	}
}

func TestAForkBombIsKilled(t *testing.T) {
	s := start(t, "socket", options{})
	// Each forks two more, up to a limit, over and over.
	bomb := `ulimit -u 200; f() { while :; do (sleep 0.01; f) & (f) & wait; done; }; f`
	if _, err := s.Start(t.Context(), control.ExecStart{Exec: "bomb", Shell: `setpriv --reuid=54321 --clear-groups bash -c '` + bomb + `' 2>/dev/null`}); err != nil {
		t.Fatal(err)
	}
	for len(s.alive(t)) < 50 {
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := s.Signal(t.Context(), "bomb", "KILL", true); left != 0 || err != nil {
		t.Errorf("%d survivors, %v", left, err)
	}
	if all := s.alive(t); len(all) > 0 {
		t.Errorf("%d alive after the kill", len(all))
	}
	s.reaped(t)
}

func TestWhatIsLeftGoesOnAndIsReachable(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		end := s.do(t, control.ExecStart{Exec: "server", Shell: "sleep 6001 >/dev/null 2>&1 & setsid -f sleep 6002 >/dev/null 2>&1"})
		if end.ExitCode != 0 || end.Left != 2 {
			t.Errorf("code %d, left %d; want 0 and 2", end.ExitCode, end.Left)
		}
		s.untilAlive(t, "sleep 6001", 1)
		s.untilAlive(t, "sleep 6002", 1)
		// Another command meanwhile is another tree.
		s.do(t, control.ExecStart{Exec: "other", Shell: "true"})
		if left, err := s.Signal(t.Context(), "other", "KILL", true); left != 0 || err != nil {
			t.Errorf("%d, %v", left, err)
		}
		if left, err := s.Signal(t.Context(), "server", "WINCH", true); left != 2 || err != nil {
			t.Errorf("%d, %v; want 2 survivors of WINCH", left, err)
		}
		gone := make(chan error, 1)
		go func() { gone <- s.Gone(t.Context(), "server") }()
		if left, err := s.Signal(t.Context(), "server", "TERM", true); left != 0 || err != nil {
			t.Errorf("%d, %v; want no survivor of TERM", left, err)
		}
		if err := <-gone; err != nil {
			t.Error(err)
		}
	})
}

func TestASignalForTheFirstProcessAlone(t *testing.T) {
	s := start(t, "socket", options{})
	if _, err := s.Start(t.Context(), control.ExecStart{Exec: "x", Argv: []string{"sh", "-c", "sleep 5001 & wait"}}); err != nil {
		t.Fatal(err)
	}
	s.untilAlive(t, "sleep 5001", 1)
	left, err := s.Signal(t.Context(), "x", "TERM", false)
	if err != nil || left != 1 {
		t.Errorf("%d survivors, %v; want the child alone", left, err)
	}
	if end := s.end(t, "x"); end.Signal != "TERM" || end.ExitCode != 143 || end.Left != 1 {
		t.Errorf("%+v", end)
	}
	if _, err := s.Signal(t.Context(), "x", "NOSUCH", true); err == nil {
		t.Error("a signal that does not exist was sent")
	}
}

func TestZombiesAreReaped(t *testing.T) {
	s := start(t, "socket", options{})
	s.sh(t, "for i in 1 2 3 4 5; do (setsid -f true); (sh -c 'true & true &'); done")
	s.reaped(t)
	if all := s.alive(t); len(all) > 0 {
		t.Errorf("left: %q", all)
	}
}

func TestAKilledKeeperLosesNothing(t *testing.T) {
	s := start(t, "socket", options{})
	s.sh(t, "true")
	if _, err := s.Start(t.Context(), control.ExecStart{Exec: "orphaned", Shell: "setsid -f sleep 4001; sleep 4002"}); err != nil {
		t.Fatal(err)
	}
	s.untilAlive(t, "sleep 4001", 1)
	s.untilAlive(t, "sleep 4002", 1)
	s.killKeepers(t)
	if end := s.end(t, "orphaned"); end.ExitCode != 137 || end.Signal != "KILL" {
		t.Errorf("ended %d %q", end.ExitCode, end.Signal)
	}
	if err := s.Gone(t.Context(), "orphaned"); err != nil {
		t.Error(err)
	}
	if all := s.alive(t); len(all) > 0 {
		t.Errorf("alive: %q", all)
	}
	s.reaped(t)
	if end := s.sh(t, "echo again"); string(end.Stdout) != "again\n" {
		t.Errorf("%+v", end)
	}
}

func (s *sandbox) killKeepers(t *testing.T) {
	t.Helper()
	pids := s.keeperPIDs()
	if len(pids) == 0 {
		t.Fatal("no keeper to kill")
	}
	for _, pid := range pids {
		unix.Kill(pid, unix.SIGKILL)
	}
}

func TestPID1EndsOnTERMAndOnNothingElse(t *testing.T) {
	s := start(t, "socket", options{})
	pid := s.cmd.Process.Pid
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGPIPE, unix.SIGABRT, unix.SIGSEGV, unix.SIGALRM} {
		if err := unix.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Fatalf("after %v: %v", sig, err)
		}
	}
	// One that goes on TERM, and one that will not.
	for _, text := range []string{"trap 'exit 0' TERM; while :; do sleep 0.1; done", "trap '' TERM; while :; do sleep 0.1; done"} {
		if _, err := s.Start(t.Context(), control.ExecStart{Exec: newName(), Shell: text, Background: true}); err != nil {
			t.Fatal(err)
		}
	}
	unix.Kill(pid, unix.SIGTERM)
	<-s.ended
	if code := s.cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
}

// Where something runs, each of these takes the 1.9 s that a command has for its end.
func TestTERMIsQuickWhereNothingRuns(t *testing.T) {
	quickest := time.Hour
	for range 5 { // a machine may be busy once
		s := start(t, "socket", options{})
		s.sh(t, "true")
		began := time.Now()
		unix.Kill(s.cmd.Process.Pid, unix.SIGTERM)
		<-s.ended
		if quickest = min(quickest, time.Since(began)); quickest < time.Second {
			return
		}
	}
	t.Errorf("the quickest took %v", quickest)
}
