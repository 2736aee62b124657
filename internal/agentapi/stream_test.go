package agentapi

import (
	"context"
	"io"
	"sync"

	"sandkeeper/internal/control"
)

// fakeStream is an exec's streams as a test plays them: what it is given comes
// out of Read, each of it whole or in parts, and what Write takes is kept.
type fakeStream struct {
	closed chan struct{}
	once   sync.Once
	parts  chan fakePart
	takes  chan int // each lets Write take as many bytes; nil: it takes all
	ended  chan struct{}

	rest fakePart // Read's alone
	exit control.ExecExit

	mu       sync.Mutex
	got      []byte
	writeErr error
	eof      chan struct{}
	eofOnce  sync.Once
}

// fakePart is bytes of one stream, or what Read is to fail with.
type fakePart struct {
	out control.Output
	b   []byte
	err error
}

func newFakeStream() *fakeStream {
	return &fakeStream{closed: make(chan struct{}), parts: make(chan fakePart), ended: make(chan struct{}), eof: make(chan struct{})}
}

func (f *fakeStream) Exec() string           { return "x1" }
func (f *fakeStream) Exit() control.ExecExit { return f.exit }

func (f *fakeStream) Read(p []byte) (int, control.Output, error) {
	if len(f.rest.b) == 0 {
		select {
		case f.rest = <-f.parts:
		case <-f.ended:
			return 0, 0, io.EOF
		case <-f.closed:
			return 0, 0, io.ErrClosedPipe
		}
		if f.rest.err != nil {
			return 0, 0, f.rest.err
		}
	}
	n := copy(p, f.rest.b)
	f.rest.b = f.rest.b[n:]
	return n, f.rest.out, nil
}

func (f *fakeStream) Write(p []byte) (int, error) {
	n := len(p)
	for done := 0; done < n; {
		part := n - done
		if f.takes != nil {
			select {
			case part = <-f.takes:
			case <-f.closed:
				return done, io.ErrClosedPipe
			}
			part = min(part, n-done)
		}
		f.mu.Lock()
		if err := f.writeErr; err != nil {
			f.mu.Unlock()
			return done, err
		}
		f.got = append(f.got, p[done:done+part]...)
		f.mu.Unlock()
		done += part
	}
	return n, nil
}

func (f *fakeStream) CloseStdin() error {
	f.eofOnce.Do(func() { close(f.eof) })
	return nil
}

func (f *fakeStream) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

// says lets the command write, and waits until that is read, or the stream closed.
func (f *fakeStream) says(out control.Output, b []byte) {
	select {
	case f.parts <- fakePart{out: out, b: b}:
	case <-f.closed:
	}
}

// ends lets the command end.
func (f *fakeStream) ends(e control.ExecExit) {
	f.exit = e
	close(f.ended)
}

// input is what was written by now.
func (f *fakeStream) input() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return string(f.got)
}

// fakeFeed is a subscription that tells what a test gives it.
type fakeFeed struct {
	events chan []control.Event
	closed chan struct{}
	once   sync.Once
}

func newFakeFeed() *fakeFeed {
	return &fakeFeed{events: make(chan []control.Event), closed: make(chan struct{})}
}

// Next waits for events; nil ones are a reset.
func (f *fakeFeed) Next(ctx context.Context) ([]control.Event, bool, error) {
	select {
	case ev := <-f.events:
		return ev, ev == nil, nil
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

func (f *fakeFeed) Close() { f.once.Do(func() { close(f.closed) }) }
