package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

func wasHeld(run *launch.Run) bool { return strings.HasPrefix(run.Group, heldPrefix[1:]) }

// heldOne fills the stock and returns the sandbox that is held for a network.
func (l *lab) heldOne(t *testing.T, network string) *held {
	t.Helper()
	_, all := l.stockOf(t, network)
	if len(all) != heldSandboxes {
		t.Fatalf("%d are held, want %d", len(all), heldSandboxes)
	}
	return all[0]
}

// startHeld starts a sandbox by one that is held. What the host shows may change
// meanwhile, but not each time.
func (l *lab) startHeld(t *testing.T, spec control.SandboxSpec) *held {
	t.Helper()
	for range 10 {
		h := l.heldOne(t, spec.Network)
		l.start(t, spec)
		if wasHeld(l.run(t, spec.Name)) {
			return h
		}
		if err := l.e.Remove(t.Context(), spec.Name, control.RemoveAll); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("none that was held is used")
	return nil
}

func TestANewSandboxIsTheOneThatWasHeld(t *testing.T) {
	l := newLab(t)
	spec := l.spec("e1")
	h := l.startHeld(t, spec)
	if run := l.run(t, spec.Name); run.Launcher.ID != h.pid || run.Group != h.group {
		t.Errorf("it runs as %+v, and held was %d in %s", run, h.pid, h.group)
	}
	if _, err := os.Stat(l.e.path(sandboxesDir, "."+h.group)); !os.IsNotExist(err) {
		t.Errorf("the directory has its old name too: %v", err)
	}
	// The next run is another's, in the same files.
	l.agent(t, spec.Name).sh("echo kept > note")
	if err := l.e.Stop(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	if err := l.e.Start(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	if got := l.agent(t, spec.Name).sh("cat note"); got != "kept" {
		t.Errorf("its file has %q", got)
	}
	if run := l.run(t, spec.Name); wasHeld(run) {
		t.Errorf("a second run cannot have been held: %+v", run)
	}
}

// What can be seen from inside, and what bounds it, does not tell one from the other.
func TestASandboxThatWasHeldIsAsOneThatWasNot(t *testing.T) {
	l := newLab(t)
	spec, other := l.spec("xenv-one"), l.spec("xenv-two")
	l.startHeld(t, spec)
	l.emptyStock()
	l.start(t, other)
	if wasHeld(l.run(t, other.Name)) {
		t.Fatal("the second was held too")
	}
	for what, line := range map[string]string{
		"mounts":  `sed 's/^.* \(\/[^ ]*\) \([^ ]*\) \(.*\)- /\1 \2 /; s/ino=[0-9]*//' /proc/self/mountinfo | sed 's/masks[^:,]*//g' | sort`,
		"rights":  "grep -hE '^(Uid|Gid|Groups|Cap.*|NoNewPrivs|Seccomp|Seccomp_filters):' /proc/1/status /proc/self/status | sort -u",
		"files":   "stat -c '%A %u %g %n' / /* /.sandkeeper/* /dev/* /workspace /root /etc/passwd; ls -A /workspace /root /tmp /run /dev/shm /var/tmp",
		"sizes":   "df -B1 /tmp /dev/shm /run | awk '{print $2, $6}'",
		"memory":  "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null || true",
		"groups":  "cat /proc/self/cgroup /proc/1/cgroup",
		"process": "tr '\\0' ' ' < /proc/1/cmdline; umask; ulimit -a; env | sort; readlink /proc/1/cwd /proc/1/root",
		"open":    "for f in /proc/1/fd/*; do readlink $f; done | sed 's/[0-9]*//g' | sort -u",
	} {
		one, two := l.agent(t, spec.Name).sh(line), l.agent(t, other.Name).sh(line)
		if normal := strings.NewReplacer(other.Name, spec.Name, "xenv-two", "xenv-one"); one != normal.Replace(two) || one == "" && what != "memory" {
			t.Errorf("%s: held\n%s\nnot\n%s", what, one, two)
		}
	}
	for env, name := range map[string]string{"xenv-one": spec.Name, "xenv-two": other.Name} {
		if got := l.agent(t, name).sh("hostname"); got != env {
			t.Errorf("the host name of %s is %q", env, got)
		}
	}
	for _, s := range l.e.can.groups.settings(spec.Limits) {
		base := l.e.can.groups.one[s.controller]
		if base == "" {
			base = l.e.can.groups.two
		}
		for _, name := range []string{spec.Name, other.Name} {
			got, err := os.ReadFile(filepath.Join(base, l.run(t, name).Group, s.file))
			if err != nil && !s.optional || err == nil && strings.TrimSpace(string(got)) != s.value {
				t.Errorf("%s of %s is %q, want %s, %v", s.file, name, got, s.value, err)
			}
		}
	}
}

func TestASandboxThatEndsWhileItIsHeldIsNotMissed(t *testing.T) {
	for what, end := range map[string]func(*lab, *held){
		"its launcher is killed": func(_ *lab, h *held) { unix.Kill(h.pid, unix.SIGKILL) },
		"its pipe is closed":     func(_ *lab, h *held) { h.shell.plan.Close() },
	} {
		t.Run(what, func(t *testing.T) {
			l := newLab(t)
			h := l.heldOne(t, "none")
			spec := l.spec("e1")
			if _, err := l.e.Create(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			end(l, h)
			<-h.ended
			if err := l.e.Start(t.Context(), spec.Name); err != nil {
				t.Fatal(err)
			}
			if run := l.run(t, spec.Name); wasHeld(run) {
				t.Errorf("it runs as %+v", run)
			}
			if got := l.agent(t, spec.Name).sh("hostname"); got != "e1" {
				t.Errorf("its host name is %q", got)
			}
		})
	}
}

func TestASandboxOfWhatWasHeldIsRemovedBeforeItEverRan(t *testing.T) {
	l := newLab(t)
	h := l.heldOne(t, "none")
	all := below(t, h.shell)
	spec := l.spec("e1")
	if _, err := l.e.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := l.e.Remove(t.Context(), spec.Name, control.RemoveAll); err != nil {
		t.Fatal(err)
	}
	l.gone(t, h, all)
	if _, err := os.Stat(l.e.path(sandboxesDir, spec.Name)); !os.IsNotExist(err) {
		t.Errorf("its files are left: %v", err)
	}
}

// gone fails where something of what was held is left.
func (l *lab) gone(t *testing.T, h *held, all []launch.Process) {
	t.Helper()
	for _, p := range all {
		if gone, err := awaitEnd(t.Context(), p); !gone || err != nil {
			t.Errorf("process %d: %v, %v", p.ID, gone, err)
		}
	}
	for _, base := range l.e.can.groups.dirs() {
		if _, err := os.Stat(filepath.Join(base, h.group)); !os.IsNotExist(err) {
			t.Errorf("the group %s is left in %s: %v", h.group, base, err)
		}
	}
	if _, err := os.Stat(l.e.path(sandboxesDir, "."+h.group)); !os.IsNotExist(err) {
		t.Errorf("its files are left: %v", err)
	}
}

func TestWhatAServerHeldIsGoneWithTheNext(t *testing.T) {
	l := newLab(t)
	l.heldOne(t, "none")
	h := l.e.stock.takeHeld(l.e.kind("none")) // so that Close knows nothing of it
	all := below(t, h.shell)
	h.close() // as the kernel does where the server was killed
	<-h.ended
	l.reopen(t)
	l.gone(t, h, all)
}

func TestWhatIsHeldForTooLongIsMadeAnew(t *testing.T) {
	l := newLab(t)
	h := l.heldOne(t, "default")
	all := below(t, h.shell)
	l.e.dropOldHeld()
	if now := l.heldOne(t, "default"); now != h {
		t.Error("a young one was replaced")
	}
	l.e.stock.mu.Lock()
	h.made = time.Now().Add(-heldFor - time.Second)
	l.e.stock.mu.Unlock()
	l.e.dropOldHeld()
	l.gone(t, h, all)
	if now := l.heldOne(t, "default"); now == h {
		t.Error("it is the old one")
	}
}
