package agentapi

import (
	"context"
	"errors"
	"io"
	"sync"

	"sandkeeper/internal/control"
)

const (
	// mostChannels may be open on one socket at once.
	mostChannels = 256
	// mostFrames of one channel wait to be written: enough that its command and
	// the socket work at the same time, and few, so that channels take turns.
	mostFrames = 4
)

// channel carries the streams of one exec over one socket. It ends with the
// exec, which it tells, or with the socket, which leaves the exec alone.
type channel struct {
	s      *socket
	id     uint32
	stream control.ExecStream
	stdin  *stdin
	ctx    context.Context // ends with the channel
	cancel context.CancelFunc

	output *account // what may be sent of output; nil without a window
	input  *account // what may come of stdin; nil without a window

	frames chan struct{} // holds a token for each frame that waits to be written
	tail   *item         // guarded by the outbox's mu: the last that waits

	mu  sync.Mutex
	due uint32 // credit to be told to the client
}

// channels are those of one socket.
type channels struct {
	pumps sync.WaitGroup

	mu       sync.Mutex
	last     uint32
	reserved int // by calls that are about to open one
	open     map[uint32]*channel
	ended    bool
}

// reserve takes a place for a channel to come.
func (l *channels) reserve() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open)+l.reserved >= mostChannels {
		return busy("%d channels are open on this socket, the most that may be", mostChannels)
	}
	l.reserved++
	return nil
}

// release gives a reserved place back.
func (l *channels) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved--
}

func (l *channels) get(id uint32) *channel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[id]
}

// of lists the channels of an exec.
func (l *channels) of(exec string) (list []*channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open {
		if c.stream.Exec() == exec {
			list = append(list, c)
		}
	}
	return list
}

func (l *channels) remove(c *channel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c.id)
}

// end closes all, and waits for them. Their execs go on.
func (l *channels) end() {
	l.mu.Lock()
	l.ended = true
	for _, c := range l.open {
		c.cancel()
	}
	l.mu.Unlock()
	l.pumps.Wait()
}

// channel opens a channel on a reserved place. Frames of the client are taken
// from now on; begin lets those of the command go, and is for when the client
// was answered. Without begin, cancel is due.
func (s *socket) channel(stream control.ExecStream, window *int64) (c *channel, begin func()) {
	c = &channel{s: s, stream: stream, frames: make(chan struct{}, mostFrames)}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	if window != nil {
		c.output, c.input = newAccount(*window), newAccount(*window)
	}
	c.stdin = newStdin(stream, c.taken)
	l := &s.channels
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved--
	l.last++
	c.id = l.last
	ready := make(chan struct{})
	serve := func() {
		// Closing the stream ends whatever waits for it.
		hangUp := sync.OnceFunc(func() { stream.Close() }) //nolint:errcheck // nothing is lost by it
		stop := context.AfterFunc(c.ctx, hangUp)
		select {
		case <-ready:
			c.pump()
		case <-c.ctx.Done():
		}
		stop()
		c.cancel()
		hangUp()
		c.stdin.end()
		l.remove(c)
	}
	if l.ended { // nobody waits for pumps any more
		c.cancel()
		stream.Close() //nolint:errcheck // nothing is lost by it
		return c, func() {}
	}
	if l.open == nil {
		l.open = map[uint32]*channel{}
	}
	l.open[c.id] = c
	l.pumps.Go(serve)
	return c, sync.OnceFunc(func() { close(ready) })
}

// pump sends what the command writes, and in the end how it ended.
func (c *channel) pump() {
	large := false
	for {
		b := newBuffer(large)
		n, out, err := c.stream.Read(b.room())
		if n > 0 {
			b.fill(n, c.id, byte(out))
			large = b.full() || large && n > smallPayload
			if c.send(b) != nil {
				return
			}
		} else {
			b.free()
		}
		if err != nil && !c.passed(err) {
			return
		}
	}
}

// passed handles an error of reading, and reports whether there is more to read.
func (c *channel) passed(err error) bool {
	exec := c.stream.Exec()
	gap, lost := errors.AsType[*control.Gap](err)
	switch {
	case lost:
		return c.tell("exec.gap", gapParams{exec, c.id, gap.Skipped}) == nil
	case errors.Is(err, io.EOF):
		c.s.channels.remove(c)                                               // closed by its end, whenever that is written
		c.tell("exec.exit", exitParams{exec, c.id, exitOf(c.stream.Exit())}) //nolint:errcheck // the socket is gone
	case c.ctx.Err() == nil:
		c.s.log.Load().Warn("channel broke", "exec", exec, "channel", c.id, "error", err)
		c.s.channels.remove(c)
		c.tell("exec.detached", detachedParams{exec, c.id, wireErrorOf(err)}) //nolint:errcheck // as above
	}
	return false
}

// tell notifies the client, behind all that the channel carried.
func (c *channel) tell(method string, params any) error {
	return c.s.out.stream(c.ctx, c, nil, notice(method, params), func() {})
}

// send sends a buffer as far as its credit reaches, and waits for the rest.
func (c *channel) send(b *buffer) error {
	if c.output == nil {
		return c.put(b)
	}
	for {
		rest := b.payload()
		n, err := c.output.take(c.ctx, int64(len(rest)))
		if err != nil {
			b.free()
			return err
		}
		if int(n) == len(rest) {
			return c.put(b)
		}
		part := newBuffer(n > smallPayload)
		copy(part.room(), rest[:n])
		part.fill(int(n), c.id, b.stream())
		if err := c.put(part); err != nil {
			b.free()
			return err
		}
		b.fill(copy(rest, rest[n:]), c.id, b.stream())
	}
}

// put hands a buffer to the writer.
func (c *channel) put(b *buffer) error {
	select {
	case c.frames <- struct{}{}:
	case <-c.ctx.Done():
		b.free()
		return c.ctx.Err()
	}
	return c.s.out.stream(c.ctx, c, b, nil, func() { <-c.frames })
}

// creditDue is a message: what a channel has to give to its client by the time of writing.
type creditDue struct{ *channel }

// taken notes how much stdin the command took: as much more may come.
func (c *channel) taken(n int) {
	if c.input == nil || n == 0 || c.ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	first := c.due == 0
	c.due += uint32(n)
	c.mu.Unlock()
	if first {
		c.s.out.credit(c)
	}
}

// frame is the credit frame to be written.
func (d creditDue) frame() []byte {
	d.mu.Lock()
	n := d.due
	d.due = 0
	d.mu.Unlock()
	d.input.give(int64(n)) //nolint:errcheck // what was taken off before
	return creditFrame(d.id, n)
}

// binary handles a client's binary frame. It fails only where the socket has ended.
func (s *socket) binary(b []byte) error {
	f, ok := parseBinary(b)
	if !ok {
		s.drop()
		return nil
	}
	c := s.channels.get(f.channel)
	if c == nil {
		s.drop()
		return nil
	}
	switch n, isCredit := f.credit(); {
	case isCredit && c.output != nil:
		if err := c.output.give(int64(n)); err != nil {
			s.violated("channel %d was given %v", f.channel, err)
		}
	case f.stream != streamStdin:
		s.drop()
	case len(f.payload) == 0:
		c.stdin.close()
	case c.input != nil && !c.input.spend(int64(len(f.payload))):
		s.violated("channel %d was sent more than its window", f.channel)
	default:
		ok, err := c.stdin.put(c.ctx, f.payload, s.holdReading)
		if err != nil {
			return s.ctx.Err() // the channel has ended, or the socket
		}
		if !ok {
			s.drop()
			c.taken(len(f.payload))
		}
	}
	return nil
}
