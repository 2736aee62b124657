package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

// What a test sees of its server's sandboxes, and does to them, by other means
// than the server. On the local engine a sandbox is shown as a container, with a
// directory for its ID, and that directory as its volume.

// Containers lists the server's sandboxes as its engine has them.
func (s *Server) Containers(t testing.TB) []Container {
	t.Helper()
	if s.local {
		return s.localSandboxes(t)
	}
	return s.Docker.Containers(t, s.Instance)
}

// Volumes lists what keeps files for the server's sandboxes.
func (s *Server) Volumes(t testing.TB) (list []Volume) {
	t.Helper()
	if !s.local {
		return s.Docker.Volumes(t, s.Instance)
	}
	for dir, kept := range s.localSpecs(t) {
		list = append(list, Volume{dir, kept.Spec.Env})
	}
	return list
}

// kept is the part of a local sandbox's file that tests read.
type kept struct {
	Spec      control.SandboxSpec `json:"spec"`
	FilesOnly bool                `json:"files_only"`
}

// localSpecs reads what the local engine has on disk, by directory.
func (s *Server) localSpecs(t testing.TB) map[string]kept {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(s.DataDir, "local/sandboxes/*/spec.json"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]kept{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // removed meanwhile
		}
		var k kept
		if err := json.Unmarshal(b, &k); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		found[filepath.Dir(path)] = k
	}
	return found
}

func (s *Server) localSandboxes(t testing.TB) (list []Container) {
	t.Helper()
	for dir, kept := range s.localSpecs(t) {
		if kept.FilesOnly {
			continue
		}
		c := Container{ID: dir, Name: kept.Spec.Name, Env: kept.Spec.Env, State: "created"}
		if run := readRun(t, dir); run != nil {
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

// localGroups finds an instance's control groups, wherever they were made.
func localGroups(t testing.TB, instance string) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil { // others' come and go
			return nil
		}
		if d.IsDir() && strings.Contains(d.Name(), "sandkeeper-"+instance) {
			dirs = append(dirs, path)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// Processes lists what runs in a sandbox as it is seen from outside, a line for each.
func (s *Server) Processes(t testing.TB, c Container) (lines []string) {
	t.Helper()
	if !s.local {
		out := s.Docker.Run(t, "top", c.ID, "-eo", "pid,ppid,uid,args")
		return strings.Split(out, "\n")[1:]
	}
	for _, p := range s.localProcesses(t, c) {
		if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.ID)); err == nil {
			lines = append(lines, fmt.Sprint(p.ID, " ", strings.ReplaceAll(string(args), "\x00", " ")))
		}
	}
	return lines
}

// localProcesses are those in the namespace of a sandbox's PID 1.
func (s *Server) localProcesses(t testing.TB, c Container) (list []launch.Process) {
	t.Helper()
	namespace := func(pid string) string {
		ns, err := os.Readlink("/proc/" + pid + "/ns/pid")
		if err != nil {
			return "" // it has ended, or is another's
		}
		return ns
	}
	ours := namespace(strconv.Itoa(readRun(t, c.ID).PID.ID))
	if ours == "" {
		t.Fatal("the sandbox's PID 1 is gone")
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range procs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || namespace(d.Name()) != ours {
			continue
		}
		if stat, err := launch.ReadStat(pid); err == nil && stat.State != 'Z' {
			list = append(list, launch.Process{ID: pid, Start: stat.Start})
		}
	}
	return list
}

// Follow remembers what runs in a sandbox, for when it is gone; what still runs then
// is returned. What docker has removed is believed to have ended.
func (s *Server) Follow(t testing.TB, c Container) (alive func() []string) {
	t.Helper()
	if !s.local {
		return func() []string { return nil }
	}
	before := s.localProcesses(t, c)
	return func() (lines []string) {
		for _, p := range before {
			if now, err := launch.ReadStat(p.ID); err == nil && now.Start == p.Start && now.State != 'Z' {
				lines = append(lines, fmt.Sprintf("%+v", now))
			}
		}
		return lines
	}
}

// KillBehind ends a sandbox's PID 1 by SIGKILL, behind the server's back.
func (s *Server) KillBehind(t testing.TB, c Container) {
	t.Helper()
	if !s.local {
		s.Docker.Run(t, "kill", c.ID)
		return
	}
	s.signal(t, c, unix.SIGKILL)
}

// StopBehind stops a sandbox gracefully, behind the server's back.
func (s *Server) StopBehind(t testing.TB, c Container) {
	t.Helper()
	if !s.local {
		s.Docker.Run(t, "stop", c.ID)
		return
	}
	s.signal(t, c, unix.SIGTERM)
	Eventually(t, "it has stopped", func() bool { return !readRun(t, c.ID).Finished.IsZero() })
}

func (s *Server) signal(t testing.TB, c Container, sig unix.Signal) {
	t.Helper()
	fd, err := readRun(t, c.ID).PID.Open(false)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		t.Fatal(err)
	}
}

// Ended is what the engine itself has on the end of a sandbox.
func (s *Server) Ended(t testing.TB, c Container) (at time.Time, code int) {
	t.Helper()
	if s.local {
		run := readRun(t, c.ID)
		return run.Finished, run.ExitCode
	}
	finished, exit, _ := strings.Cut(s.Docker.Run(t, "inspect", "--format", "{{.State.FinishedAt}} {{.State.ExitCode}}", c.ID), " ")
	at, err := time.Parse(time.RFC3339Nano, finished)
	code, err2 := strconv.Atoi(exit)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return at, code
}

// TouchBehind makes a file in a sandbox's workspace, behind the server's back.
func (s *Server) TouchBehind(t testing.TB, c Container, name string) {
	t.Helper()
	if !s.local {
		s.Docker.Run(t, "exec", c.ID, "touch", "/workspace/"+name)
		return
	}
	if err := os.WriteFile(filepath.Join(c.ID, launch.WorkspaceDir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}
