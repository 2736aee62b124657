package agentapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"nhooyr.io/websocket"

	"sandkeeper/internal/control"
)

// What may be under way on one socket at once.
const (
	mostSlow  = 256      // calls that may wait for an engine or a guest; the next is refused
	mostQuick = 64       // other calls, and refusals; past it the socket is not read
	mostBytes = 32 << 20 // of slow calls' frames; past it the next is refused
)

const (
	// closeWait is how long a socket that we close waits for its peer.
	closeWait = 3 * time.Second
	// linger is how long the calls of a socket that went may go on: what was
	// asked before it went is to reach the disk.
	linger = 10 * time.Second
)

const statusTakenOver websocket.StatusCode = 4001

// socket is one agent's connection, and the sink of its session.
type socket struct {
	api   *API
	owner string
	conn  *websocket.Conn
	link  *link
	out   *outbox
	log   atomic.Pointer[slog.Logger] // says more after hello

	ctx   context.Context // ends with the socket
	calls context.Context // ends a while after it

	slow, quick, bytes *semaphore.Weighted // places for what is under way

	channels channels
	events   feed

	session Session       // nil before hello; the reader's alone
	input   bytes.Buffer  // of binary frames; the reader's alone
	stalled atomic.Bool   // the reader waits for a place
	holding atomic.Bool   // the reader waits for a command to take its stdin
	writing atomic.Bool   // the writer has a message in hand
	dropped atomic.Uint64 // binary frames for no open channel

	closing atomic.Bool // we close it: what is read is dropped
	status  websocket.StatusCode
	reason  string
}

func newSocket(a *API, owner string, conn *websocket.Conn, l *link, log *slog.Logger) *socket {
	s := &socket{
		api:   a,
		owner: owner,
		conn:  conn,
		link:  l,
		out:   newOutbox(),
		slow:  semaphore.NewWeighted(mostSlow),
		quick: semaphore.NewWeighted(mostQuick),
		bytes: semaphore.NewWeighted(max(mostBytes, a.maxFrame)),
	}
	s.log.Store(log)
	return s
}

// serve runs the socket until it ends.
func (s *socket) serve() {
	ctx, cancel := context.WithCancel(s.api.base)
	calls, cancelCalls := context.WithCancel(s.api.base)
	s.ctx, s.calls = ctx, calls

	var writer, watcher sync.WaitGroup
	writer.Go(s.write)
	watcher.Go(s.watch)

	err := s.read()
	if !s.closing.Load() {
		s.link.Close()
		s.out.drop()
	}
	s.channels.end()
	s.events.end()
	if s.session != nil {
		s.session.Disconnect(s)
	}
	time.AfterFunc(linger, cancelCalls)
	writer.Wait() // if we close it, until the handshake has ended; shut bounds that
	cancel()
	watcher.Wait()
	s.log.Load().Info("agent disconnected", "reason", err, "dropped_frames", s.dropped.Load())
}

// shut closes the socket once what waits is written.
func (s *socket) shut(status websocket.StatusCode, reason string) {
	s.api.mu.Lock()
	first := !s.closing.Load()
	if first {
		s.status, s.reason = status, reason
		s.closing.Store(true)
	}
	s.api.mu.Unlock()
	if !first {
		return
	}
	time.AfterFunc(closeWait, func() { s.link.Close() })
	s.out.end()
}

// read takes frames until the socket ends, and returns why it did.
func (s *socket) read() error {
	for {
		typ, r, err := s.conn.Reader(s.ctx)
		if s.passing(err) {
			continue
		}
		if err != nil {
			return err
		}
		frame, err := s.frame(r, typ == websocket.MessageBinary)
		switch {
		case errors.Is(err, errTooBig):
			s.shut(websocket.StatusMessageTooBig, fmt.Sprintf("a frame may have %d bytes", s.api.maxFrame))
			return err
		case err != nil:
			return err
		case s.closing.Load():
		case typ == websocket.MessageBinary:
			if err := s.binary(frame); err != nil {
				return err
			}
		default:
			if err := s.reserve(1); err != nil {
				return err
			}
			if err := s.take(frame); err != nil {
				return err
			}
		}
	}
}

var errTooBig = errors.New("frame too big")

// frame reads one message, at most one byte beyond the limit of it. A binary
// one is in memory that the next takes.
func (s *socket) frame(r io.Reader, binary bool) ([]byte, error) {
	r = io.LimitReader(patient{s, r}, s.api.maxFrame+1)
	if !binary {
		b, err := io.ReadAll(r)
		if int64(len(b)) > s.api.maxFrame {
			return nil, errTooBig
		}
		return b, err
	}
	if s.input.Cap() > mostBuffered {
		s.input = bytes.Buffer{}
	}
	s.input.Reset()
	_, err := s.input.ReadFrom(r)
	b := s.input.Bytes()
	if int64(len(b)) > s.api.maxFrame {
		return nil, errTooBig
	}
	return b, err
}

// passing reports whether an error of the reader is none of the connection's:
// the websocket gives up to answer a ping after 5 s in which a large message is
// on its way to a slow peer.
func (s *socket) passing(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && s.ctx.Err() == nil
}

// patient reads a message past errors that are none of the connection's.
type patient struct {
	s *socket
	r io.Reader
}

func (p patient) Read(b []byte) (int, error) {
	for {
		n, err := p.r.Read(b)
		if n > 0 || !p.s.passing(err) {
			return n, err
		}
	}
}

// drop counts a binary frame that is for nobody.
func (s *socket) drop() {
	s.dropped.Add(1)
	s.api.dropped.Add(1)
}

// violated closes the socket of a peer that does not keep to the protocol.
func (s *socket) violated(format string, args ...any) {
	s.shut(websocket.StatusPolicyViolation, fmt.Sprintf(format, args...))
}

// holdReading says that the reader waits for a command to take its stdin; the
// peer is not to blame for its silence until resume is called.
func (s *socket) holdReading() (resume func()) {
	s.holding.Store(true)
	return func() {
		s.link.touch()
		s.holding.Store(false)
	}
}

// reserve waits for places among the quick calls.
func (s *socket) reserve(places int64) error {
	if s.quick.TryAcquire(places) {
		return nil
	}
	s.stalled.Store(true)
	defer s.stalled.Store(false)
	return s.quick.Acquire(s.ctx, places)
}

// take handles one text frame, for which a place is held. It fails only where
// the socket has ended.
func (s *socket) take(frame []byte) error {
	leave := func() { s.quick.Release(1) }
	req, bad := parseRequest(frame)
	if bad != nil {
		s.out.answer(refusal(req.id, bad), leave)
		return nil
	}
	refuse := func(err *wireError) {
		if req.id == nil {
			leave()
			return
		}
		s.out.answer(refusal(req.id, err), leave)
	}
	if req.method == "hello" {
		s.hello(req, refuse, leave)
		return nil
	}
	if s.session == nil {
		refuse(failure(codeHelloRequired, "hello_required", "say hello first"))
		return nil
	}
	m, ok := methods[req.method]
	if !ok {
		refuse(failure(codeUnknownMethod, "unknown_method", "unknown method %q; hello's features lists those that there are", shorten(req.method)))
		return nil
	}
	if m.slow {
		size := int64(len(frame))
		if !s.slow.TryAcquire(1) {
			refuse(busy("%d calls that wait for a sandbox are under way on this socket, the most that may be", mostSlow))
			return nil
		}
		if !s.bytes.TryAcquire(size) {
			s.slow.Release(1)
			refuse(busy("the calls under way on this socket have all of the %d bytes that they may have", mostBytes))
			return nil
		}
		leave()
		leave = func() {
			s.bytes.Release(size)
			s.slow.Release(1)
		}
	}
	if more := m.places - 1; more > 0 {
		if err := s.reserve(more); err != nil {
			leave()
			return err
		}
		leave = func() { s.quick.Release(m.places) }
	}
	session := s.session
	s.api.calls.Go(func() { s.call(session, m, req, leave) })
	return nil
}

func busy(format string, args ...any) *wireError {
	e := failure(codeQuota, string(control.KindQuota), format, args...)
	e.Data.RetryAfterMS = 1000
	return e
}

// call runs one method and answers.
func (s *socket) call(session Session, m method, req request, leave func()) {
	result, err := s.run(session, m, req)
	s.note(req.method, err)
	opened, _ := result.(opened)
	switch {
	case req.id == nil:
		leave()
		opened.end()
	case err != nil:
		s.out.answer(refusal(req.id, wireErrorOf(err)), leave)
	case opened.begin != nil:
		s.out.answer(answer(req.id, opened.result), leave)
		opened.begin()
	default:
		s.out.answer(answer(req.id, result), leave)
	}
}

// opened is the result of a method that opens something: what that brings
// comes behind the answer. Where nobody is answered, it ends.
type opened struct {
	result any
	begin  func()
	cancel func()
}

func (o opened) end() {
	if o.cancel != nil {
		o.cancel()
	}
}

// note logs the cause of a failure that its client is not told.
func (s *socket) note(method string, err error) {
	if err != nil && wireErrorOf(err).Code == codeInternal && s.calls.Err() == nil {
		s.log.Load().Error("call failed", "method", method, "error", err)
	}
}

func (s *socket) run(session Session, m method, req request) (result any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	p := readParams(req.params, m.fields)
	if m.open != nil {
		return m.open(s.calls, s, session, p)
	}
	return m.run(s.calls, session, p)
}

// hello opens or resumes the session. The reader waits for it, so that what a
// client sends right behind it finds the session open.
func (s *socket) hello(req request, refuse func(*wireError), leave func()) {
	if s.session != nil {
		refuse(invalidRequest("hello was said on this socket; open another one for another session"))
		return
	}
	p := readParams(req.params, helloFields)
	h := control.Hello{Agent: p.name("agent"), Version: p.textOrNone("version"), Session: p.textOrNone("session")}
	p.need("agent")
	if n := p.whole("disconnect_grace_seconds"); n != nil {
		if *n < 0 {
			p.fail("disconnect_grace_seconds", "must not be negative")
		}
		grace := time.Duration(min(*n, int64(365*24*time.Hour/time.Second))) * time.Second
		h.Grace = &grace
	}
	if err := p.err(); err != nil {
		refuse(wireErrorOf(err))
		return
	}
	session, resumed, err := s.api.plane.Hello(s.calls, s.owner, h, s)
	if err != nil {
		s.note(req.method, err)
		refuse(wireErrorOf(err))
		return
	}
	s.session = session
	log := s.log.Load().With("agent", h.Agent, "session", shown(session.ID()))
	s.log.Store(log)
	log.Info("agent connected", "resumed", resumed)
	if req.id == nil {
		leave()
		s.out.welcome(nil, nil)
		return
	}
	r := answer(req.id, s.api.greeting(session, resumed))
	s.out.welcome(&r, leave)
}

// shown shortens a session's name for the log: whoever knows all of it, and a
// token of its owner, may resume it.
func shown(session string) string { return session[:min(len(session), 6)] }

// write sends what waits until nothing comes any more.
func (s *socket) write() {
	defer s.link.Close()
	for {
		it, more := s.out.next()
		switch {
		case it != nil:
			s.writing.Store(true)
			err := s.send(it)
			s.writing.Store(false)
			if it.done != nil {
				it.done()
			}
			if err != nil {
				s.out.drop()
				return
			}
		case more:
			<-s.out.wake
		default:
			if s.closing.Load() {
				s.conn.Close(s.status, s.reason)
			}
			return
		}
	}
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// mostBuffered is the largest buffer that is kept for the next message.
const mostBuffered = 256 << 10

// send writes one message, or the bytes of a channel.
func (s *socket) send(it *item) error {
	if it.buffer != nil {
		return s.conn.Write(s.ctx, websocket.MessageBinary, it.buffer.b)
	}
	if due, ok := it.message.(creditDue); ok {
		return s.conn.Write(s.ctx, websocket.MessageBinary, due.frame())
	}
	return s.sendJSON(it.message)
}

func (s *socket) sendJSON(message any) error {
	b := buffers.Get().(*bytes.Buffer)
	b.Reset()
	defer func() {
		if b.Cap() <= mostBuffered {
			buffers.Put(b)
		}
	}()
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(message); err != nil {
		s.log.Load().Error("message cannot be encoded", "error", err)
		r, ok := message.(response)
		if !ok {
			return nil
		}
		b.Reset()
		if err := enc.Encode(refusal(r.ID, wireErrorOf(err))); err != nil {
			return err
		}
	}
	return s.conn.Write(s.ctx, websocket.MessageText, bytes.TrimSuffix(b.Bytes(), []byte{'\n'}))
}

// watch pings the peer every heartbeat, and cuts one that for two of them
// neither sent nor took a byte. While the reader waits and nothing is left to
// write, it is we who are slow, and no heartbeat counts as missed.
func (s *socket) watch() {
	beat := s.api.heartbeat
	var pings sync.WaitGroup
	defer pings.Wait()
	var pinging atomic.Bool
	last := time.Now()
	timer := time.NewTimer(beat)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		if s.holding.Load() || s.stalled.Load() && !s.writing.Load() && s.out.waiting() == 0 {
			s.link.touch()
		}
		silent := s.link.silent()
		if silent >= 2*beat {
			s.log.Load().Info("agent does not answer", "silent", silent)
			s.link.Close()
			return
		}
		if time.Since(last) >= beat {
			last = time.Now()
			if pinging.CompareAndSwap(false, true) {
				pings.Go(func() {
					defer pinging.Store(false)
					s.conn.Ping(s.ctx) //nolint:errcheck // whatever comes of it, the link knows
				})
			}
		}
		timer.Reset(max(time.Millisecond, min(beat-time.Since(last), 2*beat-silent)))
	}
}

// EnvState tells the agent what became of an environment.
func (s *socket) EnvState(v control.View) {
	s.out.note("state "+v.ID, "env.state", envResult{v})
}

// EnvExpiring tells it that a reap is ahead.
func (s *socket) EnvExpiring(env string, deadline control.Time, left time.Duration) {
	s.out.note("expiring "+env, "env.expiring", expiringParams{env, deadline, seconds(left)})
}

// Replaced closes the socket: a newer one has its session.
func (s *socket) Replaced() {
	s.shut(statusTakenOver, "a newer socket took the session over")
}

var _ control.Sink = (*socket)(nil)
