package db

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

// copyOf writes a store's copy to a new file.
func copyOf(t *testing.T, s *Store) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.WriteTo(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestACopyIsOfOneInstantWhileWritesGoOn(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := 0; ctx.Err() == nil; i++ { // an environment and its event, together
			id := fmt.Sprint("e", i)
			_ = s.Commit(ctx, &control.Batch{Envs: []*control.Env{env(id, id)}, Events: []control.Event{event(control.EnvReady, id)}})
		}
	}()
	for range 5 {
		r, err := VerifyFile(t.Context(), copyOf(t, s))
		if err != nil || len(r.Problems) > 0 {
			t.Fatalf("%v %v", err, r)
		}
		if uint64(len(r.Envs)) != r.LastEvent {
			t.Errorf("%d environments and %d events", len(r.Envs), r.LastEvent)
		}
	}
	cancel()
	<-written
}

func TestRestorePutsACopyInThePlaceOfWhatIsThere(t *testing.T) {
	s := open(t)
	commit(t, s, &control.Batch{Envs: []*control.Env{env("a", "t")}})
	backup := copyOf(t, s)
	commit(t, s, &control.Batch{Envs: []*control.Env{env("b", "u")}})

	if _, err := Restore(t.Context(), backup, s.path); !errors.Is(err, ErrLocked) {
		t.Errorf("under a running server: %v", err)
	}
	shut(t, s)
	kept, err := Restore(t.Context(), backup, s.path)
	if err != nil {
		t.Fatal(err)
	}
	envs := func(s *Store) (ids []string) {
		t.Helper()
		r, err := s.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Envs {
			ids = append(ids, e.ID)
		}
		return ids
	}
	if got := envs(openAt(t, s.path, Options{})); len(got) != 1 || got[0] != "a" {
		t.Errorf("restored: %v", got)
	}
	if got := envs(openAt(t, kept, Options{})); len(got) != 2 {
		t.Errorf("what was there: %v", got)
	}
}

func TestRestoreReplacesADamagedOrMissingFile(t *testing.T) {
	s := open(t)
	backup := copyOf(t, s)
	for name, there := range map[string][]byte{"damaged": []byte("hello, I am a letter\n"), "missing": nil} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			if there != nil {
				writeFile(t, path, there)
			}
			kept, err := Restore(t.Context(), backup, path)
			if err != nil {
				t.Fatal(err)
			}
			openAt(t, path, Options{})
			if there == nil && kept == "" {
				return
			}
			if got := contents(t, kept); !bytes.Equal(got, there) {
				t.Errorf("kept %q", got)
			}
		})
	}
}

func TestRestoreRefusesACopyThatIsNotWhole(t *testing.T) {
	s := open(t)
	commit(t, s, &control.Batch{Envs: []*control.Env{env("a", "t")}})
	shut(t, s)
	before := contents(t, s.path)
	whole := wholeFile(t)
	for name, bad := range map[string][]byte{"cut": whole[:len(whole)-4096], "text": []byte("a letter"), "empty": nil} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "copy")
			writeFile(t, path, bad)
			if _, err := Restore(t.Context(), path, s.path); !errors.Is(err, ErrDamaged) {
				t.Errorf("%v", err)
			}
			if !bytes.Equal(before, contents(t, s.path)) {
				t.Error("the database was changed")
			}
		})
	}
	files, err := os.ReadDir(filepath.Dir(s.path))
	if err != nil || len(files) != 1 {
		t.Errorf("left behind: %v %v", files, err)
	}
}

func TestWhoWaitsForTheLockGetsTheFileThatReplacedTheOld(t *testing.T) {
	s := open(t)
	backup := copyOf(t, s)
	shut(t, s)
	old, err := openBolt(s.path, Options{LockTimeout: lockTimeout})
	if err != nil {
		t.Fatal(err)
	}
	opened := make(chan *Store, 1)
	go func() {
		s, err := Open(s.path, Options{LockTimeout: time.Hour})
		if err != nil {
			t.Error(err)
		}
		opened <- s
	}()
	// It may or may not wait already; the outcome is the same.
	if err := os.Rename(backup, s.path); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	waited := <-opened
	defer waited.Close()
	if _, err := Open(s.path, Options{LockTimeout: time.Millisecond}); !errors.Is(err, ErrLocked) {
		t.Errorf("a second one: %v", err)
	}
}

func TestAFileThatIsMostlyFreeIsWrittenAnew(t *testing.T) {
	s := open(t)
	long := strings.Repeat("x", 10_000)
	for range 40 {
		var events []control.Event
		for range 50 {
			e := event(control.EnvReady, "a")
			e.Reason = long
			events = append(events, e)
		}
		commit(t, s, &control.Batch{Events: events, Envs: []*control.Env{env("a", "t")}})
	}
	if err := s.Prune(t.Context(), control.PruneLimits{EventsKeep: 10}); err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	before := len(contents(t, s.path))
	writeFile(t, s.path+".compact", []byte("what a crash left"))

	s = openAt(t, s.path, Options{compactAbove: 1 << 20})
	if after := len(contents(t, s.path)); after > before/4 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
	if _, err := os.Stat(s.path + ".compact"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	events, first, last, err := s.Events(0, 100, control.EventFilter{})
	if err != nil || len(events) != 10 || first != 1991 || last != 2000 {
		t.Errorf("%d events, %d to %d, %v", len(events), first, last, err)
	}
	commit(t, s, &control.Batch{Events: []control.Event{event(control.EnvReady, "a")}})
	if _, _, last, err := s.Events(0, 1, control.EventFilter{}); err != nil || last != 2001 {
		t.Errorf("the next event is %d, %v", last, err)
	}
}

// A tombstone's time comes from a clock that is finer than its record.
func TestARemovedOneIsFoundByItsTimeHoweverFine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	s, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, &control.Batch{Envs: []*control.Env{gone("r", "q", someTime.Add(123_456))}})
	commit(t, s, &control.Batch{Envs: []*control.Env{gone("r", "q", someTime.Add(5_123_456))}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := VerifyFile(t.Context(), path)
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("%v, %q", err, r.Problems)
	}
	b, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.View(func(tx *bolt.Tx) error {
		if n := tx.Bucket(bucketRemovedAt).Stats().KeyN; n != 1 {
			t.Errorf("it is found by %d times", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyTellsEachFault(t *testing.T) {
	put := func(bucket []byte, key, value string) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.Bucket(bucket).Put([]byte(key), []byte(value)) }
	}
	del := func(bucket []byte, key string) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.Bucket(bucket).Delete([]byte(key)) }
	}
	for name, tc := range map[string]struct {
		fault func(*bolt.Tx) error
		says  string
	}{
		"a record that is no JSON":   {put(bucketEnvs, "a", "{"), `envs: the record "a" cannot be read`},
		"another id":                 {put(bucketEnvs, "z", `{"id":"y"}`), `environment "y" is recorded as "z"`},
		"a key that is lost":         {del(bucketKeys, "hermes\x00t\x00main"), "environment a does not have its key"},
		"a key of nobody":            {put(bucketKeys, "k", "nobody"), `belongs to "nobody", which is not there`},
		"a key that is another's":    {put(bucketKeys, "k", "a"), "which does not hold it"},
		"live and removed":           {put(bucketEnvs, "r", `{"id":"r","state":"stopping","teardown":{"mode":"remove"}}`), "both as live and as removed"},
		"removed, and not by time":   {func(tx *bolt.Tx) error { return tx.Bucket(bucketRemovedAt).Delete(timeKey(someTime, "r")) }, "would be kept for ever"},
		"a time of nothing":          {put(bucketRemovedAt, strings.Repeat("x", 20), ""), "the index of removed environments has"},
		"an open turn that is lost":  {del(bucketTasksOpen, "hermes\x00t"), "whether its turn is open differs"},
		"an open turn of nobody":     {put(bucketTasksOpen, "hermes\x00none", ""), "the index of open turns has"},
		"an exec in no index":        {del(bucketRunning, "x"), "neither as running nor as ended"},
		"an id that is lost":         {del(bucketExecIDs, "a\x00id"), "could run again"},
		"an id of nothing":           {put(bucketExecIDs, "a\x00other", "xx"), `leads to the exec "xx", which is not there`},
		"a running one of nothing":   {put(bucketRunning, "xx", ""), "the index of running execs has"},
		"an ended one of nothing":    {put(bucketEnded, strings.Repeat("x", 20), ""), "the index of ended execs has"},
		"a gap in the log":           {func(tx *bolt.Tx) error { return tx.Bucket(bucketEvents).Delete(seqKey(2)) }, "a gap between 1 and 3"},
		"a counter that is behind":   {func(tx *bolt.Tx) error { return tx.Bucket(bucketEvents).SetSequence(2) }, "ends with 3, and its counter stands at 2"},
		"an event that is no number": {put(bucketEvents, "x", "{}"), "which is no number"},
		"a session of another name":  {put(bucketSessions, "s", `{"id":"other"}`), "session"},
		"an orphan of another name":  {put(bucketOrphans, "o", `{}`), "orphan"},
		"a token of another name":    {put(bucketTokens, "t", `{}`), "token"},
		"a bucket that is not there": {func(tx *bolt.Tx) error { return tx.DeleteBucket(bucketExecIDs) }, "the bucket exec_ids is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			s, err := Open(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			commit(t, s, &control.Batch{
				Envs:   []*control.Env{env("a", "t"), gone("r", "q", someTime)},
				Tasks:  []control.TaskRecord{{Owner: "hermes", Task: "t", Open: true}},
				Execs:  []control.ExecRecord{{Exec: "x", Env: "a", ID: "id", StartedAt: someTime}, {Exec: "e", Env: "a", StartedAt: someTime, EndedAt: someTime}},
				Events: []control.Event{event(control.EnvReady, "a"), event(control.EnvReady, "a"), event(control.EnvReady, "a")},
			})
			if err := errors.Join(s.bolt.Update(tc.fault), s.Close()); err != nil {
				t.Fatal(err)
			}
			before := contents(t, path)
			r, err := VerifyFile(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Problems, "\n"); !strings.Contains(got, tc.says) {
				t.Errorf("it says %q, want %q", got, tc.says)
			}
			if !bytes.Equal(before, contents(t, path)) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestVerifyRefusesWhatIsOpenDamagedOrNewer(t *testing.T) {
	s := open(t)
	if _, err := VerifyFile(t.Context(), s.path); !errors.Is(err, ErrLocked) {
		t.Errorf("open elsewhere: %v", err)
	}
	path := filepath.Join(t.TempDir(), "db")
	if _, err := VerifyFile(t.Context(), path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	writeFile(t, path, []byte("hello, I am a letter\n"))
	if _, err := VerifyFile(t.Context(), path); !errors.Is(err, ErrDamaged) {
		t.Errorf("a letter: %v", err)
	}
	// Whatever page is noise, it is told where it matters, and nothing panics.
	whole, told := wholeFile(t), 0
	for at := 0; at < len(whole); at += 3 * 4096 {
		noise := bytes.Clone(whole)
		copy(noise[at:], bytes.Repeat([]byte{0xa5}, 4096))
		writeFile(t, path, noise)
		r, err := VerifyFile(t.Context(), path)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("noise at %d: %v", at, err)
		}
		if err != nil || len(r.Problems) > 0 {
			told++
		}
	}
	if told == 0 {
		t.Error("no noise was told")
	}
}
