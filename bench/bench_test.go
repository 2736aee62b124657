// Package bench measures the server against the engine's own tools, in one run
// and in pairs, so that what the machine does meanwhile meets both. Each
// benchmark reports medians of its pairs:
//
//	make bench
package bench

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"sandkeeper/test"
)

func TestMain(m *testing.M) { test.Main(m) }

// timed runs f and returns how long it took.
func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// report gives the medians in milliseconds, and how many times ours goes into theirs.
func report(b *testing.B, ours string, our []time.Duration, theirs string, their []time.Duration) {
	o, t := median(our), median(their)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(o.Microseconds())/1000, "ms/"+ours)
	b.ReportMetric(float64(t.Microseconds())/1000, "ms/"+theirs)
	b.ReportMetric(float64(t)/float64(o), "times")
}

func docker(b *testing.B, args ...string) {
	b.Helper()
	if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
		b.Fatalf("docker %v: %v: %s", args, err, out)
	}
}
