package guest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"sandkeeper/internal/guest/wire"
)

const (
	maxIdleStreams = 4
	maxRunName     = 64 // bytes
)

// conn is one multiplexed connection to a guest. Streams whose call is over are
// used for the next one, which saves their opening and closing.
type conn struct {
	mux      *yamux.Session
	run      string // as the guest names it
	features []string

	mu   sync.Mutex // guards the fields below
	idle []*yamux.Stream
}

// errBroken is a call whose answer did not come: the connection is of no more use.
type errBroken struct{ err error }

func (e errBroken) Error() string { return e.err.Error() }
func (e errBroken) Unwrap() error { return e.err }

// newConn makes a connection of a stream, once the guest has said hello.
func newConn(ctx context.Context, raw io.ReadWriteCloser) (*conn, error) {
	mux, err := wire.Client(raw)
	if err != nil {
		raw.Close()
		return nil, err
	}
	c := &conn{mux: mux}
	resp, _, err := c.call(ctx, &wire.Request{Method: wire.MethodHello, Version: wire.Version}, nil, 0)
	if err == nil && resp.Version < 1 {
		err = errors.New("no version")
	}
	if err != nil {
		c.close()
		return nil, err
	}
	c.run = text(resp.Run, maxRunName)
	c.features = resp.Features
	return c, nil
}

func (c *conn) broken() bool { return c.mux.IsClosed() }

func (c *conn) close() { c.mux.Close() }

// call makes one call; the answer's payload has at most maxPayload bytes.
// Errors: ctx's; errBroken; *wire.Error is the guest's own.
func (c *conn) call(ctx context.Context, req *wire.Request, payload []byte, maxPayload int) (*wire.Response, []byte, error) {
	s, resp, data, err := c.exchange(ctx, req, payload, maxPayload)
	if err != nil {
		return nil, nil, err
	}
	if s != nil {
		c.rest(s)
	}
	if resp.Error != nil {
		return nil, nil, resp.Error
	}
	return resp, data, nil
}

// attach makes a call whose stream goes on after its answer. Errors: as of call.
func (c *conn) attach(ctx context.Context, req *wire.Request) (*yamux.Stream, *wire.Response, error) {
	s, resp, _, err := c.exchange(ctx, req, nil, 0)
	switch {
	case err != nil:
		return nil, nil, err
	case s == nil:
		return nil, nil, ctx.Err()
	case resp.Error != nil:
		c.rest(s)
		return nil, nil, resp.Error
	}
	return s, resp, nil
}

// exchange sends a request and reads its answer, also one that is an error of
// the guest's. The stream is nil where ctx ended meanwhile.
func (c *conn) exchange(ctx context.Context, req *wire.Request, payload []byte, maxPayload int) (*yamux.Stream, *wire.Response, []byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, nil, err
	}
	s, err := c.stream()
	if err != nil {
		return nil, nil, nil, errBroken{err}
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	resp := new(wire.Response)
	var data []byte
	err = wire.Write(s, req, payload)
	tooLarge := errors.Is(err, wire.ErrTooLarge) // ours, and nothing was sent
	if err == nil {
		data, err = wire.Read(s, resp, maxPayload)
	}
	if stop() && err == nil {
		return s, resp, data, nil
	}
	s.Close() // the guest takes that as the call's end
	switch {
	case err == nil:
		return nil, resp, data, nil
	case tooLarge:
		return nil, nil, nil, err
	case ctx.Err() != nil:
		return nil, nil, nil, ctx.Err()
	}
	return nil, nil, nil, errBroken{err}
}

func (c *conn) stream() (*yamux.Stream, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	return c.mux.OpenStream()
}

func (c *conn) rest(s *yamux.Stream) {
	c.mu.Lock()
	if len(c.idle) < maxIdleStreams {
		c.idle = append(c.idle, s)
		s = nil
	}
	c.mu.Unlock()
	if s != nil {
		s.Close()
	}
}
