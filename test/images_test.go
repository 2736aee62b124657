package test_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

func TestImageWithoutAShell(t *testing.T) { test.Each(t, imageWithoutAShell) }

func imageWithoutAShell(t *testing.T, on test.On) {
	s := on.Start(t)
	image := s.Docker.Import(t, test.Files{"busybox": test.Busybox(t)["bin/busybox"], "tmp/": ""})
	w := s.Wire(t)
	env := w.Acquire(t, "bare", test.Params{"image": image, "persistent": true}).Env.ID
	ran := w.RunWith(t, env, test.Params{"argv": []string{"/busybox", "echo", "no shell needed"}}, 0)
	if ran.Stdout != "no shell needed\n" {
		t.Errorf("an argv prints %q", ran.Stdout)
	}
	ran = w.RunWith(t, env, test.Params{"command": "echo hello"}, 127)
	if !strings.Contains(ran.Stderr, "shell") {
		t.Errorf("what misses a shell says %q", ran.Stderr)
	}
	w.WriteFile(t, env, "kept", "by a call")
	s.Act(t, env, "stop", nil)
	if ran := w.RunWith(t, env, test.Params{"argv": []string{"/busybox", "cat", "/workspace/kept"}}, 0); ran.Stdout != "by a call" {
		t.Errorf("resumed, it has %q", ran.Stdout)
	}
}

func TestImageWithAUser(t *testing.T) { test.Each(t, imageWithAUser) }

func imageWithAUser(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	for _, user := range []string{"user", "1000", "1000:1000", "4321"} {
		image := s.Docker.Import(t, test.Busybox(t), "USER "+user)
		env := w.Acquire(t, "user "+user, test.Params{"image": image, "persistent": true}).Env.ID
		uid := "1000"
		if user == "4321" {
			uid = user
		}
		ran := w.Run(t, env, "id -u; echo mine > /workspace/mine && stat -c %u /workspace/mine; touch /root/not 2>/dev/null || echo refused")
		if want := uid + "\n" + uid + "\nrefused\n"; ran.Stdout != want {
			t.Errorf("USER %s: printed is %q, not %q (%s)", user, ran.Stdout, want, ran.Stderr)
		}
		w.WriteFile(t, env, "/workspace/by-call", "x")
		if owner := w.Run(t, env, "stat -c %u /workspace/by-call").Stdout; owner != uid+"\n" {
			t.Errorf("USER %s: a file call's file belongs to %s", user, owner)
		}
		if e := w.Refused(t, "invalid_params", "file.write", test.Params{"env": env, "path": "/etc/not", "data": ""}); e.Data.Errno != "EACCES" {
			t.Errorf("USER %s: writing to /etc is refused with %v", user, e)
		}
		// The tree of another user goes as any other.
		ran = w.RunWith(t, env, test.Params{"command": "(setsid sleep 4711 &) ; sleep 4711", "timeout_seconds": 1}, 124)
		if left := sleepers(t, s, env); !ran.TimedOut || len(left) > 0 {
			t.Errorf("USER %s: the timeout left %v", user, left)
		}
	}
}

func TestImageWithAnEntrypointOfItsOwn(t *testing.T) { test.Each(t, imageWithAnEntrypointOfItsOwn) }

func imageWithAnEntrypointOfItsOwn(t *testing.T, on test.On) {
	s := on.Start(t)
	image := s.Docker.Import(t, test.Busybox(t), `ENTRYPOINT ["/bin/false"]`, `CMD ["nothing"]`, "WORKDIR /var", `HEALTHCHECK CMD false`)
	w := s.Wire(t)
	env := w.Acquire(t, "entrypoint", test.Params{"image": image}).Env.ID
	if ran := w.Run(t, env, "pwd; echo $PATH | cut -c1-5"); ran.Stdout != "/workspace\n/usr/\n" {
		t.Errorf("printed is %q", ran.Stdout)
	}
}

func TestReadOnlyRoot(t *testing.T) { test.Each(t, readOnlyRoot) }

func readOnlyRoot(t *testing.T, on test.On) {
	s := on.Start(t, "--read-only-root")
	w := s.Wire(t)
	env := w.Acquire(t, "read-only", test.Params{"persistent": true}).Env.ID
	ran := w.Run(t, env, "touch /usr/bin/x 2>/dev/null || echo root refused; echo a > /workspace/a; echo b > /tmp/b; cat /workspace/a /tmp/b; export STATE=carried; cd /tmp")
	if ran.Stdout != "root refused\na\nb\n" {
		t.Errorf("printed is %q", ran.Stdout)
	}
	if ran := w.Run(t, env, "pwd; echo $STATE"); ran.Stdout != "/tmp\ncarried\n" {
		t.Errorf("the shell's state is %q", ran.Stdout)
	}
	s.Act(t, env, "stop", nil)
	if ran := w.Run(t, env, "cat /workspace/a; ls /tmp"); ran.Stdout != "a\n" {
		t.Errorf("resumed, it has %q", ran.Stdout)
	}
}

// bashFiles adds this machine's bash and the libraries it asks for.
func bashFiles(t *testing.T) test.Files {
	t.Helper()
	path, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash: there is none on this machine to make an image of")
	}
	f := test.Busybox(t)
	libs, err := exec.Command("ldd", path).CombinedOutput()
	if err != nil && !strings.Contains(string(libs), "not a dynamic executable") {
		t.Skipf("bash: its libraries cannot be listed: %v", err)
	}
	for _, name := range append(regexp.MustCompile(`/[^ )]+`).FindAllString(string(libs), -1), path) {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f[strings.TrimPrefix(name, "/")] = string(body)
	}
	f["bin/bash"] = f[strings.TrimPrefix(path, "/")]
	return f
}

func TestCommandsRunInBashWhereTheImageHasIt(t *testing.T) {
	test.Each(t, commandsRunInBashWhereTheImageHasIt)
}

func commandsRunInBashWhereTheImageHasIt(t *testing.T, on test.On) {
	s := on.Start(t)
	with := test.Params{}
	if on.Name == "docker" { // the tests' own image has none
		with["image"] = s.Docker.Import(t, bashFiles(t))
	}
	w := s.Wire(t)
	env := w.Acquire(t, "bash", with).Env.ID
	ran := w.Run(t, env, `a=(one two); echo ${a[1]} ${BASH_VERSION:+bash}; shopt -q login_shell && echo login; export LIST="a b" CARRIED=$'line\nbreak'; cd /tmp`)
	if ran.Stdout != "two bash\n" || ran.Cwd != "/tmp" {
		t.Errorf("printed is %q, in %s", ran.Stdout, ran.Cwd)
	}
	if ran := w.Run(t, env, `pwd; echo "$LIST|$CARRIED"`); ran.Stdout != "/tmp\na b|line\nbreak\n" {
		t.Errorf("the shell's state is %q", ran.Stdout)
	}
	ran = w.RunWith(t, env, test.Params{"command": "(setsid bash -c 'sleep 4711; true' & disown) ; sleep 4711", "timeout_seconds": 1}, 124)
	if left := sleepers(t, s, env); !ran.TimedOut || len(left) > 0 {
		t.Errorf("the timeout left %v", left)
	}
}

func TestShellStateCarriesOver(t *testing.T) { test.Each(t, shellStateCarriesOver) }

func shellStateCarriesOver(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "state", test.Params{"persistent": true, "variables": test.Params{"GIVEN": "at first"}}).Env.ID
	w.Run(t, env, "mkdir -p a/b; cd a/b; export X=1; Y=2")
	if ran := w.Run(t, env, `pwd; echo "$X|$Y|$GIVEN"`); ran.Stdout != "/workspace/a/b\n1||at first\n" || ran.Cwd != "/workspace/a/b" {
		t.Errorf("carried over is %q, in %s", ran.Stdout, ran.Cwd)
	}
	// A call's own cwd and variables are its alone, and an argv knows no state.
	ran := w.RunWith(t, env, test.Params{"command": `pwd; echo $X`, "cwd": "/tmp", "variables": test.Params{"X": "mine"}}, 0)
	if ran.Stdout != "/tmp\nmine\n" {
		t.Errorf("with its own it prints %q", ran.Stdout)
	}
	if ran := w.RunWith(t, env, test.Params{"argv": []string{"pwd"}}, 0); ran.Stdout != "/workspace\n" {
		t.Errorf("an argv runs in %q", ran.Stdout)
	}
	// What was timed out or killed commits nothing; exit and failure do.
	w.RunWith(t, env, test.Params{"command": "cd /; export X=never; sleep 60", "timeout_seconds": 1}, 124)
	w.RunWith(t, env, test.Params{"command": "export Z=kept; set -e; false"}, 1)
	if ran := w.Run(t, env, `pwd; echo "$X|$Z"`); ran.Stdout != "/workspace/a/b\n1|kept\n" {
		t.Errorf("after a timeout and a failure it prints %q", ran.Stdout)
	}
	// A directory that is gone is told of.
	w.RunWith(t, env, test.Params{"argv": []string{"rm", "-r", "/workspace/a"}}, 0)
	if ran := w.Run(t, env, "pwd"); ran.Stdout != "/workspace\n" || ran.Cwd != "/workspace" {
		t.Errorf("after its directory went it runs in %q, %s", ran.Stdout, ran.Cwd)
	}
}

// The sandbox's defaults, from inside.
func TestSandboxIsTight(t *testing.T) { test.Each(t, sandboxIsTight) }

func sandboxIsTight(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	got := w.Acquire(t, "tight", test.Params{"network": "none", "limits": test.Params{"pids": 64}})
	env := got.Env.ID
	status := w.Run(t, env, "cat /proc/self/status").Stdout
	for line, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2"} {
		if m := regexp.MustCompile(`(?m)^` + line + `:\s+(\S+)`).FindStringSubmatch(status); m == nil || m[1] != want {
			t.Errorf("%s is %v, not %s", line, m, want)
		}
	}
	if m := regexp.MustCompile(`(?m)^CapBnd:\s+(\S+)`).FindStringSubmatch(status); m == nil || m[1] != "00000000000000eb" {
		t.Errorf("CapBnd is %v", m) // CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID
	}
	script := `ls /sys/class/net; [ -e /var/run/docker.sock ] && echo engine socket; grep ' /tmp ' /proc/mounts | grep -q noexec && echo noexec
printf '#!/bin/sh\necho executable\n' > /tmp/x; chmod +x /tmp/x; /tmp/x`
	if ran := w.Run(t, env, script); ran.Stdout != "lo\nexecutable\n" {
		t.Errorf("inside is %q (%s)", ran.Stdout, ran.Stderr)
	}
}

func TestOutOfProcesses(t *testing.T) { test.Each(t, outOfProcesses) }

func outOfProcesses(t *testing.T, on test.On) {
	s := on.Start(t)
	if !enforces(t, s, "pids") {
		t.Skip(on.Name + ": this host does not enforce pids")
	}
	w := s.Wire(t)
	env := w.Acquire(t, "bomb", test.Params{"persistent": true, "limits": test.Params{"pids": 64}}).Env.ID
	ran := w.RunWith(t, env, test.Params{"argv": []string{"sh", "-c", "while :; do sleep 4711 & done"}}, test.AnyCode)
	if *ran.ExitCode == 0 || !strings.Contains(ran.Stderr, "fork") {
		t.Errorf("what took all processes ended with %+v", ran)
	}
	// Commands cannot start, and say so; the sandbox and the rest of it live on.
	for range 3 {
		ran := w.RunWith(t, env, test.Params{"command": "true"}, 126)
		if ran.Signal != "" || ran.Stderr == "" {
			t.Errorf("what found no room for a process ended with %+v", ran)
		}
	}
	w.WriteFile(t, env, "kept", "kept")
	if v := s.Env(t, env); v.State != control.Ready || v.Generation != 1 {
		t.Errorf("out of processes it is %s, generation %d", v.State, v.Generation)
	}
	s.Act(t, env, "kill", nil)
	if ran := w.Run(t, env, "cat kept"); ran.Stdout != "kept" {
		t.Errorf("after a kill it has %q", ran.Stdout)
	}
}
