package db

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// batches draws batches over few names, so that they meet.
var batches = rapid.Custom(func(t *rapid.T) *control.Batch {
	var b control.Batch
	at := rapid.Custom(func(t *rapid.T) time.Time {
		return someTime.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "second")) * time.Second)
	})
	few := func(name string) int { return rapid.IntRange(0, 2).Draw(t, name) }
	for range few("envs") {
		i := rapid.IntRange(0, 7).Draw(t, "env")
		e := env(fmt.Sprint("e", i), fmt.Sprint("t", i%3))
		e.State = rapid.SampledFrom([]control.State{control.Starting, control.Ready, control.Stopping, control.Stopping, control.Dormant, control.Removed}).Draw(t, "state")
		e.Generation = rapid.Int64Range(1, 9).Draw(t, "generation")
		switch e.State {
		case control.Stopping:
			e.Teardown = &control.Teardown{Mode: rapid.SampledFrom([]control.TeardownMode{control.TeardownStop, control.TeardownRemove}).Draw(t, "mode")}
		case control.Removed:
			e.Tombstone = &control.Tombstone{At: control.At(at.Draw(t, "removed at"))}
		}
		b.Envs = append(b.Envs, e)
	}
	used := map[int]bool{} // one record of each exec, so that the model need not know what order two have
	for range few("execs") {
		i := rapid.IntRange(0, 9).Draw(t, "exec")
		if used[i] {
			continue
		}
		used[i] = true
		x := control.ExecRecord{Exec: fmt.Sprint("x", i), Env: "e", StartedAt: someTime}
		if i > 0 {
			x.ID = fmt.Sprint("id", i%4)
		}
		if rapid.Bool().Draw(t, "ended") {
			x.EndedAt = at.Draw(t, "ended at")
			x.End = &control.ExecEnd{ExitCode: few("exit code"), Stdout: rapid.SliceOf(rapid.Byte()).Draw(t, "stdout")}
		}
		b.Execs = append(b.Execs, x)
	}
	for range few("tasks") {
		b.Tasks = append(b.Tasks, control.TaskRecord{
			Owner: "hermes", Task: fmt.Sprint("t", rapid.IntRange(0, 4).Draw(t, "task")),
			Turn: rapid.Int64Range(1, 9).Draw(t, "turn"), Open: rapid.Bool().Draw(t, "open"),
		})
	}
	for range few("sessions") {
		b.Sessions = append(b.Sessions, control.SessionRecord{ID: fmt.Sprint("s", few("session")), Agent: rapid.String().Draw(t, "agent")})
	}
	for range few("deleted sessions") {
		b.DeleteSessions = append(b.DeleteSessions, fmt.Sprint("s", few("session")))
	}
	for range few("orphans") {
		b.Orphans = append(b.Orphans, control.Orphan{Name: fmt.Sprint("o", few("orphan")), Stopped: rapid.Bool().Draw(t, "stopped")})
	}
	for range few("deleted orphans") {
		b.DeleteOrphans = append(b.DeleteOrphans, fmt.Sprint("o", few("orphan")))
	}
	b.Ran = time.Duration(few("ran")) * time.Hour
	for range few("events") {
		e := event(control.EnvReady, fmt.Sprint("e", few("env")))
		e.Time = control.At(at.Draw(t, "at"))
		b.Events = append(b.Events, e)
	}
	return &b
})

// TestAStoreIsItsModel holds the store against the one in memory: what the one
// refuses the other refuses, and all that is read of them is the same.
func TestAStoreIsItsModel(t *testing.T) {
	dir, files := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		files++
		s := openAt(t, filepath.Join(dir, fmt.Sprint(files)), Options{})
		s.bolt.NoSync = true // what a crash leaves is another test's
		defer func() { shut(t, s) }()
		m := controltest.NewMemoryStore()
		var told, want []control.Event
		publish := func(evs []control.Event) { told = append(told, evs...) }
		s.Publish(publish)
		m.Publish(func(evs []control.Event) { want = append(want, evs...) })
		rt.Repeat(map[string]func(*rapid.T){
			"commit": func(rt *rapid.T) {
				b := batches.Draw(rt, "batch")
				ours := *b
				ours.Events = slices.Clone(b.Events)
				applied := false
				ours.Applied = func() { applied = true }
				err, wantErr := s.Commit(t.Context(), &ours), m.Commit(t.Context(), b)
				if (err == nil) != (wantErr == nil) {
					rt.Fatalf("Commit: %v, want %v", err, wantErr)
				}
				if err != nil && !errors.Is(err, ErrKeyHeld) && !errors.Is(err, ErrInvalid) {
					rt.Fatalf("Commit: %v, want a refusal", err)
				}
				if applied != (err == nil) {
					rt.Fatalf("applied: %v, although Commit: %v", applied, err)
				}
			},
			"prune": func(rt *rapid.T) {
				limit := func(what string) time.Time {
					if rapid.Bool().Draw(rt, "no "+what) {
						return time.Time{}
					}
					return someTime.Add(time.Duration(rapid.IntRange(0, 100).Draw(rt, what)) * time.Second)
				}
				p := control.PruneLimits{
					TombstonesBefore: limit("tombstones"), ExecsEndedBefore: limit("execs"), EventsBefore: limit("events"),
					EventsKeep: rapid.IntRange(0, 5).Draw(rt, "keep"),
				}
				if err := errors.Join(s.Prune(t.Context(), p), m.Prune(t.Context(), p)); err != nil {
					rt.Fatal(err)
				}
			},
			"reopen": func(rt *rapid.T) {
				shut(t, s)
				s = openAt(t, s.path, Options{})
				s.bolt.NoSync = true
				s.Publish(publish)
			},
			"": func(rt *rapid.T) {
				same(rt, "published", told, want)
				same(rt, "everything", reading(rt, s), reading(rt, m))
			},
		})
	})
}

// reading is all that can be read of a store whose batches came from batches.
func reading(t *rapid.T, s control.Store) map[string]any {
	t.Helper()
	all := map[string]any{}
	note := func(name string, v any, ok bool, err error) {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ok {
			all[name] = v
		}
	}
	r, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(r.Tasks, func(a, b control.TaskRecord) int { return strings.Compare(a.Task, b.Task) })
	all["records"] = r
	removed, err := s.RemovedEnvs()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range removed {
		note("listed "+e.ID, e, true, nil)
	}
	if !slices.IsSortedFunc(removed, func(a, b *control.Env) int { return a.Tombstone.At.Compare(b.Tombstone.At.Time) }) {
		t.Fatal("the removed are not in the order of their removal")
	}
	evs, first, last, err := s.Events(0, 1<<20, control.EventFilter{})
	note("events", evs, true, err)
	note("bounds", []uint64{first, last}, true, err)
	some, _, _, err := s.Events(first+1, 2, control.EventFilter{Env: "e1"})
	note("some events", some, true, err)
	for i := range 10 {
		e, ok, err := s.RemovedEnv(fmt.Sprint("e", i))
		note(fmt.Sprint("removed ", i), e, ok, err)
		x, ok, err := s.ExecByName(fmt.Sprint("x", i))
		note(fmt.Sprint("exec ", i), x, ok, err)
		x, ok, err = s.Exec("e", fmt.Sprint("id", i))
		note(fmt.Sprint("exec by id ", i), x, ok, err)
		k, ok, err := s.Task(control.TaskKey{Owner: "hermes", Task: fmt.Sprint("t", i)})
		note(fmt.Sprint("task ", i), k, ok, err)
	}
	return all
}

func same(t *rapid.T, what string, got, want any) {
	t.Helper()
	g, err1 := json.Marshal(got)
	w, err2 := json.Marshal(want)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if string(g) != string(w) {
		t.Fatalf("%s:\ngot  %s\nwant %s", what, g, w)
	}
}
