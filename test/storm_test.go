package test_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// Agents work while the server is killed again and again. Whatever the moment:
// in the end every acknowledged command ran exactly once, in order, every file
// is kept, and engine and records are one.
func TestStormOfKills(t *testing.T) { test.Each(t, stormOfKills) }

func stormOfKills(t *testing.T, on test.On) {
	const agents, kills = 3, 15
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := on.Start(t, "--restart-grace", "1s")
	door := &door{token: s.Token(t, "agent"), opened: make(chan struct{}), answered: make(chan struct{})}
	stop := make(chan struct{})
	workers, failed := errgroup.WithContext(t.Context())
	stormy := make([]*stormAgent, agents)
	for i := range stormy {
		a := &stormAgent{door: door, name: fmt.Sprintf("storm-%d", i), random: rand.New(rand.NewPCG(seed, uint64(i+1)))}
		stormy[i] = a
		workers.Go(func() error { return a.work(stop) })
	}
	door.open(s.URL)
	for range kills {
		for range random.IntN(8) {
			select {
			case <-door.answered:
			case <-failed.Done():
			}
		}
		// Not right after an answer: anywhere before the next.
		pause := time.NewTimer(time.Duration(random.IntN(300)) * time.Millisecond)
		<-pause.C
		door.shut()
		s.Kill(t)
		s.Restart(t)
		door.open(s.URL)
	}
	close(stop)
	if err := workers.Wait(); err != nil {
		t.Fatal(err)
	}

	test.Eventually(t, "no teardown is left to do", func() bool {
		return !slices.ContainsFunc(s.Envs(t), func(v control.View) bool { return v.State == control.Stopping })
	})
	kept := map[string]string{}
	w := s.Wire(t)
	commands := 0
	for _, a := range stormy {
		v := s.EnvOf(t, a.name)
		kept[v.ID] = "running"
		if v.Generation != 1 {
			t.Errorf("%s: nothing died but the server, and it is in generation %d", a.name, v.Generation)
		}
		var want strings.Builder
		for n := range a.ran {
			fmt.Fprintln(&want, n)
		}
		commands += a.ran
		if got := w.Run(t, v.ID, "cat log").Stdout; got != want.String() {
			t.Errorf("%s: %d commands were answered; the log says %q", a.name, a.ran, strings.Fields(got))
		}
		if a.ran == 0 {
			t.Errorf("%s: no command was answered; that proves nothing", a.name)
		}
		if v.Turn.Number < int64(a.turns) {
			t.Errorf("%s: %d turns were ended, and the number is %d", a.name, a.turns, v.Turn.Number)
		}
	}
	t.Logf("%d commands were answered", commands)
	engineHas(t, s, kept)
	lifecycles(t, s.Events().All())
}

// door is where the server is, while it is somewhere.
type door struct {
	token    string
	answered chan struct{} // one for each answer, while somebody counts

	mu     sync.Mutex // guards the fields below
	url    string
	opened chan struct{} // closed while it is open
}

func (d *door) open(url string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.url = url
	close(d.opened)
}

func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = make(chan struct{})
}

func (d *door) wait() (url string) {
	for {
		d.mu.Lock()
		url, opened := d.url, d.opened
		d.mu.Unlock()
		select {
		case <-opened:
			return url
		default:
			<-opened
		}
	}
}

// stormAgent asks again for whatever was not answered.
type stormAgent struct {
	door   *door
	name   string
	random *rand.Rand
	wire   *test.Wire
	was    string // its session
	ran    int    // commands that were answered
	turns  int    // that were ended
}

func (a *stormAgent) work(stop <-chan struct{}) error {
	for n := 0; ; n++ {
		var got control.Acquired
		if err := a.call("env.acquire", test.Params{"task": a.name, "persistent": true}, &got); err != nil {
			return err
		}
		env := got.Env.ID
		if a.random.IntN(2) == 0 {
			if err := a.call("env.acquire", test.Params{"task": a.name, "name": "scratch"}, nil); err != nil {
				return err
			}
		}
		for range 1 + a.random.IntN(3) {
			var ran test.Ran
			command := fmt.Sprintf("echo %d >> log; sleep 0.%02d; echo done", a.ran, a.random.IntN(20))
			if err := a.call("exec.run", test.Params{"env": env, "id": fmt.Sprint("command ", a.ran), "command": command}, &ran); err != nil {
				return err
			}
			if ran.ExitCode == nil || *ran.ExitCode != 0 || ran.Stdout != "done\n" && !ran.OutputLost {
				return fmt.Errorf("%s: command %d ended with %+v", a.name, a.ran, ran)
			}
			a.ran++
		}
		if err := a.call("turn.end", test.Params{"task": a.name, "turn": got.Env.Turn.Number}, nil); err != nil {
			return err
		}
		a.turns++
		select {
		case <-stop:
			a.wire.Drop()
			return nil
		default:
		}
	}
}

// call makes a call until the server answers it.
func (a *stormAgent) call(method string, params test.Params, out any) error {
	for {
		if a.wire == nil {
			w, err := test.TryWire(a.door.wait(), test.Identity{Token: a.door.token, Agent: a.name, Session: a.was})
			if err != nil {
				if _, ok := errors.AsType[*test.WireError](err); ok {
					return fmt.Errorf("%s: hello: %w", a.name, err)
				}
				continue
			}
			if a.was != "" && !w.Resumed {
				w.Drop()
				return fmt.Errorf("%s: its session was not resumed", a.name)
			}
			a.wire, a.was = w, w.Session
		}
		err := a.wire.Try(method, params, out)
		if err == nil {
			select {
			case a.door.answered <- struct{}{}:
			default: // nobody counts now
			}
			return nil
		}
		if _, ok := errors.AsType[*test.WireError](err); ok {
			return fmt.Errorf("%s: %s %v: %w", a.name, method, params, err)
		}
		a.wire.Drop()
		a.wire = nil
	}
}

// lifecycles checks that the log tells of every environment only what can
// follow, and never of two live ones of one key.
func lifecycles(t *testing.T, log []control.Event) {
	t.Helper()
	next := map[control.EventKind][]control.EventKind{
		"":                   {control.EnvStarting},
		control.EnvStarting:  {control.EnvReady, control.EnvResumed, control.EnvRecreated, control.EnvFailed, control.EnvStopping},
		control.EnvReady:     {control.EnvStopping, control.EnvLost},
		control.EnvResumed:   {control.EnvStopping, control.EnvLost},
		control.EnvRecreated: {control.EnvStopping, control.EnvLost},
		control.EnvLost:      {control.EnvDormant, control.EnvStopping},
		control.EnvStopping:  {control.EnvDormant, control.EnvRemoved},
		control.EnvDormant:   {control.EnvStarting, control.EnvStopping},
		control.EnvFailed:    {control.EnvStarting, control.EnvStopping},
		control.EnvRemoved:   {},
	}
	at := map[string]control.EventKind{}
	live := map[control.Key]string{}
	for _, ev := range log {
		if _, ok := next[ev.Kind]; !ok {
			continue
		}
		if !slices.Contains(next[at[ev.Env]], ev.Kind) {
			t.Errorf("event %d: %s of %s after %s", ev.Seq, ev.Kind, ev.Env, at[ev.Env])
		}
		at[ev.Env] = ev.Kind
		key := control.Key{Owner: ev.Owner, Task: ev.Task, Name: ev.Name}
		switch ev.Kind {
		case control.EnvStarting:
			if other := live[key]; other != "" && other != ev.Env {
				t.Errorf("event %d: %s starts while %s of the same key lives", ev.Seq, ev.Env, other)
			}
			live[key] = ev.Env
		case control.EnvStopping, control.EnvLost:
			if live[key] == ev.Env {
				delete(live, key)
			}
		}
	}
}
