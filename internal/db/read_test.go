package db

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

func TestLoadReadsWhatIsLive(t *testing.T) {
	s := open(t)
	commit(t, s, &control.Batch{
		Envs: []*control.Env{env("a", "t1"), gone("b", "t2", someTime)},
		Tasks: []control.TaskRecord{
			{Owner: "hermes", Task: "t1", Turn: 1},
			{Owner: "hermes", Task: "t2", Turn: 2},
			{Owner: "hermes", Task: "t3", Turn: 3, Open: true},
			{Owner: "hermes", Task: "t4", Turn: 4, Open: true},
			{Owner: "other", Task: "t1", Turn: 5},
		},
		Sessions: []control.SessionRecord{{ID: "s1"}, {ID: "s2"}},
		Execs: []control.ExecRecord{
			{Exec: "x1", Env: "a", ID: "1"},
			{Exec: "x2", Env: "a", ID: "2", EndedAt: someTime, End: &control.ExecEnd{ExitCode: 3, Stdout: []byte("\xff\x00out")}},
			{Exec: "x3", Env: "a"},
		},
		Orphans: []control.Orphan{{Name: "o1"}, {Name: "o2"}},
		Ran:     time.Hour,
	})
	commit(t, s, &control.Batch{
		Tasks:          []control.TaskRecord{{Owner: "hermes", Task: "t4", Turn: 4}},
		DeleteSessions: []string{"s1", "never"},
		DeleteOrphans:  []string{"o2", "never"},
	})
	s = reopen(t, s)
	r, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range r.Envs {
		got = append(got, "env "+e.ID)
	}
	for _, task := range r.Tasks {
		got = append(got, fmt.Sprintf("task %s %s %d", task.Owner, task.Task, task.Turn))
	}
	for _, x := range r.Sessions {
		got = append(got, "session "+x.ID)
	}
	for _, x := range r.Execs {
		got = append(got, "exec "+x.Exec)
	}
	for _, o := range r.Orphans {
		got = append(got, "orphan "+o.Name)
	}
	got = append(got, r.Ran.String())
	want := []string{"env a", "task hermes t1 1", "task hermes t3 3", "session s2", "exec x1", "exec x3", "orphan o1", "1h0m0s"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	x, ok, err := s.Exec("a", "2")
	if err != nil || !ok || x.Exec != "x2" || string(x.End.Stdout) != "\xff\x00out" {
		t.Errorf("the ended exec: %+v, %v, %v", x, ok, err)
	}
	if task, ok, err := s.Task(control.TaskKey{Owner: "hermes", Task: "t2"}); err != nil || !ok || task.Turn != 2 {
		t.Errorf("the task that is not live: %+v, %v, %v", task, ok, err)
	}
	if b, ok, err := s.RemovedEnv("b"); err != nil || !ok || b.Tombstone.Reason != "turn ended" {
		t.Errorf("the removed one: %+v, %v, %v", b, ok, err)
	}
}

func TestWhatIsNotThereIsNoError(t *testing.T) {
	s := open(t)
	_, task, err1 := s.Task(control.TaskKey{Owner: "o", Task: "t"})
	_, exec, err2 := s.Exec("e", "id")
	_, named, err3 := s.ExecByName("x")
	_, removed, err4 := s.RemovedEnv("e")
	if task || exec || named || removed {
		t.Errorf("found %v, %v, %v, %v", task, exec, named, removed)
	}
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestEventsByNumberAndFilter(t *testing.T) {
	s := open(t)
	if ev, first, last, err := s.Events(0, 10, control.EventFilter{}); err != nil || first != 0 || last != 0 || ev != nil {
		t.Errorf("of an empty log: %v, %d, %d, %v", ev, first, last, err)
	}
	var b control.Batch
	for i := range 20 {
		e := event([]control.EventKind{control.EnvReady, control.EnvStopping}[i%2], fmt.Sprint("e", i%4))
		if i%5 == 0 {
			e.Owner = `<"Ωwner">`
			e.Data = map[string]any{"note": "env.stopping", "n": 7}
		}
		b.Events = append(b.Events, e)
	}
	commit(t, s, &b)
	for name, tc := range map[string]struct {
		after  uint64
		limit  int
		filter control.EventFilter
		want   []uint64
	}{
		"all":              {0, 100, control.EventFilter{}, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}},
		"after":            {17, 100, control.EventFilter{}, []uint64{18, 19, 20}},
		"limit":            {3, 2, control.EventFilter{}, []uint64{4, 5}},
		"none":             {0, 0, control.EventFilter{}, nil},
		"beyond":           {20, 10, control.EventFilter{}, nil},
		"far beyond":       {1<<64 - 1, 10, control.EventFilter{}, nil},
		"env":              {0, 100, control.EventFilter{Env: "e3"}, []uint64{4, 8, 12, 16, 20}},
		"kind":             {10, 3, control.EventFilter{Kind: control.EnvStopping}, []uint64{12, 14, 16}},
		"owner":            {0, 100, control.EventFilter{Owner: `<"Ωwner">`}, []uint64{1, 6, 11, 16}},
		"all three":        {0, 100, control.EventFilter{Owner: `<"Ωwner">`, Env: "e3", Kind: control.EnvStopping}, []uint64{16}},
		"not in the data":  {0, 100, control.EventFilter{Owner: `<"Ωwner">`, Env: "e0", Kind: control.EnvStopping}, nil},
		"part of a name":   {0, 100, control.EventFilter{Env: "e"}, nil},
		"nobody's":         {0, 100, control.EventFilter{Owner: "nobody"}, nil},
		"limit and filter": {0, 2, control.EventFilter{Env: "e3"}, []uint64{4, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			evs, first, last, err := s.Events(tc.after, tc.limit, tc.filter)
			if err != nil || first != 1 || last != 20 {
				t.Errorf("bounds %d to %d, %v", first, last, err)
			}
			var got []uint64
			for _, e := range evs {
				got = append(got, e.Seq)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestPruneDropsWhatIsPastItsTime(t *testing.T) {
	s := open(t)
	var b control.Batch
	const n = 3*pruneChunk + 7 // several transactions
	for i := range n {
		at := someTime.Add(time.Duration(i) * time.Second)
		id := fmt.Sprintf("e%05d", i)
		b.Envs = append(b.Envs, gone(id, id, at))
		b.Execs = append(b.Execs, control.ExecRecord{Exec: "x" + id, Env: id, ID: "1", EndedAt: at})
		e := event(control.EnvRemoved, id)
		e.Time = control.At(at)
		b.Events = append(b.Events, e)
	}
	b.Execs = append(b.Execs, control.ExecRecord{Exec: "running", Env: "e", ID: "r", StartedAt: someTime.Add(-time.Hour)})
	commit(t, s, &b)
	prune := func(p control.PruneLimits) {
		t.Helper()
		if err := s.Prune(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	before := transactions(t, s)
	prune(control.PruneLimits{})
	prune(control.PruneLimits{TombstonesBefore: someTime, ExecsEndedBefore: someTime, EventsBefore: someTime, EventsKeep: n})
	if got := transactions(t, s); got != before {
		t.Errorf("nothing was due, and %d transactions were made", got-before)
	}
	const old = 2*pruneChunk + 3
	limit := someTime.Add(old * time.Second)
	prune(control.PruneLimits{TombstonesBefore: limit, ExecsEndedBefore: limit, EventsBefore: limit})
	envs, err := s.RemovedEnvs()
	if err != nil || len(envs) != n-old || envs[0].ID != fmt.Sprintf("e%05d", old) {
		t.Errorf("%d tombstones, %v, want %d", len(envs), err, n-old)
	}
	for i, want := range map[int]bool{0: false, old - 1: false, old: true, n - 1: true} {
		id := fmt.Sprintf("e%05d", i)
		_, byID, err1 := s.Exec(id, "1")
		_, byName, err2 := s.ExecByName("x" + id)
		if byID != want || byName != want || err1 != nil || err2 != nil {
			t.Errorf("exec %d: by id %v, by name %v, %v, %v, want %v", i, byID, byName, err1, err2, want)
		}
	}
	if _, ok, err := s.ExecByName("running"); !ok || err != nil {
		t.Errorf("the running exec: %v, %v", ok, err)
	}
	if ev, first, last, err := s.Events(0, 1, control.EventFilter{}); err != nil || first != old+1 || last != n || ev[0].Seq != first {
		t.Errorf("events %v from %d to %d, %v", ev, first, last, err)
	}
	prune(control.PruneLimits{EventsKeep: 10})
	if _, first, last, err := s.Events(0, 1, control.EventFilter{}); err != nil || first != n-9 || last != n {
		t.Errorf("events from %d to %d, %v", first, last, err)
	}
	prune(control.PruneLimits{EventsBefore: limit.Add(24 * time.Hour)})
	s = reopen(t, s)
	if _, first, last, err := s.Events(0, 1, control.EventFilter{}); err != nil || first != 0 || last != n {
		t.Errorf("an emptied log from %d to %d, %v", first, last, err)
	}
	commit(t, s, &control.Batch{Events: []control.Event{event(control.EnvReady, "a")}})
	if _, first, last, err := s.Events(0, 1, control.EventFilter{}); err != nil || first != n+1 || last != n+1 {
		t.Errorf("after an emptied log from %d to %d, %v: the counter must go on", first, last, err)
	}
}

func TestATombstoneMayBeWrittenAgain(t *testing.T) {
	s := open(t)
	commit(t, s, &control.Batch{Envs: []*control.Env{gone("a", "t", someTime)}})
	commit(t, s, &control.Batch{Envs: []*control.Env{gone("a", "t", someTime.Add(time.Hour))}})
	if err := s.Prune(t.Context(), control.PruneLimits{TombstonesBefore: someTime.Add(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	if envs, err := s.RemovedEnvs(); err != nil || len(envs) != 1 {
		t.Errorf("%d tombstones, %v, want 1", len(envs), err)
	}
}
