package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandkeeper/test/need"
)

// Screen is a user's terminal with a shell in it: the one pane of a tmux of its
// own. Its prompt is "OUT> ".
type Screen struct {
	t      testing.TB
	socket string
}

// OpenScreen opens a screen of that size, or ends the test.
func OpenScreen(t testing.TB, cols, rows int, variables ...string) *Screen {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		need.Missing(t, "tmux", err)
	}
	dir, err := os.MkdirTemp("", "sandkeeper-test-*") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	s := &Screen{t, filepath.Join(dir, "tmux")}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the screen ends with:\n%s", s.Text())
		}
		s.tmux("kill-server")
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	args := []string{"set-option", "-g", "default-terminal", "screen", ";",
		"new-session", "-d", "-x", fmt.Sprint(cols), "-y", fmt.Sprint(rows), "env", "-i", "PS1=OUT> ", "TERM=screen", "PATH=" + os.Getenv("PATH")}
	s.tmux(append(append(args, variables...), "sh")...)
	s.Await("OUT>")
	return s
}

func (s *Screen) tmux(args ...string) string {
	s.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-u", "-S", s.socket, "-f", "/dev/null"}, args...)...)
	cmd.Env = environ("")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Errorf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// Text returns what the screen shows, without what is blank at its end.
func (s *Screen) Text() string {
	s.t.Helper()
	return strings.TrimRight(s.tmux("capture-pane", "-p"), " \n")
}

// Ask returns what tmux knows of the pane by a format, as "#{alternate_on}".
func (s *Screen) Ask(format string) string {
	s.t.Helper()
	return strings.TrimSpace(s.tmux("display-message", "-p", format))
}

// Type types text as it is.
func (s *Screen) Type(text string) {
	s.t.Helper()
	s.tmux("send-keys", "-l", text)
}

// Press presses keys by their names: "Enter", "C-c", "Escape".
func (s *Screen) Press(keys ...string) {
	s.t.Helper()
	s.tmux(append([]string{"send-keys"}, keys...)...)
}

// Enter types a line.
func (s *Screen) Enter(line string) {
	s.t.Helper()
	s.Type(line)
	s.Press("Enter")
}

// Resize changes the screen's size.
func (s *Screen) Resize(cols, rows int) {
	s.t.Helper()
	s.tmux("resize-window", "-x", fmt.Sprint(cols), "-y", fmt.Sprint(rows))
}

// Await waits until the screen shows these in this order, each somewhere on a
// line of its own.
func (s *Screen) Await(parts ...string) {
	s.t.Helper()
	s.Until(fmt.Sprintf("shows %q", parts), func(text string) bool {
		rest := parts
		for line := range strings.Lines(text) {
			if len(rest) > 0 && strings.Contains(line, rest[0]) {
				rest = rest[1:]
			}
		}
		return len(rest) == 0
	})
}

// Until waits until the screen's text is ok.
func (s *Screen) Until(what string, ok func(text string) bool) {
	s.t.Helper()
	timeout := time.After(patience)
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for !ok(s.Text()) {
		select {
		case <-pause.C:
		case <-timeout:
			s.t.Fatalf("the screen never %s", what)
		}
		if s.t.Failed() {
			s.t.FailNow()
		}
	}
}
