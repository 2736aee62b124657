package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Bounds of a message, both ways. A response's payload is bounded further by
// what its call can ask for.
const (
	MaxHeader  = 4 << 20
	MaxPayload = 8 << 20
)

// ErrTooLarge is a message beyond its bounds.
var ErrTooLarge = errors.New("message too large")

// Write writes one message: header as JSON, and payload beside it.
//
//	u32 header's length | u32 payload's length | header | payload
func Write(w io.Writer, header any, payload ...[]byte) error {
	h, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("message: %w", err)
	}
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	if len(h) > MaxHeader || n > MaxPayload {
		return ErrTooLarge
	}
	// One write for what is small: a frame costs more than a copy.
	b := make([]byte, 0, 8+len(h)+min(n, 16<<10))
	b = binary.BigEndian.AppendUint32(b, uint32(len(h)))
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = append(b, h...)
	for _, p := range payload {
		if len(b)+len(p) <= cap(b) {
			b = append(b, p...)
			continue
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		b = b[:0]
	}
	if len(b) == 0 {
		return nil
	}
	_, err = w.Write(b)
	return err
}

// Read reads one message into header and returns its payload, which may have
// up to maxPayload bytes. An end before the first byte is io.EOF.
func Read(r io.Reader, header any, maxPayload int) (payload []byte, err error) {
	var sizes [8]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return nil, err
	}
	hn, pn := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	if hn > MaxHeader || int64(pn) > int64(min(maxPayload, MaxPayload)) {
		return nil, fmt.Errorf("%w: %d and %d bytes", ErrTooLarge, hn, pn)
	}
	h, err := readBlock(r, int(hn))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(h, header); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	return readBlock(r, int(pn))
}

// readBlock reads n bytes, and takes memory only as they come: a length alone costs nothing.
func readBlock(r io.Reader, n int) ([]byte, error) {
	const step = 64 << 10
	b := make([]byte, 0, min(n, step))
	for len(b) < n {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(n, 2*cap(b))), b...)
		}
		m, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+m]
		if err != nil && len(b) < n {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return b, nil
}
