package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// After the answer to attach, open and create, the stream carries frames, both ways:
//
//	u8 kind | u32 payload's length (big-endian) | payload
//
// The window of the stream is the back pressure: what is not read stays with the
// command that writes it, or in its file.
//
// Of an opened file, each FrameSend is answered by FrameData and one FrameDone.
// What is created comes as FrameData and ends with a FrameDone without a payload,
// without which it is broken off; the guest answers with one FrameDone, also
// before that where it failed.

// Kinds of a frame.
const (
	FrameStdin       = 0 // to the guest; without a payload it closes stdin
	FrameStdout      = 1
	FrameStderr      = 2
	FrameEnd         = 3 // the payload is an End as JSON; the last frame
	FrameStdinClosed = 5 // no payload: no stdin is taken from this stream any more
	FrameData        = 6 // of a file or an archive
	FrameSend        = 7 // to the guest: a Send as JSON
	FrameDone        = 8 // from the guest: a Done as JSON
)

const (
	// FrameHeader is how many bytes there are ahead of a frame's payload.
	FrameHeader = 5
	// MaxFrame is the most bytes of a frame's payload.
	MaxFrame = 64 << 10
)

var errFrame = errors.New("malformed frame")

// PutFrame fills the header of a frame whose payload of n bytes begins at b[FrameHeader].
func PutFrame(b []byte, kind byte, n int) {
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:FrameHeader], uint32(n))
}

// ReadFrame reads the header of a frame. The n bytes of its payload are the
// caller's to read. An end between two frames is io.EOF.
func ReadFrame(r *bufio.Reader) (kind byte, n int, err error) {
	b, err := r.Peek(FrameHeader)
	if err != nil {
		if err == io.EOF && len(b) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, 0, err
	}
	kind = b[0]
	length := binary.BigEndian.Uint32(b[1:])
	switch kind {
	case FrameStdin, FrameStdout, FrameStderr, FrameEnd, FrameStdinClosed, FrameData, FrameSend, FrameDone:
	default:
		return 0, 0, fmt.Errorf("%w: kind %d", errFrame, kind)
	}
	if length > MaxFrame {
		return 0, 0, fmt.Errorf("%w: %d bytes", errFrame, length)
	}
	r.Discard(FrameHeader) //nolint:errcheck // they are there
	return kind, int(length), nil
}
