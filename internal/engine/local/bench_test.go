package local

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// BenchmarkCold makes, starts and reaches a sandbox, and reports the median of
// each step. Its removal is not counted: nobody waits for it.
func BenchmarkCold(b *testing.B) {
	l := newLab(b)
	steps := make(map[string][]float64)
	timed := func(step string, do func() error) {
		began := time.Now()
		if err := do(); err != nil {
			b.Fatalf("%s: %v", step, err)
		}
		steps[step] = append(steps[step], float64(time.Since(began).Microseconds())/1e3)
	}
	for b.Loop() {
		spec := l.spec(fmt.Sprintf("e%d", len(steps["all"])))
		timed("all", func() error {
			timed("create", func() error { _, err := l.e.Create(b.Context(), spec); return err })
			timed("start", func() error { return l.e.Start(b.Context(), spec.Name) })
			timed("dial", func() error {
				conn, err := l.e.Dial(b.Context(), spec.Name)
				if err != nil {
					return err
				}
				return conn.Close()
			})
			return nil
		})
		timed("remove", func() error { return l.e.Remove(b.Context(), spec.Name, control.RemoveAll) })
	}
	for step, took := range steps {
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2], step+"-ms")
	}
	b.ReportMetric(0, "ns/op")
}
