package local

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

// stockOf fills the stock and returns what it has of a network.
func (l *lab) stockOf(t *testing.T, network string) (shells []*shell, all []*held) {
	t.Helper()
	l.e.stock.expect(l.e.kind(network))
	l.e.fillStock()
	l.e.stock.mu.Lock()
	defer l.e.stock.mu.Unlock()
	if of := l.e.stock.shelf[l.e.kind(network)]; of != nil {
		shells, all = slices.Clone(of.shells), slices.Clone(of.held)
	}
	return shells, all
}

func TestAStartTakesALauncherThatWaits(t *testing.T) {
	l := newLab(t)
	spec := l.spec("e1")
	spec.Network = "default"
	l.start(t, spec)
	if err := l.e.Kill(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	shells, _ := l.stockOf(t, "default")
	if len(shells) != stocked {
		t.Fatalf("%d wait, want %d", len(shells), stocked)
	}
	if err := l.e.Start(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	if got := l.run(t, spec.Name).Launcher.ID; got != shells[0].pid {
		t.Errorf("the launcher is %d, and %d waited", got, shells[0].pid)
	}
	if got := l.agent(t, spec.Name).sh("hostname; pwd"); got != "e1\n/workspace" {
		t.Errorf("inside it is %q", got)
	}
}

// What was asked for once is held ready too; what never was is not.
func TestLaunchersOfAnotherNetworkAreHeldOnceAskedFor(t *testing.T) {
	l := newLab(t)
	l.e.fillStock()
	l.e.stock.mu.Lock()
	if of := l.e.stock.shelf[l.e.kind("none")]; of != nil {
		t.Errorf("%d and %d wait that nobody asked for", len(of.shells), len(of.held))
	}
	l.e.stock.mu.Unlock()
	l.start(t, l.spec("e1")) // with network none
	if shells, all := l.stockOf(t, "none"); len(shells) != stocked || len(all) != heldSandboxes {
		t.Errorf("%d launchers and %d sandboxes wait, want %d and %d", len(shells), len(all), stocked, heldSandboxes)
	}
}

func TestALauncherThatEndedWhileItWaitedIsPassedOver(t *testing.T) {
	l := newLab(t)
	shells, all := l.stockOf(t, "default")
	victims := shells
	for _, h := range all {
		victims = append(victims, h.shell)
	}
	for i, s := range victims {
		victim := s.pid
		if i == 0 { // its builder instead
			victim = below(t, s)[0].ID
		}
		if err := unix.Kill(victim, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-s.ended
	}
	spec := l.spec("e1")
	spec.Network = "default"
	l.start(t, spec)
	l.agent(t, spec.Name).sh("true")
}

// When a server is gone, its end of the pipe is closed, whatever ended it.
func TestALauncherWithoutAPlanEndsWithItsPipeAndLeavesNothing(t *testing.T) {
	l := newLab(t)
	l.emptyStock()
	s, err := l.e.newShell(l.e.kind("default"))
	if err != nil {
		t.Fatal(err)
	}
	all := below(t, s)
	s.plan.Close()
	<-s.ended
	s.answer.Close()
	for _, p := range all {
		if gone, err := awaitEnd(t.Context(), p); !gone || err != nil {
			t.Errorf("process %d: %v, %v", p.ID, gone, err)
		}
	}
	if entries, err := os.ReadDir(l.e.path(sandboxesDir)); err != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
}

// below lists a launcher's builder and its keeper, once they have begun: one begins the other.
func below(t *testing.T, s *shell) (all []launch.Process) {
	t.Helper()
	for len(all) < 2 {
		all = all[:0]
		for _, builder := range childrenOf(t, s.pid) {
			all = append(append(all, builder), childrenOf(t, builder.ID)...)
		}
		select {
		case <-s.ended:
			t.Fatal("the launcher has ended")
		default:
		}
	}
	return all
}

// childrenOf lists the children of a process.
func childrenOf(t *testing.T, pid int) (list []launch.Process) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		id, err := strconv.Atoi(strings.TrimPrefix(f, "/proc/"))
		if err != nil {
			continue
		}
		if st, err := launch.ReadStat(id); err == nil && st.Parent == pid {
			list = append(list, launch.Process{ID: id, Start: st.Start})
		}
	}
	return list
}

// A sandbox is there for good before anything of it runs, and a start that cannot make
// it so says so.
func TestNothingRunsBeforeItsDirectoryIsOnDisk(t *testing.T) {
	l := newLab(t)
	spec := l.spec("e1")
	if _, err := l.e.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	b := l.e.box(spec.Name)
	if err := <-b.settled; err != nil {
		t.Fatal(err)
	}
	b.settled <- unix.EIO
	if err := l.e.Start(t.Context(), spec.Name); err == nil || !strings.Contains(err.Error(), unix.EIO.Error()) {
		t.Errorf("start: %v", err)
	}
	if r, err := launch.ReadRun(b.dir); r != nil || err != nil {
		t.Errorf("it ran: %v, %v", r, err)
	}
	if err := l.e.Start(t.Context(), spec.Name); err != nil {
		t.Errorf("the next start: %v", err)
	}
	if err := l.e.Remove(t.Context(), spec.Name, control.RemoveAll); err != nil {
		t.Error(err)
	}
}
