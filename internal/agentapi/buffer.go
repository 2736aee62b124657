package agentapi

import "sync"

// The payloads that the two sizes of buffers have room for: a channel whose
// command says little holds little.
const (
	smallPayload = 4 << 10
	largePayload = 64 << 10
)

// buffer is a binary frame in the making: room for a header, and a payload.
type buffer struct{ b []byte }

var (
	smallBuffers = sync.Pool{New: func() any { return &buffer{make([]byte, headerSize, headerSize+smallPayload)} }}
	largeBuffers = sync.Pool{New: func() any { return &buffer{make([]byte, headerSize, headerSize+largePayload)} }}
)

func newBuffer(large bool) *buffer {
	if large {
		return largeBuffers.Get().(*buffer)
	}
	return smallBuffers.Get().(*buffer)
}

// free gives the buffer back; nobody may have it any more.
func (b *buffer) free() {
	b.b = b.b[:headerSize]
	if cap(b.b) == headerSize+largePayload {
		largeBuffers.Put(b)
		return
	}
	smallBuffers.Put(b)
}

func (b *buffer) stream() byte    { return b.b[headerSize-1] }
func (b *buffer) payload() []byte { return b.b[headerSize:] }

// room is all that the payload may become.
func (b *buffer) room() []byte { return b.b[headerSize:cap(b.b)] }

// fill says what is in the room by now, and of which channel it is.
func (b *buffer) fill(n int, channel uint32, stream byte) {
	b.b = b.b[:headerSize+n]
	putHeader(b.b, channel, stream)
}

// full reports whether more might have come at once.
func (b *buffer) full() bool { return len(b.b) == cap(b.b) }
