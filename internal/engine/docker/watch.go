package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptrace"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/events"

	"sandkeeper/internal/control"
)

// Watch calls fn with each event of the instance's sandboxes at or after since.
func (e *Engine) Watch(ctx context.Context, since time.Time, ready func(), fn func(control.EngineEvent)) error {
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	if since.IsZero() {
		since = time.Now()
	}
	args := e.ours(labelEnv)
	args.Add("type", string(events.ContainerEventType))
	for _, a := range []events.Action{events.ActionStart, events.ActionDie, events.ActionDestroy, events.ActionKill, events.ActionOOM} {
		args.Add("event", string(a))
	}
	var answered atomic.Bool
	traced := httptrace.WithClientTrace(stream, &httptrace.ClientTrace{GotFirstResponseByte: func() { answered.Store(true) }})
	messages, failed := e.api.client(stream).Events(traced, events.ListOptions{
		Since:   fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond()),
		Filters: args,
	})
	// The client returns once the engine has answered, or has failed to; its error
	// may come a moment later.
	if !answered.Load() {
		return broken(ctx, <-failed)
	}
	select {
	case err := <-failed:
		return broken(ctx, err)
	default:
	}
	if ready != nil {
		ready()
	}
	t := newTeller(messages, failed, func(id string, ev control.EngineEvent) {
		e.observe(id, ev)
		fn(ev)
	})
	return broken(ctx, t.run(stream))
}

// broken says why a stream of events ended: its reader had enough, or the
// engine hung up, which is to say that it does not answer.
func broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil, errors.Is(err, io.EOF):
		return fmt.Errorf("engine events: %w: the stream ended", control.ErrEngineUnavailable)
	}
	return fault("engine events", err)
}

// observe keeps what an event changes of what is remembered.
func (e *Engine) observe(id string, ev control.EngineEvent) {
	switch ev.Kind {
	case control.SandboxStarted:
		e.forgetRun(id)
	case control.SandboxDied:
		e.noteEnd(id, run{exitCode: ev.ExitCode, oom: ev.OOM})
	case control.SandboxRemoved:
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.runs, id)
		if s := e.known[ev.Name]; s != nil && s.id == id {
			delete(e.known, ev.Name)
		}
	}
}

// lateOOM is how long a run that ended by KILL, and by nobody's hand, is held
// back for its out-of-memory event: the two come to the engine by ways of their own.
const lateOOM = 250 * time.Millisecond

// closeOOM is how near to its end a run must have been out of memory for that
// to be the cause. Memory that ran out earlier killed somebody else.
const closeOOM = 2 * time.Second

// killed is the exit code of what SIGKILL ended.
const killed = 137

// teller turns the engine's messages into events. It says that a run ended for
// want of memory only if that run was killed, nobody asked the engine to kill
// it, and memory ran out just then: the engine also says "oom" when a mere
// child of PID 1 was killed.
type teller struct {
	messages <-chan events.Message
	failed   <-chan error
	tell     func(id string, ev control.EngineEvent)

	runs    map[string]runEvents // by container id
	waiting []message            // came while a death was held back
	ended   error                // why no more come; nil while they may
}

// runEvents is what was said of the current run of a container.
type runEvents struct {
	oom    time.Time // the last time that memory ran out, by the engine's clock
	byHand bool      // the engine was asked to KILL it
}

type message struct {
	events.Message
	got time.Time
}

func (m message) at() time.Time { return time.Unix(0, m.TimeNano) }

func newTeller(messages <-chan events.Message, failed <-chan error, tell func(id string, ev control.EngineEvent)) *teller {
	return &teller{messages: messages, failed: failed, tell: tell, runs: make(map[string]runEvents)}
}

// run tells events in order until the stream ends, and returns why it did.
func (t *teller) run(ctx context.Context) error {
	for {
		var m message
		if len(t.waiting) > 0 {
			m, t.waiting = t.waiting[0], t.waiting[1:]
		} else {
			var ok bool
			if m, ok = t.next(ctx); !ok {
				return cmp.Or(t.ended, ctx.Err())
			}
		}
		t.note(m)
		if m.Action == events.ActionDie && t.unclear(m) {
			t.hold(ctx, m)
		}
		if ev, ok := t.event(m); ok {
			t.tell(m.Actor.ID, ev)
		}
	}
}

// next waits for a message. It returns false once the stream has ended, or ctx.
func (t *teller) next(ctx context.Context) (message, bool) {
	if t.ended != nil {
		return message{}, false
	}
	select {
	case m := <-t.messages:
		return message{m, time.Now()}, true
	case t.ended = <-t.failed:
		if t.ended == nil {
			t.ended = io.EOF
		}
	case <-ctx.Done():
	}
	return message{}, false
}

// hold waits until it is clear why the run of m ended, or time is up. Messages
// that come meanwhile wait.
func (t *teller) hold(ctx context.Context, m message) {
	ctx, cancel := context.WithDeadline(ctx, m.got.Add(lateOOM))
	defer cancel()
	take := func(later message) bool {
		if later.Action == events.ActionOOM && later.Actor.ID == m.Actor.ID {
			t.note(later)
			return true
		}
		return false
	}
	t.waiting = slices.DeleteFunc(t.waiting, take)
	for t.unclear(m) {
		later, ok := t.next(ctx)
		if !ok {
			return
		}
		if !take(later) {
			t.waiting = append(t.waiting, later)
		}
	}
}

// note keeps what a message says of a run.
func (t *teller) note(m message) {
	id := m.Actor.ID
	r := t.runs[id]
	switch m.Action {
	case events.ActionOOM:
		r.oom = m.at()
	case events.ActionKill:
		signal := m.Actor.Attributes["signal"]
		if signal != "9" && signal != "SIGKILL" && signal != "KILL" {
			return
		}
		r.byHand = true
	default:
		return
	}
	t.runs[id] = r
}

// unclear says whether a run was killed, and nothing says by whom.
func (t *teller) unclear(m message) bool {
	return exitCode(m) == killed && !t.runs[m.Actor.ID].byHand && !t.outOfMemory(m)
}

func (t *teller) outOfMemory(m message) bool {
	r := t.runs[m.Actor.ID]
	return exitCode(m) == killed && !r.byHand && !r.oom.IsZero() && m.at().Sub(r.oom) <= closeOOM
}

// event makes an event of a message that is one.
func (t *teller) event(m message) (control.EngineEvent, bool) {
	ev := control.EngineEvent{
		Name: m.Actor.Attributes["name"],
		Env:  m.Actor.Attributes[labelEnv],
		At:   m.at(),
	}
	switch m.Action {
	case events.ActionStart:
		ev.Kind = control.SandboxStarted
	case events.ActionDie:
		ev.Kind = control.SandboxDied
		ev.ExitCode = exitCode(m)
		ev.OOM = t.outOfMemory(m)
	case events.ActionDestroy:
		ev.Kind = control.SandboxRemoved
	default:
		return ev, false
	}
	delete(t.runs, m.Actor.ID)
	return ev, true
}

func exitCode(m message) int {
	code, err := strconv.Atoi(m.Actor.Attributes["exitCode"])
	if err != nil {
		return -1
	}
	return code
}
