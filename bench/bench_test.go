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

	"sandkeeper/client"
	"sandkeeper/internal/control"
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
	b.ReportMetric(float64(slices.Min(our).Microseconds())/1000, "least-ms/"+ours)
	b.ReportMetric(float64(t.Microseconds())/1000, "ms/"+theirs)
	b.ReportMetric(float64(t)/float64(o), "times-"+ours)
}

func run(a *test.Agent, env string) {
	a.Run(env, client.RunRequest{Argv: []string{"true"}})
}

func docker(b *testing.B, args ...string) {
	b.Helper()
	if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
		b.Fatalf("docker %v: %v: %s", args, err, out)
	}
}

// block is how many of one kind run before the other's turn: the engine goes on
// with an exec of its own for a while after it has answered, which would
// otherwise weigh on each of ours.
const block = 5

// BenchmarkExec runs true in one sandbox: over the agent's socket, and by docker
// exec, in blocks. A named one has an id, so that it can be asked again and
// never runs twice: its start and its end are on disk before it is answered.
func BenchmarkExec(b *testing.B) {
	s := test.Engine("docker").Start(b)
	agent := s.Agent(b, "bench")
	env := agent.Acquire(client.AcquireRequest{Task: "exec"}).Env
	c, ok := s.Container(b, env.ID)
	if !ok {
		b.Fatal("the sandbox has no container")
	}
	unnamed := func() {
		if err := agent.Call(b.Context(), "exec.run", map[string]any{"env": env.ID, "argv": []string{"true"}}, new(client.RunResult)); err != nil {
			b.Fatal(err)
		}
	}
	for name, ours := range map[string]func(){"unnamed": unnamed, "named": func() { run(agent, env.ID) }} {
		b.Run(name, func(b *testing.B) {
			var our, their []time.Duration
			for b.Loop() {
				for range block {
					our = append(our, timed(ours))
				}
				for range block {
					their = append(their, timed(func() { docker(b, "exec", c.ID, "true") }))
				}
			}
			report(b, "exec.run", our, "docker-exec", their)
		})
	}
}

// BenchmarkFirstResult goes from nothing to the result of a first command: an
// acquire and an exec.run on each engine, and docker run. Docker has nothing warm;
// the local engine holds a sandbox that is nobody's yet, and a loop of this pace
// finds one each time.
func BenchmarkFirstResult(b *testing.B) {
	image := test.OpenDocker(b).Image
	engines := []*firstResults{{name: "docker", s: test.Engine("docker").Start(b)}, {name: "local", s: test.Engine("local").Start(b)}}
	for _, e := range engines {
		e.agent = e.s.Agent(b, "bench")
		e.once(b) // the guest is on the engine now
		e.took = nil
	}
	var theirs []time.Duration
	for b.Loop() {
		for _, e := range engines {
			e.once(b)
		}
		theirs = append(theirs, timed(func() { docker(b, "run", "--rm", image, "true") }))
	}
	for _, e := range engines {
		report(b, "acquire+exec.run-"+e.name, e.took, "docker-run", theirs)
	}
}

// firstResults are those of one server.
type firstResults struct {
	name  string
	s     *test.Server
	agent *test.Agent
	made  int
	took  []time.Duration
}

func (f *firstResults) once(b *testing.B) {
	task := fmt.Sprintf("task-%d", f.made)
	f.made++
	var id string
	f.took = append(f.took, timed(func() {
		id = f.agent.Acquire(client.AcquireRequest{Task: task}).Env.ID
		run(f.agent, id)
	}))
	f.agent.EndTurn(task)
	f.s.Events().Wait(b, "the sandbox is gone", test.Is(control.EnvRemoved, id))
}
