package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"sandkeeper/test/need"
)

// Dockerd is an engine of a test's own, which it may stop. It has networks and
// mounts of its own: an engine that starts puts the bridge of another one away.
type Dockerd struct {
	Docker

	dir   string
	cmd   *exec.Cmd
	ended chan struct{}
	log   *os.File
}

// StartDockerd starts an engine with nothing on it but the tests' image.
func StartDockerd(t testing.TB) *Dockerd {
	t.Helper()
	if os.Getuid() != 0 {
		need.Missing(t, "docker", "only root starts an engine of its own")
	}
	if _, err := exec.LookPath("dockerd"); err != nil {
		need.Missing(t, "docker", "there is no dockerd on this machine")
	}
	OpenDocker(t)
	dir, err := os.MkdirTemp("", "sk-dockerd-*")
	if err != nil {
		t.Fatal(err)
	}
	d := &Dockerd{dir: dir, Docker: Docker{Host: "unix://" + filepath.Join(dir, "docker.sock"), Image: imageName}}
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.cmd != nil {
			d.Stop(t)
		}
		if t.Failed() {
			b, _ := os.ReadFile(d.log.Name())
			t.Logf("the engine's log ends with:\n%s", tail(string(b), 30))
		}
		d.log.Close() //nolint:errcheck // it is removed
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	d.Start(t)
	f, err := busyboxFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.importFiles(d.Image, f); err != nil {
		t.Fatal(err)
	}
	return d
}

// Start starts the engine and waits until it answers.
func (d *Dockerd) Start(t testing.TB) {
	t.Helper()
	at := func(name string) string { return filepath.Join(d.dir, name) }
	cmd := exec.Command("dockerd", "--host", d.Host, "--data-root", at("data"), "--exec-root", at("exec"),
		"--pidfile", at("pid"), "--iptables=false", "--ip6tables=false")
	cmd.Stdout, cmd.Stderr = d.log, d.log
	// Children of its own (containerd) end with it: by its group where it cannot.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: syscall.CLONE_NEWNET, Unshareflags: syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait() //nolint:errcheck // its log says why
		close(ended)
	}()
	d.cmd, d.ended = cmd, ended
	Eventually(t, "the engine answers", func() bool {
		select {
		case <-ended:
			t.Fatalf("dockerd ended at its start: %v", cmd.ProcessState)
		default:
		}
		ping := exec.Command("docker", "version", "--format", "{{.Server.Version}}")
		ping.Env = environ(d.Host)
		return ping.Run() == nil
	})
}

// Stop stops the engine as a service manager does; its containers end with it.
func (d *Dockerd) Stop(t testing.TB) {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case <-d.ended:
	case <-time.After(patience):
		t.Error("dockerd does not stop; it is killed")
		if err := syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		<-d.ended
	}
	d.cmd = nil
}
