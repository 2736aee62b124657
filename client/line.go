package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"nhooyr.io/websocket"
)

const (
	subprotocol = "sandkeeper.v1"
	takenOver   = websocket.StatusCode(4001)

	// defaultHeartbeat is what the protocol has where hello does not say.
	defaultHeartbeat = 20 * time.Second
	// writeTime is how long one message may take to be written.
	writeTime = time.Minute
	// closeTime is how long a server may take to agree to a close.
	closeTime = 2 * time.Second
	// mostBytes bounds a message of the server's.
	mostBytes = 256 << 20
)

// line is one connection.
type line struct {
	conn      *websocket.Conn
	heartbeat time.Duration
	backlog   []outgoing    // is written first
	out       chan outgoing // then what comes here
	gone      chan struct{}
	once      sync.Once
}

// outgoing is a frame of ours.
type outgoing struct {
	binary bool
	data   []byte
}

// openLine dials.
func openLine(ctx context.Context, url string, o Options) (*line, error) {
	header := http.Header{"Authorization": {"Bearer " + o.Token}}
	if o.Owner != "" {
		header.Set("Sandkeeper-Owner", o.Owner)
	}
	conn, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{ //nolint:bodyclose // the websocket package does
		HTTPClient:   o.HTTPClient,
		HTTPHeader:   header,
		Subprotocols: []string{subprotocol},
	})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, handshakeError(resp)
		}
		return nil, fmt.Errorf("client: %w", err)
	}
	conn.SetReadLimit(mostBytes)
	return &line{conn: conn, heartbeat: defaultHeartbeat, out: make(chan outgoing), gone: make(chan struct{})}, nil
}

func handshakeError(resp *http.Response) error {
	e := &HandshakeError{Status: resp.StatusCode}
	var body struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if b, err := io.ReadAll(io.LimitReader(resp.Body, 1024)); err == nil && json.Unmarshal(b, &body) == nil {
		e.Message = body.Error.Message
	}
	return e
}

// greet says hello and waits for the answer, before anything else is sent.
func (l *line) greet(ctx context.Context, params, result any) error {
	frame, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 0, "method": "hello", "params": params})
	if err != nil {
		return fmt.Errorf("client: hello: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*defaultHeartbeat)
	defer cancel()
	if err := l.conn.Write(ctx, websocket.MessageText, frame); err != nil {
		return fmt.Errorf("client: hello: %w", err)
	}
	m, _, err := l.read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("client: hello: %w", err)
	case m.Error != nil:
		return m.Error.of("hello")
	case m.Method != "" || m.Result == nil:
		return errNoHello
	}
	if err := json.Unmarshal(m.Result, result); err != nil {
		return fmt.Errorf("client: result of hello: %w", err)
	}
	return nil
}

// serve reads and writes until the connection ends, or ctx does; then it is
// closed in peace.
func (l *line) serve(ctx context.Context, receive func(message), stream func([]byte)) error {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var helpers sync.WaitGroup
	helpers.Go(func() { l.write(inner) })
	helpers.Go(func() { l.watch(inner) })
	stop := context.AfterFunc(ctx, func() {
		defer time.AfterFunc(closeTime, cancel).Stop()
		l.conn.Close(websocket.StatusNormalClosure, "")
	})
	var err error
	for {
		var m message
		var frame []byte
		if m, frame, err = l.read(inner); err != nil {
			break
		}
		if frame != nil {
			stream(frame)
			continue
		}
		receive(m)
	}
	stop()
	l.cut()
	cancel()
	helpers.Wait()
	return err
}

// read reads one message, or one frame of a stream.
func (l *line) read(ctx context.Context) (m message, frame []byte, err error) {
	for {
		typ, r, err := l.conn.Reader(ctx)
		if passing(ctx, err) {
			continue
		}
		if err != nil {
			return m, nil, err
		}
		b, err := io.ReadAll(patient{ctx, r})
		if err != nil {
			return m, nil, err
		}
		if typ != websocket.MessageText {
			return m, b, nil
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return m, nil, fmt.Errorf("the server sent what is no JSON-RPC: %w", err)
		}
		return m, nil, nil
	}
}

// passing reports whether a read failed only because a ping could not be
// answered within 5 s, while a large message of ours is on its way.
func passing(ctx context.Context, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
}

// patient reads a message past such failures.
type patient struct {
	ctx context.Context
	r   io.Reader
}

func (p patient) Read(b []byte) (int, error) {
	for {
		n, err := p.r.Read(b)
		if n > 0 || !passing(p.ctx, err) {
			return n, err
		}
	}
}

// send gives the writer a frame. It returns early where the line or ctx ends.
func (l *line) send(ctx context.Context, frame outgoing) {
	select {
	case l.out <- frame:
	case <-l.gone:
	case <-ctx.Done():
	}
}

func (l *line) write(ctx context.Context) {
	put := func(frame outgoing) bool {
		ctx, cancel := context.WithTimeout(ctx, writeTime)
		defer cancel()
		typ := websocket.MessageText
		if frame.binary {
			typ = websocket.MessageBinary
		}
		if err := l.conn.Write(ctx, typ, frame.data); err != nil {
			l.cut()
			return false
		}
		return true
	}
	for _, frame := range l.backlog {
		if !put(frame) {
			return
		}
	}
	l.backlog = nil
	for {
		select {
		case frame := <-l.out:
			if !put(frame) {
				return
			}
		case <-l.gone:
			return
		}
	}
}

// watch cuts the line when the server has not answered a ping for two heartbeats.
func (l *line) watch(ctx context.Context) {
	tick := time.NewTicker(l.heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-l.gone:
			return
		case <-tick.C:
		}
		at := time.Now()
		ping, cancel := context.WithTimeout(ctx, 2*l.heartbeat)
		err := l.conn.Ping(ping)
		cancel()
		// It fails sooner where it had to wait behind a large message of ours.
		if err != nil && time.Since(at) >= 2*l.heartbeat {
			l.cut()
			return
		}
	}
}

// cut ends the line at once.
func (l *line) cut() {
	l.once.Do(func() {
		close(l.gone)
		l.conn.CloseNow() //nolint:errcheck // it is given up
	})
}

func isTakenOver(err error) bool { return websocket.CloseStatus(err) == takenOver }
