package db

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sandkeeper/internal/control"
)

// model is what a Store promises, in maps.
type model struct {
	envs, removed map[string]*control.Env
	tasks         map[control.TaskKey]control.TaskRecord
	sessions      map[string]control.SessionRecord
	execs         map[string]control.ExecRecord
	ids           map[string]string // env and id → exec
	orphans       map[string]control.Orphan
	ran           time.Duration
	events        []control.Event // kept ones
	last          uint64
}

func newModel() *model {
	return &model{
		envs: map[string]*control.Env{}, removed: map[string]*control.Env{},
		tasks: map[control.TaskKey]control.TaskRecord{}, sessions: map[string]control.SessionRecord{},
		execs: map[string]control.ExecRecord{}, ids: map[string]string{}, orphans: map[string]control.Orphan{},
	}
}

// refusal is the error that a batch must get.
func (m *model) refusal(b *control.Batch) error {
	envs := maps.Clone(m.envs)
	for _, e := range b.Envs {
		delete(envs, e.ID)
	}
	for _, e := range b.Envs { // the last of an id counts
		if e.State != control.Removed {
			envs[e.ID] = e
		} else {
			delete(envs, e.ID)
		}
	}
	holders := map[control.Key]int{}
	for _, e := range envs {
		if m.removed[e.ID] != nil {
			return ErrInvalid
		}
		if e.Holder() {
			holders[e.Key()]++
		}
	}
	for _, n := range holders {
		if n > 1 {
			return ErrKeyHeld
		}
	}
	execs := maps.Clone(m.execs)
	for _, x := range b.Execs {
		execs[x.Exec] = x
	}
	running := map[string]int{}
	for _, x := range execs {
		if x.ID != "" && x.EndedAt.IsZero() {
			running[x.ID]++
		}
	}
	for _, n := range running {
		if n > 1 {
			return ErrInvalid
		}
	}
	return nil
}

func (m *model) commit(b *control.Batch) {
	for _, e := range b.Envs {
		delete(m.envs, e.ID)
	}
	for _, e := range b.Envs {
		delete(m.removed, e.ID)
		delete(m.envs, e.ID)
		if e.State == control.Removed {
			m.removed[e.ID] = e
		} else {
			m.envs[e.ID] = e
		}
	}
	for _, x := range b.Execs {
		m.execs[x.Exec] = x
		if _, taken := m.ids[x.ID]; x.ID != "" && (x.EndedAt.IsZero() || !taken) {
			m.ids[x.ID] = x.Exec
		}
	}
	for _, t := range b.Tasks {
		m.tasks[t.Key()] = t
	}
	for _, s := range b.Sessions {
		m.sessions[s.ID] = s
	}
	for _, id := range b.DeleteSessions {
		delete(m.sessions, id)
	}
	for _, o := range b.Orphans {
		m.orphans[o.Name] = o
	}
	for _, name := range b.DeleteOrphans {
		delete(m.orphans, name)
	}
	if b.Ran != 0 {
		m.ran = b.Ran
	}
	for _, e := range b.Events {
		m.last++
		e.Seq = m.last
		m.events = append(m.events, e)
	}
}

func (m *model) prune(p control.PruneLimits) {
	maps.DeleteFunc(m.removed, func(_ string, e *control.Env) bool { return e.Tombstone.At.Before(p.TombstonesBefore) })
	maps.DeleteFunc(m.execs, func(_ string, x control.ExecRecord) bool {
		return !x.EndedAt.IsZero() && x.EndedAt.Before(p.ExecsEndedBefore)
	})
	maps.DeleteFunc(m.ids, func(_, exec string) bool { _, kept := m.execs[exec]; return !kept })
	for len(m.events) > 0 {
		old := m.events[0].Time.Before(p.EventsBefore)
		beyond := p.EventsKeep > 0 && len(m.events) > p.EventsKeep
		if !old && !beyond {
			break
		}
		m.events = m.events[1:]
	}
	if len(m.events) == 0 {
		m.events = nil
	}
}

// records is what Load must return.
func (m *model) records() *control.Records {
	r := &control.Records{Envs: sorted(m.envs), Sessions: sorted(m.sessions), Orphans: sorted(m.orphans), Ran: m.ran}
	for _, x := range sorted(m.execs) {
		if x.EndedAt.IsZero() {
			r.Execs = append(r.Execs, x)
		}
	}
	for k, t := range m.tasks {
		live := t.Open
		for _, e := range m.envs {
			live = live || e.Owner == k.Owner && e.Task == k.Task
		}
		if live {
			r.Tasks = append(r.Tasks, t)
		}
	}
	sortTasks(r.Tasks)
	return r
}

func sorted[T any](m map[string]T) (list []T) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[k])
	}
	return list
}

func sortTasks(tasks []control.TaskRecord) {
	slices.SortFunc(tasks, func(a, b control.TaskRecord) int {
		return slices.Compare([]string{a.Owner, a.Task}, []string{b.Owner, b.Task})
	})
}

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

func TestAStoreIsItsModel(t *testing.T) {
	dir, files := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		files++
		s := openAt(t, filepath.Join(dir, fmt.Sprint(files)), Options{})
		defer func() { shut(t, s) }()
		m := newModel()
		var published []control.Event
		publish := func(evs []control.Event) { published = append(published, evs...) }
		s.Publish(publish)
		rt.Repeat(map[string]func(*rapid.T){
			"commit": func(rt *rapid.T) {
				b := batches.Draw(rt, "batch")
				want := m.refusal(b)
				applied := false
				b.Applied = func() { applied = true }
				err := s.Commit(t.Context(), b)
				if want == nil && err != nil || want != nil && !errors.Is(err, ErrKeyHeld) && !errors.Is(err, ErrInvalid) {
					rt.Fatalf("Commit: %v, want %v", err, want)
				}
				if applied != (err == nil) {
					rt.Fatalf("applied: %v, although Commit: %v", applied, err)
				}
				if err == nil {
					m.commit(b)
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
				if err := s.Prune(t.Context(), p); err != nil {
					rt.Fatal(err)
				}
				m.prune(p)
			},
			"reopen": func(rt *rapid.T) {
				shut(t, s)
				s = openAt(t, s.path, Options{})
				s.Publish(publish)
			},
			"": func(rt *rapid.T) {
				compare(rt, s, m)
				if n := uint64(len(published)); n != m.last || n > 0 && published[n-1].Seq != n {
					rt.Fatalf("%d events were published, want %d", n, m.last)
				}
			},
		})
	})
}

// compare wants every reading of the store to be the model's.
func compare(t *rapid.T, s *Store, m *model) {
	t.Helper()
	r, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sortTasks(r.Tasks)
	same(t, "records", r, m.records())
	removed, err := s.RemovedEnvs()
	if err != nil {
		t.Fatal(err)
	}
	byID := map[string]*control.Env{}
	for _, e := range removed {
		byID[e.ID] = e
	}
	same(t, "removed", byID, m.removed)
	evs, first, last, err := s.Events(0, 1<<20, control.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "events", evs, m.events)
	if len(m.events) > 0 && first != m.events[0].Seq || len(m.events) == 0 && first != 0 || last != m.last {
		t.Fatalf("the log goes from %d to %d", first, last)
	}
	execs, ids := map[string]control.ExecRecord{}, map[string]string{}
	for i := range 10 {
		name := fmt.Sprint("x", i)
		x, ok, err := s.ExecByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			execs[name] = x
		}
		id := fmt.Sprint("id", i)
		if x, ok, err = s.Exec("e", id); err != nil {
			t.Fatal(err)
		}
		if ok {
			ids[id] = x.Exec
		}
	}
	same(t, "execs", execs, m.execs)
	same(t, "ids", ids, m.ids)
	for k, want := range m.tasks {
		got, ok, err := s.Task(k)
		if err != nil || !ok {
			t.Fatalf("task %v: %v, %v", k, ok, err)
		}
		same(t, "task", got, want)
	}
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
