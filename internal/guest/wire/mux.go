package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

const (
	keepAlive = 30 * time.Second
	// A control plane pings every keepAlive: one that was not heard for this
	// long is gone, and nothing else would tell a guest so over an attach.
	silence = 100 * time.Second
)

func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	c.LogOutput = nil
	c.Logger = log.New(io.Discard, "", 0) // what matters of it comes as errors
	c.KeepAliveInterval = keepAlive
	return c
}

// Client makes the control plane's end of a stream to a guest. It breaks the
// stream off where the guest does what no guest of ours does: opens streams,
// sends pings, or larger frames than a window.
func Client(conn io.ReadWriteCloser) (*yamux.Session, error) {
	return yamux.Client(&muxed{ReadWriteCloser: conn, check: (&frames{each: guard}).check}, muxConfig())
}

// Session is the guest's end of a connection.
type Session struct {
	*yamux.Session

	mu     sync.Mutex               // guards the field below
	closed map[uint32]chan struct{} // by stream, closed once the peer has closed it
}

// Stream is one stream of a control plane. PeerClosed is closed once the control
// plane has closed it, also while what it wrote before is not read yet.
type Stream struct {
	*yamux.Stream
	PeerClosed <-chan struct{}
	session    *Session
}

// AcceptStream waits for the next stream. Errors: that of the connection.
func (s *Session) AcceptStream() (*Stream, error) {
	st, err := s.Session.AcceptStream()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Stream{Stream: st, PeerClosed: s.closed[st.StreamID()], session: s}, nil
}

// Close closes our end of it.
func (s *Stream) Close() error {
	s.session.mu.Lock()
	delete(s.session.closed, s.StreamID())
	s.session.mu.Unlock()
	return s.Stream.Close()
}

// follow sees each frame ahead of yamux, which tells of a peer's close only who
// has read all that came before.
func (s *Session) follow(_ uint8, flags uint16, id, _ uint32) error {
	if flags&(muxSYN|muxFIN|muxRST) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if flags&muxSYN != 0 && id != 0 {
		s.closed[id] = make(chan struct{})
	}
	if c := s.closed[id]; c != nil && flags&(muxFIN|muxRST) != 0 {
		select {
		case <-c:
		default:
			close(c)
		}
	}
	return nil
}

// Server makes the guest's end.
func Server(conn io.ReadWriteCloser) (*Session, error) {
	c := muxConfig()
	c.EnableKeepAlive = false
	// More than a control plane has opened and not seen accepted, which is 256.
	c.AcceptBacklog = 1024
	dead := time.AfterFunc(silence, func() { conn.Close() })
	s := &Session{closed: make(map[uint32]chan struct{})}
	frames := frames{each: s.follow}
	mux, err := yamux.Server(&muxed{
		ReadWriteCloser: conn,
		check: func(p []byte) error {
			dead.Reset(silence)
			return frames.check(p)
		},
		closed: func() { dead.Stop() },
	}, c)
	if err != nil {
		return nil, err
	}
	s.Session = mux
	return s, nil
}

const (
	muxHeader  = 12
	muxData    = 0
	muxWindow  = 1
	muxPing    = 2
	muxGoAway  = 3
	muxSYN     = 1
	muxACK     = 2
	muxFIN     = 4
	muxRST     = 8
	maxMuxData = 256 << 10 // a stream's window
	maxJoin    = 32 << 10
)

// muxed is a stream below yamux. yamux writes a frame's header and its body one
// by one; here they go out together, which halves the wake-ups at the other end.
type muxed struct {
	io.ReadWriteCloser
	check  func(read []byte) error
	closed func()
	once   sync.Once

	buf  []byte // a header that waits for its body
	held bool
}

func (m *muxed) Read(p []byte) (int, error) {
	n, err := m.ReadWriteCloser.Read(p)
	if n > 0 {
		if checkErr := m.check(p[:n]); checkErr != nil {
			return 0, checkErr
		}
	}
	return n, err
}

// Write is called by yamux's one sender.
func (m *muxed) Write(p []byte) (int, error) {
	if !m.held {
		if len(p) == muxHeader && p[1] == muxData && binary.BigEndian.Uint32(p[8:]) > 0 {
			m.buf, m.held = append(m.buf[:0], p...), true
			return len(p), nil
		}
		return m.ReadWriteCloser.Write(p)
	}
	m.held = false
	if len(p) > maxJoin {
		if _, err := m.ReadWriteCloser.Write(m.buf); err != nil {
			return 0, err
		}
		return m.ReadWriteCloser.Write(p)
	}
	m.buf = append(m.buf, p...)
	if _, err := m.ReadWriteCloser.Write(m.buf); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (m *muxed) Close() error {
	if m.closed != nil {
		m.once.Do(m.closed)
	}
	return m.ReadWriteCloser.Close()
}

// errHostile says that a guest spoke as none of ours does.
var errHostile = errors.New("guest breaks the protocol")

// frames follows the frames of a connection, before yamux acts on them.
type frames struct {
	each   func(kind uint8, flags uint16, stream, length uint32) error
	header [muxHeader]byte
	have   int
	body   uint32 // bytes of the current frame still to come
}

func (f *frames) check(p []byte) error {
	for len(p) > 0 {
		if f.body > 0 {
			n := min(uint32(len(p)), f.body)
			f.body -= n
			p = p[n:]
			continue
		}
		n := copy(f.header[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have < muxHeader {
			return nil
		}
		f.have = 0
		kind, length := f.header[1], binary.BigEndian.Uint32(f.header[8:])
		if f.header[0] != 0 || kind > muxGoAway {
			return fmt.Errorf("%w: no frame", errHostile)
		}
		flags, stream := binary.BigEndian.Uint16(f.header[2:]), binary.BigEndian.Uint32(f.header[4:])
		if err := f.each(kind, flags, stream, length); err != nil {
			return err
		}
		if kind == muxData {
			f.body = length
		}
	}
	return nil
}

// guard is what a guest's frames are held against.
func guard(kind uint8, flags uint16, _, length uint32) error {
	switch {
	case flags&muxSYN != 0:
		return fmt.Errorf("%w: it opens a stream or sends a ping", errHostile)
	case kind == muxPing && flags&muxACK == 0:
		return fmt.Errorf("%w: a ping that is no answer", errHostile)
	case kind == muxData && length > maxMuxData:
		return fmt.Errorf("%w: a frame of %d bytes", errHostile, length)
	}
	return nil
}
