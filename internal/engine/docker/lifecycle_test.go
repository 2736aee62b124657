package docker

import (
	"os"
	"path/filepath"
	"testing"

	"sandkeeper/internal/control"
)

func TestPausedSandboxCanBeStoppedKilledAndRemoved(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	b := startBox(t, l, opts, named(opts, "a"))
	for _, step := range []struct {
		name string
		do   func() error
		want control.SandboxState
	}{
		{"stop", func() error { return b.e.Stop(t.Context(), b.spec.Name) }, control.SandboxExited},
		{"kill", func() error { return b.e.Kill(t.Context(), b.spec.Name) }, control.SandboxExited},
		{"remove", func() error { return b.e.Remove(t.Context(), b.spec.Name, control.RemoveAll) }, ""},
	} {
		if err := b.e.Start(t.Context(), b.spec.Name); err != nil {
			t.Fatal(err)
		}
		if err := l.cli.ContainerPause(t.Context(), b.spec.Name); err != nil {
			t.Fatal(err)
		}
		listed, err := b.e.List(t.Context())
		if err != nil || len(listed) != 1 || listed[0].State != control.SandboxRunning {
			t.Fatalf("paused: %+v, %v", listed, err)
		}
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		listed, err = b.e.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if step.want == "" && len(listed) != 0 || step.want != "" && (len(listed) != 1 || listed[0].State != step.want) {
			t.Errorf("after %s: %+v", step.name, listed)
		}
	}
}

func TestSocketsAreOpenOnlyForWhatRuns(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	b := startBox(t, l, opts, named(opts, "a"))
	dir := filepath.Join(b.e.links, b.spec.Name)
	wantOpen := func(when string, want int) {
		t.Helper()
		b.e.listened.mu.Lock()
		defer b.e.listened.mu.Unlock()
		if got := len(b.e.listened.open); got != want {
			t.Errorf("%s: %d sockets are open, want %d", when, got, want)
		}
	}
	list := func() {
		t.Helper()
		if _, err := b.e.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantOpen("started", 1)
	if err := b.e.Stop(t.Context(), b.spec.Name); err != nil {
		t.Fatal(err)
	}
	wantOpen("stopped", 0)
	if err := b.e.Start(t.Context(), b.spec.Name); err != nil {
		t.Fatal(err)
	}
	b.e.Close()
	b.e = open(t, opts)
	wantOpen("the server has restarted", 0)
	list()
	wantOpen("listed after a restart", 1)
	// It ends behind our back, and then it goes.
	if err := l.cli.ContainerKill(t.Context(), b.spec.Name, "KILL"); err != nil {
		t.Fatal(err)
	}
	list()
	wantOpen("listed after its death", 0)
	if err := b.e.Remove(t.Context(), b.spec.Name, control.KeepWorkspace); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the link directory outlives the sandbox: %v", err)
	}
}
