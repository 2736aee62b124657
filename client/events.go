package client

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// Event is one line of the server's log. Env, Owner, Task and Name are "" where
// it is about none.
type Event struct {
	Seq    uint64          `json:"seq"` // has no gaps, and outlives restarts
	Time   time.Time       `json:"time"`
	Kind   string          `json:"kind"` // "env.ready", "reaper.stopped", …
	Env    string          `json:"env"`
	Owner  string          `json:"owner"`
	Task   string          `json:"task"`
	Name   string          `json:"name"`
	Actor  string          `json:"actor"` // "agent:NAME", "operator:NAME", "reaper", "reconciler", "server"
	Reason string          `json:"reason"`
	Data   json.RawMessage `json:"data"` // what belongs to the kind
}

// mostEvents wait to be read. What comes beyond is asked for again once they were.
const mostEvents = 1024

// Events follows the events of the client's owner: each once, in order, also
// over losses of the connection. While it is not read it holds a bounded number
// of them. One goroutine at a time may read it.
type Events struct {
	c *Client

	mu      sync.Mutex // guards the fields below
	queue   []told
	at      *uint64       // the last that was read, or that the subscription began after; nil: none yet
	behind  bool          // the server does not send what is next: it is to be asked for
	err     error         // no more comes
	changed chan struct{} // closed and replaced with each change
}

// told is an event, or what stands in the place of events.
type told struct {
	event Event
	err   error
}

// Subscribe follows the events after a sequence number, or from now on where
// that is nil. A client has one subscription: of an earlier one Next fails with
// ErrSuperseded.
func (c *Client) Subscribe(ctx context.Context, after *uint64) (*Events, error) {
	e := &Events{c: c, at: after, behind: true, changed: make(chan struct{})}
	if err := e.subscribe(ctx); err != nil {
		return nil, err
	}
	return e, nil
}

// Next waits for the next event. ErrReset says that the log no longer reaches
// back to the last one: the next call goes on with the oldest that there is. An
// *Error is the server's, and the next call tries again. Any other error is
// final, but for that of ctx.
func (e *Events) Next(ctx context.Context) (Event, error) {
	for {
		e.mu.Lock()
		switch {
		case len(e.queue) > 0:
			next := e.queue[0]
			e.queue[0] = told{}
			if e.queue = e.queue[1:]; next.err == nil {
				e.at = &next.event.Seq
			}
			e.mu.Unlock()
			return next.event, next.err
		case e.err != nil:
			defer e.mu.Unlock()
			return Event{}, e.err
		}
		behind, changed := e.behind, e.changed
		e.mu.Unlock()
		if behind {
			if err := e.subscribe(ctx); err != nil {
				return Event{}, err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// Close ends it. A Next that waits fails with ErrClosed.
func (e *Events) Close() error {
	e.c.mu.Lock()
	if e.c.events == e {
		e.c.events = nil
	}
	e.c.mu.Unlock()
	e.fail(ErrClosed)
	return nil
}

// subscribe asks for what comes after the last event that was read.
func (e *Events) subscribe(ctx context.Context) error {
	e.mu.Lock()
	params := struct {
		After *uint64 `json:"after,omitempty"`
	}{e.at}
	e.mu.Unlock()
	return e.c.doOn(ctx, "events.subscribe", true, params, nil, func(_ *line, raw json.RawMessage) error {
		var got struct {
			Last uint64 `json:"last"`
		}
		if err := json.Unmarshal(raw, &got); err != nil {
			return err
		}
		e.c.mu.Lock()
		before := e.c.events
		e.c.events = e
		e.c.mu.Unlock()
		if before != nil && before != e {
			before.fail(ErrSuperseded)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.err != nil {
			return e.err
		}
		e.behind = false
		if e.at == nil {
			e.at = &got.Last
		}
		return nil
	})
}

// take takes a notification; the line's reader calls it.
func (e *Events) take(m message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.behind || e.err != nil {
		return // it is asked for again
	}
	var next told
	switch m.Method {
	case "event":
		if json.Unmarshal(m.Params, &next.event) != nil {
			return
		}
	case "events.reset":
		next.err = ErrReset
	case "events.ended":
		var p struct {
			Error wireError `json:"error"`
		}
		if json.Unmarshal(m.Params, &p) != nil {
			return
		}
		next.err, e.behind = p.Error.of(m.Method), true
	}
	if len(e.queue) == mostEvents {
		e.behind = true
	} else {
		e.queue = append(e.queue, next)
	}
	e.bump()
}

// lost notes that the connection is gone; what is next is to be asked for.
func (e *Events) lost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.behind = true
	e.bump()
}

func (e *Events) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
	e.bump()
}

// bump tells who waits of a change; e.mu is held.
func (e *Events) bump() {
	close(e.changed)
	e.changed = make(chan struct{})
}
