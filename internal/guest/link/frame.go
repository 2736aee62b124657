package link

import (
	"bufio"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
)

// A frame is a header and its payload:
//
//	"SKf1" | session u64 | kind u8 | length u24 | sequence u32 | payload's CRC u32 | header's CRC u32
//
// all big-endian, CRC-32C. A reader that finds no header where one should be
// skips a byte and looks again. A payload is handed on before its checksum can
// be known to be right; where it is wrong, Read of the rest fails.
const (
	frameMagic  = "SKf1"
	frameHeader = 28

	maxFramePayload = 64 << 10
	// A write to a pipe is whole up to 4096 bytes whoever else writes.
	maxStdinPayload = 4096 - frameHeader

	readBuffer = 64 << 10
)

const (
	kindOpen   = 1 // control plane: a new session
	kindOpened = 2 // guest: it is served
	kindData   = 3
	kindClose  = 4 // no more comes
)

// errLost says that bytes of a stream did not come through; the stream is over.
var errLost = errors.New("frames were lost or damaged on the way")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type frame struct {
	session uint64
	kind    byte
	length  int
	seq     uint32
	crc     uint32 // of the payload
}

func (f frame) append(b []byte) []byte {
	start := len(b)
	b = append(b, frameMagic...)
	b = binary.BigEndian.AppendUint64(b, f.session)
	b = binary.BigEndian.AppendUint32(b, uint32(f.kind)<<24|uint32(f.length))
	b = binary.BigEndian.AppendUint32(b, f.seq)
	b = binary.BigEndian.AppendUint32(b, f.crc)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// parseFrame reads a header; ok is false where b does not begin with one.
func parseFrame(b []byte) (f frame, ok bool) {
	if len(b) < frameHeader || string(b[:4]) != frameMagic {
		return f, false
	}
	if crc32.Checksum(b[:24], castagnoli) != binary.BigEndian.Uint32(b[24:]) {
		return f, false
	}
	word := binary.BigEndian.Uint32(b[12:])
	f = frame{
		session: binary.BigEndian.Uint64(b[4:]),
		kind:    byte(word >> 24),
		length:  int(word & 0xffffff),
		seq:     binary.BigEndian.Uint32(b[16:]),
		crc:     binary.BigEndian.Uint32(b[20:]),
	}
	return f, f.length <= maxFramePayload
}

// frameReader finds frames in a stream, and reads the payload of the latest.
type frameReader struct {
	r    *bufio.Reader
	left int // bytes of the latest frame's payload still to be read
	want uint32
	sum  uint32
}

func newFrameReader(r *bufio.Reader) *frameReader { return &frameReader{r: r} }

// next finds the next header; what is left of the payload before must have been read.
func (fr *frameReader) next() (frame, error) {
	for {
		b, err := fr.r.Peek(frameHeader)
		if err != nil {
			if err == io.EOF && len(b) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return frame{}, err
		}
		if f, ok := parseFrame(b); ok {
			fr.r.Discard(frameHeader)
			fr.left, fr.want, fr.sum = f.length, f.crc, 0
			return f, nil
		}
		fr.r.Discard(1)
	}
}

// Read reads from the payload, and fails with errLost at its end if it was damaged.
func (fr *frameReader) Read(p []byte) (int, error) {
	n, err := fr.r.Read(p[:min(len(p), fr.left)])
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	fr.left -= n
	fr.sum = crc32.Update(fr.sum, castagnoli, p[:n])
	if err == nil && fr.left == 0 && fr.sum != fr.want {
		err = errLost
	}
	return n, err
}

// skip passes over a payload that is not ours. One that was damaged may have
// swallowed others' frames; their sequence numbers tell.
func (fr *frameReader) skip() error {
	n, err := fr.r.Discard(fr.left)
	fr.left -= n
	return err
}

// frameWriter cuts a stream into frames of one session. Each frame is one write.
type frameWriter struct {
	w          io.Writer
	session    uint64
	seq        uint32
	maxPayload int
	buf        []byte
}

func (fw *frameWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), fw.maxPayload)]
		if err := fw.send(kindData, part); err != nil {
			return n, err
		}
		fw.seq++
		n += len(part)
		p = p[len(part):]
	}
	return n, nil
}

func (fw *frameWriter) send(kind byte, payload []byte) error {
	f := frame{
		session: fw.session, kind: kind, length: len(payload), seq: fw.seq,
		crc: crc32.Checksum(payload, castagnoli),
	}
	fw.buf = append(f.append(fw.buf[:0]), payload...)
	_, err := fw.w.Write(fw.buf)
	return err
}
