package control

import (
	"context"
	"slices"
	"sync"
)

// Subscription follows the events of one owner. While it is open, its session
// is also told of every environment of that owner.
type Subscription interface {
	// Next waits for events, each once, ascending. reset says that the log no
	// longer reaches back to where the subscription stood; it goes on with what
	// there is. A reader that is slow reads later, and slows nobody.
	Next(ctx context.Context) (events []Event, reset bool, err error)
	Close()
}

// subscribers are the open subscriptions, by owner.
type subscribers struct {
	mu sync.Mutex
	of map[string][]*subscription
}

func (l *subscribers) add(b *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string][]*subscription{}
	}
	l.of[b.s.Owner()] = append(l.of[b.s.Owner()], b)
}

func (l *subscribers) remove(b *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	owner := b.s.Owner()
	l.of[owner] = slices.DeleteFunc(l.of[owner], func(o *subscription) bool { return o == b })
	if len(l.of[owner]) == 0 {
		delete(l.of, owner)
	}
}

// join adds an owner's subscribers to a list, each session once.
func (l *subscribers) join(owner string, all []*Session) []*Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.of[owner] {
		if !slices.Contains(all, b.s) {
			all = append(all, b.s)
		}
	}
	return all
}

type subscription struct {
	s *Session
	w *Watch
}

// Subscribe follows the events of the session's owner with a sequence number
// over after, or from now on; last is the log's latest.
func (s *Session) Subscribe(after *uint64) (b Subscription, last uint64, err error) {
	_, _, last, err = s.p.o.Store.Events(0, 1, EventFilter{})
	if err != nil {
		return nil, 0, err
	}
	from := last
	if after != nil {
		from = *after
	}
	sub := &subscription{s, s.p.Watch(from)}
	s.p.subscribers.add(sub)
	return sub, last, nil
}

func (b *subscription) Next(ctx context.Context) ([]Event, bool, error) {
	for {
		c, err := b.w.Next(ctx)
		if err != nil {
			return nil, false, err
		}
		own := slices.DeleteFunc(c.Events, func(e Event) bool { return e.Owner != b.s.Owner() })
		if len(own) > 0 || c.Reset {
			return own, c.Reset, nil
		}
	}
}

func (b *subscription) Close() {
	b.s.p.subscribers.remove(b)
	b.w.Close()
}
