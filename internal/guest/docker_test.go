package guest_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest"
	"sandkeeper/internal/guest/link"
	"sandkeeper/test/need"
)

// docker runs the engine's client, or says what is missing.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.Command("docker", args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", args[0], err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

func needDocker(t *testing.T) {
	t.Helper()
	if err := exec.Command("docker", "version").Run(); err != nil {
		need.Missing(t, "docker", err)
	}
}

// The sandbox's defaults leave PID 1 enough: six capabilities, no new
// privileges, the default seccomp profile, a read-only root file system.
func TestUnderTheSandboxsDefaults(t *testing.T) {
	needDocker(t)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		need.Missing(t, "docker", "there is no busybox on this machine to make an image of (busybox-static)")
	}
	root := t.TempDir()
	makeDir := func(dir string) {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"bin", "etc", "tmp", "workspace", ".sandkeeper/bin", ".sandkeeper/link"} {
		makeDir(dir)
	}
	copyFile(t, busybox, filepath.Join(root, "bin/busybox"))
	copyFile(t, guestBinary, filepath.Join(root, ".sandkeeper/bin/guest"))
	for _, name := range []string{"sh", "sleep", "setsid", "id", "cat", "env", "stat", "touch"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	os.WriteFile(filepath.Join(root, "etc/passwd"), []byte(passwd), 0o644)
	os.WriteFile(filepath.Join(root, "etc/group"), []byte(group), 0o644)

	name := "guest-test-" + strings.ToLower(filepath.Base(root)) + "-" + newName()
	tar := exec.Command("tar", "-C", root, "-c", ".")
	load := exec.Command("docker", "import", "-", name)
	pipe, err := tar.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	load.Stdin = pipe
	if err := tar.Start(); err != nil {
		t.Fatal(err)
	}
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v\n%s", err, out)
	}
	tar.Wait()
	t.Cleanup(func() { docker(t, "rmi", name) })

	for _, over := range overLinks {
		t.Run(over, func(t *testing.T) {
			dir := t.TempDir()
			l, err := link.Listen(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			box := name + "-" + over
			args := []string{
				"create", "--name", box, "--interactive", "--network", "none", "--read-only", "--user", "0:0",
				"--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "64", "--log-driver", "none",
				"--tmpfs", "/tmp:exec", "--tmpfs", "/workspace:exec,mode=0755",
				"--env", `SANDKEEPER_GUEST={"user":"agent","workdir":"/workspace","link":"/.sandkeeper/link"}`,
				"--entrypoint", "/.sandkeeper/bin/guest",
			}
			for _, c := range []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL"} {
				args = append(args, "--cap-add", c)
			}
			if over == "socket" {
				args = append(args, "--mount", "type=bind,readonly,source="+dir+",target=/.sandkeeper/link")
			}
			docker(t, append(args, name, "init")...)
			t.Cleanup(func() { docker(t, "rm", "--force", box) })
			docker(t, "start", box)

			f := guest.NewFleet(func(ctx context.Context, _ string) (io.ReadWriteCloser, error) {
				if over == "socket" {
					return l.Dial(ctx, nil)
				}
				return attachByClient(ctx, box)
			}, slog.New(slog.DiscardHandler))
			defer f.Close()
			s := &sandbox{Guest: f.Guest(box)}
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			end := s.sh(t, `export A=kept; cd /tmp; id -u; id -G; stat -c %u /workspace; touch /workspace/f; touch /f 2>/dev/null || echo read-only`)
			if want := "1000\n1000 2000\n1000\nread-only\n"; string(end.Stdout) != want {
				t.Errorf("%q %q, want %q", end.Stdout, end.Stderr, want)
			}
			if end := s.sh(t, "echo $A $PWD $HOME"); string(end.Stdout) != "kept /tmp /home/agent\n" {
				t.Errorf("%q %q", end.Stdout, end.Stderr)
			}
			if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "f", Data: []byte("x")}); err != nil {
				t.Error(err)
			}
			if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "/etc/passwd"}); err == nil {
				t.Error("the user wrote to /etc/passwd")
			}
			if _, err := s.Start(t.Context(), control.ExecStart{Exec: "tree", Shell: "setsid sleep 1000 & (env -i /bin/sleep 1000 &); wait"}); err != nil {
				t.Fatal(err)
			}
			if left, err := s.Signal(t.Context(), "tree", "KILL", true); left != 0 || err != nil {
				t.Errorf("%d survivors, %v", left, err)
			}
			if top := docker(t, "top", box); strings.Contains(top, "sleep") {
				t.Errorf("alive after the kill: %s", top)
			}
			// A fork bomb at the limit of processes: PID 1 must need none of its own.
			if _, err := s.Start(t.Context(), control.ExecStart{Exec: "bomb", Shell: "f() { f | f; }; f 2>/dev/null"}); err != nil {
				t.Fatal(err)
			}
			for range 4 {
				if _, err := s.ReadFile(t.Context(), "f", 0, 10); err != nil {
					t.Errorf("a call beside a fork bomb: %v", err)
				}
				s.do(t, control.ExecStart{Argv: []string{"id"}}) // it may fail, but not hang
			}
			if left, err := s.Signal(t.Context(), "bomb", "KILL", true); left != 0 || err != nil {
				t.Errorf("%d survivors of a fork bomb, %v", left, err)
			}
			if end := s.sh(t, "echo again"); string(end.Stdout) != "again\n" {
				t.Errorf("after a fork bomb: %q %q", end.Stdout, end.Stderr)
			}
			docker(t, "stop", "--time", "60", box)
			if code := docker(t, "inspect", "--format", "{{.State.ExitCode}}", box); code != "143" {
				t.Errorf("exit code %s, want 143", code)
			}
		})
	}
}

// attachByClient attaches by the engine's own client, which demultiplexes.
func attachByClient(ctx context.Context, box string) (io.ReadWriteCloser, error) {
	cmd := exec.Command("docker", "attach", "--sig-proxy=false", box)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return link.Attached(ctx, &attachedClient{in, out, cmd})
}

type attachedClient struct {
	io.WriteCloser
	io.Reader
	cmd *exec.Cmd
}

func (a *attachedClient) Close() error {
	a.cmd.Process.Kill()
	return a.cmd.Wait()
}
