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
	mux *yamux.Session
	run string // as the guest names it

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
	return c, nil
}

func (c *conn) broken() bool { return c.mux.IsClosed() }

func (c *conn) close() { c.mux.Close() }

// call makes one call; the answer's payload has at most maxPayload bytes.
// Errors: ctx's; errBroken; *wire.Error is the guest's own.
func (c *conn) call(ctx context.Context, req *wire.Request, payload []byte, maxPayload int) (*wire.Response, []byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s, err := c.stream()
	if err != nil {
		return nil, nil, errBroken{err}
	}
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	resp := new(wire.Response)
	err = wire.Write(s, req, payload)
	if errors.Is(err, wire.ErrTooLarge) { // ours, and nothing was sent
		stop()
		s.Close()
		return nil, nil, err
	}
	var data []byte
	if err == nil {
		data, err = wire.Read(s, resp, maxPayload)
	}
	if stop() && err == nil {
		c.rest(s)
	} else {
		s.Close() // the guest takes that as the call's end
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case err != nil:
		return nil, nil, errBroken{err}
	case resp.Error != nil:
		return nil, nil, resp.Error
	}
	return resp, data, nil
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
