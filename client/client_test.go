package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"nhooyr.io/websocket"

	"sandkeeper/internal/contracttest"
)

// script is a server that is played by the test: each connection that has said
// hello comes out of it, to be answered by hand.
type script struct {
	t     *testing.T
	url   string
	conns chan *played
	hello func(n int, params map[string]any) (result, err string) // nil: welcome
	admit func(n int) int                                         // the status to refuse with; nil, or 0: let in
}

// played is one connection of a script.
type played struct {
	t      *testing.T
	conn   *websocket.Conn
	header http.Header
	hello  map[string]any
	end    chan struct{}
	busy   sync.WaitGroup // what plays beside the test
}

// asked is a request that came.
type asked struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params map[string]any  `json:"params"`
}

const welcome = `{"session":"s1","resumed":false,"server":{"name":"sandkeeper","version":"0"},"boot":"b","protocol":1,"features":[],
	"heartbeat_seconds":20,"disconnect_grace_seconds":60,"limits":{"max_frame_bytes":4096},"time":"2026-03-01T12:00:00.000Z"}`

func play(t *testing.T) *script {
	s := &script{t: t, conns: make(chan *played, 8)}
	n := 0
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n++
		if s.admit != nil {
			if status := s.admit(n); status != 0 {
				w.WriteHeader(status)
				fmt.Fprint(w, `{"error":{"kind":"k","message":"no entry"}}`)
				return
			}
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow() //nolint:errcheck // it may be closed already
		conn.SetReadLimit(-1)
		p := &played{t: t, conn: conn, header: r.Header, end: make(chan struct{})}
		q := p.next()
		if q.Method != "hello" {
			t.Errorf("%s came before hello", q.Method)
		}
		p.hello = q.Params
		result, fault := welcome, ""
		if s.hello != nil {
			result, fault = s.hello(n, q.Params)
		}
		if fault != "" {
			p.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, q.ID, fault))
		} else {
			p.answer(q, result)
		}
		s.conns <- p
		<-p.end
	}))
	t.Cleanup(func() {
		for {
			select {
			case p := <-s.conns:
				p.drop()
				continue
			default:
			}
			break
		}
		h.Close()
	})
	s.url = h.URL
	return s
}

func (s *script) dial(change ...func(*Options)) *Client {
	s.t.Helper()
	o := Options{URL: s.url, Token: "secret", Agent: "tester"}
	for _, c := range change {
		c(&o)
	}
	c, err := Dial(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func (p *played) next() asked {
	_, b, err := p.conn.Read(context.Background())
	if err != nil {
		p.t.Errorf("read: %v", err)
		return asked{}
	}
	if err := contracttest.Request(b); err != nil {
		p.t.Errorf("%s: %v", b, err)
	}
	var q asked
	if err := json.Unmarshal(b, &q); err != nil {
		p.t.Errorf("%s: %v", b, err)
	}
	return q
}

func (p *played) write(frame string) {
	if err := p.conn.Write(context.Background(), websocket.MessageText, []byte(frame)); err != nil {
		p.t.Errorf("write: %v", err)
	}
}

func (p *played) answer(q asked, result string) {
	p.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, q.ID, result))
}

// drop cuts the connection without a close frame.
func (p *played) drop() {
	p.busy.Wait()
	p.conn.CloseNow() //nolint:errcheck // it may be closed already
	close(p.end)
}

// shut closes it with a code.
func (p *played) shut(code websocket.StatusCode) { p.conn.Close(code, ""); close(p.end) }

func TestHello(t *testing.T) {
	s := play(t)
	c := s.dial(func(o *Options) {
		o.Owner, o.Version, o.Session, o.DisconnectGrace = "zeus", "1", "s0", 1500*time.Millisecond
	})
	p := <-s.conns
	defer p.drop()
	if got := p.header.Get("Authorization"); got != "Bearer secret" {
		t.Errorf("authorization %q", got)
	}
	if got := p.header.Get("Sandkeeper-Owner"); got != "zeus" {
		t.Errorf("owner %q", got)
	}
	want := map[string]any{"agent": "tester", "version": "1", "session": "s0", "disconnect_grace_seconds": 2.0}
	if fmt.Sprint(p.hello) != fmt.Sprint(want) {
		t.Errorf("hello %v, want %v", p.hello, want)
	}
	if c.Session() != "s1" || c.Hello().HeartbeatS != 20 {
		t.Errorf("session %q of %+v", c.Session(), c.Hello())
	}
}

func TestErrorsHaveTypes(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	defer p.drop()
	p.busy.Go(func() {
		q := p.next()
		p.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32011,"message":"it is gone","data":{"kind":"generation_gone",
			"retry_after_ms":1500,"tombstone":{"reason":"turn ended","actor":"agent:a","at":"2026-03-01T12:00:00.000Z","generation":3,"exit_code":137}}}}`, q.ID))
	})
	_, err := c.Env(t.Context(), ByTask("t"))
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatal(err)
	}
	if e.Code != -32011 || e.Method != "env.get" || e.RetryAfter != 1500*time.Millisecond || e.Tombstone == nil ||
		e.Tombstone.Generation != 3 || *e.Tombstone.ExitCode != 137 {
		t.Errorf("got %+v", e)
	}
	if !errors.Is(err, KindGenerationGone) || errors.Is(err, KindNotFound) {
		t.Error("its kind is not told apart")
	}
}

func TestARefusalAtTheDoor(t *testing.T) {
	s := play(t)
	s.admit = func(int) int { return http.StatusUnauthorized }
	_, err := Dial(t.Context(), Options{URL: s.url})
	h, ok := errors.AsType[*HandshakeError](err)
	if !ok || h.Status != 401 || h.Message != "no entry" {
		t.Errorf("got %v, want a HandshakeError with 401", err)
	}
}

func TestADropIsResumed(t *testing.T) {
	s := play(t)
	s.hello = func(n int, params map[string]any) (string, string) {
		if n == 1 {
			return welcome, ""
		}
		return strings.Replace(welcome, `"resumed":false`, `"resumed":true`, 1), ""
	}
	events := make(chan string, 8)
	c := s.dial(func(o *Options) {
		o.OnConnected = func(h Hello) { events <- fmt.Sprint("connected, resumed ", h.Resumed) }
		o.OnDropped = func(error) { events <- "dropped" }
	})
	p := <-s.conns

	type ran struct {
		r   *RunResult
		err error
	}
	running := make(chan ran, 1)
	go func() {
		r, err := c.Run(t.Context(), ByID("e1"), RunRequest{Command: "make"})
		running <- ran{r, err}
	}()
	first := p.next()
	appended := make(chan error, 1)
	go func() {
		_, err := c.WriteFile(t.Context(), ByID("e1"), FileWrite{Path: "log", Data: []byte("x"), Append: true})
		appended <- err
	}()
	p.next()
	p.drop()

	if err := <-appended; !errors.Is(err, ErrDropped) {
		t.Errorf("the append under way: %v, want ErrDropped", err)
	}
	p = <-s.conns
	defer p.drop()
	if p.hello["session"] != "s1" {
		t.Errorf("hello asks for the session %v", p.hello["session"])
	}
	again := p.next()
	if id, _ := first.Params["id"].(string); again.Method != "exec.run" || id == "" || again.Params["id"] != id {
		t.Errorf("asked again %v, first %v", again.Params, first.Params)
	}
	p.answer(again, `{"exec":"x1","exit_code":3,"stdout":"hi","stderr_base64":"/w==","truncated":{"stdout":1,"stderr":2},"timed_out":true,"duration_ms":5,"cwd":"/w","notice":{"generation":2,"lost":["a"],"kept":[]}}`)
	got := <-running
	if got.err != nil {
		t.Fatal(got.err)
	}
	if r := got.r; r.ExitCode != 3 || string(r.Stdout) != "hi" || string(r.Stderr) != "\xff" || r.OmittedErr != 2 || !r.TimedOut ||
		r.Duration != 5*time.Millisecond || r.Notice.Generation != 2 {
		t.Errorf("got %+v", r)
	}
	for _, want := range []string{"connected, resumed false", "dropped", "connected, resumed true"} {
		if got := <-events; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
}

func TestACallWaitsForTheConnection(t *testing.T) {
	s := play(t)
	reached := make(chan struct{})
	let := make(chan struct{})
	s.admit = func(n int) int {
		if n == 2 {
			close(reached)
			<-let
			return http.StatusServiceUnavailable
		}
		return 0
	}
	c := s.dial()
	(<-s.conns).drop()
	<-reached
	ended := make(chan error, 1)
	go func() {
		_, err := c.Envs(t.Context(), "")
		ended <- err
	}()
	close(let)
	p := <-s.conns
	defer p.drop()
	p.answer(p.next(), `{"envs":[]}`)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTheEndOfATurnCarriesItsNumber(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	defer p.drop()
	p.busy.Go(func() {
		p.answer(p.next(), `{"env":{"id":"e1","task":"t","turn":{"number":7,"open":true}},"outcome":"created","drift":[]}`)
		q := p.next()
		p.answer(q, fmt.Sprintf(`{"turn":%v,"decisions":[{"env":"e1","name":"main","decision":"kept","reason":%q,"deadline":null}]}`, q.Params["turn"], q.Params["outcome"]))
	})
	if _, err := c.Acquire(t.Context(), AcquireRequest{Task: "t", Persistent: new(true)}); err != nil {
		t.Fatal(err)
	}
	end, err := c.EndTurn(t.Context(), "t", TurnDone)
	if err != nil {
		t.Fatal(err)
	}
	if end.Turn == nil || *end.Turn != 7 || end.Decisions[0].Reason != "done" {
		t.Errorf("got %+v", end)
	}
}

func TestATakenOverSessionIsNotFoughtFor(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	ended := make(chan error, 1)
	go func() {
		_, err := c.Envs(t.Context(), "")
		ended <- err
	}()
	p.next()
	p.shut(4001)
	if err := <-ended; !errors.Is(err, ErrTakenOver) {
		t.Errorf("the call under way: %v, want ErrTakenOver", err)
	}
	<-c.Done()
	if err := c.Err(); !errors.Is(err, ErrTakenOver) {
		t.Errorf("gave up for %v", err)
	}
	if _, err := c.Envs(t.Context(), ""); !errors.Is(err, ErrTakenOver) {
		t.Errorf("a later call: %v", err)
	}
}

func TestARefusedResumptionEndsTheClient(t *testing.T) {
	s := play(t)
	s.admit = func(n int) int {
		if n > 1 {
			return http.StatusForbidden
		}
		return 0
	}
	c := s.dial()
	(<-s.conns).drop()
	<-c.Done()
	if h, ok := errors.AsType[*HandshakeError](c.Err()); !ok || h.Status != 403 {
		t.Errorf("gave up for %v", c.Err())
	}
}

func TestCloseFailsWhatWaits(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	ended := make(chan error, 1)
	go func() {
		_, err := c.Envs(t.Context(), "")
		ended <- err
	}()
	p.next()
	go func() {
		_, _, err := p.conn.Read(context.Background())
		if websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			t.Errorf("it closed with %v, want 1000", err)
		}
		close(p.end)
	}()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestTheContextEndsTheWaitingAlone(t *testing.T) {
	s := play(t)
	c := s.dial()
	p := <-s.conns
	defer p.drop()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Envs(ctx, "")
		ended <- err
	}()
	q := p.next()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	p.answer(q, `{"envs":[]}`) // nobody waits for it
	p.busy.Go(func() { p.answer(p.next(), `{"envs":[{"id":"e9"}]}`) })
	if envs, err := c.Envs(t.Context(), ""); err != nil || len(envs) != 1 {
		t.Errorf("the next call: %v, %v", envs, err)
	}
}

func TestARequestTooLargeIsNotSent(t *testing.T) {
	s := play(t)
	c := s.dial()
	defer (<-s.conns).drop()
	_, err := c.WriteFile(t.Context(), ByID("e1"), FileWrite{Path: "p", Data: make([]byte, 4096)})
	if !errors.Is(err, ErrTooBig) {
		t.Errorf("got %v, want ErrTooBig", err)
	}
}

func TestCallbacksMayUseTheClient(t *testing.T) {
	s := play(t)
	var c *Client
	got := make(chan string, 2)
	ready := make(chan struct{})
	c = s.dial(func(o *Options) {
		o.OnEnvState = func(e Env) {
			<-ready
			_, err := c.Touch(t.Context(), e.Ref())
			got <- fmt.Sprint(e.ID, " ", e.State, " ", err)
		}
		o.OnEnvExpiring = func(x Expiring) { got <- fmt.Sprint(x.Env, " in ", x.SecondsLeft) }
	})
	close(ready)
	p := <-s.conns
	defer p.drop()
	p.write(`{"jsonrpc":"2.0","method":"env.state","params":{"env":{"id":"e1","state":"ready"}}}`)
	p.write(`{"jsonrpc":"2.0","method":"env.expiring","params":{"env":"e1","deadline":"2026-03-01T12:00:00.000Z","seconds_left":30}}`)
	p.write(`{"jsonrpc":"2.0","method":"novelty","params":{}}`)
	p.answer(p.next(), `{"env":{"id":"e1"}}`)
	if a, b := <-got, <-got; a != "e1 ready <nil>" || b != "e1 in 30" {
		t.Errorf("got %q, then %q", a, b)
	}
}

func TestASlowCallbackGetsTheLatestStates(t *testing.T) {
	var got []string
	done := make(chan struct{})
	hold := make(chan struct{})
	n := newNotes(Options{OnEnvState: func(e Env) {
		<-hold
		if e.ID == "last" {
			close(done)
			return
		}
		got = append(got, string(e.State))
	}})
	defer n.close()
	for i := range 3 * mergeFrom {
		n.add(message{Method: "env.state", Params: json.RawMessage(fmt.Sprintf(`{"env":{"id":"e1","state":"%d"}}`, i))})
	}
	n.add(message{Method: "env.state", Params: json.RawMessage(`{"env":{"id":"last"}}`)})
	close(hold)
	<-done
	if len(got) > mergeFrom+1 || got[0] != "0" || got[len(got)-1] != fmt.Sprint(3*mergeFrom-1) {
		t.Errorf("%d states, from %s to %s", len(got), got[0], got[len(got)-1])
	}
	if !slices.IsSortedFunc(got, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	}) {
		t.Error("they are out of order")
	}
}

func TestAddresses(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:7333":     "http://127.0.0.1:7333/api/v1/agent",
		"wss://keeper.example/":     "wss://keeper.example/api/v1/agent",
		"https://x.example/proxied": "https://x.example/proxied",
	} {
		if got, err := endpoint(in); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"", "127.0.0.1:7333", "ftp://x", "localhost:7333"} {
		if got, err := endpoint(in); err == nil {
			t.Errorf("%q was taken as %s", in, got)
		}
	}
}
