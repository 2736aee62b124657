package link

import (
	"bufio"
	"bytes"
	"io"
	"testing"
)

func FuzzFrameReader(f *testing.F) {
	var ok bytes.Buffer
	w := frameWriter{w: &ok, session: 7, maxPayload: 8}
	w.Write([]byte("a payload of three frames"))
	f.Add(ok.Bytes())
	f.Add(append([]byte("noiseSKf1"), ok.Bytes()...))
	f.Add(ok.Bytes()[:30])
	f.Add([]byte(frameMagic))
	f.Add(frame{session: 1, kind: kindOpen, length: maxFramePayload}.append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		fr := newFrameReader(bufio.NewReader(bytes.NewReader(in)))
		read := 0
		for {
			h, err := fr.next()
			if err != nil {
				break
			}
			if h.length > maxFramePayload {
				t.Fatalf("a frame of %d bytes", h.length)
			}
			n, err := io.Copy(io.Discard, io.LimitReader(fr, int64(h.length)))
			read += frameHeader + int(n)
			if err != nil && err != errLost {
				break
			}
		}
		if read > len(in) {
			t.Fatalf("%d bytes read of %d", read, len(in))
		}
	})
}

// Whatever a control plane, or root in the sandbox, writes to stdin, the guest
// ends when it does.
func FuzzServeAttached(f *testing.F) {
	open := frame{session: 1, kind: kindOpen}.append(nil)
	var data bytes.Buffer
	w := frameWriter{w: &data, session: 1, maxPayload: 100}
	w.Write([]byte("hello"))
	f.Add(append(bytes.Clone(open), data.Bytes()...))
	f.Add(append(append(bytes.Clone(open), open...), frame{session: 1, kind: kindClose}.append(nil)...))
	f.Add(data.Bytes())
	f.Fuzz(func(t *testing.T, in []byte) {
		if err := ServeAttached(t.Context(), bytes.NewReader(in), io.Discard, echo); err != nil && err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
	})
}

// Whatever the sandbox writes to stdout, reading a stream ends when that does.
func FuzzAttachedRead(f *testing.F) {
	var data bytes.Buffer
	w := frameWriter{w: &data, session: 1, maxPayload: 100}
	w.Write([]byte("hello"))
	w.Write([]byte("world"))
	f.Add(data.Bytes())
	f.Add(append(data.Bytes(), frame{session: 1, kind: kindClose}.append(nil)...))
	f.Add(append(frame{session: 2, kind: kindData, length: 5}.append(nil), "other"...))
	f.Fuzz(func(t *testing.T, in []byte) {
		a := &attached{in: newFrameReader(bufio.NewReader(bytes.NewReader(in))), out: frameWriter{session: 1}}
		n, _ := io.Copy(io.Discard, struct{ io.Reader }{a})
		if int(n) > len(in) {
			t.Fatalf("%d bytes of %d", n, len(in))
		}
	})
}
