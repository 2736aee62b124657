package db

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"sandkeeper/internal/control"
)

// transactions tells how many write transactions the file has seen.
func transactions(t testing.TB, s *Store) (n int) {
	t.Helper()
	err := s.bolt.View(func(tx *bolt.Tx) error { n = tx.ID(); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// blocked holds the committer in a write of its own until release is called.
func blocked(t *testing.T, s *Store) (release func()) {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- s.submit(t.Context(), &write{apply: func(*bolt.Tx) error {
			close(entered)
			<-leave
			return nil
		}})
	}()
	<-entered
	return func() {
		close(leave)
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// untilWaiting returns once n writes wait.
func untilWaiting(s *Store, n int) {
	for {
		s.mu.Lock()
		waiting := len(s.waiting)
		s.mu.Unlock()
		if waiting == n {
			return
		}
		time.Sleep(50 * time.Microsecond)
	}
}

func TestAllWaitingBatchesAreOneTransaction(t *testing.T) {
	s := open(t)
	release := blocked(t, s)
	before := transactions(t, s)
	var callers sync.WaitGroup
	const n = 500
	for i := range n {
		callers.Go(func() {
			id := fmt.Sprint("e", i)
			err := s.Commit(t.Context(), &control.Batch{Envs: []*control.Env{env(id, id)}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	untilWaiting(s, n)
	release()
	callers.Wait()
	// One is the blocker's own.
	if got := transactions(t, s) - before; got != 2 {
		t.Errorf("%d transactions, want 2", got)
	}
	r, err := s.Load(t.Context())
	if err != nil || len(r.Envs) != n {
		t.Errorf("%d environments, %v, want %d", len(r.Envs), err, n)
	}
}

func TestBatchesAreAppliedAndPublishedInTheOrderOfTheCalls(t *testing.T) {
	s := open(t)
	var log []string // the committer's alone until all have returned
	s.Publish(func(evs []control.Event) {
		for _, e := range evs {
			log = append(log, fmt.Sprintf("event %d %s", e.Seq, e.Env))
		}
	})
	release := blocked(t, s)
	var (
		callers sync.WaitGroup
		want    []string
	)
	for i := range 20 {
		id := fmt.Sprint("e", i)
		b := &control.Batch{
			Events:  []control.Event{event(control.EnvReady, id), event(control.EnvChanged, id)},
			Applied: func() { log = append(log, "applied "+id) },
		}
		callers.Go(func() {
			if err := s.Commit(t.Context(), b); err != nil {
				t.Error(err)
			}
			if b.Events[1].Seq != uint64(2*i+2) {
				t.Errorf("seq %d in the batch, want %d", b.Events[1].Seq, 2*i+2)
			}
		})
		untilWaiting(s, i+1)
		want = append(want, "applied "+id, fmt.Sprintf("event %d %s", 2*i+1, id), fmt.Sprintf("event %d %s", 2*i+2, id))
	}
	release()
	callers.Wait()
	if !slices.Equal(log, want) {
		t.Errorf("got  %q\nwant %q", log, want)
	}
}

func TestABatchIsOnDiskWhenAppliedIsCalled(t *testing.T) {
	s := open(t)
	var found bool
	commit(t, s, &control.Batch{
		Tasks:   []control.TaskRecord{{Owner: "o", Task: "t", Turn: 3}},
		Applied: func() { _, found, _ = s.Task(control.TaskKey{Owner: "o", Task: "t"}) },
	})
	if !found {
		t.Error("Applied was called before the record could be read")
	}
}

func TestABadBatchFailsAlone(t *testing.T) {
	s := open(t)
	release := blocked(t, s)
	batches := []*control.Batch{
		{Envs: []*control.Env{env("a", "t1")}, Events: []control.Event{event(control.EnvStarting, "a")}},
		{Envs: []*control.Env{env("b", "t1")}, Events: []control.Event{event(control.EnvStarting, "b")}}, // a's key
		{Envs: []*control.Env{env("c", "t2")}, Events: []control.Event{event(control.EnvStarting, "c")}},
	}
	errs := make([]error, len(batches))
	applied := make([]bool, len(batches))
	var callers sync.WaitGroup
	for i, b := range batches {
		b.Applied = func() { applied[i] = true }
		callers.Go(func() { errs[i] = s.Commit(t.Context(), b) })
		untilWaiting(s, i+1)
	}
	before := transactions(t, s)
	release()
	callers.Wait()
	if errs[0] != nil || errs[2] != nil || !errors.Is(errs[1], ErrKeyHeld) {
		t.Errorf("errors %v", errs)
	}
	if !slices.Equal(applied, []bool{true, false, true}) {
		t.Errorf("applied %v", applied)
	}
	if got := transactions(t, s) - before; got != 2 {
		t.Errorf("%d transactions, want 2", got)
	}
	evs, first, last, err := s.Events(0, 10, control.EventFilter{})
	if err != nil || first != 1 || last != 2 || len(evs) != 2 || evs[1].Env != "c" {
		t.Errorf("events %v from %d to %d, %v", evs, first, last, err)
	}
}

func TestOneKeyHasOneHolder(t *testing.T) {
	stopping := func(id string, mode control.TeardownMode) *control.Env {
		e := env(id, "t")
		e.State, e.Teardown = control.Stopping, &control.Teardown{Mode: mode}
		return e
	}
	dormant := env("a", "t")
	dormant.State = control.Dormant
	for name, tc := range map[string]struct {
		first, second []*control.Env
		held          bool
	}{
		"ready":                      {[]*control.Env{env("a", "t")}, []*control.Env{env("b", "t")}, true},
		"dormant":                    {[]*control.Env{dormant}, []*control.Env{env("b", "t")}, true},
		"stopping for good":          {[]*control.Env{stopping("a", control.TeardownRemove)}, []*control.Env{env("b", "t")}, false},
		"stopping to become dormant": {[]*control.Env{stopping("a", control.TeardownStop)}, []*control.Env{env("b", "t")}, true},
		"itself again":               {[]*control.Env{env("a", "t")}, []*control.Env{env("a", "t")}, false},
		"removed":                    {[]*control.Env{gone("a", "t", someTime)}, []*control.Env{env("b", "t")}, false},
		"handed on in one batch":     {[]*control.Env{env("a", "t")}, []*control.Env{env("b", "t"), gone("a", "t", someTime)}, false},
		"two in one batch":           {nil, []*control.Env{env("a", "t"), env("b", "t")}, true},
		"another task":               {[]*control.Env{env("a", "t")}, []*control.Env{env("b", "u")}, false},
		"taken back by a torn down":  {[]*control.Env{stopping("a", control.TeardownRemove), env("b", "t")}, []*control.Env{env("a", "t")}, true},
		"a torn down one removed":    {[]*control.Env{stopping("a", control.TeardownRemove), env("b", "t")}, []*control.Env{gone("a", "t", someTime), env("b", "t")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			commit(t, s, &control.Batch{Envs: tc.first})
			err := s.Commit(t.Context(), &control.Batch{Envs: tc.second})
			if tc.held != errors.Is(err, ErrKeyHeld) || !tc.held && err != nil {
				t.Errorf("got %v, want held: %v", err, tc.held)
			}
		})
	}
}

func TestAKeyIsHeldAcrossARestart(t *testing.T) {
	s := open(t)
	commit(t, s, &control.Batch{Envs: []*control.Env{env("a", "t")}})
	s = reopen(t, s)
	if err := s.Commit(t.Context(), &control.Batch{Envs: []*control.Env{env("b", "t")}}); !errors.Is(err, ErrKeyHeld) {
		t.Errorf("got %v", err)
	}
}

func TestWhatCannotBeKeptIsRefused(t *testing.T) {
	running := func(exec, id string) control.ExecRecord {
		return control.ExecRecord{Exec: exec, Env: "e", ID: id, StartedAt: someTime}
	}
	untold := env("gone", "t")
	untold.State = control.Removed
	nul := env("a", "t")
	nul.Task = "t\x00u"
	for name, b := range map[string]*control.Batch{
		"no id":                      {Envs: []*control.Env{env("", "t")}},
		"a NUL in a name":            {Envs: []*control.Env{nul}},
		"no tombstone":               {Envs: []*control.Env{untold}},
		"a removed one comes back":   {Envs: []*control.Env{env("removed", "t")}},
		"a key of 40,000 bytes":      {Sessions: []control.SessionRecord{{ID: strings.Repeat("x", 40_000)}}},
		"no JSON":                    {Events: []control.Event{{Data: map[string]any{"f": func() {}}}}},
		"an id runs twice":           {Execs: []control.ExecRecord{running("x2", "id")}},
		"an id runs twice at once":   {Execs: []control.ExecRecord{running("x3", "new"), running("x4", "new")}},
		"a session without an id":    {DeleteSessions: []string{""}},
		"an orphan without a name":   {Orphans: []control.Orphan{{}}},
		"a task without an owner":    {Tasks: []control.TaskRecord{{Task: "t"}}},
		"an exec without a name":     {Execs: []control.ExecRecord{running("", "other")}},
		"a time that JSON cannot do": {Execs: []control.ExecRecord{{Exec: "x", Env: "e", EndedAt: time.Date(99999, 1, 1, 0, 0, 0, 0, time.UTC)}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			commit(t, s, &control.Batch{
				Envs:  []*control.Env{gone("removed", "t", someTime)},
				Execs: []control.ExecRecord{running("x1", "id")},
			})
			before := transactions(t, s)
			err := s.Commit(t.Context(), b)
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("got %v", err)
			}
			if got := transactions(t, s); got != before {
				t.Errorf("%d transactions were made", got-before)
			}
		})
	}
}

func TestAnIDMayRunAgainOnceItsExecHasEnded(t *testing.T) {
	s := open(t)
	first := control.ExecRecord{Exec: "x1", Env: "e", ID: "id", StartedAt: someTime}
	commit(t, s, &control.Batch{Execs: []control.ExecRecord{first}})
	first.EndedAt = someTime.Add(time.Second)
	commit(t, s, &control.Batch{Execs: []control.ExecRecord{{Exec: "x2", Env: "e", ID: "id", StartedAt: someTime}, first}})
	rec, ok, err := s.Exec("e", "id")
	if err != nil || !ok || rec.Exec != "x2" {
		t.Errorf("the id finds %q, %v, %v, want x2", rec.Exec, ok, err)
	}
	err = s.Prune(t.Context(), control.PruneLimits{ExecsEndedBefore: someTime.Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err = s.ExecByName("x1"); ok || err != nil {
		t.Errorf("the first is kept: %v, %v", ok, err)
	}
	if rec, ok, err = s.Exec("e", "id"); err != nil || !ok || rec.Exec != "x2" {
		t.Errorf("after the first was pruned the id finds %q, %v, %v, want x2", rec.Exec, ok, err)
	}
}

func TestAContextThatEndsWhileWaitingChangesNothing(t *testing.T) {
	s := open(t)
	release := blocked(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Commit(ctx, &control.Batch{Envs: []*control.Env{env("a", "t")}}) }()
	untilWaiting(s, 1)
	cancel()
	release()
	if err := <-done; err != nil {
		t.Errorf("got %v for a batch that is on disk", err)
	}
	if r, err := s.Load(t.Context()); err != nil || len(r.Envs) != 1 {
		t.Errorf("%d environments, %v, want 1", len(r.Envs), err)
	}
	if err := s.Commit(ctx, &control.Batch{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

func TestCloseWritesWhatWaits(t *testing.T) {
	s := open(t)
	release := blocked(t, s)
	done := make(chan error, 1)
	go func() { done <- s.Commit(context.Background(), &control.Batch{Envs: []*control.Env{env("a", "t")}}) }()
	untilWaiting(s, 1)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	release()
	if err := errors.Join(<-done, <-closed); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), &control.Batch{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	s = openAt(t, s.path, Options{})
	if r, err := s.Load(t.Context()); err != nil || len(r.Envs) != 1 {
		t.Errorf("%d environments, %v, want 1", len(r.Envs), err)
	}
}

func TestAFullDatabaseFailsTheTransactionAndNoMore(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "db"), Options{})
	shut(t, s)
	s = openAt(t, s.path, Options{maxSize: mapSize}) // no growth beyond what is mapped
	s.bolt.MaxSize = 1 << 20
	s.bolt.AllocSize = 64 << 10
	fillUp(t, s, berrors.ErrMaxSizeReached, func() { s.bolt.MaxSize = 0 })
}

// fillUp commits until the disk is full, wants the cause, and wants all of it to work again after space is back.
func fillUp(t *testing.T, s *Store, cause error, makeRoom func()) {
	t.Helper()
	const size = 64 << 10
	filler := func(i int) *control.Batch {
		id := fmt.Sprint("e", i)
		e := env(id, id)
		e.Labels = map[string]string{"filler": strings.Repeat("x", size)}
		return &control.Batch{Envs: []*control.Env{e}, Events: []control.Event{event(control.EnvStarting, id)}}
	}
	n := 0
	for ; ; n++ {
		if n > 1000 {
			t.Fatal("the disk does not get full")
		}
		b := filler(n)
		var applied bool
		b.Applied = func() { applied = true }
		err := s.Commit(t.Context(), b)
		if (err == nil) != applied {
			t.Fatalf("applied: %v, although Commit: %v", applied, err)
		}
		if err != nil {
			if !errors.Is(err, cause) || !strings.HasPrefix(err.Error(), "database write: ") {
				t.Errorf("full: %v, want %v", err, cause)
			}
			break
		}
	}
	if n < 3 {
		t.Fatalf("full after %d batches", n)
	}
	if r, err := s.Load(t.Context()); err != nil || len(r.Envs) != n {
		t.Errorf("when full: %d environments, %v, want %d", len(r.Envs), err, n)
	}
	if err := s.Commit(t.Context(), filler(n)); !errors.Is(err, cause) {
		t.Errorf("again: %v, want %v", err, cause)
	}
	makeRoom()
	commit(t, s, filler(n))
	s = reopen(t, s)
	if r, err := s.Load(t.Context()); err != nil || len(r.Envs) != n+1 {
		t.Errorf("with room again: %d environments, %v, want %d", len(r.Envs), err, n+1)
	}
	if evs, first, last, err := s.Events(0, 2000, control.EventFilter{}); err != nil || first != 1 || last != uint64(n+1) || len(evs) != n+1 {
		t.Errorf("%d events from %d to %d, %v, want %d", len(evs), first, last, err, n+1)
	}
}

func TestAFailureBeforeTheLastPageIsForgotten(t *testing.T) {
	s := open(t)
	cause := errors.New("input/output error")
	s.finish = func(tx *bolt.Tx) error { return errors.Join(cause, tx.Rollback()) }
	if err := s.Commit(t.Context(), &control.Batch{Ran: 1}); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	s.finish = (*bolt.Tx).Commit
	commit(t, s, &control.Batch{Ran: 2})
}

func TestAnUnknownOutcomeStopsAllWrites(t *testing.T) {
	s := open(t)
	cause := errors.New("input/output error")
	s.finish = func(tx *bolt.Tx) error { return errors.Join(tx.Commit(), cause) } // as when the last sync fails
	if err := s.Commit(t.Context(), &control.Batch{Ran: 1}); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	s.finish = (*bolt.Tx).Commit
	before := transactions(t, s)
	err := s.Commit(t.Context(), &control.Batch{Ran: 2})
	if !errors.Is(err, cause) || !strings.Contains(err.Error(), "next start") {
		t.Errorf("got %v, want %v", err, cause)
	}
	if got := transactions(t, s); got != before {
		t.Errorf("%d more transactions", got-before)
	}
	s = reopen(t, s)
	commit(t, s, &control.Batch{Ran: 3})
}
