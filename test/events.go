package test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
)

// Events follows the event stream of a server over its restarts and keeps all
// it heard. A gap or a repeat in the sequence numbers fails the test.
type Events struct {
	t      testing.TB
	cancel context.CancelFunc // of the stream that is open; nil: none is
	done   chan struct{}      // closed once that stream's reader has ended

	mu    sync.Mutex // guards the fields below
	heard []control.Event
	more  chan struct{} // closed and replaced with each event
}

func newEvents(t testing.TB) *Events {
	return &Events{t: t, more: make(chan struct{})}
}

// follow opens the stream after what was heard.
func (e *Events) follow(s *Server) {
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel, e.done = cancel, make(chan struct{})
	token, url := s.Token(e.t, "operator"), s.URL+"/api/v1/events/stream"
	go func() {
		defer close(e.done)
		err := e.read(ctx, url, token)
		if err != nil && ctx.Err() == nil && s.Running() {
			e.t.Errorf("the event stream of a running server broke: %v", err)
		}
	}()
}

// unfollow ends the stream and waits for its reader.
func (e *Events) unfollow() {
	if e.cancel == nil {
		return
	}
	e.cancel()
	<-e.done
	e.cancel = nil
}

func (e *Events) read(ctx context.Context, url, token string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Last-Event-ID", fmt.Sprint(e.last()))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusServiceUnavailable {
		return nil // it goes down already; who waits for an event waits in vain
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", res.Status)
	}
	var data strings.Builder
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if d, ok := strings.CutPrefix(line, "data:"); ok {
			data.WriteString(strings.TrimPrefix(d, " "))
		}
		if line != "" || data.Len() == 0 {
			continue
		}
		var ev control.Event
		if err := json.Unmarshal([]byte(data.String()), &ev); err != nil {
			return fmt.Errorf("%w: %s", err, &data)
		}
		if err := contracttest.Event([]byte(data.String())); err != nil {
			return fmt.Errorf("%w: %s", err, &data)
		}
		data.Reset()
		e.add(ev)
	}
	return lines.Err()
}

func (e *Events) add(ev control.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.heard); n > 0 && ev.Seq != e.heard[n-1].Seq+1 {
		e.t.Errorf("event %d (%s) came after event %d", ev.Seq, ev.Kind, e.heard[n-1].Seq)
	}
	e.heard = append(e.heard, ev)
	close(e.more)
	e.more = make(chan struct{})
}

func (e *Events) last() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heard) == 0 {
		return 0
	}
	return e.heard[len(e.heard)-1].Seq
}

// All returns what was heard so far, ascending.
func (e *Events) All() []control.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.heard)
}

// Wait returns the first event, of those heard and those to come, that matches.
func (e *Events) Wait(t testing.TB, what string, match func(control.Event) bool) control.Event {
	t.Helper()
	return e.WaitAfter(t, 0, what, match)
}

// WaitAfter is Wait among the events after that sequence number.
func (e *Events) WaitAfter(t testing.TB, seq uint64, what string, match func(control.Event) bool) control.Event {
	t.Helper()
	timeout := time.After(patience)
	for {
		e.mu.Lock()
		heard, more := e.heard, e.more
		e.mu.Unlock()
		for _, ev := range heard {
			if ev.Seq > seq && match(ev) {
				return ev
			}
		}
		select {
		case <-more:
		case <-timeout:
			t.Fatalf("no event says that %s; heard were:\n%s", what, e)
		}
	}
}

// Is matches events of a kind about an environment; "" is any.
func Is(kind control.EventKind, env string) func(control.Event) bool {
	return func(ev control.Event) bool { return ev.Kind == kind && (env == "" || ev.Env == env) }
}

// Of returns the kinds of an environment's events so far, in order.
func (e *Events) Of(env string) []control.EventKind {
	var kinds []control.EventKind
	for _, ev := range e.All() {
		if ev.Env == env {
			kinds = append(kinds, ev.Kind)
		}
	}
	return kinds
}

func (e *Events) String() string {
	var b strings.Builder
	for _, ev := range e.All() {
		fmt.Fprintf(&b, "%d %s %s %s %s %s\n", ev.Seq, ev.Time, ev.Kind, ev.Env, ev.Actor, ev.Reason)
	}
	return b.String()
}
