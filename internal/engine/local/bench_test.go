package local

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest"
)

// BenchmarkCold makes, starts and reaches a sandbox where the stock is full, runs a
// first command, and reports the median and the least of each step. Its removal is not counted: nobody waits for it.
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
	fleet := guest.NewFleet(func(ctx context.Context, name string) (io.ReadWriteCloser, error) { return l.e.Dial(ctx, name) }, slog.New(slog.DiscardHandler))
	defer fleet.Close()
	for b.Loop() {
		l.e.fillStock()
		spec := l.spec(fmt.Sprintf("e%d", len(steps["all"])))
		timed("all", func() error {
			timed("create", func() error { _, err := l.e.Create(b.Context(), spec); return err })
			timed("start", func() error { return l.e.Start(b.Context(), spec.Name) })
			g := fleet.Guest(spec.Name)
			timed("reach", func() error { return g.Ping(b.Context()) })
			timed("command", func() error {
				if _, err := g.Start(b.Context(), control.ExecStart{Exec: "first", Argv: []string{"true"}, Workdir: "/workspace"}); err != nil {
					return err
				}
				_, err := g.Wait(b.Context(), "first", 1000)
				return err
			})
			return nil
		})
		timed("remove", func() error { return l.e.Remove(b.Context(), spec.Name, control.RemoveAll) })
	}
	for step, took := range steps {
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2], step+"-ms")
		b.ReportMetric(took[0], step+"-least-ms")
	}
	b.ReportMetric(0, "ns/op")
}
