package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"

	"sandkeeper/internal/control"
)

// named is a spec of a sandbox of its own.
func named(opts Options, env string) control.SandboxSpec {
	spec := sandboxSpec(opts, testImage)
	spec.Name = "sandkeeper-" + opts.Instance + "-" + env
	spec.Env = env
	return spec
}

// runs is the sum of the program that PID 1 runs.
func (b *box) runs() string {
	b.t.Helper()
	return strings.Fields(b.sh("sha256sum /proc/1/exe"))[0]
}

func sumOf(binary []byte) string {
	sum := sha256.Sum256(binary)
	return hex.EncodeToString(sum[:])
}

func TestNewGuestReplacesTheOldAndLeavesWhatRuns(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	old := startBox(t, l, opts, named(opts, "old"))
	inode := old.sh("stat -c %i /.sandkeeper/bin/guest")

	// The same binary is left in its place.
	same := startBox(t, l, opts, named(opts, "same"))
	if got := same.sh("stat -c %i /.sandkeeper/bin/guest"); got != inode {
		t.Errorf("the same binary was copied again")
	}

	// What follows an executable changes nothing in it.
	next := append(slices.Clone(l.stub), "the next version"...)
	opts.Binary = func(string) ([]byte, error) { return next, nil }
	fresh := startBox(t, l, opts, named(opts, "fresh"))
	if got := fresh.runs(); got != sumOf(next) {
		t.Errorf("a new sandbox runs %s, want the new guest", got)
	}
	if got := old.runs(); got != sumOf(l.stub) {
		t.Errorf("the old sandbox runs %s, want the guest it began with", got)
	}
	old.e = fresh.e
	if err := old.e.Stop(t.Context(), old.spec.Name); err != nil {
		t.Fatal(err)
	}
	if err := old.e.Start(t.Context(), old.spec.Name); err != nil {
		t.Fatal(err)
	}
	if got := old.runs(); got != sumOf(next) {
		t.Errorf("the old sandbox resumed with %s, want the new guest", got)
	}
}

func TestResumeAfterARestartOfOursInstallsFirst(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	b := startBox(t, l, opts, named(opts, "a"))
	if err := b.e.Stop(t.Context(), b.spec.Name); err != nil {
		t.Fatal(err)
	}
	next := append(slices.Clone(l.stub), "the next version"...)
	opts.Binary = func(string) ([]byte, error) { return next, nil }
	b.e.Close()
	b.e = open(t, opts)
	if err := b.e.Start(t.Context(), b.spec.Name); err != nil {
		t.Fatal(err)
	}
	if got := b.runs(); got != sumOf(next) {
		t.Errorf("resumed with %s, want the new guest", got)
	}
}

func TestInstallationThatWasCutShortIsMadeAgain(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	e := open(t, opts)
	// As a crash leaves it: the copying container is there, the binary is half.
	id, err := e.makeCopyContainer(t.Context(), testImage)
	if err != nil {
		t.Fatal(err)
	}
	half, err := guestArchive(l.stub[:len(l.stub)/2], "unfinished")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cli.CopyToContainer(t.Context(), id, binTarget, strings.NewReader(string(half)), container.CopyToContainerOptions{}); err != nil {
		t.Fatal(err)
	}
	b := startBox(t, l, opts, named(opts, "a"))
	if got := b.runs(); got != sumOf(l.stub) {
		t.Errorf("PID 1 runs %s, want the whole guest", got)
	}
	if _, err := l.cli.ContainerInspect(t.Context(), id); !absent(err) {
		t.Errorf("the copying container is left: %v", err)
	}
}

func TestGuestVolumeThatWasLostIsMadeAgain(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	b := startBox(t, l, opts, named(opts, "a"))
	if err := b.e.Remove(t.Context(), b.spec.Name, control.RemoveAll); err != nil {
		t.Fatal(err)
	}
	if err := l.cli.VolumeRemove(t.Context(), b.e.guestVolume(), false); err != nil {
		t.Fatal(err)
	}
	if _, err := b.e.Create(t.Context(), b.spec); err != nil {
		t.Fatal(err)
	}
	if err := b.e.Start(t.Context(), b.spec.Name); err != nil {
		t.Fatal(err)
	}
	if got := b.runs(); got != sumOf(l.stub) {
		t.Errorf("PID 1 runs %s, want the guest", got)
	}
}

func TestFirstCreatesAtOnceInstallOnce(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	var mu sync.Mutex
	asked := 0
	opts.Binary = func(arch string) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		if arch != l.arch {
			t.Errorf("the guest is asked for %q", arch)
		}
		return l.stub, nil
	}
	e := open(t, opts)
	var wg sync.WaitGroup
	for _, env := range []string{"a", "b", "c", "d"} {
		wg.Go(func() {
			spec := named(opts, env)
			if _, err := e.Create(t.Context(), spec); err != nil {
				t.Error(err)
			} else if err := e.Start(t.Context(), spec.Name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if asked != 1 {
		t.Errorf("installed %d times", asked)
	}
}

func TestMissingGuestBinaryFailsTheCreate(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	opts.Binary = func(string) ([]byte, error) { return nil, errors.New("run make guest") }
	e := open(t, opts)
	if _, err := e.Create(t.Context(), named(opts, "a")); err == nil || !strings.Contains(err.Error(), "run make guest") {
		t.Errorf("create: %v", err)
	}
	if err := e.Prepare(t.Context(), "no/such:image"); !errors.Is(err, control.ErrImageMissing) {
		t.Errorf("prepare: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Prepare(ctx, testImage); !errors.Is(err, context.Canceled) {
		t.Errorf("prepare: %v", err)
	}
}
