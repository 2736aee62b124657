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
	return yamux.Client(&muxed{ReadWriteCloser: conn, check: (&guard{}).check}, muxConfig())
}

// Server makes the guest's end.
func Server(conn io.ReadWriteCloser) (*yamux.Session, error) {
	c := muxConfig()
	c.EnableKeepAlive = false
	// More than a control plane has opened and not seen accepted, which is 256.
	c.AcceptBacklog = 1024
	dead := time.AfterFunc(silence, func() { conn.Close() })
	return yamux.Server(&muxed{
		ReadWriteCloser: conn,
		check:           func([]byte) error { dead.Reset(silence); return nil },
		closed:          func() { dead.Stop() },
	}, c)
}

const (
	muxHeader  = 12
	muxData    = 0
	muxWindow  = 1
	muxPing    = 2
	muxGoAway  = 3
	muxSYN     = 1
	muxACK     = 2
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

// guard follows the frames that a guest sends, before yamux acts on them.
type guard struct {
	header [muxHeader]byte
	have   int
	body   uint32 // bytes of the current frame still to come
}

func (g *guard) check(p []byte) error {
	for len(p) > 0 {
		if g.body > 0 {
			n := min(uint32(len(p)), g.body)
			g.body -= n
			p = p[n:]
			continue
		}
		n := copy(g.header[g.have:], p)
		g.have += n
		p = p[n:]
		if g.have < muxHeader {
			return nil
		}
		g.have = 0
		if err := g.frame(); err != nil {
			return err
		}
	}
	return nil
}

func (g *guard) frame() error {
	kind := g.header[1]
	flags := binary.BigEndian.Uint16(g.header[2:])
	length := binary.BigEndian.Uint32(g.header[8:])
	switch {
	case g.header[0] != 0 || kind > muxGoAway:
		return fmt.Errorf("%w: no frame", errHostile)
	case flags&muxSYN != 0:
		return fmt.Errorf("%w: it opens a stream or sends a ping", errHostile)
	case kind == muxPing && flags&muxACK == 0:
		return fmt.Errorf("%w: a ping that is no answer", errHostile)
	case kind == muxData && length > maxMuxData:
		return fmt.Errorf("%w: a frame of %d bytes", errHostile, length)
	}
	if kind == muxData {
		g.body = length
	}
	return nil
}
