package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/yamux"
)

func message(t testing.TB, header any, payload ...[]byte) []byte {
	var b bytes.Buffer
	if err := Write(&b, header, payload...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	for _, payload := range [][]byte{{}, []byte("small"), bytes.Repeat([]byte("x"), 300_000)} {
		sent := Request{Method: MethodStart, Start: &Start{Exec: "e", Argv: []string{"a", ""}, Variables: map[string]string{"A": "ü"}}}
		b := message(t, &sent, payload, []byte("tail"))
		var got Request
		data, err := Read(bytes.NewReader(b), &got, MaxPayload)
		if err != nil || !reflect.DeepEqual(got, sent) || string(data) != string(payload)+"tail" {
			t.Errorf("%+v, %d bytes, %v", got, len(data), err)
		}
	}
}

func TestWhatIsTooLargeIsRefused(t *testing.T) {
	if err := Write(io.Discard, &Response{}, make([]byte, MaxPayload+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("write of a payload: %v", err)
	}
	if err := Write(io.Discard, &Request{Path: strings.Repeat("x", MaxHeader)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("write of a header: %v", err)
	}
	b := message(t, &Response{}, make([]byte, 101))
	if _, err := Read(bytes.NewReader(b), new(Response), 100); !errors.Is(err, ErrTooLarge) {
		t.Errorf("read of a payload: %v", err)
	}
	head := binary.BigEndian.AppendUint32(nil, MaxHeader+1)
	if _, err := Read(bytes.NewReader(append(head, 0, 0, 0, 0)), new(Response), 100); !errors.Is(err, ErrTooLarge) {
		t.Errorf("read of a header: %v", err)
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	b := message(t, map[string]any{"m": "ping", "of_a_newer_version": []int{1}})
	var r Request
	if _, err := Read(bytes.NewReader(b), &r, 0); err != nil || r.Method != MethodPing {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestALengthAloneTakesNoMemory(t *testing.T) {
	head := binary.BigEndian.AppendUint32(nil, 2)
	head = binary.BigEndian.AppendUint32(head, MaxPayload)
	head = append(head, "{}few"...)
	n := testing.AllocsPerRun(10, func() {
		if _, err := Read(bytes.NewReader(head), new(Response), MaxPayload); err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
	})
	if n > 20 {
		t.Errorf("%v allocations", n)
	}
}

func fuzzMessage[T any](f *testing.F, seeds ...[]byte) {
	for _, s := range seeds {
		f.Add(s)
		f.Add(s[:len(s)-1])
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Add([]byte("\x00\x00\x00\x04\x00\x00\x00\x00null"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			v := new(T)
			data, err := Read(r, v, 1000)
			if err != nil {
				return
			}
			if len(data) > 1000 {
				t.Fatalf("a payload of %d bytes", len(data))
			}
			if err := Write(io.Discard, v, data); err != nil && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("what was read cannot be written: %v", err)
			}
		}
	})
}

func FuzzRequest(f *testing.F) {
	mode := uint32(0o644)
	fuzzMessage[Request](f,
		message(f, &Request{Method: MethodPing}),
		message(f, &Request{Method: MethodStart, Start: &Start{Exec: "e", Shell: "true"}}, []byte("in")),
		message(f, &Request{Method: MethodWrite, Call: "c", Path: "p", Mode: &mode}, []byte("data")))
}

func FuzzResponse(f *testing.F) {
	fuzzMessage[Response](f,
		message(f, &Response{Version: 1, Features: features}),
		message(f, &Response{End: &End{ExitCode: 1, Stdout: 2}}, []byte("ab")),
		message(f, &Response{Error: &Error{Code: CodeErrno, Errno: "ENOENT"}}),
		message(f, &Response{Execs: []Exec{{Exec: "e"}}, Files: []File{{Name: "n"}}, Chunk: &Chunk{}}))
}

var features = []string{"execs"}

func frame(kind byte, flags uint16, length uint32) []byte {
	b := []byte{0, kind}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, 1)
	return binary.BigEndian.AppendUint32(b, length)
}

func TestAGuestThatBreaksTheProtocolIsCutOff(t *testing.T) {
	for name, in := range map[string][]byte{
		"opens a stream":          frame(muxWindow, muxSYN, 0),
		"opens a stream by data":  frame(muxData, muxSYN, 1),
		"pings":                   frame(muxPing, muxSYN, 1),
		"answers no ping":         frame(muxPing, 0, 1),
		"sends too large a frame": frame(muxData, 0, maxMuxData+1),
		"sends no frame":          bytes.Repeat([]byte("x"), 12),
	} {
		if err := (&frames{each: guard}).check(in); !errors.Is(err, errHostile) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, in := range map[string][]byte{
		"data":     append(frame(muxData, muxACK, 3), "abc"...),
		"a window": frame(muxWindow, muxACK, 100),
		"a pong":   frame(muxPing, muxACK, 1),
		"go away":  frame(muxGoAway, 0, 0),
	} {
		g := &frames{each: guard}
		for i := range in { // however it is cut
			if err := g.check(in[i : i+1]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if g.have != 0 || g.body != 0 {
			t.Errorf("%s: %d bytes of a header, %d of a body left", name, g.have, g.body)
		}
	}
}

// pair is a control plane's and a guest's end over a pipe.
func pair(t *testing.T) (client *yamux.Session, server *Session) {
	a, b := net.Pipe()
	client, err := Client(a)
	if err != nil {
		t.Fatal(err)
	}
	server, err = Server(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestStreamsCarryAnySize(t *testing.T) {
	client, server := pair(t)
	go func() {
		for {
			s, err := server.AcceptStream()
			if err != nil {
				return
			}
			go func() { io.Copy(s, s); s.Close() }()
		}
	}()
	for _, n := range []int{1, 11, 12, 13, maxJoin - 1, maxJoin + 1, 1 << 20} {
		s, err := client.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Repeat([]byte{byte(n)}, n)
		go s.Write(sent)
		got := make([]byte, n)
		if _, err := io.ReadFull(s, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes: %v", n, err)
		}
		s.Close()
	}
}

// Whatever a guest sends, the control plane's end ends, and takes no stream of its.
func FuzzClient(f *testing.F) {
	f.Add(frame(muxWindow, muxACK, 100))
	f.Add(append(frame(muxData, muxACK, 3), "abc"...))
	f.Add(frame(muxPing, muxSYN, 7))
	f.Add(append(frame(muxData, 0, maxMuxData), bytes.Repeat([]byte("y"), 1000)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := net.Pipe()
		c, err := Client(a)
		if err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, b)
		go c.OpenStream()
		b.Write(in)
		b.Close()
		<-c.CloseChan()
		if c.NumStreams() > 1 {
			t.Fatalf("%d streams", c.NumStreams())
		}
	})
}

// Whatever a control plane sends, the guest's end ends.
func FuzzServer(f *testing.F) {
	f.Add(frame(muxWindow, muxSYN, 0))
	f.Add(append(frame(muxData, muxSYN, 3), "abc"...))
	f.Add(frame(muxPing, muxSYN, 7))
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := net.Pipe()
		s, err := Server(a)
		if err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, b)
		b.Write(in)
		b.Close()
		<-s.CloseChan()
	})
}

func TestFramesOfAStreamComeBackAsTheyWere(t *testing.T) {
	var b []byte
	for i, n := range []int{0, 1, MaxFrame} {
		f := make([]byte, FrameHeader+n)
		PutFrame(f, byte(i), n)
		b = append(b, f...)
	}
	r := bufio.NewReader(bytes.NewReader(b))
	for i, want := range []int{0, 1, MaxFrame} {
		kind, n, err := ReadFrame(r)
		if err != nil || int(kind) != i || n != want {
			t.Errorf("kind %d, %d bytes, %v; want %d, %d", kind, n, err, i, want)
		}
		io.CopyN(io.Discard, r, int64(n))
	}
	if _, _, err := ReadFrame(r); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestAFrameBeyondItsBoundsIsRefused(t *testing.T) {
	for name, in := range map[string]string{
		"too large": "\x01\x00\x01\x00\x01", "no kind": "\x04\x00\x00\x00\x00", "cut": "\x01\x00",
	} {
		if _, _, err := ReadFrame(bufio.NewReader(strings.NewReader(in))); err == nil || err == io.EOF {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A guest learns of a close although stdin that came before is not read yet.
func TestAPeersCloseIsToldAheadOfWhatWasNotRead(t *testing.T) {
	client, server := pair(t)
	s, err := client.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	go func() { s.Write([]byte("unread")); s.Close() }()
	got, err := server.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	<-got.PeerClosed
	if b, err := io.ReadAll(got); err != nil || string(b) != "unread" {
		t.Errorf("%q, %v", b, err)
	}
	got.Close()
	if len(server.closed) != 0 {
		t.Errorf("%d are remembered", len(server.closed))
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x03abc\x03\x00\x00\x00\x02{}"))
	f.Add([]byte("\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReader(bytes.NewReader(in))
		for {
			kind, n, err := ReadFrame(r)
			if err != nil {
				return
			}
			if n > MaxFrame || kind > FrameDone || kind == 4 {
				t.Fatalf("kind %d, %d bytes", kind, n)
			}
			if m, _ := r.Discard(n); m < n {
				return
			}
		}
	})
}
