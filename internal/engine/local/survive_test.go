package local

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

// serverVariable makes this test process a server that starts sandboxes and waits to be killed.
const serverVariable = "SANDKEEPER_TEST_SERVER"

// TestServerProcess is no test: it is the server that another test kills.
func TestServerProcess(t *testing.T) {
	dir := os.Getenv(serverVariable)
	if dir == "" {
		t.Skip("part of another test")
	}
	for _, group := range filepath.SplitList(os.Getenv(serverVariable + "_GROUPS")) {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	e, err := New(t.Context(), Options{Instance: os.Getenv(serverVariable + "_INSTANCE"), DataDir: dir, Binary: func(string) ([]byte, error) { return builtGuest() }})
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{opts: e.opts, e: e}
	for i := range fifty {
		l.start(t, l.spec(fmt.Sprintf("e%d", i)))
	}
	fmt.Println("all run")
	select {} // until it is killed
}

const fifty = 50

// killServer runs a server until all of its sandboxes run, and kills it.
func (l *lab) killServer(t *testing.T) {
	t.Helper()
	guest, err := builtGuest()
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/guest"
	if err := os.WriteFile(path, guest, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestServerProcess$")
	unit := l.unit(t)
	cmd.Env = append(os.Environ(), serverVariable+"_GROUPS="+strings.Join(unit, string(filepath.ListSeparator)), serverVariable+"="+l.opts.DataDir, serverVariable+"_INSTANCE="+l.opts.Instance, guestVariable+"="+path)
	// All of its process group goes too, as with a service that is stopped.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var line [8]byte
	if _, err := out.Read(line[:]); err != nil || string(line[:7]) != "all run" {
		rest := make([]byte, 4096)
		n, _ := out.Read(rest)
		t.Fatalf("the server says %q %q, %v", line, rest[:n], err)
	}
	// As systemd does with KillMode=control-group, which is what a unit has that says nothing.
	// Groups are read before anything is killed: a version 2 group does not list the dead.
	var members []string
	for _, group := range unit {
		var listed []string
		// While others come and go, one list may miss a member.
		for began := time.Now(); !slices.Contains(listed, strconv.Itoa(cmd.Process.Pid)); runtime.Gosched() {
			raw, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
			if listed = strings.Fields(string(raw)); err != nil || time.Since(began) > time.Minute {
				t.Fatalf("the server is not in its unit's group %s with %q, %v", group, listed, err)
			}
		}
		members = append(members, listed...)
	}
	for _, id := range members {
		pid, err := strconv.Atoi(id)
		if err != nil || pid <= 0 {
			t.Fatalf("the unit has %q", members)
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
	}
	if err := unix.Kill(-cmd.Process.Pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
}

// unit makes the control groups that a service manager would have the server in:
// where it can be had, one in the manager's own hierarchy.
func (l *lab) unit(t *testing.T) (dirs []string) {
	t.Helper()
	if !l.e.can.root {
		return nil
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hierarchies(string(mountinfo), string(self)) {
		if !h.two && !slices.Contains(h.controllers, "name=systemd") {
			continue
		}
		dir := filepath.Join(h.dir, "unit-of-"+l.opts.Instance)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := removeGroup(ctx, dir); err != nil {
				t.Error(err)
			}
		})
		dirs = append(dirs, dir)
	}
	return dirs
}

func TestFiftySandboxesOutliveTheServer(t *testing.T) {
	l := newLab(t)
	if err := l.e.Close(); err != nil {
		t.Fatal(err)
	}
	l.killServer(t)
	e := l.reopen(t)
	listed, err := e.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(listed) != fifty {
		t.Errorf("%d are found again, want %d", len(listed), fifty)
	}
	for _, s := range listed {
		if s.State != control.SandboxRunning || s.StartedAt.IsZero() {
			t.Errorf("found as %+v", s)
		}
	}
	var reach sync.WaitGroup
	for _, s := range listed {
		reach.Go(func() {
			conn, err := e.Dial(t.Context(), s.Name)
			if err != nil {
				t.Errorf("dial %s: %v", s.Name, err)
				return
			}
			conn.Close()
		})
	}
	reach.Wait()

	// A death is seen at once, also of one that another server started.
	events := make(chan control.EngineEvent, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	var watched sync.WaitGroup
	watched.Go(func() {
		_ = e.Watch(ctx, time.Time{}, func() { close(ready) }, func(ev control.EngineEvent) { events <- ev })
	})
	<-ready
	quickest := time.Hour
	for _, s := range listed[:5] { // a machine may be busy once
		began := time.Now()
		if err := signal(l.run(t, s.Name).PID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if ev := <-events; ev.Name != s.Name || ev.Kind != control.SandboxDied || ev.ExitCode != 137 || ev.OOM {
			t.Errorf("event %+v", ev)
		}
		if quickest = min(quickest, time.Since(began)); quickest < time.Second {
			break
		}
	}
	if quickest > time.Second {
		t.Errorf("the quickest was seen after %v", quickest)
	}

	// A launcher that is killed takes its sandbox along: nothing runs unwatched.
	victim := listed[5].Name
	was := l.run(t, victim)
	if err := signal(was.Launcher, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if ev := <-events; ev.Name != victim || ev.Kind != control.SandboxDied || ev.ExitCode != 137 || ev.OOM {
		t.Errorf("event %+v", ev)
	}
	if st, err := launch.ReadStat(was.PID.ID); err == nil && st.Start == was.PID.Start && st.State != 'Z' {
		t.Error("its sandbox runs on")
	}
	cancel()
	watched.Wait()

	// Removed with their files, nothing is left of them.
	for _, s := range listed {
		reach.Go(func() {
			if err := e.Remove(t.Context(), s.Name, control.RemoveAll); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
	}
	reach.Wait()
	l.emptyStock() // what is held is of this server alone
	if left := e.can.groups.left(); len(left) > 0 {
		t.Errorf("control groups are left: %q", left)
	}
	if entries, err := os.ReadDir(e.path(sandboxesDir)); err != nil || len(entries) > 0 {
		t.Errorf("files are left: %v, %v", entries, err)
	}
}

func TestADeathWithoutAServerIsToldByTheNext(t *testing.T) {
	l := newLab(t)
	spec := l.spec("e1")
	l.start(t, spec)
	conn, err := l.e.Dial(t.Context(), spec.Name) // its guest is up, and takes a TERM
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := l.e.Close(); err != nil {
		t.Fatal(err)
	}
	run := l.run(t, spec.Name)
	launcher, err := run.Launcher.Open(false)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(launcher)
	if err := signal(run.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(launcher), Events: unix.POLLIN}}, 120_000); err != nil {
		t.Fatal(err)
	}
	listed, err := l.reopen(t).List(t.Context())
	if err != nil || len(listed) != 1 {
		t.Fatalf("listed %+v, %v", listed, err)
	}
	if s := listed[0]; s.State != control.SandboxExited || s.ExitCode != 143 || s.FinishedAt.IsZero() {
		t.Errorf("listed as %+v", s)
	}
}

func TestARecycledProcessIDIsNeverSignalled(t *testing.T) {
	l := newLab(t)
	spec := l.spec("e1")
	l.start(t, spec)
	if err := l.e.Kill(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	if err := l.e.Close(); err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Wait() }()
	defer func() { _ = other.Process.Kill() }()
	mine, err := launch.ProcessOf(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	// The record says that it runs, by ids that are another process's now.
	for what, change := range map[string]func(*launch.Run){
		"another start": func(r *launch.Run) { r.PID.ID, r.Launcher.ID = mine.ID, mine.ID },
		"another boot":  func(r *launch.Run) { r.Boot, r.PID, r.Launcher = "another", mine, mine },
	} {
		t.Run(what, func(t *testing.T) {
			run := l.run(t, spec.Name)
			run.Finished = time.Time{}
			change(run)
			if err := run.Write(l.e.path(sandboxesDir, spec.Name)); err != nil {
				t.Fatal(err)
			}
			e := l.reopen(t)
			listed, err := e.List(t.Context())
			if err != nil || len(listed) != 1 || listed[0].State != control.SandboxExited {
				t.Errorf("listed %+v, %v", listed, err)
			}
			if err := e.Kill(t.Context(), spec.Name); err != nil {
				t.Error(err)
			}
			if now, err := launch.ReadStat(mine.ID); err != nil || now.State == 'Z' || now.Start != mine.Start {
				t.Errorf("the other process was ended: %+v, %v", now, err)
			}
		})
	}
}
