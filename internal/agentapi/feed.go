package agentapi

import (
	"context"
	"errors"
	"sync"

	"sandkeeper/internal/control"
)

// mostEvents wait to be written to one socket; the next is read from the log
// once one was. So a slow socket reads later, and nothing is dropped.
const mostEvents = 64

// feed is a socket's subscription to events. A later one takes its place.
type feed struct {
	mu     sync.Mutex // held while one takes another's place
	stop   context.CancelFunc
	done   chan struct{}
	closed bool
}

// end ends the subscription for good, and waits for it.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.halt()
}

// halt ends what runs; mu is held.
func (f *feed) halt() {
	if f.stop != nil {
		f.stop()
		<-f.done
		f.stop = nil
	}
}

func eventsSubscribe(_ context.Context, on *socket, s Session, p *params) (any, error) {
	after := p.whole("after")
	if after != nil && *after < 0 {
		p.reject("after", "must not be negative")
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	f := &on.events
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, context.Canceled
	}
	f.halt()
	var from *uint64
	if after != nil {
		n := uint64(*after)
		from = &n
	}
	sub, last, err := s.Subscribe(from)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(on.ctx)
	done, ready := make(chan struct{}), make(chan struct{})
	f.stop, f.done = stop, done
	go func() { // halt waits for it
		defer close(done)
		defer sub.Close()
		select {
		case <-ready:
			on.feed(ctx, sub)
		case <-ctx.Done():
		}
	}()
	return opened{subscribeResult{last}, sync.OnceFunc(func() { close(ready) }), stop}, nil
}

// feed tells of events until ctx ends.
func (s *socket) feed(ctx context.Context, sub control.Subscription) {
	places := make(chan struct{}, mostEvents)
	tell := func(method string, params any) error {
		select {
		case places <- struct{}{}:
			s.out.tell(method, params, func() { <-places })
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		events, reset, err := sub.Next(ctx)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				s.log.Load().Error("events cannot be read", "error", err)
				tell("events.ended", endedParams{wireErrorOf(err)}) //nolint:errcheck // the socket is gone
			}
			return
		}
		if reset && tell("events.reset", empty{}) != nil {
			return
		}
		for i := range events {
			if tell("event", events[i].View()) != nil {
				return
			}
		}
	}
}
