package reaper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/db"
)

// BenchmarkDeadlineToDue spreads deadlines over a time and tells how late the
// plane was asked about each.
func BenchmarkDeadlineToDue(b *testing.B) {
	for _, bm := range []struct {
		name   string
		n      int
		spread time.Duration
	}{
		{"10000 in 2 s", 10_000, 2 * time.Second},
		{"10000 at once", 10_000, 0},
		{"100000 in 2 s", 100_000, 2 * time.Second},
		{"100000 at once", 100_000, 0},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var late []time.Duration
			for b.Loop() {
				late = append(late, lateness(bm.n, 0, bm.spread, nil)...)
			}
			report(b, late)
		})
	}
}

// BenchmarkDeadlineToDisk tells how late each decision was on disk, with 10,000
// environments recorded and each with a deadline.
func BenchmarkDeadlineToDisk(b *testing.B) {
	const recorded = 10_000
	for _, bm := range []struct {
		name   string
		n      int
		spread time.Duration
	}{
		{"200 in 1 s", 200, time.Second},
		{"1000 in 1 s", 1000, time.Second},
		{"1000 at once", 1000, 0},
	} {
		b.Run(bm.name, func(b *testing.B) {
			store, err := db.Open(filepath.Join(b.TempDir(), "db"), db.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer store.Close()
			var all control.Batch
			for i := range recorded {
				all.Envs = append(all.Envs, env(strconv.Itoa(i)))
			}
			if err := store.Commit(b.Context(), &all); err != nil {
				b.Fatal(err)
			}
			decide := func(key string) {
				batch := &control.Batch{
					Envs:   []*control.Env{env(key)},
					Events: []control.Event{{Time: control.At(time.Now()), Kind: control.EnvStopping, Env: key, Actor: control.ActorReaper}},
				}
				if err := store.Commit(context.Background(), batch); err != nil {
					b.Error(err)
				}
			}
			var late []time.Duration
			for b.Loop() {
				late = append(late, lateness(bm.n, recorded-bm.n, bm.spread, decide)...)
			}
			report(b, late)
		})
	}
}

func env(id string) *control.Env {
	return &control.Env{ID: id, Owner: "hermes", Task: id, Name: "main", State: control.Ready, Lifetime: 5 * time.Minute}
}

func report(b *testing.B, late []time.Duration) {
	slices.Sort(late)
	at := func(q float64) float64 { return float64(late[int(q*float64(len(late)-1))].Microseconds()) / 1000 }
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(at(1), "max-ms")
}

// lateness lets n deadlines come due over a time, beside others that do not,
// and returns how long after its deadline each was dealt with: decide is called with it. nil: at once.
func lateness(n, others int, spread time.Duration, decide func(key string)) []time.Duration {
	var (
		p     = &benchPlane{}
		r     = newReaper(Options{})
		done  sync.WaitGroup
		late  = make([]time.Duration, n)
		times = make([]time.Time, n)
		base  = time.Now().Add(500 * time.Millisecond)
	)
	done.Add(n)
	p.due = func(key string) {
		i, _ := strconv.Atoi(key)
		if decide != nil {
			decide(key)
		}
		late[i] = time.Since(times[i])
		done.Done()
	}
	for i := range times {
		times[i] = base
		if spread > 0 {
			times[i] = base.Add(time.Duration(rand.Int64N(int64(spread))))
		}
		r.Set(strconv.Itoa(i), times[i])
	}
	for i := range others {
		r.Set(fmt.Sprint("other ", i), base.Add(time.Hour))
	}
	r.Start(context.Background(), p)
	done.Wait()
	r.Stop()
	return late
}

// benchPlane does nothing but deal with a deadline.
type benchPlane struct {
	Plane
	due func(key string)
}

func (*benchPlane) Now() time.Time { return time.Now() }

func (p *benchPlane) Due(_ context.Context, key string) bool {
	p.due(key)
	return false
}

func (*benchPlane) Reconcile(context.Context, []control.SandboxStatus, time.Time) error { return nil }
func (*benchPlane) EngineSeen(context.Context, control.EngineInfo, error)               {}
func (*benchPlane) Housekeep(context.Context)                                           {}
