package agentapi

import "sync"

// outbox is what waits to be written to one socket, in order. Answers are
// bounded by the calls that may be under way. Notifications merge by their key
// once mergeFrom of them wait, so they are bounded by the number of keys.
type outbox struct {
	wake chan struct{} // holds a token while there may be something to take

	mu     sync.Mutex // guards all below
	items  []*item
	notes  int              // notifications among items
	latest map[string]*item // by key: the last notification that waits
	held   []*item          // notifications until the answer to hello
	open   bool             // hello was answered
	ended  bool             // nothing is added any more
}

// item is one message that waits to be written.
type item struct {
	message any
	key     string // of a notification: one of the same key makes it out of date
	done    func() // of an answer: called once it was written, or dropped
}

// mergeFrom is how many notifications wait in full before they merge.
const mergeFrom = 64

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), latest: map[string]*item{}}
}

// answer adds an answer. done is called once it was written, or dropped.
func (o *outbox) answer(r response, done func()) {
	o.put(&item{message: r, done: done}, false)
}

// welcome adds the answer to hello, if one was asked for, and behind it the
// notifications that came meanwhile.
func (o *outbox) welcome(r *response, done func()) {
	if r == nil {
		o.put(nil, true)
		return
	}
	o.put(&item{message: *r, done: done}, true)
}

// put adds an answer, if it is one, and opens the box for notifications.
func (o *outbox) put(it *item, open bool) {
	o.mu.Lock()
	if it != nil && !o.ended {
		o.items = append(o.items, it)
		o.signal()
		it = nil
	}
	if open && !o.ended {
		o.open = true
		for _, held := range o.held {
			o.add(held)
		}
		o.held = nil
	}
	o.mu.Unlock()
	if it != nil {
		it.done()
	}
}

// note adds a notification.
func (o *outbox) note(key, method string, params any) {
	it := &item{message: notice(method, params), key: key}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended:
	case !o.open:
		o.held = append(o.held, it)
	default:
		o.add(it)
	}
}

// add adds a notification, or merges it. o.mu is held.
func (o *outbox) add(it *item) {
	if waiting := o.latest[it.key]; waiting != nil && o.notes >= mergeFrom {
		waiting.message = it.message
		return
	}
	o.items = append(o.items, it)
	o.notes++
	o.latest[it.key] = it
	o.signal()
}

// next takes the first message. Where none waits it is nil; more is false once
// none will come.
func (o *outbox) next() (it *item, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.items) == 0 {
		o.items = nil
		return nil, !o.ended
	}
	it = o.items[0]
	o.items[0] = nil
	o.items = o.items[1:]
	if it.key != "" {
		o.notes--
		if o.latest[it.key] == it {
			delete(o.latest, it.key)
		}
	}
	return it, true
}

// end lets what waits be the last.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.signal()
}

// drop ends it and forgets what waits.
func (o *outbox) drop() {
	o.mu.Lock()
	items := o.items
	o.items, o.held, o.ended = nil, nil, true
	o.signal()
	o.mu.Unlock()
	for _, it := range items {
		if it.done != nil {
			it.done()
		}
	}
}

// waiting is how many messages wait.
func (o *outbox) waiting() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.items)
}

// signal wakes the writer. o.mu is held.
func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
