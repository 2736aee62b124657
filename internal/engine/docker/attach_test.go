package docker

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/docker/docker/api/types"
)

func engineFrame(stream byte, payload string) []byte {
	b := make([]byte, 8, 8+len(payload))
	b[0] = stream
	binary.BigEndian.PutUint32(b[4:], uint32(len(payload)))
	return append(b, payload...)
}

func attachmentOf(raw io.Reader) *attachment {
	return newAttachment(types.HijackedResponse{Reader: bufio.NewReader(raw)})
}

func TestAttachmentReadsStdoutAlone(t *testing.T) {
	whole := bytes.Join([][]byte{
		engineFrame(1, "one "), engineFrame(2, "a warning"), engineFrame(1, ""), engineFrame(1, "two"), engineFrame(3, "of the engine's own"), engineFrame(0, "?"), engineFrame(1, "!"),
	}, nil)
	for name, r := range map[string]io.Reader{
		"at once":      bytes.NewReader(whole),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(whole)),
		"in halves":    iotest.HalfReader(bytes.NewReader(whole)),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := io.ReadAll(attachmentOf(r))
			if err != nil || string(got) != "one two!" {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

func TestAttachmentCutShortIsAnError(t *testing.T) {
	whole := append(engineFrame(2, "skipped"), engineFrame(1, "output")...)
	for n := 1; n < len(whole); n++ {
		_, err := io.ReadAll(attachmentOf(bytes.NewReader(whole[:n])))
		if n == len(engineFrame(2, "skipped")) {
			if err != nil {
				t.Errorf("between two frames: %v", err)
			}
			continue
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: %v, want an unexpected end", n, err)
		}
	}
}

func FuzzAttachment(f *testing.F) {
	f.Add([]byte{})
	f.Add(append(engineFrame(1, "out"), engineFrame(2, "err")...))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 'x'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := io.ReadAll(attachmentOf(bytes.NewReader(raw)))
		if len(got) > len(raw) {
			t.Errorf("%d bytes of %d", len(got), len(raw))
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error %v", err)
		}
	})
}
