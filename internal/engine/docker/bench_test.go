package docker

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// BenchmarkCold makes, starts and reaches a sandbox, in turns with what the
// docker command needs to run `true` in the same image, so that both meet the
// same machine. It reports medians. Our removal is not counted: nobody waits for it.
func BenchmarkCold(b *testing.B) {
	l := needLab(b)
	for _, way := range []string{LinkSocket, LinkAttach} {
		b.Run(way, func(b *testing.B) {
			opts := l.options(b)
			opts.Link = way
			e := open(b, opts)
			if err := e.Prepare(b.Context(), testImage); err != nil {
				b.Fatal(err)
			}
			spec := sandboxSpec(opts, testImage)
			spec.Network = "default"
			steps := make(map[string][]float64)
			timed := func(step string, do func() error) {
				began := time.Now()
				if err := do(); err != nil {
					b.Fatalf("%s: %v", step, err)
				}
				steps[step] = append(steps[step], float64(time.Since(began).Microseconds())/1e3)
			}
			for b.Loop() {
				spec.Name = fmt.Sprintf("sandkeeper-%s-%d", opts.Instance, len(steps["run"]))
				timed("run", func() error {
					cmd := exec.Command("docker", "run", "--rm", testImage, "true")
					cmd.Env = append(cmd.Environ(), "DOCKER_HOST="+l.host.Address)
					return cmd.Run()
				})
				timed("all", func() error {
					timed("create", func() error { _, err := e.Create(b.Context(), spec); return err })
					timed("start", func() error { return e.Start(b.Context(), spec.Name) })
					timed("dial", func() error { return greet(b, e, spec.Name) })
					return nil
				})
				if err := e.Remove(b.Context(), spec.Name, control.RemoveAll); err != nil {
					b.Fatal(err)
				}
			}
			for step, took := range steps {
				slices.Sort(took)
				b.ReportMetric(took[len(took)/2], step+"-ms")
			}
			run, all := steps["run"], steps["all"]
			b.ReportMetric(all[len(all)/2]/run[len(run)/2], "of-docker-run")
		})
	}
}

// greet has the guest echo one byte.
func greet(b *testing.B, e *Engine, name string) error {
	conn, err := e.Dial(b.Context(), name)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// BenchmarkList is a listing of ten sandboxes that run.
func BenchmarkList(b *testing.B) {
	l := needLab(b)
	opts := l.options(b)
	e := open(b, opts)
	for n := range 10 {
		spec := sandboxSpec(opts, testImage)
		spec.Name = fmt.Sprintf("%s-%d", spec.Name, n)
		if _, err := e.Create(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
		if err := e.Start(b.Context(), spec.Name); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := e.List(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
