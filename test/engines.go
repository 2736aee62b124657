package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

// On is an engine that a test runs on.
type On struct {
	Name string // "docker" or "local"
	Tool string // a path outside of the workspace that sandboxes may write to, and that is kept
}

// engines are those that tests run on, where the machine has them.
var engines = []On{{"docker", "/usr/bin/tool"}, {"local", toolOnLocal()}}

// toolOnLocal knows that an ordinary user's sandboxes have a read-only root file system.
func toolOnLocal() string {
	if os.Geteuid() == 0 {
		return "/usr/bin/tool"
	}
	return "/root/tool"
}

// Each runs a test on each engine.
func Each(t *testing.T, f func(t *testing.T, on On)) {
	for _, on := range engines {
		t.Run(on.Name, func(t *testing.T) { f(t, on) })
	}
}

// Start starts a server on this engine; see the function of that name.
func (on On) Start(t testing.TB, args ...string) *Server {
	t.Helper()
	if on.Name == "docker" {
		return Start(t, args...)
	}
	return StartLocal(t, args...)
}

// StartLocal starts a server on the engine that needs nothing installed.
func StartLocal(t testing.TB, args ...string) *Server {
	t.Helper()
	s := prepare(t, Docker{}, args)
	s.local = true
	s.launch(t)
	return s
}

// localSandboxes lists what the local engine has on disk, as containers.
func (s *Server) localSandboxes(t testing.TB) (list []Container) {
	t.Helper()
	specs, err := filepath.Glob(filepath.Join(s.DataDir, "local/sandboxes/*/spec.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range specs {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // removed meanwhile
		}
		var kept struct {
			Spec      control.SandboxSpec `json:"spec"`
			FilesOnly bool                `json:"files_only"`
		}
		if err := json.Unmarshal(b, &kept); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if kept.FilesOnly {
			continue
		}
		c := Container{ID: filepath.Dir(path), Name: kept.Spec.Name, Env: kept.Spec.Env, State: "created"}
		if run := readRun(t, c.ID); run != nil {
			c.State = "exited"
			if now, err := launch.ReadStat(run.PID.ID); err == nil && now.Start == run.PID.Start && now.State != 'Z' {
				c.State = "running"
			}
		}
		list = append(list, c)
	}
	return list
}

func readRun(t testing.TB, dir string) *launch.Run {
	t.Helper()
	run, err := launch.ReadRun(dir)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// Containers lists the server's sandboxes as its engine has them.
func (s *Server) Containers(t testing.TB) []Container {
	t.Helper()
	if s.local {
		return s.localSandboxes(t)
	}
	return s.Docker.Containers(t, s.Instance)
}

// KillBehind ends a sandbox's PID 1 by SIGKILL, behind the server's back.
func (s *Server) KillBehind(t testing.TB, c Container) {
	t.Helper()
	if !s.local {
		s.Docker.Run(t, "kill", c.ID)
		return
	}
	run := readRun(t, c.ID)
	fd, err := run.PID.Open(false)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
}
