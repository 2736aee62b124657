// Package rfc6455 is the client's end of a websocket, by hand: it can also send what no
// library would, and shares no mistake with the server's.
package rfc6455

import (
	"bufio"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
)

// The opcodes.
const (
	Continuation = 0x0
	Text         = 0x1
	Binary       = 0x2
	Close        = 0x8
	Ping         = 0x9
	Pong         = 0xA
)

// Conn is one open websocket. Writes may be concurrent; one goroutine reads.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader

	mu sync.Mutex // one frame at a time goes out
}

// Closed is how the other end closed.
type Closed struct {
	Code   int
	Reason string
}

func (c *Closed) Error() string { return fmt.Sprintf("closed with %d %q", c.Code, c.Reason) }

// Refused is an upgrade that was answered with something else.
type Refused struct {
	Status int
	Body   string
}

func (r *Refused) Error() string { return fmt.Sprintf("%d %s", r.Status, r.Body) }

// Dial upgrades a connection. Errors: *Refused.
func Dial(base, path string, header http.Header) (*Conn, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodGet, base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	var key [16]byte
	rand.Read(key[:])
	for k, v := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": base64.StdEncoding.EncodeToString(key[:]), "Sec-WebSocket-Protocol": "sandkeeper.v1",
	} {
		req.Header.Set(k, v)
	}
	ws := &Conn{conn: conn, in: bufio.NewReader(conn)}
	if err := req.Write(conn); err != nil {
		conn.Close()
		return nil, err
	}
	res, err := http.ReadResponse(ws.in, req)
	if err != nil {
		conn.Close()
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		conn.Close()
		return nil, &Refused{res.StatusCode, string(body)}
	}
	if p := res.Header.Get("Sec-WebSocket-Protocol"); p != "sandkeeper.v1" {
		conn.Close()
		return nil, fmt.Errorf("the subprotocol is %q", p)
	}
	return ws, nil
}

// Write sends one final frame.
func (ws *Conn) Write(opcode byte, payload []byte) error {
	return ws.WriteRaw(0x80|opcode, true, payload)
}

// WriteRaw sends a frame with that first byte, masked or, against the standard, not.
func (ws *Conn) WriteRaw(first byte, masked bool, payload []byte) error {
	head := []byte{first, 0}
	switch n := len(payload); {
	case n < 126:
		head[1] = byte(n)
	case n < 1<<16:
		head[1] = 126
		head = binary.BigEndian.AppendUint16(head, uint16(n))
	default:
		head[1] = 127
		head = binary.BigEndian.AppendUint64(head, uint64(n))
	}
	frame := head
	if masked {
		head[1] |= 0x80
		mask := [4]byte{0x37, 0xfa, 0x21, 0x3d}
		frame = append(head, mask[:]...)
		for i, b := range payload {
			frame = append(frame, b^mask[i%4])
		}
	} else {
		frame = append(frame, payload...)
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	_, err := ws.conn.Write(frame)
	return err
}

// Read returns the next message. It answers pings. Errors: *Closed.
func (ws *Conn) Read() (opcode byte, message []byte, err error) {
	for {
		final, op, payload, err := ws.frame()
		if err != nil {
			return 0, nil, err
		}
		switch op {
		case Ping:
			if err := ws.Write(Pong, payload); err != nil {
				return 0, nil, err
			}
			continue
		case Pong:
			continue
		case Close:
			c := &Closed{Code: 1005}
			if len(payload) >= 2 {
				c.Code, c.Reason = int(binary.BigEndian.Uint16(payload)), string(payload[2:])
			}
			ws.Write(Close, payload[:min(2, len(payload))]) //nolint:errcheck // the other end may be gone
			return 0, nil, c
		case Continuation:
		default:
			opcode = op
		}
		message = append(message, payload...)
		if final {
			return opcode, message, nil
		}
	}
}

func (ws *Conn) frame() (final bool, opcode byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(ws.in, head[:]); err != nil {
		return false, 0, nil, err
	}
	n := uint64(head[1] & 0x7f)
	var long [8]byte
	switch n {
	case 126:
		_, err = io.ReadFull(ws.in, long[6:])
		n = binary.BigEndian.Uint64(long[:])
	case 127:
		_, err = io.ReadFull(ws.in, long[:])
		n = binary.BigEndian.Uint64(long[:])
	}
	if err == nil && (head[0]&0x70 != 0 || head[1]&0x80 != 0 || n > 64<<20) {
		err = fmt.Errorf("a frame begins with % x", head)
	}
	if err != nil {
		return false, 0, nil, err
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(ws.in, payload)
	return head[0]&0x80 != 0, head[0] & 0x0f, payload, err
}

// Hang ends the connection without a word.
func (ws *Conn) Hang() error { return ws.conn.Close() }
