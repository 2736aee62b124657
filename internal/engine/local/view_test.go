package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandkeeper/internal/control"
)

// shownDir has the sandboxes of a lab see one more directory, which is looked
// through for what is not for all to read.
func (l *lab) shownDir(t *testing.T) string {
	t.Helper()
	if !l.e.can.root {
		t.Skip("an ordinary user's sandboxes need no masks: they have its own rights")
	}
	dir, err := os.MkdirTemp("/var/tmp", "sandkeeper-local-test-") // not /tmp, which sandboxes have of their own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	v := l.e.view
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shown, v.masked, v.watching = append(slices.Clone(v.shown), dir), append(slices.Clone(v.masked), dir), false
	return dir
}

func TestASecretIsHiddenFromSandboxesThatStartAfterIt(t *testing.T) {
	for _, watching := range []bool{true, false} {
		l := newLab(t)
		dir := l.shownDir(t)
		write := func(name string, mode os.FileMode) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), mode); err != nil {
				t.Fatal(err)
			}
		}
		write("open", 0o644)
		write("secret", 0o600)
		started := 0
		sees := func() string {
			t.Helper()
			if !watching {
				l.e.view.watching = false // as where the kernel has no watch left
			}
			spec := l.spec("e" + string(rune('0'+started)))
			started++
			l.start(t, spec)
			return strings.Join(strings.Fields(l.agent(t, spec.Name).sh("cd "+dir+" && find . -type f | sort")), " ")
		}
		for _, step := range []struct {
			name string
			do   func()
			want string
		}{
			{"at first", func() {}, "./open"},
			{"a new secret", func() { write("later", 0o600) }, "./open"},
			{"a new file for all", func() { write("more", 0o644) }, "./more ./open"},
			{"a file becomes one", func() { os.Chmod(filepath.Join(dir, "open"), 0o640) }, "./more"},
			{"and is none any more", func() { os.Chmod(filepath.Join(dir, "open"), 0o644) }, "./more ./open"},
			{"in a new directory", func() {
				os.Mkdir(filepath.Join(dir, "sub"), 0o755)
				write("sub/secret", 0o600)
				write("sub/open", 0o644)
			}, "./more ./open ./sub/open"},
			{"another there, later", func() { write("sub/second", 0o600) }, "./more ./open ./sub/open"},
			{"moved there", func() { os.Rename(filepath.Join(dir, "secret"), filepath.Join(dir, "sub/moved")) }, "./more ./open ./sub/open"},
			{"the directory is one", func() { os.Chmod(filepath.Join(dir, "sub"), 0o700) }, "./more ./open"},
		} {
			l.stockOf(t, "none") // what is held was made before
			step.do()
			if got := sees(); got != step.want {
				t.Errorf("watching %v: %s: it sees %q, want %q", watching, step.name, got, step.want)
			}
		}
	}
}

func TestMasksAreMadeAnewOnlyWhereSomethingChanged(t *testing.T) {
	l := newLab(t)
	dir := l.shownDir(t)
	now := func() string {
		_, name, release, err := l.e.view.now()
		if err != nil {
			t.Fatal(err)
		}
		release()
		return name
	}
	first := now()
	if !l.e.view.watching {
		t.Skip("the kernel has no watch to spare")
	}
	// The host's own /etc and /opt may change meanwhile, but not each time.
	if !slices.ContainsFunc(make([]int, 20), func(int) bool { was := now(); return was == now() }) {
		t.Error("they are made anew each time")
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if now() == first {
		t.Error("they are the old ones after a change")
	}
}

func TestMasksStayWhileASandboxUsesThemAndGoAfterIt(t *testing.T) {
	l := newLab(t)
	dir := l.shownDir(t)
	spec := l.spec("e1")
	l.start(t, spec)
	used := l.run(t, spec.Name).Masks
	there := func() bool {
		_, err := os.Stat(l.e.path(masksDir, used))
		return err == nil
	}
	for i := range 2 {
		if err := os.WriteFile(filepath.Join(dir, "new"+string(rune('0'+i))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		other := l.spec("e2")
		l.start(t, other)
		if err := l.e.Remove(t.Context(), other.Name, control.RemoveAll); err != nil {
			t.Fatal(err)
		}
		if !there() {
			t.Fatal("the masks of a running sandbox are gone")
		}
		l.reopen(t) // also for the next server
		l.e.view.shown, l.e.view.masked, l.e.view.watching = append(slices.Clone(shown), dir), append(slices.Clone(masked), dir), false
	}
	if err := l.e.Remove(t.Context(), spec.Name, control.RemoveAll); err != nil {
		t.Fatal(err)
	}
	if there() {
		t.Error("masks stay that nothing uses")
	}
}
