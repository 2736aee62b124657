package guest_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"sandkeeper/internal/control"
)

// screen starts a command on a terminal and joins it.
func (s *sandbox) screen(t testing.TB, c control.ExecStart) control.GuestStream {
	t.Helper()
	c.StdinOpen = true
	if c.TTY == nil {
		c.TTY = &control.TTY{Cols: 90, Rows: 30}
	}
	s.begin(t, c)
	return s.join(t, control.GuestAttach{Exec: c.Exec, Input: true})
}

func typed(t testing.TB, j control.GuestStream, text string) {
	t.Helper()
	if _, err := io.WriteString(j, text); err != nil {
		t.Fatal(err)
	}
}

func TestATerminalIsOneForItsCommand(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		for _, user := range []string{"", "agent"} {
			s := start(t, over, options{user: user})
			j := s.screen(t, control.ExecStart{Exec: "x", Shell: `tty; stty size; echo "$TERM" >&2; echo hi > /dev/tty; echo hi > "$(tty)"; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all`})
			out, errOut, end := all(t, j)
			if string(out) != "/dev/pts/0\r\n30 90\r\nxterm-256color\r\nhi\r\nhi\r\nall\r\n" || len(errOut) > 0 || end.ExitCode != 0 {
				t.Errorf("as %q: %q, stderr %q, ended %d", user, out, errOut, end.ExitCode)
			}
		}
	})
}

// Not every program takes a controlling terminal by itself, as bash does.
func TestATerminalIsTheControllingOne(t *testing.T) {
	s := start(t, "socket", options{})
	j := s.screen(t, control.ExecStart{Exec: "x", Argv: []string{"dash", "-c", "echo hi > /dev/tty"}})
	if out, _, end := all(t, j); string(out) != "hi\r\n" || end.ExitCode != 0 {
		t.Errorf("%q, ended %d", out, end.ExitCode)
	}
}

func TestTheEnvironmentsOwnTermStays(t *testing.T) {
	s := start(t, "socket", options{})
	j := s.screen(t, control.ExecStart{Exec: "x", Shell: `echo $TERM`, Variables: map[string]string{"TERM": "vt100"}})
	if out, _, _ := all(t, j); string(out) != "vt100\r\n" {
		t.Errorf("%q", out)
	}
}

func TestAResizeReachesTheProgram(t *testing.T) {
	s := start(t, "socket", options{})
	j := s.screen(t, control.ExecStart{Exec: "x", Argv: []string{"bash", "-c", `trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.02; done`}})
	until(t, j, "ready")
	if err := s.Resize(t.Context(), "x", control.TTY{Cols: 132, Rows: 50}); err != nil {
		t.Fatal(err)
	}
	until(t, j, "50 132")
	all(t, j)
}

func TestTheEndOfFileIsTyped(t *testing.T) {
	for name, text := range map[string]string{"at a line's beginning": "one\n", "within a line": "one"} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "socket", options{})
			j := s.screen(t, control.ExecStart{Exec: "x", Shell: "echo ready; cat > got; cat got; echo; echo over"})
			until(t, j, "ready")
			typed(t, j, text)
			if err := j.CloseStdin(); err != nil {
				t.Fatal(err)
			}
			if out, _, end := all(t, j); !strings.HasSuffix(string(out), "over\r\n") || strings.Count(string(out), "one") != 2 || end.ExitCode != 0 {
				t.Errorf("%q, ended %d", out, end.ExitCode)
			}
		})
	}
}

func TestATerminalWithoutStdinIsAtItsEnd(t *testing.T) {
	s := start(t, "socket", options{})
	end := s.do(t, control.ExecStart{Shell: "cat; echo over", TTY: &control.TTY{Cols: 80, Rows: 24}})
	if !strings.Contains(string(end.Stdout), "over") || end.ExitCode != 0 {
		t.Errorf("%q, ended %d", end.Stdout, end.ExitCode)
	}
}

func TestJobControl(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		j := s.screen(t, control.ExecStart{Exec: "x", Argv: []string{"bash", "--norc", "-i"}, Variables: map[string]string{"PS1": "$ "}})
		until(t, j, "$ ")
		typed(t, j, "sleep 100; echo interrupted-$?\n")
		s.waitFor(t, "sleep 100")
		typed(t, j, "\x03")
		until(t, j, "$ ")
		typed(t, j, "sleep 200; echo next-$?\n")
		s.waitFor(t, "sleep 200")
		typed(t, j, "\x1a")
		until(t, j, "Stopped")
		until(t, j, "$ ")
		typed(t, j, "fg\n")
		until(t, j, "sleep 200") // it says what it takes to the front
		typed(t, j, "\x03")
		until(t, j, "$ ")
		typed(t, j, "exit 7\n")
		if _, _, end := all(t, j); end.ExitCode != 7 {
			t.Errorf("ended %d", end.ExitCode)
		}
	})
}

// waitFor waits until such a command lives.
func (s *sandbox) waitFor(t testing.TB, command string) {
	t.Helper()
	for t.Context().Err() == nil {
		for _, c := range s.alive(t) {
			if c == command {
				return
			}
		}
	}
}

func TestKillReachesTheTreeOfATerminal(t *testing.T) {
	s := start(t, "socket", options{})
	j := s.screen(t, control.ExecStart{Exec: "x", Argv: []string{"bash", "-ic", "sleep 100 & setsid sleep 100 & nohup sleep 100 & echo ready; cat"}})
	until(t, j, "ready")
	if n, err := s.Signal(t.Context(), "x", "KILL", true); err != nil || n != 0 {
		t.Errorf("%d survivors, %v", n, err)
	}
	if _, _, end := all(t, j); end.Signal != "KILL" {
		t.Errorf("ended %+v", end)
	}
	if a := s.alive(t); len(a) > 0 {
		t.Errorf("alive: %q", a)
	}
}

func TestASandboxWithoutTerminalsSaysSo(t *testing.T) {
	s := start(t, "socket", options{noPTS: true})
	end := s.do(t, control.ExecStart{Argv: []string{"true"}, TTY: &control.TTY{Cols: 80, Rows: 24}})
	if end.ExitCode != 126 || !strings.Contains(string(end.Stderr), "no terminals") {
		t.Errorf("ended %d, %q", end.ExitCode, fmt.Sprint(string(end.Stderr)))
	}
}
