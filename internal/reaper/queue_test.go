package reaper

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAQueueIsItsModel holds the queue against a map that is searched.
func TestAQueueIsItsModel(t *testing.T) {
	type deadline struct {
		at  time.Time
		set int
	}
	start := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		var (
			q     = newQueue()
			model = map[string]deadline{}
			sets  int
			key   = rapid.Map(rapid.IntRange(0, 20), func(i int) string { return fmt.Sprint("k", i) })
			at    = rapid.Map(rapid.IntRange(0, 30), func(i int) time.Time { return start.Add(time.Duration(i) * time.Second) })
		)
		first := func() (key string, d deadline) {
			for k, m := range model {
				if key == "" || m.at.Before(d.at) || m.at.Equal(d.at) && m.set < d.set {
					key, d = k, m
				}
			}
			return key, d
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				sets++
				k, d := key.Draw(t, "key"), deadline{at.Draw(t, "at"), sets}
				q.set(k, d.at)
				model[k] = d
			},
			"clear": func(t *rapid.T) {
				k := key.Draw(t, "key")
				q.clear(k)
				delete(model, k)
			},
			"pop": func(t *rapid.T) {
				now := at.Draw(t, "now")
				want, d := first()
				wantOK := want != "" && !d.at.After(now)
				if !wantOK {
					want = ""
				}
				got, ok := q.popDue(now)
				if got != want || ok != wantOK {
					t.Fatalf("popped %q, %v, want %q, %v", got, ok, want, wantOK)
				}
				delete(model, got)
			},
			"": func(t *rapid.T) {
				_, d := first()
				at, ok := q.first()
				if !at.Equal(d.at) || ok != (len(model) > 0) {
					t.Fatalf("first is %v, %v, want %v of %d", at, ok, d.at, len(model))
				}
				if len(q.byKey) != len(model) || len(q.byTime) != len(model) {
					t.Fatalf("%d keys, %d deadlines, want %d", len(q.byKey), len(q.byTime), len(model))
				}
				for i, e := range q.byTime {
					if e.pos != i || q.byKey[e.key] != e {
						t.Fatalf("entry %d is lost: %+v", i, e)
					}
				}
			},
		})
	})
}

// BenchmarkSet moves one deadline of many, and BenchmarkPop takes the first and
// puts it back at the end: ten times the deadlines cost little more.
func BenchmarkSet(b *testing.B) { benchmarkQueue(b, (*queue).move) }
func BenchmarkPop(b *testing.B) { benchmarkQueue(b, (*queue).turn) }

func (q *queue) move(key string, at time.Time) { q.set(key, at) }

func (q *queue) turn(_ string, at time.Time) {
	key, _ := q.popDue(at.Add(1000 * time.Hour))
	q.set(key, at)
}

func benchmarkQueue(b *testing.B, step func(q *queue, key string, at time.Time)) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q, keys, start := newQueue(), make([]string, n), time.Now()
			any := func() time.Time { return start.Add(time.Duration(rand.Int64N(int64(time.Hour)))) }
			for i := range keys {
				keys[i] = fmt.Sprint("env:", i)
				q.set(keys[i], any())
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				step(q, keys[i%n], any())
			}
		})
	}
}
