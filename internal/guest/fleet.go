package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

const (
	idleFor       = 30 * time.Second // a connection without calls
	firstPingWait = 5 * time.Millisecond
	maxPingWait   = 250 * time.Millisecond
)

// Fleet reaches the guests of all sandboxes.
type Fleet struct {
	dial    func(ctx context.Context, name string) (io.ReadWriteCloser, error)
	log     *slog.Logger
	idleFor time.Duration

	mu     sync.Mutex // guards the fields below
	closed bool
	lines  map[string]*line
}

var (
	_ control.Guests = (*Fleet)(nil)
	_ control.Guest  = remote{}
)

// NewFleet makes a Fleet that reaches a sandbox's guest by dial.
func NewFleet(dial func(ctx context.Context, name string) (io.ReadWriteCloser, error), log *slog.Logger) *Fleet {
	return &Fleet{dial: dial, log: log, idleFor: idleFor, lines: make(map[string]*line)}
}

// Guest returns the guest of a sandbox.
func (f *Fleet) Guest(name string) control.Guest { return remote{f, name} }

// Forget closes what is open to a sandbox; calls under way fail. A later call dials anew.
func (f *Fleet) Forget(name string) {
	f.mu.Lock()
	l := f.lines[name]
	delete(f.lines, name)
	f.mu.Unlock()
	if l != nil {
		l.close()
	}
}

// Close closes all connections; calls under way and later ones fail.
func (f *Fleet) Close() error {
	f.mu.Lock()
	f.closed = true
	lines := f.lines
	f.lines = make(map[string]*line)
	f.mu.Unlock()
	for _, l := range lines {
		l.close()
	}
	return nil
}

func (f *Fleet) line(name string) (*line, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("closed")
	}
	l := f.lines[name]
	if l == nil {
		l = &line{fleet: f, name: name, turn: make(chan struct{}, 1), gone: make(chan struct{})}
		f.lines[name] = l
	}
	return l, nil
}

// leave drops the entry of a sandbox that nothing is open to.
func (f *Fleet) leave(l *line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil && l.calls == 0 && f.lines[l.name] == l {
		delete(f.lines, l.name)
	}
}

// line is what there is to one sandbox: a connection, or none.
type line struct {
	fleet *Fleet
	name  string
	turn  chan struct{} // held by who dials
	gone  chan struct{} // closed by close

	mu    sync.Mutex // guards the fields below
	done  bool
	conn  *conn
	calls int
	idle  *time.Timer
}

var errForgotten = errors.New("the sandbox is being torn down")

// begin counts a call, so that the connection stays.
func (l *line) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.idle != nil {
		l.idle.Stop()
	}
}

func (l *line) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	if l.calls > 0 || l.done {
		return
	}
	if l.idle == nil {
		l.idle = time.AfterFunc(l.fleet.idleFor, l.hangUp)
	} else {
		l.idle.Reset(l.fleet.idleFor)
	}
}

// hangUp closes an idle connection.
func (l *line) hangUp() {
	l.mu.Lock()
	c := l.conn
	if l.calls > 0 || l.done {
		l.mu.Unlock()
		return
	}
	l.conn = nil
	l.mu.Unlock()
	if c != nil {
		c.close()
	}
	l.fleet.leave(l)
}

func (l *line) close() {
	l.mu.Lock()
	c := l.conn
	l.conn = nil
	if !l.done {
		l.done = true
		close(l.gone)
	}
	if l.idle != nil {
		l.idle.Stop()
	}
	l.mu.Unlock()
	if c != nil {
		c.close()
	}
}

// connect returns the connection, and dials where there is none. One call dials,
// the others wait for it.
func (l *line) connect(ctx context.Context) (*conn, error) {
	if c, err := l.current(); c != nil || err != nil {
		return c, err
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-l.gone:
		return nil, errForgotten
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c, err := l.current(); c != nil || err != nil {
		return c, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-l.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-watched }()

	raw, err := l.fleet.dial(ctx, l.name)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	c, err := newConn(ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("hello: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		c.close()
		return nil, errForgotten
	}
	l.conn = c
	return c, nil
}

func (l *line) current() (*conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done {
		return nil, errForgotten
	}
	if l.conn != nil && l.conn.broken() {
		l.conn.close()
		l.conn = nil
	}
	return l.conn, nil
}

// discard takes a connection that failed out of use.
func (l *line) discard(c *conn) {
	l.mu.Lock()
	if l.conn == c {
		l.conn = nil
	}
	l.mu.Unlock()
	c.close()
}
