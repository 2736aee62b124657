package guest_test

import (
	"fmt"
	"os/exec"
	"slices"
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
	sh   string // what dash and busybox print, where that is not what bash does
}

type shellCase struct {
	name  string
	steps []step
}

var shellSteps = []shellCase{
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
	{"an exit trap of its own", []step{
		{text: "trap 'echo bye $?' EXIT; export A=1; cd /usr", out: "bye 0\n"}, {text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"an exit trap of its own, and exit", []step{
		{text: "set -e\nlast() { rc=$?; echo bye $rc; exit $rc; }\ntrap last EXIT INT TERM\nexport A=1\ncd /usr\nexit 3", out: "bye 3\n"},
		{text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"an exit trap of its own, and set -e", []step{
		{text: "set -eu; trap -- 'echo bye $?' 0; export A=1; cd /usr; (exit 7)", out: "bye 7\n"}, {text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"an exit trap of a subshell, and one taken back", []step{
		{text: "(trap 'echo sub' EXIT; export A=no; cd /etc; exit 3); trap 'echo no' EXIT; trap - EXIT; export A=1; cd /usr; exit 4", out: "sub\n"},
		{text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"a subshell is another shell", []step{
		{text: "cd /usr; (cd /etc; export A=1; exit 1); (export A=2)"}, {text: `echo "${A-none} $PWD"`, out: "none /usr\n"}}},
	{"a shell replaced by exec leaves the state before whole", []step{
		{text: "export A=1; cd /usr"}, {text: "export A=2; cd /; exec sh -c 'cd /etc; export A=3; echo on'", out: "on\n"},
		{text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"exec of redirections alone", []step{{text: "exec >/workspace/log 2>&1 </dev/null; export A=1; cd /usr; echo logged"},
		{text: `echo "$A $PWD"; cat /workspace/log`, out: "1 /usr\nlogged\n"}}},
	{"what it changes of variables and directory with exit in a function", []step{
		{text: "f() { export A=1; cd /usr; exit 2; }; f >/workspace/log"}, {text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"in bash a local variable is no change", []step{
		{text: "export A=1 B=2; g() { local A=x B=y; cd /usr; exit 1; }; f() { local A=z; g; }; f"},
		{text: `echo "$A $B $PWD"`, out: "1 2 /usr\n", sh: "x y /usr\n"}}},
	{"no PATH", []step{{text: "unset PATH; export A=1; cd /usr"}, {text: `echo "$A $PWD ${PATH:+set}"`, out: "1 /usr set\n"}}},
	{"closed streams", []step{{text: "exec <&- >&- 2>&-; export A=1; cd /usr"}, {text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"closed numbers", []step{
		{text: "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; export A=1; cd /usr"}, {text: `echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"what is written to the number of the state", []step{
		{text: "(echo fake >&9) 2>/dev/null || echo closed; export A=1", out: "closed\n"}, {text: `echo "$A"`, out: "1\n"}}},
	{"another file of that number", []step{
		{text: "exec 9>/workspace/nine; echo mine >&9; export A=1; cd /usr; exit 1"}, {text: `echo "$A $PWD"; cat /workspace/nine`, out: "1 /usr\nmine\n"}}},
	{"what is called as that which saves it", []step{
		{text: "for c in echo pwd command builtin cat true; do eval \"$c() { :; }\"; done; export A=1; cd /usr"},
		{text: `unset -f echo; echo "$A $PWD"`, out: "1 /usr\n"}}},
	{"aliases of that which saves it", []step{
		{text: "alias export=false command=false builtin=false echo=false pwd=false set=false unset=false trap=false\n\\export A=1\ncd /usr"},
		{text: "\\unalias -a\necho \"$A $PWD\"", out: "1 /usr\n"}}},
	{"PWD is where it is", []step{{text: "cd /usr; PWD=/etc"}, {text: "pwd", out: "/usr\n"}, {text: "cd /etc; unset PWD OLDPWD"}, {text: "pwd", out: "/etc\n"}}},
	{"the directory before, exported", []step{{text: "export OLDPWD; cd /usr; cd /etc"}, {text: "cd - >/dev/null; pwd", out: "/usr\n"}}},
	{"a directory that is removed", []step{{text: "mkdir d; cd d; rmdir ../d"}, {text: "pwd", out: "/workspace\n"}}},
	{"a directory with a strange name", []step{
		{text: "mkdir 'a\n#end\nb'; cd 'a\n#end\nb'"}, {text: "pwd", out: "/workspace/a\n#end\nb\n"}}},
	{"read only", []step{{text: "readonly A=1; export A; readonly PWD; cd /usr 2>/dev/null; true"}, {text: `echo "$A"; A=2; echo "$A"`, out: "1\n2\n"}}},
	{"options count for one command", []step{{text: "set -euf; export A=1"}, {text: `echo "$NOSUCH"; false; echo "$A"`, out: "\n1\n"}}},
	{"a state beyond its bound leaves the one before whole", []step{
		{text: "export A=1"},
		{text: "A=x; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21; do A=$A$A; done; export A; cd /usr"},
		{text: `echo "$A $PWD"`, out: "1 /workspace\n"}}},
	{"a syntax error", []step{{text: "cd /usr\nif then"}, {text: "pwd", out: "/usr\n"}}},
	{"an open here document and a backslash at the end", []step{{text: "cd /usr; cat <<E\nin", out: "in\n", sh: "in"}, {text: "cd /etc; echo a\\", out: "a\\\n"}, {text: "pwd", out: "/etc\n"}}},
	{"arguments", []step{{text: `echo "$# $*"; set -- a b; export A="$# $*"`, out: "0 \n"}, {text: `echo "$A"`, out: "2 a b\n"}}},
	{"a here document", []step{{text: "cat <<E\nin\nE\ncd /usr", out: "in\n"}, {text: "pwd", out: "/usr\n"}}},
}

func shells(t *testing.T, test func(t *testing.T, o options)) {
	t.Run("bash", func(t *testing.T) { test(t, options{}) })
	t.Run("dash", func(t *testing.T) { test(t, options{onlySh: "dash"}) })
	t.Run("busybox", func(t *testing.T) { test(t, options{onlySh: "/usr/bin/busybox"}) })
}

// bashSteps are of bash alone.
var bashSteps = []shellCase{
	{"functions carry over", []step{
		{text: "f() { echo \"f $1 $(g)\"; }\ng() { cat <<E\nof g '\nE\n}"}, {text: "f x; unset -f g", out: "f x of g '\n"}, {text: "g 2>/dev/null || echo gone; f y 2>/dev/null", out: "gone\nf y \n"}}},
	{"exported functions reach what runs below, others do not", []step{
		{text: "f() { echo f; }; g() { echo g; }; export -f f"}, {text: "bash -c 'f; g' 2>/dev/null; f; g", out: "f\nf\ng\n"}}},
	{"aliases carry over, and count on the first line", []step{
		{text: `alias ll='echo "an alias"' -- -='echo minus'`}, {text: "ll x; -; unalias ll", out: "an alias x\nminus\n"}, {text: "ll 2>/dev/null || echo gone", out: "gone\n"}}},
	{"an alias counts from the next line on", []step{{text: "alias ll='echo one'\nll", out: "one\n"}}},
	{"functions and aliases by exit, and none by a kill", []step{
		{text: "f() { echo f; }; alias a='echo a'; exit 3"}, {text: "unset -f f; unalias a; kill -9 $$"}, {text: "f; a", out: "f\na\n"}}},
	{"all that it calls is redefined", []step{
		{text: "for c in export echo pwd set unset declare alias shopt exec eval exit compgen shift read command builtin local; do eval \"$c() { :; }\"; done; A=1; cd /usr"},
		{text: "pwd() { builtin pwd; }; pwd", out: "/usr\n"},
		{text: "pwd; cd /etc", out: "/usr\n"},
		{text: "pwd; unset -f pwd; unset() { :; }", out: "/etc\n"},
		{text: `POSIXLY_CORRECT=1; unset -f echo exec eval export`},
		{text: "echo ok; exec 9>&-; pwd", out: "ok\n/etc\n"}}},
	{"a function called trap", []step{
		{text: "trap() { echo mine; }; cd /usr"}, {text: "trap x INT; cd /etc; exit 0", out: "mine\n"}, {text: "pwd", out: "/etc\n"}}},
	{"an exit trap of its own carries no function of ours", []step{
		{text: "trap 'echo bye' EXIT; f() { echo f; }; exit 0", out: "bye\n"}, {text: "declare -F; f", out: "declare -f f\nf\n"}}},
	{"an exit trap of its own sees what is local", []step{
		{text: "export A=1; f() { local A=2 b=3; trap 'echo $A $b $?' EXIT; exit 4; }; f", out: "2 3 4\n"}, {text: "echo $A", out: "1\n"}}},
	{"an exit trap in a function that is carried", []step{
		{text: "f() { trap 'echo bye' EXIT; }"}, {text: "f; cd /usr; exit 1", out: "bye\n"}, {text: "pwd", out: "/usr\n"}}},
	{"other traps", []step{
		{text: "trap 'echo debug' DEBUG; trap 'echo err' ERR; cd /usr; false; trap - DEBUG", out: "debug\ndebug\ndebug\ndebug\nerr\ndebug\n"}, {text: "pwd; false", out: "/usr\n"}}},
	{"a trap that stands as it ends says nothing more", []step{
		{text: "trap 'echo debug' DEBUG; cd /usr", out: "debug\n"}, {text: "pwd", out: "/usr\n"}}},
	{"strict about POSIX", []step{
		{text: "f() { :; }; export POSIXLY_CORRECT=1; cd /usr"}, {text: `cd /etc; echo "$POSIXLY_CORRECT"; unset POSIXLY_CORRECT`, out: "1\n"}, {text: `echo "$PWD ${POSIXLY_CORRECT-none}"`, out: "/etc none\n"}}},
	{"all that is set is exported", []step{{text: "set -a; A=1"}, {text: `echo "$A ${POSIXLY_CORRECT-none}"`, out: "1 none\n"}}},
	{"noise ahead of the state", []step{{text: "echo '#stat' >&77; echo fake >&77; export A=1"}, {text: `echo "$A"`, out: "1\n"}}},
	{"a number that is closed leaves the state before whole", []step{{text: "export A=1"}, {text: "exec 77>&-; export A=2"}, {text: `echo "$A"`, out: "1\n"}}},
	{"a file of the environment", []step{
		{text: "echo 'echo env; A=1; f() { echo theirs; }' >/workspace/env; export BASH_ENV=/workspace/env"},
		{text: "echo $A; f() { echo ours; }", out: "env\n1\n"}, {text: "f; echo $BASH_ENV; unset BASH_ENV", out: "env\nours\n/workspace/env\n"}, {text: "f; echo ${BASH_ENV-none}", out: "ours\nnone\n"}}},
	{"line numbers", []step{
		{text: "echo $LINENO\necho $LINENO; f() { :; }", out: "1\n2\n"}, {text: "echo $LINENO\necho $LINENO; trap 'exit 1' INT", out: "1\n2\n"}}},
	{"many functions", []step{
		{text: "for i in {1..2000}; do eval \"f$i() { echo 'a function that says what its number is, which is' $i; }\"; done"}, {text: "f1999", out: "a function that says what its number is, which is 1999\n"}}},
	{"functions beyond the bound leave the state before whole", []step{
		{text: "f() { echo f; }"}, {text: "v=$(printf %0600000d 0); eval \"g() { : $v; }; h() { : $v; }\"; unset -f f"}, {text: "f; declare -F", out: "f\ndeclare -f f\n"}}},
	{"a background command and one on a terminal have functions", []step{
		{text: "f() { echo \"f $(ls -l /proc/self/fd | grep -c shell-state)\"; }"},
		{text: "f; f() { echo no; }", call: control.ExecStart{Background: true}, out: "f 0\n"},
		{text: "f; f() { echo no; }", call: control.ExecStart{TTY: &control.TTY{Cols: 80, Rows: 24}}, out: "f 0\r\n"},
		{text: "f", out: "f 0\n"}}},
}

func TestShellStateIsAsInATerminal(t *testing.T) {
	shells(t, func(t *testing.T, o options) {
		o = withDash(t, o)
		cases := shellSteps
		if o == (options{}) {
			cases = slices.Concat(cases, bashSteps)
		}
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				t.Parallel()
				s := start(t, "socket", o)
				for i, st := range tc.steps {
					c := st.call
					c.Shell = st.text
					end := s.do(t, c)
					want := unspaced(tc.name, st.out)
					if o != (options{}) && st.sh != "" {
						want = st.sh
					}
					if string(end.Stdout) != want {
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
		for text, want := range map[string]string{
			"set -x; cd /usr":                     "+ cd /usr\n",
			"set -x; trap 'true 1' EXIT; cd /usr": "TRAP\n+ cd /usr\n+ true 1\n",
		} {
			end := s.sh(t, text)
			got := strings.NewReplacer("+ trap 'true 1' EXIT", "TRAP", "+ _trap 'true 1' EXIT", "TRAP", "+ _trap true 1 EXIT", "TRAP").Replace(string(end.Stderr))
			if got != want {
				t.Errorf("%s: stderr %q", text, got)
			}
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
	s.begin(t, control.ExecStart{Exec: "x", StdinOpen: true, Shell: "trap 'echo bye' EXIT; echo ready; read x"})
	j := s.join(t, control.GuestAttach{Exec: "x"})
	until(t, j, "ready\n")
	if _, err := s.Signal(t.Context(), "x", "TERM", false); err != nil {
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
