// Agent plays an AI agent that works on several tasks at once, so that there is
// something to watch on Sandkeeper's page. Each task takes turns: the agent
// acquires its sandbox, runs a few commands, thinks in between, and ends the
// turn. Every other task's sandbox is persistent and keeps its notes from turn
// to turn; those of the others go with the turn.
//
//	SANDKEEPER_AGENT_TOKEN=$(cat data/agent.token) go run ./examples/agent
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandkeeper/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

type settings struct {
	url, token string
	tasks      int
	rounds     int
	think      time.Duration
	lifetime   time.Duration
}

func parse(args []string) (s settings, err error) {
	f := flag.NewFlagSet("agent", flag.ContinueOnError)
	f.StringVar(&s.url, "url", "http://127.0.0.1:7333", "the server")
	f.StringVar(&s.token, "token", "", "an agent's token (default $SANDKEEPER_AGENT_TOKEN)")
	f.IntVar(&s.tasks, "tasks", 4, "how many tasks to work on at once")
	f.IntVar(&s.rounds, "rounds", 3, "how many turns each task takes")
	f.DurationVar(&s.think, "think", 3*time.Second, "how long the agent thinks between two commands")
	f.DurationVar(&s.lifetime, "lifetime", time.Minute, "how long a persistent sandbox may be idle")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.token == "" {
		s.token = os.Getenv("SANDKEEPER_AGENT_TOKEN")
	}
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("what is %q? there are flags only", f.Arg(0))
	case s.token == "":
		return s, errors.New("a token is needed: --token or SANDKEEPER_AGENT_TOKEN; the server keeps one in agent.token of its data directory")
	case s.tasks < 1 || s.rounds < 1:
		return s, errors.New("--tasks and --rounds take 1 or more")
	case s.think < 0:
		return s, errors.New("--think takes no negative duration")
	case s.lifetime < time.Second:
		return s, errors.New("--lifetime takes 1s or more")
	}
	return s, nil
}

func run(ctx context.Context, args []string) error {
	s, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, client.Options{
		URL:     s.url,
		Token:   s.token,
		Agent:   "example",
		Version: "1",
		OnDropped: func(error) {
			fmt.Println("· the connection dropped; trying again, the sandboxes go on")
		},
		OnEnvExpiring: func(x client.Expiring) {
			fmt.Printf("· sandbox %s is idle and goes to sleep in %d s\n", x.Env, x.SecondsLeft)
		},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	h := c.Hello()
	fmt.Printf("connected to %s %s; %d tasks, %d turns each; Ctrl-C ends it\n", h.Server.Name, h.Server.Version, s.tasks, s.rounds)

	failures := make([]error, s.tasks)
	var work sync.WaitGroup
	for i := range s.tasks {
		w := &worker{c: c, s: s, task: taskName(i), persistent: i%2 == 0}
		work.Go(func() { failures[i] = w.work(ctx) })
	}
	work.Wait()
	if ctx.Err() != nil {
		fmt.Println("stopped; the open turns are ended")
		return nil
	}
	if err := errors.Join(failures...); err != nil {
		return err
	}
	fmt.Println("done; the persistent sandboxes count down on the page, and their files stay")
	return nil
}

var names = []string{"fix the login page", "count the commits", "write the changelog", "try a new parser", "translate the manual", "chase a flaky test"}

func taskName(i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s (%d)", names[i%len(names)], i/len(names)+1)
}

// worker is the agent at one task.
type worker struct {
	c          *client.Client
	s          settings
	task       string
	persistent bool
}

func (w *worker) say(format string, args ...any) {
	fmt.Printf("%-22s %s\n", w.task, fmt.Sprintf(format, args...))
}

// work takes the task's turns. A turn that fails is told, and the next begins.
func (w *worker) work(ctx context.Context) error {
	var last error
	for round := range w.s.rounds {
		if round > 0 && !w.rest(ctx, 2*w.s.think) {
			break
		}
		if last = w.turn(ctx, round+1); last != nil && ctx.Err() == nil {
			w.say("✗ %v", last)
		}
	}
	if last != nil && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", w.task, last)
	}
	return nil
}

// turn takes one turn, and ends it whatever happens in it.
func (w *worker) turn(ctx context.Context, round int) (err error) {
	r := client.AcquireRequest{Task: w.task, Persistent: new(w.persistent)}
	if w.persistent {
		r.LifetimeS = int64(w.s.lifetime / time.Second)
	}
	began := time.Now()
	got, err := w.c.Acquire(ctx, r)
	if err != nil {
		return err
	}
	w.say("turn %d: sandbox %s %s in %v", round, got.Env.ID, got.Outcome, time.Since(began).Round(time.Millisecond))

	outcome := client.TurnDone
	defer func() {
		if err != nil {
			outcome = client.TurnFailed
		}
		if ctx.Err() != nil {
			outcome = client.TurnCancelled
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		ended, endErr := w.c.EndTurn(end, w.task, outcome)
		if endErr != nil {
			err = errors.Join(err, endErr)
			return
		}
		for _, d := range ended.Decisions {
			w.say("turn %d ends: sandbox %s, %s", round, d.Decision, d.Reason)
		}
	}()

	for _, command := range w.commands(round) {
		if !w.rest(ctx, w.s.think) {
			return ctx.Err()
		}
		ran, err := w.c.Run(ctx, got.Env.Ref(), client.RunRequest{Command: command})
		if err != nil {
			return err
		}
		if ran.Notice != nil {
			w.say("  (since last time: lost %s; kept %s)", list(ran.Notice.Lost), list(ran.Notice.Kept))
		}
		w.say("  $ %s", command)
		w.say("  %s", summary(ran))
	}
	return nil
}

// commands are what the agent does in a turn; a shell and the usual small
// programs are all that they need.
func (w *worker) commands(round int) []string {
	return []string{
		fmt.Sprintf("echo turn %d >> notes && wc -l < notes", round),
		"export TURN=" + fmt.Sprint(round) + "; ls -l | tail -n 3",
		fmt.Sprintf("sleep %d; echo slept through turn $TURN", 1+rand.IntN(3)),
	}
}

// rest thinks for about that long. It reports false once ctx has ended.
func (w *worker) rest(ctx context.Context, about time.Duration) bool {
	t := time.NewTimer(about/2 + rand.N(about+1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// summary is a command's end on one line.
func summary(r *client.RunResult) string {
	out := strings.Join(strings.Fields(string(r.Stdout)+" "+string(r.Stderr)), " ")
	if len(out) > 72 {
		out = strings.ToValidUTF8(out[:72], "") + "…"
	}
	switch {
	case r.TimedOut:
		return "timed out: " + out
	case r.ExitCode != 0:
		return fmt.Sprintf("exit %d: %s", r.ExitCode, out)
	case out == "":
		return "(no output)"
	}
	return out
}

func list(s []string) string {
	if len(s) == 0 {
		return "nothing"
	}
	return strings.Join(s, ", ")
}
