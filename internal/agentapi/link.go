package agentapi

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// link is the connection below a websocket. It sees every byte, so it knows a
// sign of life where the websocket sees none yet: in the middle of a large
// message. And it can be cut while a close handshake waits for a peer that does
// not answer.
type link struct {
	net.Conn
	began time.Time
	alive atomic.Int64 // when the peer last sent or took something, as nanoseconds since began
}

const (
	// chunk is how much is written at a time. A whole chunk taken is a sign of
	// life; less may just lie in this machine's own buffers.
	chunk = 64 << 10
	// sendBuffer bounds those, as memory and so that what a slow peer takes is
	// seen: what lies there delays the answer to a ping behind it, too.
	sendBuffer = 256 << 10
)

func newLink(c net.Conn) *link {
	if tcp, ok := c.(*net.TCPConn); ok {
		tcp.SetWriteBuffer(sendBuffer) //nolint:errcheck // where it cannot be set, it stays the system's
	}
	return &link{Conn: c, began: time.Now()}
}

func (l *link) touch() { l.alive.Store(int64(time.Since(l.began))) }

// silent is how long ago the last sign of life was.
func (l *link) silent() time.Duration { return time.Since(l.began) - time.Duration(l.alive.Load()) }

func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 {
		l.touch()
	}
	return n, err
}

func (l *link) Write(p []byte) (int, error) {
	written := 0
	for len(p) > 0 {
		part := p[:min(len(p), chunk)]
		n, err := l.Conn.Write(part)
		written += n
		if err != nil {
			return written, err
		}
		if n == chunk {
			l.touch()
		}
		p = p[n:]
	}
	return written, nil
}

// linkWriter gives the websocket a link when it takes the connection over.
type linkWriter struct {
	http.ResponseWriter
	link *link
}

func (w *linkWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.link = newLink(c)
	// The reader keeps what it has read ahead; the websocket reads on from the link.
	return w.link, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(w.link)), nil
}
