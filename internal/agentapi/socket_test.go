package agentapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"nhooyr.io/websocket"

	"sandkeeper/internal/control"
)

func TestHelloComesFirst(t *testing.T) {
	p := serve(t).dial(t)
	for _, method := range []string{"env.list", "nonsense"} {
		if r := p.call(method, `{}`); r.Error == nil || r.Error.Code != codeHelloRequired || r.Error.Data.Kind != "hello_required" {
			t.Errorf("%s before hello: %v, want hello_required", method, r.Error)
		}
	}
	if r := p.call("hello", `{"agent":"a"}`); r.Error != nil {
		t.Fatal(r.Error)
	}
	if r := p.call("env.list", `{}`); r.Error != nil {
		t.Error(r.Error)
	}
	if r := p.call("nonsense", `{}`); r.Error == nil || r.Error.Code != codeUnknownMethod {
		t.Errorf("an unknown method: %v", r.Error)
	}
	if r := p.call("hello", `{"agent":"a"}`); r.Error == nil || r.Error.Code != codeInvalidRequest {
		t.Errorf("a second hello: %v, want -32600", r.Error)
	}
}

func TestHello(t *testing.T) {
	s := serve(t, func(o *Options) { o.MaxFrameBytes, o.MaxExecsPerEnv = 2048, 7 })
	s.plane.hello = func(string, control.Hello, control.Sink) (bool, error) { return true, nil }
	p := s.dial(t)
	r := p.call("hello", `{"agent":"Ägent 🤖","version":"2","session":"old","disconnect_grace_seconds":5}`)
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	var got map[string]any
	if err := json.Unmarshal(r.Result, &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "features")
	b, _ := json.Marshal(got)
	want := `{"boot":"b1","disconnect_grace_seconds":60,"heartbeat_seconds":20,"limits":{"file_read_bytes":524288,"max_calls":256,
		"max_channels":256,"max_execs_per_env":7,"max_frame_bytes":2048,"output_bytes":400000,"stdin_bytes":1048576,"stream_kept_bytes":1048576},"protocol":1,"resumed":true,
		"server":{"name":"sandkeeper","version":"1.2.3"},"session":"s-hermes","time":"2026-03-01T12:00:00.123Z"}`
	if string(b) != normal(t, []byte(want)) {
		t.Errorf("got %s", b)
	}
	h := s.plane.last().(control.Hello)
	if h.Agent != "Ägent 🤖" || h.Version != "2" || h.Session != "old" || h.Grace == nil || *h.Grace != 5*time.Second {
		t.Errorf("the plane was told %+v", h)
	}
}

func TestHelloOfTheWrongShape(t *testing.T) {
	s := serve(t)
	p := s.dial(t)
	for params, field := range map[string]string{
		`{}`:                        "agent",
		`{"agent":""}`:              "agent",
		`{"agent":"a\u0001"}`:       "agent",
		`{"agent":"a","session":5}`: "session",
		`{"agent":"a","disconnect_grace_seconds":-1}`:  "disconnect_grace_seconds",
		`{"agent":"a","disconnect_grace_seconds":0.5}`: "disconnect_grace_seconds",
		`{"agent":"a","agnet":"b"}`:                    "agnet",
	} {
		if r := p.call("hello", params); r.Error == nil || r.Error.Data.Field != field {
			t.Errorf("%s: %v, want -32602 for %s", params, r.Error, field)
		}
	}
	if r := p.call("hello", `{"agent":"a","version":"","disconnect_grace_seconds":1e30}`); r.Error != nil {
		t.Error(r.Error)
	}
	if h := s.plane.last().(control.Hello); h.Grace == nil || *h.Grace <= 0 {
		t.Errorf("a huge grace became %v", h.Grace)
	}
}

func TestAHelloThatFailsMayBeSaidAgain(t *testing.T) {
	s := serve(t)
	fail := true
	s.plane.hello = func(string, control.Hello, control.Sink) (bool, error) {
		if fail {
			fail = false
			return false, control.Errorf(control.KindDraining, "going down")
		}
		return false, nil
	}
	p := s.dial(t)
	if r := p.call("hello", `{"agent":"a"}`); r.Error == nil || r.Error.Code != codeDraining {
		t.Errorf("got %v, want draining", r.Error)
	}
	if r := p.call("hello", `{"agent":"a"}`); r.Error != nil {
		t.Error(r.Error)
	}
}

func TestWhatFollowsHelloAtOnceFindsTheSessionOpen(t *testing.T) {
	p := serve(t).dial(t)
	p.send(`{"jsonrpc":"2.0","id":1,"method":"hello","params":{"agent":"a"}}`)
	p.send(`{"jsonrpc":"2.0","id":2,"method":"env.list"}`)
	for range 2 {
		if r := p.receive(); r.Error != nil {
			t.Errorf("%s: %v", r.ID, r.Error)
		}
	}
}

func TestARequestWithoutIDGetsNoAnswer(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	p.send(`{"jsonrpc":"2.0","method":"env.touch","params":{"env":"e1"}}`)
	p.send(`{"jsonrpc":"2.0","method":"env.touch","params":{"oops":1}}`)
	p.send(`{"jsonrpc":"2.0","method":"nonsense"}`)
	p.send(`{"jsonrpc":"2.0","id":"last","method":"env.list"}`)
	if r := p.receive(); string(r.ID) != `"last"` {
		t.Errorf("answered %s", r.ID)
	}
}

func TestBadFramesLeaveTheSocketOpen(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	for _, frame := range []string{"", "{", "[]", `"x"`, "\x00", `{"jsonrpc":"2.0","id":1,"method":5}`} {
		p.send(frame)
		if r := p.receive(); r.Error == nil || (r.Error.Code != codeParse && r.Error.Code != codeInvalidRequest) {
			t.Errorf("%q: %v", frame, r.Error)
		}
	}
	if r := p.call("env.list", `{}`); r.Error != nil {
		t.Error(r.Error)
	}
}

func TestBinaryFramesAreDroppedAndCounted(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	for _, frame := range [][]byte{{}, {0, 0, 0}, {0, 0, 0, 9, 0, 'x'}} {
		if err := p.conn.Write(t.Context(), websocket.MessageBinary, frame); err != nil {
			t.Fatal(err)
		}
	}
	if r := p.call("env.list", `{}`); r.Error != nil {
		t.Error(r.Error)
	}
	if n := s.Stats().DroppedFrames; n != 3 {
		t.Errorf("%d counted, want 3", n)
	}
}

func TestAFrameOverTheLimitCloses(t *testing.T) {
	s := serve(t, func(o *Options) { o.MaxFrameBytes = 1000 })
	exactly := func(n int) string {
		frame := `{"jsonrpc":"2.0","id":1,"method":"env.list","params":{}}`
		return frame + strings.Repeat(" ", n-len(frame))
	}
	for name, typ := range map[string]websocket.MessageType{"text": websocket.MessageText, "binary": websocket.MessageBinary} {
		t.Run(name, func(t *testing.T) {
			p := s.connect(t)
			if err := p.conn.Write(t.Context(), typ, []byte(exactly(1000))); err != nil {
				t.Fatal(err)
			}
			if typ == websocket.MessageText {
				if r := p.receive(); r.Error != nil {
					t.Fatalf("1000 bytes: %v", r.Error)
				}
			}
			if err := p.conn.Write(t.Context(), typ, []byte(exactly(1001))); err != nil {
				t.Fatal(err)
			}
			if code := p.closed(); code != websocket.StatusMessageTooBig {
				t.Errorf("1001 bytes: closed with %d, want 1009", code)
			}
		})
	}
	t.Run("by far", func(t *testing.T) {
		p := s.connect(t)
		go p.conn.Write(t.Context(), websocket.MessageText, make([]byte, 8<<20)) //nolint:errcheck // the server closes in the middle
		if code := p.closed(); code != websocket.StatusMessageTooBig {
			t.Errorf("closed with %d, want 1009", code)
		}
	})
}

func TestAMessageInFragmentsIsOneFrame(t *testing.T) {
	p := serve(t).connect(t)
	w, err := p.conn.Writer(t.Context(), websocket.MessageText)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`{"jsonrpc":"2.0",`, `"id":1,"method"`, `:"env.list"}`} {
		if _, err := w.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if r := p.receive(); r.Error != nil {
		t.Error(r.Error)
	}
}

func TestANewerSocketClosesTheOlder(t *testing.T) {
	s := serve(t)
	older := s.connect(t)
	s.plane.sink().Replaced()
	if code := older.closed(); code != 4001 {
		t.Errorf("closed with %d, want 4001", code)
	}
	if got := <-s.plane.gone; got != s.plane.sink() {
		t.Error("another sink was disconnected")
	}
}

func TestAClosedSocketDisconnectsItsSession(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	p.conn.Close(websocket.StatusNormalClosure, "")
	if got := <-s.plane.gone; got != s.plane.sink() {
		t.Error("another sink was disconnected")
	}
}

func TestADroppedSocketDoesNotEndItsCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := serveOn(t, l)
		ended := make(chan time.Duration, 1)
		began := make(chan struct{})
		s.plane.run = func(ctx context.Context, _ control.RunRequest) (control.Ran, error) {
			close(began)
			at := time.Now()
			<-ctx.Done()
			ended <- time.Since(at)
			return control.Ran{}, ctx.Err()
		}
		p := dial(t, s.url, l.dial)
		p.call("hello", `{"agent":"a"}`)
		p.send(`{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"env":"e1","command":"sleep"}}`)
		<-began
		p.conn.CloseNow() //nolint:errcheck // what counts is that it is gone
		<-s.plane.gone    // the session knows at once
		if d := <-ended; d < linger {
			t.Errorf("the call ended after %v, want %v", d, linger)
		}
	})
}

func TestRequestsRunConcurrently(t *testing.T) {
	s := serve(t)
	release := make(chan struct{})
	s.plane.run = func(context.Context, control.RunRequest) (control.Ran, error) {
		<-release
		return control.Ran{}, nil
	}
	p := s.connect(t)
	p.send(`{"jsonrpc":"2.0","id":"slow","method":"exec.run","params":{"env":"e1","command":"sleep"}}`)
	p.send(`{"jsonrpc":"2.0","id":"quick","method":"env.list"}`)
	if r := p.receive(); string(r.ID) != `"quick"` {
		t.Fatalf("%s came first", r.ID)
	}
	close(release)
	if r := p.receive(); string(r.ID) != `"slow"` {
		t.Fatalf("%s came second", r.ID)
	}
}

func TestCallsThatWaitAreBounded(t *testing.T) {
	s := serve(t)
	release := make(chan struct{})
	s.plane.run = func(context.Context, control.RunRequest) (control.Ran, error) {
		<-release
		return control.Ran{}, nil
	}
	p := s.connect(t)
	for i := range mostSlow + 1 {
		p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"exec.run","params":{"env":"e1","command":"sleep"}}`, i))
	}
	r := p.receive()
	if string(r.ID) != fmt.Sprint(mostSlow) || r.Error == nil || r.Error.Code != codeQuota || !strings.Contains(r.Error.Message, "256") {
		t.Fatalf("%s: %v, want quota_exceeded that says how many", r.ID, r.Error)
	}
	if r := p.call("turn.end", `{"task":"t"}`); r.Error != nil {
		t.Errorf("a quick call beside them: %v", r.Error)
	}
	close(release)
	for range mostSlow {
		if r := p.receive(); r.Error != nil {
			t.Fatal(r.Error)
		}
	}
}

func TestAPanicIsAnInternalErrorAndNoMore(t *testing.T) {
	s := serve(t)
	s.plane.turnEnd = func(control.TurnEndRequest) (control.TurnEnd, error) { panic("secret") }
	p := s.connect(t)
	r := p.call("turn.end", `{"task":"t"}`)
	if r.Error == nil || r.Error.Code != codeInternal || strings.Contains(r.Error.Message, "secret") {
		t.Errorf("got %v", r.Error)
	}
	if r := p.call("env.list", `{}`); r.Error != nil {
		t.Error(r.Error)
	}
}

func TestNotifications(t *testing.T) {
	s := serve(t)
	s.plane.hello = func(_ string, _ control.Hello, sink control.Sink) (bool, error) {
		sink.EnvState(control.View{ID: "early"})
		return false, nil
	}
	p := s.dial(t)
	if r := p.call("hello", `{"agent":"a"}`); string(r.ID) != "1" {
		t.Fatalf("%s came before the answer to hello", r.Method)
	}
	if r := p.receive(); r.Method != "env.state" || !strings.Contains(string(r.Params), `"env":{"id":"early"`) || r.ID != nil {
		t.Errorf("got %+v", r)
	}
	s.plane.sink().EnvExpiring("e1", control.At(noon), 29*time.Second+1)
	r := p.receive()
	if want := `{"deadline":"2026-03-01T12:00:00.123Z","env":"e1","seconds_left":30}`; r.Method != "env.expiring" || normal(t, r.Params) != want {
		t.Errorf("got %s %s, want %s", r.Method, r.Params, want)
	}
}

func TestStatesMergeOnlyOnceManyWait(t *testing.T) {
	o := newOutbox()
	o.welcome(nil, nil)
	for i := range 1000 {
		o.note(fmt.Sprint(i%2), "env.state", i)
	}
	o.note("2", "env.state", "another")
	var got []any
	for {
		it, _ := o.next()
		if it == nil {
			break
		}
		got = append(got, it.message.(notification).Params)
	}
	if len(got) != mergeFrom+1 {
		t.Fatalf("%d wait, want %d", len(got), mergeFrom+1)
	}
	for i := range mergeFrom - 2 {
		if got[i] != i {
			t.Fatalf("notification %d is %v", i, got[i])
		}
	}
	if got[mergeFrom-2] != 998 || got[mergeFrom-1] != 999 || got[mergeFrom] != "another" {
		t.Errorf("the last are %v", got[mergeFrom-2:])
	}
	if len(o.latest) != 0 || o.notes != 0 {
		t.Errorf("%d keys and %d notes are left of nothing", len(o.latest), o.notes)
	}
}

// A peer that answers pings lives on, however little it says.
func TestAPeerThatAnswersLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := serveOn(t, l)
		p := dial(t, s.url, l.dial)
		p.call("hello", `{"agent":"a"}`)
		got := make(chan reply, 1)
		go func() { got <- p.receive() }() // a reader answers pings
		time.Sleep(10 * time.Minute)
		p.send(`{"jsonrpc":"2.0","id":7,"method":"env.list"}`)
		if r := <-got; string(r.ID) != "7" {
			t.Errorf("got %+v", r)
		}
	})
}

func TestAPeerThatNeitherAnswersNorReadsIsDeadAfterTwoHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := serveOn(t, l)
		p := dial(t, s.url, l.dial)
		p.call("hello", `{"agent":"a"}`)
		at := time.Now()
		<-s.plane.gone
		if d := time.Since(at); d < 40*time.Second || d > 41*time.Second {
			t.Errorf("dead after %v, want 40s", d)
		}
	})
}

// A slow reader of a large answer answers no ping for a long time, but it reads.
func TestAPeerThatReadsSlowlyLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := serveOn(t, l)
		big := strings.Repeat("x", 400_000)
		s.plane.run = func(context.Context, control.RunRequest) (control.Ran, error) {
			return control.Ran{End: control.ExecEnd{Stdout: []byte(big), Stderr: []byte(big)}}, nil
		}
		p := dial(t, s.url, l.dial)
		p.call("hello", `{"agent":"a"}`)
		p.send(`{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"env":"e1","command":"x"}}`)
		_, r, err := p.conn.Reader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		total, b := 0, make([]byte, 16<<10)
		for {
			n, err := r.Read(b)
			total += n
			if err != nil {
				break
			}
			time.Sleep(2 * time.Second) // 800 kB take longer than two heartbeats
		}
		if total < 800_000 {
			t.Errorf("it got %d bytes", total)
		}
	})
}

// However much a peer asks without reading, what is kept for it is bounded; of
// answers that may be large, fewer.
func TestAPeerThatDoesNotReadIsNotRead(t *testing.T) {
	const between = 4 * bufferedWrites // answers and requests that lie in between
	for request, most := range map[string]int64{
		`{"jsonrpc":"2.0","id":1,"method":"env.touch","params":{"env":"e1"}}`: mostQuick,
		`{"jsonrpc":"2.0","id":1,"method":"env.list"}`:                        mostQuick / methods["env.list"].places,
		`{`: mostQuick,
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newPipes()
			s := serveOn(t, l)
			p := dial(t, s.url, l.dial)
			p.call("hello", `{"agent":"a"}`)
			var sent atomic.Int64
			go func() {
				for p.conn.Write(t.Context(), websocket.MessageText, []byte(request)) == nil {
					sent.Add(1)
				}
			}()
			<-s.plane.gone // dead after two heartbeats without reading
			if n := sent.Load(); n < most || n > most+between {
				t.Errorf("%d requests %s were taken, want about %d", n, request, most)
			}
		})
	}
}

// A server that is slow itself holds nothing against its peer.
func TestAStallOfOursCountsNoHeartbeatAsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		s := serveOn(t, l)
		release := make(chan struct{})
		s.plane.turnEnd = func(control.TurnEndRequest) (control.TurnEnd, error) {
			<-release
			return control.TurnEnd{}, nil
		}
		p := dial(t, s.url, l.dial)
		p.call("hello", `{"agent":"a"}`)
		answers := make(chan reply)
		go func() {
			for range mostQuick + 1 {
				answers <- p.receive()
			}
		}()
		for range mostQuick + 1 {
			p.send(`{"jsonrpc":"2.0","id":1,"method":"turn.end","params":{"task":"t"}}`)
		}
		time.Sleep(10 * time.Minute)
		close(release)
		for range mostQuick + 1 {
			if r := <-answers; r.Error != nil {
				t.Fatal(r.Error)
			}
		}
	})
}
