package docker

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/docker/docker/api/types/events"

	"sandkeeper/internal/control"
)

// said is one message of the engine, that long after the stream began.
type said struct {
	after  time.Duration
	id     string
	action events.Action
	code   int    // with die
	signal string // with kill
}

func TestDeathsAreToldTruly(t *testing.T) {
	const ms = time.Millisecond
	start := said{0, "a", events.ActionStart, 0, ""}
	oom := func(after time.Duration) said { return said{after, "a", events.ActionOOM, 0, ""} }
	kill := func(after time.Duration, signal string) said { return said{after, "a", events.ActionKill, 0, signal} }
	die := func(after time.Duration, code int) said { return said{after, "a", events.ActionDie, code, ""} }
	tests := []struct {
		name string
		said []said
		oom  bool
		at   time.Duration // when the last death is told
	}{
		{"an exit is told at once", []said{start, die(10*ms, 3)}, false, 10 * ms},
		{"memory ran out just before", []said{start, oom(9 * ms), die(10*ms, 137)}, true, 10 * ms},
		{"memory ran out, told just after", []said{start, die(10*ms, 137), oom(60 * ms)}, true, 60 * ms},
		{"killed, and nothing says by whom", []said{start, die(10*ms, 137)}, false, 10*ms + lateOOM},
		{"told too late", []said{start, die(10*ms, 137), oom(10*ms + 2*lateOOM)}, false, 10*ms + lateOOM},
		{"a child was killed for memory long before", []said{start, oom(10 * ms), die(10*ms+2*closeOOM, 137)}, false, 10*ms + 2*closeOOM + lateOOM},
		{"a child was killed for memory, and then we killed the sandbox", []said{start, oom(10 * ms), kill(11*ms, "9"), die(12*ms, 137)}, false, 12 * ms},
		{"killed by hand is told at once", []said{start, kill(11*ms, "SIGKILL"), die(12*ms, 137)}, false, 12 * ms},
		{"TERM is no KILL", []said{start, kill(8*ms, "15"), oom(9 * ms), die(12*ms, 137)}, true, 12 * ms},
		{"memory ran out, and it ended by itself all the same", []said{start, oom(9 * ms), die(10*ms, 1)}, false, 10 * ms},
		{"an old run's want of memory", []said{start, oom(9 * ms), die(10*ms, 137), {20 * ms, "a", events.ActionStart, 0, ""}, die(30*ms, 137)}, false, 30*ms + lateOOM},
		{"an old run's kill", []said{start, kill(9*ms, "9"), die(10*ms, 137), {20 * ms, "a", events.ActionStart, 0, ""}, oom(29 * ms), die(30*ms, 137)}, true, 30 * ms},
		{"another's want of memory", []said{start, {9 * ms, "b", events.ActionOOM, 0, ""}, die(10*ms, 137)}, false, 10*ms + lateOOM},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var last control.EngineEvent
				var at time.Duration
				err := tellAll(t, test.said, io.EOF, func(ev control.EngineEvent) {
					if ev.Kind == control.SandboxDied {
						last, at = ev, time.Since(began)
					}
				})
				if !errors.Is(err, io.EOF) {
					t.Errorf("the stream ended with %v", err)
				}
				if last.Kind != control.SandboxDied || last.OOM != test.oom || at != test.at {
					t.Errorf("%+v after %v, want out of memory %v after %v", last, at, test.oom, test.at)
				}
			})
		})
	}
}

func TestManyDeathsAreHeldBackTogetherAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var script []said
		var want []string
		for i := range 100 {
			id := strconv.Itoa(i)
			script = append(script, said{0, id, events.ActionDie, 137, ""})
			want = append(want, id)
		}
		// One of them ran out of memory, and the engine says so behind all the others.
		script = append(script, said{time.Millisecond, "70", events.ActionOOM, 0, ""})
		var got []string
		err := tellAll(t, script, errors.New("broken"), func(ev control.EngineEvent) {
			got = append(got, ev.Name)
			if ev.OOM != (ev.Name == "70") {
				t.Errorf("%s: out of memory %v", ev.Name, ev.OOM)
			}
		})
		if err == nil || err.Error() != "broken" {
			t.Errorf("the stream ended with %v", err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("told in the order %q", got)
		}
		if took := time.Since(began); took > lateOOM+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := newTeller(make(chan events.Message), make(chan error), nil).run(ctx)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ended with %v", err)
		}
	})
}

// tellAll has a teller told a script, which ends a second after its last line.
func tellAll(t *testing.T, script []said, end error, fn func(control.EngineEvent)) error {
	t.Helper()
	messages, failed := make(chan events.Message), make(chan error, 1)
	began := time.Now()
	go func() {
		defer close(failed)
		for _, s := range script {
			time.Sleep(time.Until(began.Add(s.after)))
			messages <- events.Message{
				Action: s.action,
				Actor: events.Actor{ID: s.id, Attributes: map[string]string{
					"name": s.id, "exitCode": strconv.Itoa(s.code), "signal": s.signal, labelEnv: "env-" + s.id,
				}},
				TimeNano: time.Now().UnixNano(),
			}
		}
		time.Sleep(time.Second)
		failed <- end
	}()
	return newTeller(messages, failed, func(id string, ev control.EngineEvent) {
		if ev.Name != id || ev.Env != "env-"+id {
			t.Errorf("%s is told as %+v", id, ev)
		}
		fn(ev)
	}).run(t.Context())
}
