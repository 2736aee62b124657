package guest_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// step is one command of a terminal, and what it should print.
type step struct {
	text string
	call control.ExecStart // the rest of the call
	out  string
}

var shellSteps = []struct {
	name  string
	steps []step
}{
	{"the directory carries over", []step{
		{text: "mkdir -p a/b && cd a/b"}, {text: "pwd", out: "/workspace/a/b\n"}, {text: "cd .."}, {text: `echo "$PWD"`, out: "/workspace/a\n"}}},
	{"exported variables carry over, others do not", []step{
		{text: "export A='x y' B; C=3; B=later"}, {text: `echo "$A|$B|$C"`, out: "x y|later|\n"}}},
	{"any value", []step{
		{text: "export A=\"$(printf 'q\\047\\042 $HOME `x` \\\\ \\001 \\n#end\\n ü')\""},
		{text: `printf %s "$A" | od -An -tx1 | tr -d ' \n'; echo`, out: "7127222024484f4d45206078602 05c20012 00a23656e640a20c3bc\n"}}},
	{"unset", []step{
		{text: "export A=1"}, {text: "unset A FROM_IMAGE"}, {text: `echo "${A-none} ${FROM_IMAGE-none}"`, out: "none none\n"}}},
	{"exit", []step{{text: "cd /usr; export A=1; exit 3"}, {text: `echo "$PWD $A"`, out: "/usr 1\n"}}},
	{"set -e", []step{{text: "set -e; cd /usr; export A=1; false; export A=2"}, {text: `echo "$PWD $A"`, out: "/usr 1\n"}}},
	{"set -u", []step{{text: "set -u; cd /usr; echo $NOSUCH"}, {text: `pwd`, out: "/usr\n"}}},
	{"noise in the output", []step{{text: `printf 'export A=fake\n#end\n'; printf 'export A=fake\n#end\n' >&2`, out: "export A=fake\n#end\n"}, {text: `echo "${A-none}"`, out: "none\n"}}},
	{"a call's variables and cwd are its own", []step{
		{text: "export A=mine; cd /usr"},
		{text: `echo "$A $PWD"`, call: control.ExecStart{Variables: map[string]string{"A": "call", "N": "1"}, Cwd: "/etc"}, out: "call /etc\n"},
		{text: `echo "$A $PWD ${N-none}"`, out: "mine /usr none\n"}}},
	{"a change is laid over the environment's variable", []step{
		{text: "export V=changed", call: control.ExecStart{Env: map[string]string{"V": "env"}}},
		{text: `echo $V`, call: control.ExecStart{Env: map[string]string{"V": "env"}}, out: "changed\n"},
		{text: `echo $V`, call: control.ExecStart{Variables: map[string]string{"V": "call"}}, out: "call\n"},
		{text: `echo $V`, call: control.ExecStart{Env: map[string]string{"V": "env"}}, out: "changed\n"},
		{text: "export C=own", call: control.ExecStart{Variables: map[string]string{"C": "call"}}},
		{text: `echo $C`, call: control.ExecStart{Variables: map[string]string{"C": "call"}}, out: "call\n"},
		{text: `echo $C`, out: "own\n"}}},
	{"argv neither reads nor changes it", []step{
		{text: "export A=1; cd /usr"},
		{call: control.ExecStart{Argv: []string{"sh", "-c", `echo "${A-none} $PWD"; cd /etc; export A=2`}}, out: "none /workspace\n"},
		{text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"a killed one commits nothing", []step{{text: "export A=1; cd /usr; kill -9 $$"}, {text: `echo "${A-none} $PWD"`, out: "none /workspace\n"}}},
	{"one that timed out commits nothing", []step{
		{text: "trap 'exit 0' TERM; export A=1; cd /usr; while :; do sleep 0.05; done", call: control.ExecStart{Timeout: 300 * time.Millisecond}},
		{text: `echo "${A-none} $PWD"`, out: "none /workspace\n"}}},
	{"a background one commits nothing", []step{
		{text: "export A=1; cd /usr", call: control.ExecStart{Background: true}}, {text: `echo "${A-none} $PWD"`, out: "none /workspace\n"}}},
	{"something left running does not hold it up", []step{
		{text: "cd /usr; export A=1; sleep 0.6 >/dev/null 2>&1 &"}, {text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"a line that begins with a comment, and lines after", []step{{text: "# hello\ncd /usr\n# bye"}, {text: "pwd", out: "/usr\n"}}},
	{"a here document", []step{{text: "cat <<E\nin\nE\ncd /usr", out: "in\n"}, {text: "pwd", out: "/usr\n"}}},
}

func shells(t *testing.T, test func(t *testing.T, o options)) {
	t.Run("bash", func(t *testing.T) { test(t, options{}) })
	t.Run("dash", func(t *testing.T) { test(t, options{onlySh: "dash"}) })
	t.Run("busybox", func(t *testing.T) { test(t, options{onlySh: "/usr/bin/busybox"}) })
}

func TestShellStateIsAsInATerminal(t *testing.T) {
	shells(t, func(t *testing.T, o options) {
		o = withDash(t, o)
		for _, tc := range shellSteps {
			t.Run(tc.name, func(t *testing.T) {
				s := start(t, "socket", o)
				for i, st := range tc.steps {
					c := st.call
					c.Shell = st.text
					end := s.do(t, c)
					if want := unspaced(tc.name, st.out); string(end.Stdout) != want {
						t.Errorf("step %d: %q, want %q (stderr %q)", i, end.Stdout, want, end.Stderr)
					}
				}
			})
		}
	})
}

// unspaced closes the gaps that keep a dump readable.
func unspaced(name, s string) string {
	if name != "any value" || s == "" {
		return s
	}
	return strings.ReplaceAll(s, " ", "")
}

// withDash keeps the whole file system, with bash out of sight, for dash, which is dynamic.
func withDash(t *testing.T, o options) options {
	if o.onlySh == "dash" {
		if _, err := exec.LookPath("dash"); err != nil {
			t.Skip("dash is not here")
		}
		return options{hideBash: true}
	}
	return o
}

func TestXtraceShowsNothingOfOurs(t *testing.T) {
	shells(t, func(t *testing.T, o options) {
		s := start(t, "socket", withDash(t, o))
		end := s.sh(t, "set -x; cd /usr")
		if got := strings.TrimSpace(string(end.Stderr)); got != "+ cd /usr" {
			t.Errorf("stderr %q", got)
		}
		if end := s.sh(t, "pwd"); string(end.Stdout) != "/usr\n" {
			t.Errorf("then pwd is %q", end.Stdout)
		}
	})
}

func TestCwdIsTold(t *testing.T) {
	s := start(t, "socket", options{})
	if end := s.sh(t, "mkdir d; cd d"); end.Cwd != "/workspace/d" || end.CwdLost != "" {
		t.Errorf("cwd %q, lost %q", end.Cwd, end.CwdLost)
	}
	if end := s.do(t, control.ExecStart{Argv: []string{"rmdir", "d"}}); end.Cwd != "/workspace" {
		t.Errorf("cwd %q", end.Cwd)
	}
	end := s.sh(t, "pwd")
	if string(end.Stdout) != "/workspace\n" || end.CwdLost != "/workspace/d" || end.Cwd != "/workspace" {
		t.Errorf("stdout %q, cwd %q, lost %q", end.Stdout, end.Cwd, end.CwdLost)
	}
	// It was told, and the shell stands in the workdir from then on.
	if end := s.sh(t, "mkdir d"); end.CwdLost != "" || end.Cwd != "/workspace" {
		t.Errorf("told again: cwd %q, lost %q", end.Cwd, end.CwdLost)
	}
	if end := s.sh(t, "pwd"); string(end.Stdout) != "/workspace\n" {
		t.Errorf("it went back to %q", end.Stdout)
	}
}

func TestTheLastToEndWins(t *testing.T) {
	s := start(t, "socket", options{})
	hold := "while [ ! -e /workspace/go ]; do sleep 0.02; done; "
	if _, err := s.Start(t.Context(), control.ExecStart{Exec: "slow", Shell: hold + "export A=slow"}); err != nil {
		t.Fatal(err)
	}
	s.sh(t, "export A=quick B=quick")
	if end := s.sh(t, "echo $A"); string(end.Stdout) != "quick\n" {
		t.Errorf("meanwhile %q", end.Stdout)
	}
	s.do(t, control.ExecStart{Argv: []string{"touch", "/workspace/go"}}) // a shell's end could come after it
	s.end(t, "slow")
	if end := s.sh(t, `echo "$A ${B-none}"`); string(end.Stdout) != "slow none\n" {
		t.Errorf("at last %q", end.Stdout)
	}
}

// A signal may come at any moment of a shell's work, also between a fork and the wait for it.
func TestASignalAlwaysReachesAShell(t *testing.T) {
	shells(t, func(t *testing.T, o options) {
		s := start(t, "socket", withDash(t, o))
		for i := range 60 {
			exec := fmt.Sprint("x", i)
			s.begin(t, control.ExecStart{Exec: exec, Shell: "echo ran >count; cat count; sleep 1000"})
			until(t, s.join(t, control.GuestAttach{Exec: exec}), "ran")
			time.Sleep(time.Duration(i%20) * 100 * time.Microsecond) // the moments around the last fork
			if _, err := s.Signal(t.Context(), exec, "TERM", true); err != nil {
				t.Fatal(err)
			}
			if end := s.end(t, exec); end.Signal != "TERM" {
				t.Fatalf("try %d: %+v", i, end)
			}
		}
	})
}

func TestAnExitTrapOfOnesOwnRunsAsInBash(t *testing.T) {
	s := start(t, "socket", options{})
	s.begin(t, control.ExecStart{Exec: "x", Shell: "trap 'echo bye' EXIT; echo ready; sleep 1000"})
	j := s.join(t, control.GuestAttach{Exec: "x"})
	until(t, j, "ready\n")
	if _, err := s.Signal(t.Context(), "x", "TERM", false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Signal(t.Context(), "x", "TERM", true); err != nil { // the first may have come as it forked
		t.Fatal(err)
	}
	if out, _, end := all(t, j); string(out) != "bye\n" || end.Signal != "TERM" {
		t.Errorf("%q, %+v", out, end)
	}
}

func TestWithoutAShell(t *testing.T) {
	s := start(t, "socket", options{noShell: true})
	end := s.sh(t, "echo hello")
	if end.ExitCode != 127 || !strings.Contains(string(end.Stderr), "no shell") {
		t.Errorf("ended %d with %q", end.ExitCode, end.Stderr)
	}
	if end := s.do(t, control.ExecStart{Argv: []string{"true"}}); end.ExitCode != 0 {
		t.Errorf("argv ended %d with %q", end.ExitCode, end.Stderr)
	}
}
