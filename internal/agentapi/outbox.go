package agentapi

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// outbox is what waits to be written to one socket. Answers are bounded by the
// calls that may be under way. Notifications merge by their key once mergeFrom
// of them wait, so they are bounded by the number of keys. What channels carry
// waits in a row of its own, in order and bounded in bytes; answers and
// notifications pass it between its frames, but never hold it up.
type outbox struct {
	wake chan struct{}       // holds a token while there may be something to take
	room *semaphore.Weighted // bytes of buffers in streams

	mu      sync.Mutex // guards all below
	items   []*item
	notes   int              // notifications among items
	latest  map[string]*item // by key: the last notification that waits
	held    []*item          // notifications until the answer to hello
	streams []*item          // of channels
	passed  int              // items taken in a row while streams waited
	open    bool             // hello was answered
	ended   bool             // nothing is added any more
}

// item is one message that waits to be written: message, or the bytes of a channel.
type item struct {
	message any
	buffer  *buffer
	taken   bool   // of a buffer: the writer has it
	key     string // of a notification: one of the same key makes it out of date
	done    func() // called once it was written, or dropped
}

const (
	// mergeFrom is how many notifications wait in full before they merge.
	mergeFrom = 64
	// mostWaiting bounds the buffers of output that wait for one socket.
	mostWaiting = 1 << 20
	// mostPassing is how many messages may pass a waiting frame before it goes.
	mostPassing = 16
)

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), room: semaphore.NewWeighted(mostWaiting), latest: map[string]*item{}}
}

// answer adds an answer. done is called once it was written, or dropped.
func (o *outbox) answer(r response, done func()) {
	o.put(&item{message: r, done: done}, false)
}

// tell adds a notification that is never merged. done is called once it was
// written, or dropped: who tells many is to wait for it.
func (o *outbox) tell(method string, params any, done func()) {
	o.put(&item{message: notice(method, params), done: done}, false)
}

// credit adds a frame that gives a channel's client what is due to it by then.
func (o *outbox) credit(c *channel) {
	o.put(&item{message: creditDue{c}, done: func() {}}, false)
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

// put adds an item, if there is one, and may open the box for notifications.
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

// stream adds what a channel carries, behind all that it carried before: the
// bytes of b, if it is not nil, or a message. It waits for room. b is the
// outbox's from then on. Errors: ctx's.
func (o *outbox) stream(ctx context.Context, c *channel, b *buffer, message any, done func()) error {
	it := &item{message: message, done: done}
	if b != nil {
		if o.append(c, b) {
			b.free()
			done()
			return nil
		}
		size := int64(cap(b.b))
		if err := o.room.Acquire(ctx, size); err != nil {
			b.free()
			done()
			return err
		}
		it.buffer = b
		it.done = func() {
			o.room.Release(size)
			b.free()
			done()
		}
	}
	o.mu.Lock()
	ended := o.ended
	if !ended {
		o.streams = append(o.streams, it)
		c.tail = it
		o.signal()
	}
	o.mu.Unlock()
	if ended {
		it.done()
	}
	return nil
}

// append adds bytes to the channel's last frame while that waits and has room:
// many small reads become one frame where the peer is slower than the command.
func (o *outbox) append(c *channel, b *buffer) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := c.tail
	if f == nil || f.taken || f.buffer == nil || f.buffer.stream() != b.stream() || cap(f.buffer.b)-len(f.buffer.b) < len(b.b)-headerSize {
		return false
	}
	f.buffer.b = append(f.buffer.b, b.b[headerSize:]...)
	return true
}

// next takes the message to be written next. Where none waits it is nil; more
// is false once none will come.
func (o *outbox) next() (it *item, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.streams) > 0 && (len(o.items) == 0 || o.passed >= mostPassing) {
		o.passed = 0
		it, o.streams = shift(o.streams)
		it.taken = true
		return it, true
	}
	if len(o.items) == 0 {
		return nil, !o.ended
	}
	o.passed++
	it, o.items = shift(o.items)
	if it.key != "" {
		o.notes--
		if o.latest[it.key] == it {
			delete(o.latest, it.key)
		}
	}
	return it, true
}

// shift takes the first of a row, and lets the memory of an empty one go.
func shift(row []*item) (*item, []*item) {
	first := row[0]
	row[0] = nil
	if len(row) == 1 {
		return first, nil
	}
	return first, row[1:]
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
	items := append(o.items, o.streams...)
	o.items, o.streams, o.held, o.ended = nil, nil, nil, true
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
	return len(o.items) + len(o.streams)
}

// signal wakes the writer. o.mu is held.
func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}
