package client

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Options says where and as whom a client connects.
type Options struct {
	// URL of the server: "http://127.0.0.1:7333" (or https, ws, wss). Without a
	// path it is the agents' own.
	URL   string
	Token string // of an agent, or of an operator
	Owner string // for an operator's token: whom to act for; "" is "default"
	Agent string // the name that operators see

	Version string // of the agent, for operators; may be empty
	Session string // resume this session, of an earlier client
	// DisconnectGrace is how long the server keeps the session without a
	// connection; 0 is the server's own, which is also the most.
	DisconnectGrace time.Duration

	HTTPClient *http.Client // http.DefaultClient where nil
	Log        *slog.Logger // nil: no log

	// The callbacks are called one at a time, in order, and may use the client.
	// States of one environment are skipped where a callback is slow.
	OnEnvState    func(Env)
	OnEnvExpiring func(Expiring)
	OnDraining    func(left time.Duration) // the server is going down
	OnConnected   func(Hello)              // after each hello
	OnDropped     func(error)              // after each loss of the connection
}

// Client is an agent's session. Its methods are safe for use by many
// goroutines, and calls run side by side.
type Client struct {
	opt   Options
	url   string
	log   *slog.Logger
	ctx   context.Context // until Close
	stop  context.CancelFunc
	done  chan struct{} // the connection is given up
	notes *notes

	mu       sync.Mutex // guards the fields below
	line     *line      // nil while there is no connection
	hello    Hello      // the last
	next     int64
	calls    map[string]*call
	turns    map[string]int64    // by task: the latest turn that we know of
	channels map[uint32]*Process // of the line
	events   *Events             // the subscription; nil: none
	failure  error               // once done
}

// call is a request that waits for its answer.
type call struct {
	seq    int64
	method string
	frame  []byte
	repeat bool                               // it may be asked twice
	sent   bool                               // it was, perhaps
	accept func(*line, json.RawMessage) error // takes the result ahead of what follows it
	answer chan outcome                       // takes one
}

type outcome struct {
	result json.RawMessage
	err    error
}

// Dial connects, says hello, and keeps the connection up from then on. That
// first attempt must succeed; ctx bounds it, and nothing after it. An error that
// the server gave is a *HandshakeError or an *Error.
func Dial(ctx context.Context, o Options) (*Client, error) {
	u, err := endpoint(o.URL)
	if err != nil {
		return nil, err
	}
	o.Agent = cmp.Or(o.Agent, "agent")
	c := &Client{
		opt:      o,
		url:      u,
		log:      o.Log,
		done:     make(chan struct{}),
		notes:    newNotes(o),
		hello:    Hello{Session: o.Session},
		calls:    map[string]*call{},
		turns:    map[string]int64{},
		channels: map[uint32]*Process{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	l, err := c.connect(ctx)
	if err != nil {
		c.stop()
		c.notes.close()
		return nil, err
	}
	go c.keep(l)
	return c, nil
}

// endpoint completes the server's address.
func endpoint(addr string) (string, error) {
	u, err := url.Parse(addr)
	if err != nil {
		return "", fmt.Errorf("client: %w", err)
	}
	switch u.Scheme {
	case "http", "https", "ws", "wss":
	default:
		return "", fmt.Errorf("client: %q is no address of a server: http, https, ws or wss is needed", addr)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/api/v1/agent"
	}
	return u.String(), nil
}

// Hello returns what the server said last.
func (c *Client) Hello() Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hello
}

// Session returns the session's id, by which another client may resume it.
func (c *Client) Session() string { return c.Hello().Session }

// Done is closed once the client has given up: after Close, or where the server
// refuses it. Err says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the client gave up, or nil while it has not.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

// Close ends the connection. Calls under way fail with ErrClosed. The session
// and its turns last for the disconnect grace.
func (c *Client) Close() error {
	c.stop()
	<-c.done
	return nil
}

// The pauses between attempts to connect grow from the first to the last.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// keep has a connection, or is after one, until the client is closed or refused.
func (c *Client) keep(l *line) {
	defer close(c.done)
	defer c.notes.close()
	defer c.stop()
	for {
		err := l.serve(c.ctx, func(m message) { c.receive(l, m) }, c.frame)
		switch {
		case c.ctx.Err() != nil:
			c.fail(ErrClosed)
			return
		case isTakenOver(err):
			c.fail(ErrTakenOver)
			return
		}
		c.log.Info("connection dropped", "error", err)
		c.lost(err)
		for pause := firstPause; ; pause = min(2*pause, lastPause) {
			wait := pause/2 + rand.N(pause)
			select {
			case <-c.ctx.Done():
				c.fail(ErrClosed)
				return
			case <-time.After(wait):
			}
			if l, err = c.connect(c.ctx); err == nil {
				break
			}
			if permanent(err) {
				c.fail(err)
				return
			}
			c.log.Debug("no connection", "error", err, "pause", pause)
		}
	}
}

// connect opens a line, says hello on it, and gives it what waits.
func (c *Client) connect(ctx context.Context) (*line, error) {
	l, err := openLine(ctx, c.url, c.opt)
	if err != nil {
		return nil, err
	}
	params := map[string]any{"agent": c.opt.Agent}
	if c.opt.Version != "" {
		params["version"] = c.opt.Version
	}
	if s := c.Session(); s != "" {
		params["session"] = s
	}
	if g := c.opt.DisconnectGrace; g > 0 {
		params["disconnect_grace_seconds"] = int64((g + time.Second - 1) / time.Second)
	}
	var h Hello
	if err := l.greet(ctx, params, &h); err != nil {
		l.cut()
		return nil, err
	}
	if h.HeartbeatS > 0 {
		l.heartbeat = time.Duration(h.HeartbeatS) * time.Second
	}
	c.mu.Lock()
	c.hello, c.line = h, l
	waiting := slices.SortedFunc(maps.Values(c.calls), func(a, b *call) int { return cmp.Compare(a.seq, b.seq) })
	for _, w := range waiting {
		w.sent = true
		l.backlog = append(l.backlog, outgoing{data: w.frame})
	}
	c.mu.Unlock()
	c.log.Info("connected", "session", h.Session, "resumed", h.Resumed)
	c.notes.connected(h)
	return l, nil
}

// lost puts calls back that may be asked again, and fails the others.
func (c *Client) lost(err error) {
	c.mu.Lock()
	c.line = nil
	for id, w := range c.calls {
		if w.sent && !w.repeat {
			delete(c.calls, id)
			w.answer <- outcome{err: ErrDropped}
		}
	}
	open := c.channels
	c.channels = map[uint32]*Process{}
	events := c.events
	c.mu.Unlock()
	if events != nil {
		events.lost()
	}
	for _, p := range open {
		p.dropped()
	}
	c.notes.dropped(err)
}

// fail gives up.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.line, c.failure = nil, err
	for _, p := range c.channels {
		p.fail(err)
	}
	if c.events != nil {
		c.events.fail(err)
	}
	for id, w := range c.calls {
		delete(c.calls, id)
		w.answer <- outcome{err: err}
	}
}

// receive takes a message of the server's.
func (c *Client) receive(l *line, m message) {
	switch m.Method {
	case "":
	case "exec.exit", "exec.gap", "exec.detached":
		c.told(m)
		return
	case "event", "events.reset", "events.ended":
		c.mu.Lock()
		e := c.events
		c.mu.Unlock()
		if e != nil {
			e.take(m)
		}
		return
	default:
		c.notes.add(m)
		return
	}
	c.mu.Lock()
	w := c.calls[string(m.ID)]
	delete(c.calls, string(m.ID))
	c.mu.Unlock()
	switch {
	case w == nil: // its caller did not wait for it
	case m.Error != nil:
		w.answer <- outcome{err: m.Error.of(w.method)}
	case w.accept != nil:
		w.answer <- outcome{result: m.Result, err: w.accept(l, m.Result)}
	default:
		w.answer <- outcome{result: m.Result}
	}
}

// frame takes a frame of a stream. One for no channel of ours is dropped.
func (c *Client) frame(b []byte) {
	if len(b) < 5 {
		return
	}
	c.mu.Lock()
	p := c.channels[binary.BigEndian.Uint32(b)]
	c.mu.Unlock()
	if p != nil {
		p.frame(b[4], b[5:])
	}
}

// told takes what is told of a channel.
func (c *Client) told(m message) {
	var of struct {
		Channel uint32  `json:"channel"`
		Skipped Offsets `json:"skipped"`
	}
	if json.Unmarshal(m.Params, &of) != nil {
		return
	}
	c.mu.Lock()
	p := c.channels[of.Channel]
	if m.Method != "exec.gap" {
		delete(c.channels, of.Channel)
	}
	c.mu.Unlock()
	switch {
	case p == nil:
		return
	case m.Method == "exec.gap":
		p.skipped(of.Skipped)
		return
	case m.Method == "exec.detached": // it says nothing of the command's end
		p.dropped()
		return
	}
	var e Exit
	if err := json.Unmarshal(m.Params, &e); err != nil {
		p.fail(err)
		return
	}
	p.exited(&e)
}

// Call makes any request of the protocol and decodes its result into result,
// unless that is nil. It is not repeated after a loss of the connection. The
// other methods do for what they name.
func (c *Client) Call(ctx context.Context, method string, params, result any) error {
	return c.do(ctx, method, false, params, result)
}

// do makes a request. repeat says that it may be asked twice.
func (c *Client) do(ctx context.Context, method string, repeat bool, params, result any) error {
	return c.doOn(ctx, method, repeat, params, result, nil)
}

// doOn is do whose result is taken by accept too, ahead of what follows it on the line.
func (c *Client) doOn(ctx context.Context, method string, repeat bool, params, result any, accept func(*line, json.RawMessage) error) error {
	w := &call{method: method, repeat: repeat, accept: accept, answer: make(chan outcome, 1)}
	c.mu.Lock()
	c.next++
	w.seq = c.next
	hello := c.hello
	c.mu.Unlock()
	id := strconv.FormatInt(w.seq, 10)
	frame, err := json.Marshal(struct {
		Version string `json:"jsonrpc"`
		ID      int64  `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{"2.0", w.seq, method, params})
	if err != nil {
		return fmt.Errorf("client: %s: %w", method, err)
	}
	if most := hello.Limits.MaxFrameBytes; most > 0 && int64(len(frame)) > most {
		return fmt.Errorf("%w: %s of %d bytes, at most %d", ErrTooBig, method, len(frame), most)
	}
	w.frame = frame

	c.mu.Lock()
	if c.failure != nil {
		c.mu.Unlock()
		return c.failure
	}
	c.calls[id] = w
	l := c.line
	w.sent = l != nil
	c.mu.Unlock()
	if l != nil {
		l.send(ctx, outgoing{data: frame}) // where that fails, so does the line, or ctx
	}

	select {
	case o := <-w.answer:
		if o.err != nil {
			return o.err
		}
		if result == nil {
			return nil
		}
		if err := json.Unmarshal(o.result, result); err != nil {
			return fmt.Errorf("client: result of %s: %w", method, err)
		}
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		if accept != nil && w.sent {
			w.repeat = false // its answer opens something all the same
		} else {
			delete(c.calls, id)
		}
		c.mu.Unlock()
		return context.Cause(ctx)
	}
}

// sawTurn remembers the latest turn of a task.
func (c *Client) sawTurn(task string, turn int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turns[task] = max(c.turns[task], turn)
}

func (c *Client) latestTurn(task string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turns[task]
}

var errNoHello = errors.New("client: the server did not answer hello")
