package db

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// openAt opens a store that is checked and closed at the end of the test.
func openAt(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, s) })
	return s
}

// shut checks the consistency of a store's database and closes it, once.
func shut(t testing.TB, s *Store) {
	t.Helper()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return
	}
	v := verifier{ctx: context.Background()} // the test's own is over
	if err := s.bolt.View(v.all); err != nil && !errors.Is(err, ErrNewer) {
		t.Error(err)
	}
	for _, p := range v.Problems {
		t.Errorf("inconsistent: %s", p)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func open(t testing.TB) *Store {
	t.Helper()
	return openAt(t, filepath.Join(t.TempDir(), "db"), Options{})
}

// reopen closes a store and opens its file anew.
func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	shut(t, s)
	return openAt(t, s.path, Options{})
}

func commit(t testing.TB, s *Store, b *control.Batch) {
	t.Helper()
	if err := s.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// env makes a live environment's record.
func env(id, task string) *control.Env {
	return &control.Env{ID: id, Owner: "hermes", Task: task, Name: "main", State: control.Ready, Generation: 1,
		Lifetime: 5 * time.Minute, CreatedAt: someTime}
}

// gone makes a removed environment's record.
func gone(id, task string, at time.Time) *control.Env {
	e := env(id, task)
	e.State = control.Removed
	e.Tombstone = &control.Tombstone{Reason: "turn ended", Actor: "agent:a", At: control.At(at), Generation: 1}
	return e
}

func event(kind control.EventKind, env string) control.Event {
	return control.Event{Time: control.At(someTime), Kind: kind, Env: env, Owner: "hermes", Actor: "server"}
}

var someTime = time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
