package local

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
	"sandkeeper/test/need"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if guestDir != "" {
		os.RemoveAll(guestDir)
	}
	os.Exit(code)
}

var guestDir string

// guestVariable names a guest that was built already, for a test process that cannot build.
const guestVariable = "SANDKEEPER_TEST_GUEST"

// builtGuest is the guest as built from this tree.
var builtGuest = sync.OnceValues(func() ([]byte, error) {
	if path := os.Getenv(guestVariable); path != "" {
		return os.ReadFile(path)
	}
	dir, err := os.MkdirTemp("", "sandkeeper-local-test-")
	if err != nil {
		return nil, err
	}
	guestDir = dir
	out := filepath.Join(dir, "guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "sandkeeper/cmd/guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+runtime.GOARCH)
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, said)
	}
	return os.ReadFile(out)
})

// lab is one instance on this machine, whose leftovers are removed when the test ends.
type lab struct {
	opts Options
	e    *Engine
	open string // a directory that is open in the server
}

// newLab skips a test where sandboxes cannot be had, which it names, or fails it
// where they are required.
func newLab(t testing.TB, change ...func(*Options)) *lab {
	t.Helper()
	l := &lab{opts: Options{
		Instance: "t" + strings.ToLower(rand.Text()[:10]),
		DataDir:  t.TempDir(),
		Binary:   func(string) ([]byte, error) { return builtGuest() },
	}}
	for _, c := range change {
		c(&l.opts)
	}
	e, err := New(t.Context(), l.opts)
	if errors.Is(err, ErrNoIsolation) {
		need.Missing(t, "local", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.e = e
	t.Cleanup(func() { l.cleanUp(t) })
	return l
}

// cleanUp removes the instance, and fails the test where something is left.
func (l *lab) cleanUp(t testing.TB) {
	l.e.Close()
	opts := l.opts
	opts.PruneOnly = true
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := New(ctx, opts)
	if err != nil {
		t.Error(err)
		return
	}
	defer e.Close()
	if _, err := e.Prune(ctx); err != nil {
		t.Errorf("prune: %v", err)
	}
	if left := leftovers(t, l.opts); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// leftovers finds what is of an instance: processes, mounts, control groups, files.
func leftovers(t testing.TB, opts Options) (left []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if st, err := launch.ReadStat(pid); err != nil || st.State == 'Z' {
			continue
		}
		env, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if bytes.Contains(env, []byte(opts.DataDir)) && bytes.Contains(env, []byte(launch.Variable)) {
			left = append(left, "launcher "+entry.Name())
		}
		groups, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if bytes.Contains(groups, []byte("/sandkeeper-"+opts.Instance)) {
			left = append(left, "process "+entry.Name())
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, opts.DataDir) {
			left = append(left, "mount "+line)
		}
	}
	found, _ := filepath.Glob("/sys/fs/cgroup/*/sandkeeper-" + opts.Instance)
	more, _ := filepath.Glob("/sys/fs/cgroup/sandkeeper-" + opts.Instance)
	left = append(left, append(found, more...)...)
	if _, err := os.Stat(filepath.Join(opts.DataDir, "local")); err == nil {
		left = append(left, opts.DataDir+"/local")
	}
	return left
}

func (l *lab) reopen(t testing.TB) *Engine {
	t.Helper()
	if err := l.e.Close(); err != nil {
		t.Error(err)
	}
	e, err := New(context.WithoutCancel(t.Context()), l.opts)
	if err != nil {
		t.Fatal(err)
	}
	l.e = e
	return e
}

// emptyStock ends what is held ready; there will be nothing more.
func (l *lab) emptyStock() {
	l.e.once.Do(func() { close(l.e.closing) })
	l.e.filling.Wait()
	l.e.clearStock()
}

// spec is a small sandbox.
func (l *lab) spec(env string) control.SandboxSpec {
	return control.SandboxSpec{
		Name: "sandkeeper-" + l.opts.Instance + "-" + env, Env: env, Owner: "o", Task: "t", EnvName: "main",
		Network: "none", Workdir: "/workspace", Limits: control.Limits{CPUs: 1, MemoryMB: 128, Pids: 64},
	}
}

// start makes and starts a sandbox.
func (l *lab) start(t testing.TB, spec control.SandboxSpec) {
	t.Helper()
	if _, err := l.e.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := l.e.Start(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
}

// run returns the record of a sandbox's last run.
func (l *lab) run(t testing.TB, name string) *launch.Run {
	t.Helper()
	r, err := launch.ReadRun(l.e.path(sandboxesDir, name))
	if err != nil || r == nil {
		t.Fatalf("record of %s: %v, %v", name, r, err)
	}
	return r
}

// inside runs a command among a sandbox's processes, as its root with all
// capabilities, by the system's nsenter.
func (l *lab) inside(t testing.TB, name string, argv ...string) (string, int) {
	t.Helper()
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		t.Fatal(err)
	}
	enter := ""
	run := l.run(t, name)
	for _, base := range l.e.can.groups.dirs() {
		enter += "echo $$ > '" + filepath.Join(base, run.Group, "cgroup.procs") + "' && "
	}
	args := []string{nsenter, "--target", strconv.Itoa(run.PID.ID), "--mount", "--pid", "--ipc", "--uts", "--net", "--root", "--wd"}
	if !l.e.can.root {
		args = append(args, "--user", "--preserve-credentials")
	}
	args = append(args, "--")
	cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", enter + `exec "$@"`, "sh"}, append(args, argv...)...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), exit.ExitCode()
	}
	if err != nil {
		t.Fatalf("%q in %s: %v", argv, name, err)
	}
	return string(out), 0
}
