package link

import (
	"bufio"
	"context"
	"io"
	"sync"
	"time"
)

const (
	maxSessions    = 16      // the one that was quiet for longest gives way
	maxUnread      = 1 << 20 // bytes of a session that wait to be read
	overflowIsDead = 5 * time.Second
)

// ServeAttached is the guest's end of the attach: in and out are PID 1's stdin
// and stdout. It has serve called with each session that a control plane opens,
// and returns when in ends or ctx does, and every serve has returned. serve
// closes what it is given.
func ServeAttached(ctx context.Context, in io.Reader, out io.Writer, serve func(io.ReadWriteCloser)) error {
	h := &hub{out: out, sessions: make(map[uint64]*session)}
	stop := context.AfterFunc(ctx, h.closeAll)
	defer stop()
	err := h.run(newFrameReader(bufio.NewReaderSize(in, 4096)), serve)
	h.closeAll()
	h.wg.Wait()
	if err == io.EOF {
		return nil
	}
	return err
}

// hub shares stdin and stdout between sessions.
type hub struct {
	wg sync.WaitGroup

	outMu sync.Mutex // one frame at a time
	out   io.Writer

	mu       sync.Mutex // guards the fields below
	closed   bool
	sessions map[uint64]*session
	clock    uint64 // counts frames, for who was quiet
}

type session struct {
	hub *hub
	id  uint64

	outMu sync.Mutex // guards fw
	fw    frameWriter

	mu     sync.Mutex // guards the fields below
	change sync.Cond  // of them
	seq    uint32     // of the next frame to come
	used   uint64     // the hub's clock at its last frame
	buf    []byte
	off    int   // of buf that was read
	err    error // why no more comes
}

func (h *hub) run(in *frameReader, serve func(io.ReadWriteCloser)) error {
	payload := make([]byte, maxStdinPayload)
	for {
		f, err := in.next()
		if err != nil {
			return err
		}
		if f.length > len(payload) {
			payload = make([]byte, f.length)
		}
		_, err = io.ReadFull(in, payload[:f.length])
		damaged := err == errLost
		if err != nil && !damaged {
			return err
		}
		if f.kind == kindOpen {
			h.open(f.session, serve)
			continue
		}
		s := h.find(f.session)
		if s == nil {
			continue
		}
		switch {
		case f.kind == kindClose:
			h.end(s, io.EOF)
		case f.kind != kindData:
		case damaged:
			h.end(s, errLost)
		default:
			if err := s.deliver(f.seq, payload[:f.length]); err != nil {
				h.end(s, err)
			}
		}
	}
}

func (h *hub) open(id uint64, serve func(io.ReadWriteCloser)) {
	s := &session{hub: h, id: id}
	s.change.L = &s.mu
	s.fw = frameWriter{w: (*hubWriter)(h), session: id, maxPayload: maxFramePayload}

	h.mu.Lock()
	if h.closed || h.sessions[id] != nil {
		h.mu.Unlock()
		return
	}
	var quiet *session
	if len(h.sessions) >= maxSessions {
		for _, o := range h.sessions {
			if quiet == nil || o.used < quiet.used {
				quiet = o
			}
		}
	}
	h.clock++
	s.used = h.clock
	h.sessions[id] = s
	h.mu.Unlock()

	if quiet != nil {
		h.end(quiet, errLost)
	}
	h.wg.Go(func() {
		if err := s.send(kindOpened, nil); err != nil {
			s.Close()
			return
		}
		serve(s)
	})
}

func (h *hub) find(id uint64) *session {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s != nil {
		h.clock++
		s.used = h.clock
	}
	return s
}

// end lets a session go: its Read fails with err once it has read what came.
func (h *hub) end(s *session, err error) {
	h.mu.Lock()
	if h.sessions[s.id] == s {
		delete(h.sessions, s.id)
	}
	h.mu.Unlock()
	s.fail(err)
}

func (h *hub) closeAll() {
	h.mu.Lock()
	h.closed = true
	all := h.sessions
	h.sessions = make(map[uint64]*session)
	h.mu.Unlock()
	for _, s := range all {
		s.fail(io.ErrClosedPipe)
	}
}

type hubWriter hub

func (h *hubWriter) Write(p []byte) (int, error) {
	h.outMu.Lock()
	defer h.outMu.Unlock()
	return h.out.Write(p)
}

// deliver appends a payload for Read. A session whose reader stands still is
// waited for, but not for ever: it holds up the others.
func (s *session) deliver(seq uint32, p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq != s.seq {
		return errLost
	}
	s.seq++
	if len(s.buf)-s.off+len(p) > maxUnread {
		late := false
		t := time.AfterFunc(overflowIsDead, func() {
			s.mu.Lock()
			late = true
			s.mu.Unlock()
			s.change.Broadcast()
		})
		for s.err == nil && !late && len(s.buf)-s.off+len(p) > maxUnread {
			s.change.Wait()
		}
		t.Stop()
		if late {
			return errLost
		}
	}
	if s.off == len(s.buf) {
		s.buf, s.off = s.buf[:0], 0
	} else if s.off > 0 && len(s.buf)+len(p) > cap(s.buf) {
		s.buf, s.off = append(s.buf[:0], s.buf[s.off:]...), 0
	}
	s.buf = append(s.buf, p...)
	s.change.Broadcast()
	return nil
}

func (s *session) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.change.Broadcast()
}

func (s *session) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.off == len(s.buf) && s.err == nil {
		s.change.Wait()
	}
	if s.off < len(s.buf) {
		n := copy(p, s.buf[s.off:])
		s.off += n
		s.change.Broadcast()
		return n, nil
	}
	return 0, s.err
}

func (s *session) Write(p []byte) (int, error) {
	if err := s.over(); err != nil {
		return 0, err
	}
	s.outMu.Lock()
	defer s.outMu.Unlock()
	return s.fw.Write(p)
}

func (s *session) send(kind byte, payload []byte) error {
	s.outMu.Lock()
	defer s.outMu.Unlock()
	return s.fw.send(kind, payload)
}

func (s *session) over() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil && s.err != io.EOF {
		return s.err
	}
	return nil
}

func (s *session) Close() error {
	s.send(kindClose, nil)
	s.hub.end(s, io.ErrClosedPipe)
	return nil
}
