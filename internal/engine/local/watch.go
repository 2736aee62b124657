package local

import (
	"context"
	"slices"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

// maxEvents is how many events are remembered for those who ask for the past,
// and for those who are slow. Who is further behind has to list.
const maxEvents = 10_000

// journal is what happened since the engine was opened.
type journal struct {
	mu      sync.Mutex // guards the fields below
	events  []control.EngineEvent
	dropped int           // how many came before the first
	more    chan struct{} // closed and replaced when one comes
}

// add puts an event at the end. The times of events never go back.
func (j *journal) add(ev control.EngineEvent) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if n := len(j.events); n > 0 && ev.At.Before(j.events[n-1].At) {
		ev.At = j.events[n-1].At
	}
	j.events = append(j.events, ev)
	if over := len(j.events) - maxEvents; over > 0 {
		j.events = slices.Delete(j.events, 0, over)
		j.dropped += over
	}
	if j.more != nil {
		close(j.more)
	}
	j.more = make(chan struct{})
}

// after returns the events from a number on, the next number, and what is closed when there are more.
func (j *journal) after(n int) ([]control.EngineEvent, int, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.more == nil {
		j.more = make(chan struct{})
	}
	from := min(max(n-j.dropped, 0), len(j.events))
	return slices.Clone(j.events[from:]), j.dropped + len(j.events), j.more
}

// since returns the number of the first event at or after a time; zero is now.
func (j *journal) since(t time.Time) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t.IsZero() {
		return j.dropped + len(j.events)
	}
	i := slices.IndexFunc(j.events, func(ev control.EngineEvent) bool { return !ev.At.Before(t) })
	if i < 0 {
		i = len(j.events)
	}
	return j.dropped + i
}

// Watch calls fn with each event since that time, in order, until ctx ends.
func (e *Engine) Watch(ctx context.Context, since time.Time, ready func(), fn func(control.EngineEvent)) error {
	next := e.events.since(since)
	if ready != nil {
		ready()
	}
	for {
		var events []control.EngineEvent
		var more <-chan struct{}
		events, next, more = e.events.after(next)
		for _, ev := range events {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			fn(ev)
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
