package test_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"sandkeeper/client"
	"sandkeeper/test"
)

// line passes connections on to a server, and can drop them all.
type line struct {
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

func openLine(t *testing.T, to string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &line{l: l}
	p.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", strings.TrimPrefix(to, "http://"))
			if err != nil {
				from.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, from, server)
			p.mu.Unlock()
			p.wg.Go(func() { io.Copy(server, from); server.Close() })
			p.wg.Go(func() { io.Copy(from, server); from.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.drop()
		p.wg.Wait()
	})
	return p
}

func (p *line) url() string { return "http://" + p.l.Addr().String() }

func (p *line) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// withBash acquires an environment that has bash and busybox.
func withBash(t *testing.T, on test.On, s *test.Server, a *test.Agent, task string) string {
	t.Helper()
	r := client.AcquireRequest{Task: task, Persistent: new(true)}
	if on.Name == "docker" {
		files := bashFiles(t)
		if b, err := os.ReadFile("/lib/terminfo/s/screen"); err == nil {
			files["lib/terminfo/s/screen"] = string(b)
		}
		r.Image = s.Docker.Import(t, files)
	} else {
		test.Busybox(t) // it is this machine's
	}
	return a.Acquire(r).Env.ID
}

func TestATerminalBehavesAsAPersonExpects(t *testing.T) {
	test.Each(t, terminal)
}

func terminal(t *testing.T, on test.On) {
	screen := test.OpenScreen(t, 80, 24, "COLORTERM=truecolor")
	s := on.Start(t)
	agent := s.Agent(t, "person")
	env := withBash(t, on, s, agent, "desk")
	agent.Sh(env, "mkdir -p some/where; cd some/where; export CARRIED=over")
	proxy := openLine(t, s.URL)
	attach := fmt.Sprintf("%s attach --data-dir %s --server %s ", test.Binary(t), s.DataDir, proxy.url())

	// The screen is cleared ahead of each command, so that what it shows is that command's.
	run := func(command string, shows ...string) {
		t.Helper()
		screen.Enter("busybox clear; " + command)
		screen.Await(shows...)
	}
	done := func(command string, shows ...string) {
		t.Helper()
		run(command, append(shows, "IN>")...)
	}

	screen.Enter(attach + "desk; echo code=$?")
	screen.Await("ctrl-p,ctrl-q leaves it")
	screen.Enter("PS1='IN> '")
	screen.Await("IN>")

	// It is bash, where the last command left off, on a terminal of that kind and size.
	done(`echo "${BASH_VERSION:+bash} $CARRIED in $PWD"; echo "$TERM $COLORTERM $(stty size)"`,
		"bash over in /workspace/some/where", "screen truecolor 24 80")
	screen.Resize(100, 30)
	done(`until [ "$(stty size)" = "30 100" ]; do sleep 0.1; done; stty size`, "30 100")

	// Job control.
	run(`sh -c 'echo run""ning; exec sleep 1000'`, "running")
	screen.Press("C-c")
	screen.Await("^C", "IN>")
	screen.Enter("echo code=$?")
	screen.Await("code=130", "IN>")
	run(`sh -c 'echo copy""ing; exec cat'`, "copying")
	screen.Enter("first")
	screen.Await("first", "first")
	screen.Press("C-z")
	screen.Await("Stopped", "IN>")
	run("jobs; fg", "Stopped", "exec cat")
	screen.Enter("second")
	screen.Await("second", "second")
	screen.Press("C-d")
	screen.Await("IN>")
	screen.Enter("echo code=$?")
	screen.Await("code=0", "IN>")

	// Programs that take the whole screen.
	run("busybox vi note", "~", "~", "note")
	screen.Press("i")
	screen.Type("written in vi")
	screen.Await("written in vi", "~", "I note")
	screen.Press("Escape")
	screen.Await("written in vi", "~", "- note")
	screen.Type(":wq")
	screen.Await("~", ":wq")
	screen.Press("Enter")
	screen.Await("IN>")
	done("cat note", "written in vi")
	if got, err := agent.ReadFile(t.Context(), client.ByID(env), "some/where/note", 100); err != nil || string(got) != "written in vi\n" {
		t.Errorf("the file has %q, %v", got, err)
	}
	run("seq 1 500 | busybox less", "1", "2", "29")
	screen.Type("G")
	screen.Await("499", "500")
	screen.Type("q")
	screen.Await("IN>")
	run("busybox top", "Mem:", "Load average:", "PID", "top")
	screen.Type("q")
	screen.Await("IN>")

	// A dropped line is none of the user's concern.
	run(`sh -c 'echo asks; read x; echo "heard $x"'`, "asks")
	proxy.drop()
	screen.Enter("after all")
	screen.Await("heard after all", "IN>")

	// It is left from within a full screen, which it gives back whole, and come back to.
	run("busybox vi note", "written in vi", "~", "note")
	if screen.Ask("#{alternate_on}") != "1" {
		t.Error("vi is on the plain screen")
	}
	screen.Press("C-p", "C-q")
	screen.Await("left, and it goes on", "code=0", "OUT>")
	if got := screen.Ask("#{alternate_on} #{cursor_flag} #{keypad_cursor_flag}"); got != "0 1 0" {
		t.Errorf("alternate screen, cursor and cursor keys are left as %s", got)
	}
	busybox := "busybox clear; "
	screen.Enter(busybox + "stty -a")
	screen.Await("isig icanon iexten echo ", "OUT>")
	execs, err := agent.Execs(t.Context(), client.ByID(env))
	if err != nil {
		t.Fatal(err)
	}
	name := ""
	for _, e := range execs {
		if e.State == "running" {
			name = e.Exec
		}
	}
	screen.Enter(busybox + attach + env + " --exec " + name + "; echo code=$?")
	screen.Await("written in vi", "~", "note")
	screen.Type(":q!")
	screen.Press("Enter")
	screen.Await("IN>")
	done("echo ba''ck", "back")
	screen.Enter("exit 5")
	screen.Await("code=5", "OUT>")

	// Signals of its own: a hang-up is the command's, too.
	pidFile := filepath.Join(t.TempDir(), "pid")
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGHUP} {
		screen.Enter(busybox + fmt.Sprintf(`sh -c 'echo $$ > %s; exec "$@"' - %s%s -- sh -c 'stty size; exec sleep 4712'; echo code=$?`, pidFile, attach, env))
		screen.Await("attached", "30 100")
		text, err := os.ReadFile(pidFile)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
		screen.Await(fmt.Sprintf("code=%d", 128+int(sig)), "OUT>")
		screen.Enter(busybox + "stty -a")
		screen.Await("isig icanon iexten echo ", "OUT>")
	}
	test.Eventually(t, "the terminated one's command goes on and the other's has been hung up", func() bool {
		execs, err := agent.Execs(t.Context(), client.ByID(env))
		if err != nil {
			t.Fatal(err)
		}
		running, hungUp := 0, 0
		for _, e := range execs {
			switch {
			case strings.Contains(e.Command, "4712") && e.State == "running":
				running++
			case strings.Contains(e.Command, "4712") && e.ExitCode != nil && *e.ExitCode == 129:
				hungUp++
			}
		}
		return running == 1 && hungUp == 1
	})
}

// attached is a run of attach without a terminal.
type attached struct {
	out, errs string
	code      int
}

func runAttach(t *testing.T, cmd *exec.Cmd, stdin string) attached {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return attached{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

func TestAttachWithoutATerminal(t *testing.T) { test.Each(t, piped) }

func piped(t *testing.T, on test.On) {
	s := on.Start(t)
	agent := s.Agent(t, "pipes")
	env := agent.Acquire(client.AcquireRequest{Task: "a/task", Name: "name"}).Env.ID
	theirs := s.AgentBy(t, "alice", s.CLI(t, "token", "create", "--role", "agent", "--owner", "alice")).Acquire(client.AcquireRequest{Task: "hers"}).Env.ID
	ctx := within(t)
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, test.Binary(t), append([]string{"attach", "--data-dir", s.DataDir}, args...)...)
		cmd.Env = append(os.Environ(), "SANDKEEPER_SERVER=", "SANDKEEPER_AGENT_TOKEN=", "SANDKEEPER_OPERATOR_TOKEN=")
		return cmd
	}
	big := strings.Repeat("0123456789abcdef", 200_000)

	for name, tc := range map[string]struct {
		args  []string
		vars  []string
		stdin string
		want  attached
	}{
		"streams apart, and the command's exit code": {
			args: []string{env, "--", "sh", "-c", "cat; echo err >&2; exit 3"}, stdin: big, want: attached{big, "err\n", 3}},
		"a shell reads its commands": {args: []string{env}, stdin: "echo hello; exit 4", want: attached{"hello\n", "", 4}},
		"by task and name":           {args: []string{"a/task/name", "--", "pwd"}, want: attached{"/workspace\n", "", 0}},
		"another owner's by its id":  {args: []string{theirs, "--", "pwd"}, want: attached{"/workspace\n", "", 0}},
		"another owner's task":       {args: []string{"--owner", "alice", "hers", "--", "pwd"}, want: attached{"/workspace\n", "", 0}},
		"no terminal there either":   {args: []string{env, "--", "tty"}, want: attached{"not a tty\n", "", 1}},
		"a missing program":          {args: []string{env, "--", "nosuch"}, want: attached{"", "nosuch", 127}},

		"no such environment":        {args: []string{"nosuch"}, want: attached{"", `there is no environment "nosuch"`, 255}},
		"another owner's for agents": {args: []string{theirs}, vars: []string{"SANDKEEPER_AGENT_TOKEN=" + s.Token(t, "agent")}, want: attached{"", "there is no environment", 255}},
		"no such command":            {args: []string{env, "--exec", "xnosuch"}, want: attached{"", "no command xnosuch runs in the environment", 255}},
		"a token that is not known":  {args: []string{env}, vars: []string{"SANDKEEPER_AGENT_TOKEN=not-a-token"}, want: attached{"", "does not know the token of the setting agent-token", 255}},
		"a viewer's token":           {args: []string{env}, vars: []string{"SANDKEEPER_AGENT_TOKEN=" + s.CLI(t, "token", "create", "--role", "viewer")}, want: attached{"", "does not allow it", 255}},
		"no server on the data":      {args: []string{"--data-dir", t.TempDir(), env}, want: attached{"", "no server runs on the data in", 255}},
		"no server there":            {args: []string{"--server", "http://127.0.0.1:1", env}, want: attached{"", "no server answers at http://127.0.0.1:1: dial tcp", 255}},
		"no token":                   {args: []string{"--data-dir", t.TempDir(), "--server", s.URL, env}, want: attached{"", "no token", 2}},
		"called without --":          {args: []string{env, "ls"}, want: attached{"", "a command follows --", 2}},
		"called without all":         {want: attached{"", "which environment?", 2}},
		"keys that are none":         {args: []string{"--detach-keys", "escape", env}, want: attached{"", `"escape" is no key`, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(tc.args...)
			cmd.Env = append(cmd.Env, tc.vars...)
			got := runAttach(t, cmd, tc.stdin)
			if got.out != tc.want.out || got.code != tc.want.code || !strings.Contains(got.errs, tc.want.errs) || tc.want.errs == "" && got.errs != "" {
				t.Errorf("%d bytes of output, not %d; stderr %q; exit %d", len(got.out), len(tc.want.out), got.errs, got.code)
			}
		})
	}

	t.Run("a reader that goes ends the command", func(t *testing.T) {
		cmd := command(env, "--", "yes")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		out.Close()
		cmd.Wait() //nolint:errcheck // its code tells
		if code := cmd.ProcessState.ExitCode(); code != 141 {
			t.Errorf("exit %d", code)
		}
		ended(t, agent, env, "yes", 141)
	})

	t.Run("a signal is the command's", func(t *testing.T) {
		cmd := command(env, "--", "sh", "-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(out)
		cmd.Wait() //nolint:errcheck // its code tells
		if code := cmd.ProcessState.ExitCode(); code != 9 || string(rest) != "caught\n" {
			t.Errorf("exit %d, %q %v", code, rest, err)
		}
	})

	t.Run("an environment that goes is told", func(t *testing.T) {
		cmd := command(env, "--", "sh", "-c", "echo ready; sleep 4713")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		s.Act(t, env, "kill", nil)
		cmd.Wait() //nolint:errcheck // its code tells
		if code := cmd.ProcessState.ExitCode(); code != 255 || !strings.Contains(errs.String(), "the environment went before the command's end") {
			t.Errorf("exit %d, %q", code, errs.String())
		}
		if got := runAttach(t, command(env), ""); got.code != 255 || !strings.Contains(got.errs, "is gone") {
			t.Errorf("then: %+v", got)
		}
	})
}

// ended waits until a command has ended with that code.
func ended(t *testing.T, a *test.Agent, env, command string, code int) {
	t.Helper()
	test.Eventually(t, command+" has ended", func() bool {
		execs, err := a.Execs(t.Context(), client.ByID(env))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range execs {
			if e.Command == command && e.ExitCode != nil && *e.ExitCode == code {
				return true
			}
		}
		return false
	})
}
