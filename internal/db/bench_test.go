package db

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// filled opens a store with that many environments.
func filled(b *testing.B, n int) *Store {
	b.Helper()
	s := open(b)
	var batch control.Batch
	for i := range n {
		id := fmt.Sprint("e", i)
		batch.Envs = append(batch.Envs, env(id, id))
		batch.Tasks = append(batch.Tasks, control.TaskRecord{Owner: "hermes", Task: id, Turn: 1})
	}
	commit(b, s, &batch)
	return s
}

// turnEnd is a batch such as the end of a turn makes.
func turnEnd(i int) *control.Batch {
	id := fmt.Sprint("e", i)
	return &control.Batch{
		Envs:   []*control.Env{env(id, id)},
		Tasks:  []control.TaskRecord{{Owner: "hermes", Task: id, Turn: 2}},
		Events: []control.Event{event(control.TurnEnded, id)},
	}
}

// The number recorded is that of the bar that turn ends are held to.
const recorded = 10_000

func BenchmarkCommitAlone(b *testing.B) {
	s := filled(b, recorded)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		commit(b, s, turnEnd(i*7919%recorded))
		took = append(took, time.Since(began))
	}
	report(b, took)
}

// BenchmarkCommitTogether is 1,000 callers at once: one operation is all of them.
func BenchmarkCommitTogether(b *testing.B) {
	const callers = 1000
	s := filled(b, recorded)
	before := transactions(b, s)
	took := make([]time.Duration, 0, callers*b.N)
	var mu sync.Mutex
	n := 0
	for b.Loop() {
		n++
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				began := time.Now()
				if err := s.Commit(b.Context(), turnEnd((n*callers+i)*7919%recorded)); err != nil {
					b.Error(err)
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(transactions(b, s)-before)/float64(n), "tx/op")
	report(b, took)
}

func BenchmarkLoad(b *testing.B) {
	s := filled(b, recorded)
	for b.Loop() {
		if _, err := s.Load(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000 }
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
}
