package agentapi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"nhooyr.io/websocket"

	"sandkeeper/internal/control"
)

// opens starts an exec whose streams are a test's, and returns its channel.
func (p *peer) opens(s *server, params string) (*fakeStream, uint32) {
	p.t.Helper()
	f := newFakeStream()
	s.plane.start = func(control.StartRequest) (control.Started, error) {
		return control.Started{Exec: "x1", PID: 7, Stream: f}, nil
	}
	r := p.call("exec.start", `{"env":"e1","command":"c"`+params+`}`)
	if r.Error != nil {
		p.t.Fatal(r.Error)
	}
	var got startResult
	if err := json.Unmarshal(r.Result, &got); err != nil {
		p.t.Fatal(err)
	}
	return f, got.Channel
}

// frame receives a binary frame.
func (p *peer) frame() binaryFrame {
	p.t.Helper()
	typ, b, err := p.conn.Read(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	f, ok := parseBinary(b)
	if typ != websocket.MessageBinary || !ok {
		p.t.Fatalf("got %v %q", typ, b)
	}
	return f
}

func (p *peer) sendBinary(channel uint32, stream byte, payload []byte) {
	p.t.Helper()
	b := make([]byte, headerSize, headerSize+len(payload))
	putHeader(b, channel, stream)
	if err := p.conn.Write(p.t.Context(), websocket.MessageBinary, append(b, payload...)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) grant(channel, n uint32) {
	p.t.Helper()
	p.sendBinary(channel, streamCredit, binary.BigEndian.AppendUint32(nil, n))
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func TestAChannelCarriesItsExecAndEndsWithIt(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, c := p.opens(s, "")
	if c != 1 {
		t.Errorf("the first channel is %d", c)
	}
	f.says(control.Stdout, []byte("out"))
	if got := p.frame(); got.channel != c || got.stream != 1 || string(got.payload) != "out" {
		t.Errorf("got %+v", got)
	}
	f.says(control.Stderr, []byte{0xff, 0})
	if got := p.frame(); got.channel != c || got.stream != 2 || string(got.payload) != "\xff\x00" {
		t.Errorf("got %+v", got)
	}
	p.sendBinary(c, 0, []byte("in"))
	p.sendBinary(c, 0, nil)
	<-f.eof
	if got := f.input(); got != "in" {
		t.Errorf("the command got %q", got)
	}
	code := 3
	f.ends(control.ExecExit{ExitCode: &code, Duration: 1500 * time.Millisecond, Cwd: "/w"})
	r := p.receive()
	if want := `{"channel":1,"cwd":"/w","duration_ms":1500,"exec":"x1","exit_code":3,"timed_out":false}`; r.Method != "exec.exit" || normal(t, r.Params) != want {
		t.Errorf("got %s %s, want %s", r.Method, r.Params, want)
	}
	<-f.closed
	p.sendBinary(c, 0, []byte("late"))
	p.call("env.list", `{}`)
	if n := s.Stats().DroppedFrames; n != 1 {
		t.Errorf("%d frames were dropped, want the one that came late", n)
	}
	if _, c := p.opens(s, ""); c != 2 {
		t.Errorf("the second channel is %d", c)
	}
}

func TestFramesForNoOpenChannelAreDroppedAndCounted(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, c := p.opens(s, `,"window":10`)
	for _, frame := range [][]byte{{}, {0, 0, 0, 1}, {0, 0, 0, 9, 0, 'x'}, {0, 0, 0, byte(c), 1, 'x'}, {0, 0, 0, byte(c), 3, 1}, {0, 0, 0, byte(c), 77}} {
		if err := p.conn.Write(t.Context(), websocket.MessageBinary, frame); err != nil {
			t.Fatal(err)
		}
	}
	p.call("env.list", `{}`)
	if n := s.Stats().DroppedFrames; n != 6 {
		t.Errorf("%d counted, want 6", n)
	}
	if f.input() != "" {
		t.Errorf("the command got %q", f.input())
	}
}

func TestOutputStopsAtItsWindowAndOtherChannelsGoOn(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	slow, a := p.opens(s, `,"window":10`)
	quick, b := p.opens(s, `,"window":100`)
	slow.says(control.Stdout, []byte("0123456"))
	if got := p.frame(); string(got.payload) != "0123456" {
		t.Fatalf("got %q", got.payload)
	}
	slow.says(control.Stderr, []byte("789abcdefg")) // of one account with stdout
	if got := p.frame(); got.channel != a || got.stream != 2 || string(got.payload) != "789" {
		t.Fatalf("got %+v %q, want what the credit reaches for", got, got.payload)
	}
	for range 5 {
		quick.says(control.Stdout, []byte("quick"))
		if got := p.frame(); got.channel != b || string(got.payload) != "quick" {
			t.Fatalf("got %+v", got)
		}
	}
	p.grant(a, 4)
	if got := p.frame(); got.channel != a || string(got.payload) != "abcd" {
		t.Fatalf("got %+v %q", got, got.payload)
	}
	p.grant(a, 3)
	if got := p.frame(); string(got.payload) != "efg" {
		t.Fatalf("got %q", got.payload)
	}
	slow.ends(control.ExecExit{}) // the account is empty, and the end costs nothing
	if r := p.receive(); r.Method != "exec.exit" {
		t.Errorf("got %s", r.Method)
	}
}

func TestWhoSendsBeyondItsCreditIsClosed(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, c := p.opens(s, `,"window":4`)
	f.takes = make(chan int)
	p.sendBinary(c, 0, []byte("1234"))
	f.takes <- 4
	if got := p.frame(); got.channel != c || got.stream != 3 || binary.BigEndian.Uint32(got.payload) != 4 {
		t.Fatalf("got %+v, want the credit for what was taken", got)
	}
	p.sendBinary(c, 0, []byte("1234"))
	p.sendBinary(c, 0, []byte("5"))
	if code := p.closed(); code != websocket.StatusPolicyViolation {
		t.Errorf("closed with %d, want 1008", code)
	}
	<-f.closed
}

func TestCreditThatOverflowsCloses(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	_, c := p.opens(s, `,"window":4294967295`)
	go func() {
		b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, byte(c), 3}, 1<<32-1)
		for p.conn.Write(t.Context(), websocket.MessageBinary, b) == nil {
		}
	}()
	if code := p.closed(); code != websocket.StatusPolicyViolation {
		t.Errorf("closed with %d, want 1008", code)
	}
}

func TestStdinThatIsNotTakenIsBounded(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, c := p.opens(s, "")
	f.takes = make(chan int)
	sent := make(chan struct{})
	want := strings.Repeat("0123456789abcdef", 4<<20/16)
	go func() {
		defer close(sent)
		for i := 0; i < len(want); i += 64 << 10 {
			p.sendBinary(c, 0, []byte(want[i:i+64<<10]))
		}
	}()
	ch := func() *channel {
		s.mu.Lock()
		defer s.mu.Unlock()
		for k := range s.sockets {
			return k.channels.get(c)
		}
		return nil
	}()
	eventually(t, "the socket is read on", func() bool { return ch.s.holding.Load() })
	ch.stdin.mu.Lock()
	if held := len(ch.stdin.waiting) + ch.stdin.giving; held > mostStdin || held < mostStdin-64<<10 {
		t.Errorf("%d bytes are held", held)
	}
	ch.stdin.mu.Unlock()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case f.takes <- 100_000:
			case <-stop:
				return
			}
		}
	}()
	<-sent
	eventually(t, "not all came", func() bool { return len(f.input()) == len(want) })
	if f.input() != want {
		t.Error("stdin came in another order")
	}
}

func TestStdinThatNobodyTakesIsDroppedAndItsCreditComesBack(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, c := p.opens(s, `,"window":4`)
	f.writeErr = io.ErrClosedPipe
	for range 3 {
		p.sendBinary(c, 0, []byte("1234"))
		if got := p.frame(); got.stream != 3 || binary.BigEndian.Uint32(got.payload) != 4 {
			t.Fatalf("got %+v", got)
		}
	}
}

func TestASocketsEndLeavesTheExecAlone(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, _ := p.opens(s, "")
	p.conn.CloseNow() //nolint:errcheck // what counts is that it is gone
	<-f.closed
	select {
	case <-f.eof:
		t.Error("its stdin was closed")
	default:
	}
}

func TestChannelsAreBounded(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	for range mostChannels {
		p.opens(s, "")
	}
	r := p.call("exec.attach", `{"exec":"x1"}`)
	if r.Error == nil || r.Error.Code != codeQuota || !strings.Contains(r.Error.Message, "256") {
		t.Errorf("got %v, want quota_exceeded that says how many", r.Error)
	}
}

func TestAnswersPassOutputThatWaits(t *testing.T) {
	o := newOutbox()
	c := &channel{id: 1}
	b := newBuffer(false)
	b.fill(copy(b.room(), "out"), 1, 1)
	if err := o.stream(t.Context(), c, b, nil, func() {}); err != nil {
		t.Fatal(err)
	}
	for i := range mostPassing + 1 {
		o.answer(answer(nil, i), func() {})
	}
	for i := range mostPassing {
		if it, _ := o.next(); it.buffer != nil {
			t.Fatalf("output came before answer %d", i)
		}
	}
	if it, _ := o.next(); it.buffer == nil {
		t.Error("output waits for ever behind answers")
	}
}

func TestSmallWritesBecomeOneFrameWhileTheyWait(t *testing.T) {
	o := newOutbox()
	c := &channel{id: 1}
	for range 100 {
		b := newBuffer(false)
		b.fill(copy(b.room(), "0123456789"), 1, 1)
		if err := o.stream(t.Context(), c, b, nil, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	it, _ := o.next()
	if n := len(it.buffer.payload()); n != 1000 {
		t.Errorf("the frame has %d bytes, want all 1000", n)
	}
	if it, _ := o.next(); it != nil {
		t.Error("another waits")
	}
}

func TestAGapIsToldInItsPlace(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, c := p.opens(s, "")
	f.says(control.Stdout, []byte("before"))
	f.parts <- fakePart{err: &control.Gap{Skipped: control.Offsets{Stdout: 7}}}
	f.says(control.Stdout, []byte("after"))
	p.frame()
	r := p.receive()
	if want := fmt.Sprintf(`{"channel":%d,"exec":"x1","skipped":{"stderr":0,"stdout":7}}`, c); r.Method != "exec.gap" || normal(t, r.Params) != want {
		t.Errorf("got %s %s", r.Method, r.Params)
	}
	if got := p.frame(); string(got.payload) != "after" {
		t.Errorf("got %q", got.payload)
	}
}

func TestAStreamThatBreaksIsNoExit(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	f, _ := p.opens(s, "")
	f.parts <- fakePart{err: control.Errorf(control.KindEngineUnavailable, "gone")}
	r := p.receive()
	if r.Method != "exec.detached" || !strings.Contains(string(r.Params), `"kind":"engine_unavailable"`) {
		t.Errorf("got %s %s", r.Method, r.Params)
	}
	<-f.closed
}

func TestEventsComeInOrderBehindTheAnswer(t *testing.T) {
	s := serve(t)
	feed := newFakeFeed()
	s.plane.events = func(after *uint64) (control.Subscription, uint64, error) {
		if after == nil || *after != 5 {
			t.Errorf("asked for what is after %v", after)
		}
		return feed, 9, nil
	}
	p := s.connect(t)
	if r := p.call("events.subscribe", `{"after":5}`); normal(t, r.Result) != `{"last":9}` {
		t.Fatalf("got %s %v", r.Result, r.Error)
	}
	feed.events <- []control.Event{{Seq: 6, Kind: control.EnvReady}, {Seq: 8, Kind: control.EnvDormant}}
	feed.events <- nil
	for _, want := range []string{`"seq":6`, `"seq":8`} {
		if r := p.receive(); r.Method != "event" || !strings.Contains(string(r.Params), want) {
			t.Errorf("got %s %s, want %s", r.Method, r.Params, want)
		}
	}
	if r := p.receive(); r.Method != "events.reset" {
		t.Errorf("got %s", r.Method)
	}
	p.conn.CloseNow() //nolint:errcheck // what counts is that it is gone
	<-feed.closed
}

func TestExecParams(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	for name, tt := range map[string]struct{ method, params, field string }{
		"a window of none":     {"exec.start", `{"env":"e1","command":"c","window":0}`, "window"},
		"a window too large":   {"exec.attach", `{"exec":"x1","window":4294967296}`, "window"},
		"a tty without rows":   {"exec.start", `{"env":"e1","command":"c","tty":{"cols":80}}`, "tty.rows"},
		"a tty that is flat":   {"exec.start", `{"env":"e1","command":"c","tty":{"cols":80,"rows":0}}`, "tty.rows"},
		"a tty with more":      {"exec.start", `{"env":"e1","command":"c","tty":{"cols":80,"rows":2,"x":1}}`, "tty.x"},
		"a size of text":       {"exec.resize", `{"exec":"x1","cols":"80","rows":2}`, "cols"},
		"a size too large":     {"exec.resize", `{"exec":"x1","cols":65536,"rows":2}`, "cols"},
		"from before":          {"exec.attach", `{"exec":"x1","from":{"stdout":-1}}`, "from.stdout"},
		"from with a typo":     {"exec.attach", `{"exec":"x1","from":{"stdotu":1}}`, "from.stdotu"},
		"no exec":              {"exec.wait", `{}`, "exec"},
		"a wait of less":       {"exec.wait", `{"exec":"x1","timeout_seconds":-1}`, "timeout_seconds"},
		"no signal":            {"exec.signal", `{"exec":"x1"}`, "signal"},
		"stdin as text":        {"exec.start", `{"env":"e1","command":"c","stdin":"x"}`, "stdin"},
		"stdin closed of what": {"exec.close_stdin", `{"exec":1}`, "exec"},
		"after nothing":        {"events.subscribe", `{"after":-1}`, "after"},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			if r := p.call(tt.method, tt.params); r.Error == nil || r.Error.Code != codeInvalidParams || r.Error.Data.Field != tt.field {
				t.Errorf("got %v, want -32602 for %s", r.Error, tt.field)
			}
		})
	}
	p.t = t
	if r := p.call("exec.resize", `{"exec":"nowhere","cols":0,"rows":1}`); r.Error == nil || r.Error.Code != codeNotFound {
		t.Errorf("of an unknown exec: %v, want not_found first", r.Error)
	}
	if r := p.call("exec.wait", `{"exec":"x1","timeout_seconds":0}`); normal(t, r.Result) != `{"exec":"x1","state":"running"}` {
		t.Errorf("got %s %v", r.Result, r.Error)
	}
	if r := p.call("exec.signal", `{"exec":"x1","signal":"TERM","tree":false}`); normal(t, r.Result) != `{"survivors":2}` || s.plane.last() != (signalled{"TERM", false}) {
		t.Errorf("got %s %v", r.Result, r.Error)
	}
	if r := p.call("exec.resize", `{"exec":"x1","cols":80,"rows":24}`); normal(t, r.Result) != `{}` || s.plane.last() != (control.TTY{Cols: 80, Rows: 24}) {
		t.Errorf("got %s %v", r.Result, r.Error)
	}
}

// Whatever comes, a binary frame is taken apart without a copy, or is none.
func FuzzBinaryFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 1})
	f.Add([]byte{0, 0, 0, 1, 0})
	f.Add([]byte{255, 255, 255, 255, 3, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parseBinary(b)
		if ok != (len(b) >= headerSize) {
			t.Fatalf("%d bytes: %v", len(b), ok)
		}
		if !ok {
			return
		}
		again := make([]byte, headerSize)
		putHeader(again, got.channel, got.stream)
		if again = append(again, got.payload...); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
		if n, ok := got.credit(); ok && !bytes.Equal(creditFrame(got.channel, n), b) {
			t.Fatalf("%x gives %d", b, n)
		}
	})
}
