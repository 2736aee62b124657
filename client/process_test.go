package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"nhooyr.io/websocket"
)

// stream sends a frame of a channel.
func (p *played) stream(channel uint32, stream byte, data string) {
	b := append(binary.BigEndian.AppendUint32(nil, channel), stream)
	if err := p.conn.Write(context.Background(), websocket.MessageBinary, append(b, data...)); err != nil {
		p.t.Errorf("write: %v", err)
	}
}

// nextFrame reads a frame of a stream.
func (p *played) nextFrame() (channel uint32, stream byte, data []byte) {
	typ, b, err := p.conn.Read(context.Background())
	if err != nil || typ != websocket.MessageBinary || len(b) < 5 {
		p.t.Fatalf("no frame of a stream: %v %q %v", typ, b, err)
	}
	return binary.BigEndian.Uint32(b), b[4], b[5:]
}

func (p *played) exit(channel uint32, rest string) {
	p.write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"exec.exit","params":{"exec":"x1","channel":%d,%s,"timed_out":false,"duration_ms":5,"cwd":"/workspace"}}`, channel, rest))
}

// begin starts a command by the client and answers it with channel 7.
func (s *script) begin(c *Client, r StartRequest) (*Process, *played) {
	s.t.Helper()
	got := make(chan *Process, 1)
	go func() {
		p, err := c.Start(context.Background(), ByTask("t"), r)
		if err != nil {
			s.t.Error(err)
		}
		got <- p
	}()
	conn := <-s.conns
	q := conn.next()
	if q.Method != "exec.start" || q.Params["id"] == "" || q.Params["task"] != "t" {
		s.t.Errorf("asked %s %v", q.Method, q.Params)
	}
	conn.answer(q, `{"exec":"x1","channel":7,"pid":42}`)
	p := <-got
	if p == nil || p.Exec != "x1" || p.PID != 42 {
		s.t.Fatalf("got %+v", p)
	}
	return p, conn
}

func TestOutputComesInOrderAndThenTheEnd(t *testing.T) {
	s := play(t)
	p, conn := s.begin(s.dial(), StartRequest{Command: "x"})
	defer func() { conn.drop() }()
	conn.stream(7, 1, "one ")
	conn.stream(9, 1, "of another channel")
	conn.stream(7, 2, "wrong")
	conn.stream(7, 1, "two")
	conn.exit(7, `"exit_code":3`)
	var out, errs strings.Builder
	e, err := p.Copy(t.Context(), &out, &errs)
	if err != nil || e.ExitCode != 3 || e.Lost != nil || out.String() != "one two" || errs.String() != "wrong" {
		t.Errorf("%+v %v %q %q", e, err, out.String(), errs.String())
	}
	if got := p.Offsets(); got != (Offsets{7, 5}) {
		t.Errorf("offsets %+v", got)
	}
}

func TestAnEnvironmentThatWentIsToldAsSuch(t *testing.T) {
	s := play(t)
	p, conn := s.begin(s.dial(), StartRequest{Command: "x"})
	defer func() { conn.drop() }()
	conn.exit(7, `"exit_code":null,"env_lost":{"reason":"turn ended","tombstone":{"reason":"turn ended","actor":"agent:a","generation":2}}`)
	e, err := p.Wait(t.Context())
	if err != nil || e.ExitCode != -1 || e.Lost == nil || e.Lost.Reason != "turn ended" || e.Lost.Tombstone.Generation != 2 {
		t.Errorf("%+v %v", e, err)
	}
}

func TestWhatWasReadIsGrantedAgain(t *testing.T) {
	s := play(t)
	p, conn := s.begin(s.dial(), StartRequest{Command: "x", Window: 1000})
	defer func() { conn.drop() }()
	conn.stream(7, 1, strings.Repeat("x", 1000))
	b := make([]byte, 300)
	if _, err := io.ReadFull(p.Stdout(), b); err != nil {
		t.Fatal(err)
	}
	channel, stream, data := conn.nextFrame()
	if channel != 7 || stream != streamCredit || binary.BigEndian.Uint32(data) != 300 {
		t.Errorf("%d %d %x", channel, stream, data)
	}
	// What nobody will read is granted too, so that the command goes on.
	p.Close()
	if _, stream, data := conn.nextFrame(); stream != streamCredit || binary.BigEndian.Uint32(data) != 700 {
		t.Errorf("%d %x", stream, data)
	}
	if _, err := p.Stdout().Read(b); !errors.Is(err, ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

func TestAfterALossEachByteComesOnceOrTheGapIsTold(t *testing.T) {
	s := play(t)
	p, conn := s.begin(s.dial(), StartRequest{Command: "x"})
	defer func() { conn.drop() }()
	conn.stream(7, 1, "first,")
	conn.stream(7, 2, "e")
	want := func(r io.Reader, text string) {
		t.Helper()
		b := make([]byte, len(text))
		if _, err := io.ReadFull(r, b); err != nil || string(b) != text {
			t.Errorf("read %q, %v; want %q", b, err, text)
		}
	}
	want(p.Stdout(), "first,")
	want(p.Stderr(), "e")
	conn.drop()

	conn = <-s.conns
	q := conn.next()
	from, _ := q.Params["from"].(map[string]any)
	if q.Method != "exec.attach" || q.Params["exec"] != "x1" || from["stdout"] != 6.0 || from["stderr"] != 1.0 {
		t.Errorf("asked %s %v", q.Method, q.Params)
	}
	conn.answer(q, `{"exec":"x1","channel":1,"state":"running","skipped":{"stdout":0,"stderr":0}}`)
	conn.stream(1, 1, "second,")
	want(p.Stdout(), "second,")
	conn.drop()

	conn = <-s.conns
	q = conn.next()
	conn.answer(q, `{"exec":"x1","channel":1,"state":"running","skipped":{"stdout":100,"stderr":0}}`)
	conn.stream(1, 1, "third")
	gap, ok := errors.AsType[*GapError](func() error { _, err := p.Stdout().Read(make([]byte, 9)); return err }())
	if !ok || gap.Bytes != 100 {
		t.Errorf("gap %v", gap)
	}
	want(p.Stdout(), "third")
	conn.exit(1, `"exit_code":0`)
	if e, err := p.Wait(t.Context()); err != nil || e.ExitCode != 0 {
		t.Errorf("%+v %v", e, err)
	}
	if got := p.Offsets(); got != (Offsets{118, 1}) {
		t.Errorf("offsets %+v", got)
	}
}

func TestInputIsSentAsItIsGrantedAndAgainAfterALoss(t *testing.T) {
	s := play(t)
	p, conn := s.begin(s.dial(), StartRequest{Command: "cat", Stdin: true, Window: 10})
	defer func() { conn.drop() }()
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(p.Stdin(), "0123456789abcdef")
		p.Stdin().Close()
		wrote <- err
	}()
	took := ""
	for len(took) < 10 {
		_, stream, data := conn.nextFrame()
		if stream != streamStdin || len(data) == 0 {
			t.Fatalf("%d %q", stream, data)
		}
		took += string(data)
	}
	if took != "0123456789" {
		t.Errorf("took %q", took)
	}
	conn.stream(7, 3, "\x00\x00\x00\x04")
	if _, _, data := conn.nextFrame(); string(data) != "abcd" {
		t.Errorf("then %q", data)
	}
	conn.drop()

	// The sandbox has eight bytes: the rest comes again, and then the end.
	conn = <-s.conns
	conn.answer(conn.next(), `{"exec":"x1","channel":2,"state":"running","skipped":{"stdout":0,"stderr":0},"stdin_taken":8}`)
	took = ""
	for {
		_, stream, data := conn.nextFrame()
		if stream != streamStdin {
			t.Fatalf("stream %d", stream)
		}
		if len(data) == 0 {
			break
		}
		took += string(data)
	}
	if took != "89abcdef" || <-wrote != nil {
		t.Errorf("again %q", took)
	}
}

func TestAnExecThatIsGoneFailsBehindWhatCame(t *testing.T) {
	s := play(t)
	p, conn := s.begin(s.dial(), StartRequest{Command: "x"})
	defer func() { conn.drop() }()
	conn.stream(7, 1, "all")
	conn.drop()
	conn = <-s.conns
	q := conn.next()
	conn.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32010,"message":"no such exec","data":{"kind":"not_found"}}}`, q.ID))
	b, err := io.ReadAll(p.Stdout())
	if string(b) != "all" || !errors.Is(err, KindNotFound) {
		t.Errorf("%q %v", b, err)
	}
	if _, err := p.Wait(t.Context()); !errors.Is(err, KindNotFound) {
		t.Errorf("wait: %v", err)
	}
}

func TestInputThatWasThereBeforeAnAttachIsNotItsOwn(t *testing.T) {
	s := play(t)
	c := s.dial()
	got := make(chan *Process, 1)
	go func() {
		p, err := c.Attach(context.Background(), "x1", Offsets{})
		if err != nil {
			t.Error(err)
		}
		got <- p
	}()
	conn := <-s.conns
	conn.answer(conn.next(), `{"exec":"x1","channel":7,"state":"running","skipped":{"stdout":0,"stderr":0},"stdin_taken":100}`)
	p := <-got
	if _, err := io.WriteString(p.Stdin(), "hello"); err != nil {
		t.Fatal(err)
	}
	if _, stream, data := conn.nextFrame(); stream != 0 || string(data) != "hello" {
		t.Fatalf("stream %d: %q", stream, data)
	}
	conn.drop()
	conn = <-s.conns
	conn.answer(conn.next(), `{"exec":"x1","channel":8,"state":"running","skipped":{"stdout":0,"stderr":0},"stdin_taken":102}`)
	if channel, stream, data := conn.nextFrame(); channel != 8 || stream != 0 || string(data) != "llo" {
		t.Errorf("sent again on channel %d, stream %d: %q, want what the sandbox does not have", channel, stream, data)
	}
	conn.exit(8, `"exit_code":0`)
	if _, err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhatIsReadWhileTheStreamsAreJoinedAnewIsGranted(t *testing.T) {
	s := play(t)
	p, conn := s.begin(s.dial(), StartRequest{Command: "x", Window: 4 << 10})
	full := strings.Repeat("x", 4<<10)
	conn.stream(7, 1, full)
	if _, err := io.ReadFull(p.Stdout(), make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	conn.drop()
	conn = <-s.conns
	q := conn.next()
	asked := int64(q.Params["window"].(float64))
	if _, err := io.ReadFull(p.Stdout(), make([]byte, len(full)-1)); err != nil { // while the call is on its way
		t.Fatal(err)
	}
	conn.answer(q, `{"exec":"x1","channel":8,"state":"running","skipped":{"stdout":0,"stderr":0},"stdin_taken":0}`)
	conn.stream(8, 1, strings.Repeat("y", int(asked)))
	if _, err := io.ReadFull(p.Stdout(), make([]byte, asked)); err != nil {
		t.Fatal(err)
	}
	// The command goes on: a window is granted again, and no more than one.
	var granted int64
	for granted < 4<<10 {
		_, stream, data := conn.nextFrame()
		if stream != 3 {
			t.Fatalf("stream %d", stream)
		}
		granted += int64(binary.BigEndian.Uint32(data))
	}
	if granted > 4<<10 {
		t.Errorf("%d bytes are granted", granted)
	}
	conn.exit(8, `"exit_code":0`)
}

func TestAChannelThatWasOpenedForNobodyIsReadOn(t *testing.T) {
	s := play(t)
	c := s.dial()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := c.Start(ctx, ByTask("t"), StartRequest{Command: "x", Window: 4 << 10})
		failed <- err
	}()
	conn := <-s.conns
	q := conn.next()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	conn.answer(q, `{"exec":"x1","channel":7,"pid":42}`)
	conn.stream(7, 1, strings.Repeat("x", 4<<10))
	if channel, stream, data := conn.nextFrame(); channel != 7 || stream != 3 || binary.BigEndian.Uint32(data) != 4<<10 {
		t.Errorf("channel %d, stream %d: %x", channel, stream, data)
	}
}
