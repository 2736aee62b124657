package control_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
	"sandkeeper/internal/db"
)

const recorded = 10_000

// recordedPlane is a plane on a real database that has 10,000 environments
// recorded, each of a task of its own, "t0" and on.
func recordedPlane(b *testing.B) (*control.Plane, *control.Session, control.Store) {
	b.Helper()
	store, err := db.Open(filepath.Join(b.TempDir(), "db"), db.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	store.Publish(func([]control.Event) {})
	now := time.Now()
	for i := 0; i < recorded; i += 1000 {
		var batch control.Batch
		for n := range 1000 {
			id, task := fmt.Sprintf("e%09d", i+n), fmt.Sprintf("t%d", i+n)
			spec := control.Spec{Image: "debian", Network: "default", Workdir: "/workspace", Persistent: true}
			batch.Envs = append(batch.Envs, &control.Env{
				ID: id, Owner: "default", Task: task, Name: "main", State: control.Ready, Generation: 1, Persistent: true,
				Asked: spec, Applied: spec, Lifetime: 24 * time.Hour, CreatedAt: now, StartedAt: now, Files: true,
			})
			batch.Tasks = append(batch.Tasks, control.TaskRecord{
				Owner: "default", Task: task, Generations: map[string]int64{"main": 1}, Latest: map[string]string{"main": id},
			})
		}
		if err := store.Commit(b.Context(), &batch); err != nil {
			b.Fatal(err)
		}
	}
	engine := controltest.NewEngine()
	p, err := control.Open(b.Context(), control.Options{
		Instance: "bench", Store: store, Engine: engine, Guests: controltest.NewGuests(engine), Alarms: controltest.NewAlarms(), Image: "debian",
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close(context.Background()) }) //nolint:errcheck // the data go with the test
	s, _, err := p.Hello(b.Context(), "default", control.Hello{Agent: "bench"}, &sink{})
	if err != nil {
		b.Fatal(err)
	}
	return p, s, store
}

// quantiles reports the median and the p99 of durations in milliseconds.
func quantiles(b *testing.B, what string, ds []time.Duration) {
	b.Helper()
	slices.Sort(ds)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(ds[len(ds)/2]), what+"-p50-ms")
	b.ReportMetric(ms(ds[len(ds)*99/100]), what+"-p99-ms")
}

// BenchmarkTurnEnd is a durable turn.end with 10,000 environments recorded,
// beside a lone commit of the same database in the same run.
func BenchmarkTurnEnd(b *testing.B) {
	_, s, store := recordedPlane(b)
	var ends, lone []time.Duration
	for i := 0; b.Loop(); i++ {
		task := fmt.Sprintf("t%d", i%recorded)
		if _, _, err := s.TurnBegin(b.Context(), task); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		end, err := s.TurnEnd(b.Context(), control.TurnEndRequest{Task: task})
		ends = append(ends, time.Since(began))
		if err != nil || len(end.Decisions) != 1 {
			b.Fatal(end, err)
		}
		began = time.Now()
		if err := store.Commit(b.Context(), &control.Batch{Ran: time.Duration(i + 1)}); err != nil {
			b.Fatal(err)
		}
		lone = append(lone, time.Since(began))
	}
	quantiles(b, "end", ends)
	quantiles(b, "lone", lone)
}

// BenchmarkTurnEndBurst is 1,000 turn.end at once, from the first call to the last answer.
func BenchmarkTurnEndBurst(b *testing.B) {
	_, s, _ := recordedPlane(b)
	const burst = 1000
	var bursts []time.Duration
	each := func(n int, f func(task string) error) {
		var wg sync.WaitGroup
		for i := range burst {
			wg.Go(func() {
				if err := f(fmt.Sprintf("t%d", (n*burst+i)%recorded)); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for n := 0; b.Loop(); n++ {
		each(n, func(task string) error { _, _, err := s.TurnBegin(b.Context(), task); return err })
		began := time.Now()
		each(n, func(task string) error {
			_, err := s.TurnEnd(b.Context(), control.TurnEndRequest{Task: task})
			return err
		})
		bursts = append(bursts, time.Since(began))
	}
	quantiles(b, "burst", bursts)
}

// BenchmarkExec is what the plane itself adds to a command: its holds, its
// countdown and its alarms, on a guest that answers at once.
func BenchmarkExec(b *testing.B) {
	engine := controltest.NewEngine()
	p, err := control.Open(b.Context(), control.Options{
		Instance: "bench", Store: controltest.NewMemoryStore(), Engine: engine, Guests: controltest.NewGuests(engine), Alarms: controltest.NewAlarms(), Image: "debian",
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close(context.Background()) }) //nolint:errcheck // nothing is kept
	s, _, err := p.Hello(b.Context(), "default", control.Hello{Agent: "bench"}, &sink{})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Acquire(b.Context(), control.AcquireRequest{Task: "t"}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Run(b.Context(), control.RunRequest{Ref: control.Ref{Task: "t"}, Argv: []string{"true"}}); err != nil {
			b.Fatal(err)
		}
	}
}
