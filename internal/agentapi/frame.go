package agentapi

import "encoding/binary"

// The streams of a channel, as binary frames number them.
const (
	streamStdin  = 0
	streamStdout = 1
	streamStderr = 2
	streamCredit = 3
)

// headerSize is what stands before a binary frame's payload: u32 channel | u8 stream.
const headerSize = 5

// binaryFrame is one binary frame of a client.
type binaryFrame struct {
	channel uint32
	stream  byte
	payload []byte // a part of the frame
}

// parseBinary reads a binary frame; ok is false for one that is too short to be any.
func parseBinary(b []byte) (f binaryFrame, ok bool) {
	if len(b) < headerSize {
		return binaryFrame{}, false
	}
	return binaryFrame{channel: binary.BigEndian.Uint32(b), stream: b[4], payload: b[headerSize:]}, true
}

// credit reads the payload of a frame on stream 3.
func (f binaryFrame) credit() (n uint32, ok bool) {
	if f.stream != streamCredit || len(f.payload) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(f.payload), true
}

// putHeader writes a frame's header to the front of b.
func putHeader(b []byte, channel uint32, stream byte) {
	binary.BigEndian.PutUint32(b, channel)
	b[4] = stream
}

// creditFrame is a frame that adds n to the receiver's account.
func creditFrame(channel, n uint32) []byte {
	b := make([]byte, headerSize+4)
	putHeader(b, channel, streamCredit)
	binary.BigEndian.PutUint32(b[headerSize:], n)
	return b
}
