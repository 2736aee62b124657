package agentapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"nhooyr.io/websocket"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
)

// fakePlane knows one environment, "e1" of task "t", and remembers what it was
// asked last. A nil hook does the plainest thing.
type fakePlane struct {
	hello    func(owner string, h control.Hello, sink control.Sink) (bool, error)
	acquire  func(ctx context.Context, r control.AcquireRequest) (control.Acquired, error)
	run      func(ctx context.Context, r control.RunRequest) (control.Ran, error)
	turnEnd  func(r control.TurnEndRequest) (control.TurnEnd, error)
	readFile func(path string, offset int64, length *int64) (control.FileChunk, error)
	write    func(w control.FileWrite) (int64, error)
	start    func(r control.StartRequest) (control.Started, error)
	attach   func(r control.AttachRequest) (control.Attached, error)
	wait     func(ctx context.Context, timeout time.Duration) (control.ExecState, error)
	events   func(after *uint64) (control.Subscription, uint64, error)
	err      error // of every call on an environment

	mu    sync.Mutex
	sinks []control.Sink
	gone  chan control.Sink // sinks of sessions that were disconnected
	asked any
}

func newFake() *fakePlane { return &fakePlane{gone: make(chan control.Sink, 16)} }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func (f *fakePlane) Now() time.Time { return noon }

func (f *fakePlane) Hello(_ context.Context, owner string, h control.Hello, sink control.Sink) (Session, bool, error) {
	f.saw(h)
	resumed := false
	if f.hello != nil {
		var err error
		if resumed, err = f.hello(owner, h, sink); err != nil {
			return nil, false, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sinks = append(f.sinks, sink)
	return fakeSession{f, owner}, resumed, nil
}

func (f *fakePlane) saw(v any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = v
}

// last is what the plane was asked last.
func (f *fakePlane) last() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// sink is that of the first session.
func (f *fakePlane) sink() control.Sink {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sinks[0]
}

type fakeSession struct {
	*fakePlane
	owner string
}

func (f fakeSession) ID() string                { return "s-" + f.owner }
func (f fakeSession) Grace() time.Duration      { return time.Minute }
func (f fakeSession) Disconnect(s control.Sink) { f.gone <- s }

func (f fakeSession) view(r control.Ref) (control.View, error) {
	if f.err != nil {
		return control.View{}, f.err
	}
	if r.Env != "e1" && r.Task != "t" {
		return control.View{}, control.Errorf(control.KindNotFound, "no such environment")
	}
	return control.View{ID: "e1", Owner: f.owner, Task: "t", Name: "main", State: control.Ready}, nil
}

func (f fakeSession) Acquire(ctx context.Context, r control.AcquireRequest) (control.Acquired, error) {
	f.saw(r)
	if f.acquire != nil {
		return f.acquire(ctx, r)
	}
	v, err := f.view(control.Ref{Task: r.Task})
	return control.Acquired{Env: v, Outcome: "created"}, err
}

func (f fakeSession) Env(_ context.Context, r control.Ref) (control.View, error) {
	f.saw(r)
	return f.view(r)
}

func (f fakeSession) Envs(_ context.Context, task string) ([]control.View, error) {
	f.saw(task)
	return nil, f.err
}

func (f fakeSession) Touch(_ context.Context, r control.Ref) (control.View, error) {
	f.saw(r)
	return f.view(r)
}

func (f fakeSession) Release(_ context.Context, r control.Ref, purge bool) (control.View, error) {
	f.saw(purge)
	return f.view(r)
}

func (f fakeSession) TurnBegin(_ context.Context, task string) (int64, bool, error) {
	f.saw(task)
	return 1, true, f.err
}

func (f fakeSession) TurnEnd(_ context.Context, r control.TurnEndRequest) (control.TurnEnd, error) {
	f.saw(r)
	if f.turnEnd != nil {
		return f.turnEnd(r)
	}
	return control.TurnEnd{}, f.err
}

func (f fakeSession) Run(ctx context.Context, r control.RunRequest) (control.Ran, error) {
	f.saw(r)
	if _, err := f.view(r.Ref); err != nil {
		return control.Ran{}, err
	}
	if f.run != nil {
		return f.run(ctx, r)
	}
	return control.Ran{Exec: "x1", End: control.ExecEnd{Cwd: "/workspace"}}, nil
}

func (f fakeSession) Execs(_ context.Context, r control.Ref) ([]control.ExecView, error) {
	_, err := f.view(r)
	return nil, err
}

// exec fails for any but "x1".
func (f fakeSession) exec(exec string) error {
	if exec != "x1" {
		return control.Errorf(control.KindNotFound, "no such exec")
	}
	return f.err
}

func (f fakeSession) Start(_ context.Context, r control.StartRequest) (control.Started, error) {
	f.saw(r)
	if _, err := f.view(r.Ref); err != nil {
		return control.Started{}, err
	}
	if f.start != nil {
		return f.start(r)
	}
	return control.Started{Exec: "x1", PID: 7, Stream: newFakeStream()}, nil
}

func (f fakeSession) Attach(_ context.Context, r control.AttachRequest) (control.Attached, error) {
	if err := f.exec(r.Exec); err != nil {
		return control.Attached{}, err
	}
	f.saw(r)
	if f.attach != nil {
		return f.attach(r)
	}
	return control.Attached{Exec: "x1", State: "running", Stream: newFakeStream()}, nil
}

func (f fakeSession) WaitExec(ctx context.Context, exec string, timeout time.Duration) (control.ExecState, error) {
	if err := f.exec(exec); err != nil {
		return control.ExecState{}, err
	}
	f.saw(timeout)
	if f.wait != nil {
		return f.wait(ctx, timeout)
	}
	return control.ExecState{Exec: exec}, nil
}

// signalled is what SignalExec was asked.
type signalled struct {
	signal string
	tree   bool
}

func (f fakeSession) SignalExec(_ context.Context, exec, signal string, tree bool) (int, error) {
	f.saw(signalled{signal, tree})
	return 2, f.exec(exec)
}

func (f fakeSession) ResizeExec(_ context.Context, exec string, t control.TTY) error {
	f.saw(t)
	return f.exec(exec)
}

func (f fakeSession) CloseStdin(_ context.Context, exec string) error {
	f.saw("close " + exec)
	return f.exec(exec)
}

func (f fakeSession) Subscribe(after *uint64) (control.Subscription, uint64, error) {
	if f.events == nil {
		return nil, 0, control.Errorf(control.KindInternal, "no log")
	}
	return f.events(after)
}

func (f fakeSession) ReadFile(_ context.Context, r control.Ref, path string, offset int64, length *int64) (control.FileChunk, error) {
	if _, err := f.view(r); err != nil {
		return control.FileChunk{}, err
	}
	f.saw(path)
	if f.readFile != nil {
		return f.readFile(path, offset, length)
	}
	return control.FileChunk{Mode: 0o644, MTime: noon, EOF: true}, nil
}

func (f fakeSession) WriteFile(_ context.Context, r control.Ref, w control.FileWrite) (int64, error) {
	if _, err := f.view(r); err != nil {
		return 0, err
	}
	f.saw(w)
	if f.write != nil {
		return f.write(w)
	}
	return int64(len(w.Data)), nil
}

func (f fakeSession) ListFiles(_ context.Context, r control.Ref, path string) ([]control.FileInfo, error) {
	_, err := f.view(r)
	return nil, err
}

func (f fakeSession) StatFile(_ context.Context, r control.Ref, path string) (control.FileInfo, error) {
	_, err := f.view(r)
	return control.FileInfo{Name: path, Type: "file", Size: 3, Mode: 0o600, MTime: noon}, err
}

func (f fakeSession) RemoveFile(_ context.Context, r control.Ref, path string, recursive bool) error {
	_, err := f.view(r)
	f.saw(recursive)
	return err
}

func (f fakeSession) Mkdir(_ context.Context, r control.Ref, path string, recursive bool) error {
	_, err := f.view(r)
	f.saw(recursive)
	return err
}

// tokens is an Auth of three tokens, each named for its role.
type tokens struct{}

func (tokens) Authenticate(token string) (control.Principal, bool) {
	switch token {
	case "agent":
		return control.Principal{Role: control.RoleAgent, Owner: "hermes"}, true
	case "operator":
		return control.Principal{Role: control.RoleOperator}, true
	case "viewer":
		return control.Principal{Role: control.RoleViewer}, true
	}
	return control.Principal{}, false
}

// server is an API behind HTTP.
type server struct {
	*API
	plane *fakePlane
	url   string
}

func serve(t testing.TB, change ...func(*Options)) *server {
	t.Helper()
	return serveOn(t, nil, change...)
}

func serveOn(t testing.TB, pipes *pipes, change ...func(*Options)) *server {
	t.Helper()
	f := newFake()
	o := Options{Plane: f, Auth: tokens{}, Version: "1.2.3", Boot: "b1"}
	for _, c := range change {
		c(&o)
	}
	a := New(o)
	e := echo.New()
	a.Register(e)
	h := httptest.NewUnstartedServer(e)
	srv := &server{API: a, plane: f}
	if pipes != nil {
		h.Listener.Close()
		h.Listener = pipes
	}
	h.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := a.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		h.Close()
		if pipes != nil {
			pipes.cut()
		}
	})
	srv.url = "ws" + strings.TrimPrefix(h.URL, "http") + Path
	return srv
}

// pipes is a listener whose connections are in memory, so that fake time passes
// while one waits for the other.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	mu    sync.Mutex
	made  []net.Conn // guarded by mu
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// cut ends all connections, whatever is in them.
func (l *pipes) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.made {
		c.Close()
	}
}

func (l *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (l *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	l.mu.Lock()
	l.made = append(l.made, ours, theirs)
	l.mu.Unlock()
	select {
	case l.conns <- newBuffered(theirs):
		return newBuffered(ours), nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// buffered is a pipe's end with room for a little, as a system has for the peers
// of a socket; what is in it when it closes is still delivered.
type buffered struct {
	net.Conn
	queue chan []byte
	done  chan struct{}
	once  sync.Once
}

// Its room.
const (
	bufferedWrites = 16
	bufferedBytes  = 4 << 10 // of one write; more is several
)

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c, queue: make(chan []byte, bufferedWrites), done: make(chan struct{})}
	go b.pump()
	return b
}

func (b *buffered) pump() {
	defer b.Conn.Close()
	for closed := false; ; {
		var p []byte
		if closed {
			select {
			case p = <-b.queue:
			default:
				return
			}
		} else {
			select {
			case p = <-b.queue:
			case <-b.done:
				closed = true
				continue
			}
		}
		if _, err := b.Conn.Write(p); err != nil {
			return
		}
	}
}

func (b *buffered) Write(p []byte) (int, error) {
	for part := range slices.Chunk(p, bufferedBytes) {
		select {
		case b.queue <- bytes.Clone(part):
		case <-b.done:
			return 0, net.ErrClosed
		}
	}
	return len(p), nil
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.done) })
	return b.Conn.SetReadDeadline(time.Now())
}

// peer is an agent, frame by frame.
type peer struct {
	t    testing.TB
	conn *websocket.Conn
	said *contracttest.Conversation // what goes over it is held against the contract; nil: a fake plane makes things up
}

func (s *server) dial(t testing.TB) *peer {
	t.Helper()
	return dial(t, s.url, nil)
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

func dial(t testing.TB, url string, through dialer) *peer {
	t.Helper()
	return dialAs(t, url, "agent", through)
}

// dialAs dials with the token of a role.
func dialAs(t testing.TB, url, token string, through dialer) *peer {
	t.Helper()
	client := http.DefaultClient
	if through != nil {
		client = &http.Client{Transport: &http.Transport{DialContext: through}}
	}
	conn, _, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{ //nolint:bodyclose // the websocket package does
		HTTPClient:   client,
		HTTPHeader:   http.Header{"Authorization": {"Bearer " + token}},
		Subprotocols: []string{"sandkeeper.v1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	t.Cleanup(func() { conn.CloseNow() }) //nolint:errcheck // it may be closed already
	return &peer{t: t, conn: conn}
}

// connect dials and says hello.
func (s *server) connect(t testing.TB) *peer {
	t.Helper()
	p := s.dial(t)
	if r := p.call("hello", `{"agent":"a"}`); r.Error != nil {
		t.Fatal(r.Error)
	}
	return p
}

func (p *peer) send(frame string) {
	p.t.Helper()
	if p.said != nil {
		p.said.Sent([]byte(frame))
	}
	if err := p.conn.Write(p.t.Context(), websocket.MessageText, []byte(frame)); err != nil {
		p.t.Fatal(err)
	}
}

// reply is a message of the server.
type reply struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
	Result  json.RawMessage `json:"result"`
	Error   *wireError      `json:"error"`
}

// read waits for the next text frame.
func (p *peer) read(ctx context.Context) ([]byte, error) {
	p.t.Helper()
	for {
		typ, b, err := p.conn.Read(ctx)
		if err != nil {
			return nil, err
		}
		if p.said != nil && typ == websocket.MessageText {
			if err := p.said.Received(b); err != nil {
				p.t.Errorf("%s: %v", b, err)
			}
		}
		return b, nil
	}
}

func (p *peer) receive() reply {
	p.t.Helper()
	b, err := p.read(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	var r reply
	if err := json.Unmarshal(b, &r); err != nil {
		p.t.Fatalf("%s: %v", b, err)
	}
	if r.Version != "2.0" {
		p.t.Fatalf("%s: jsonrpc is not 2.0", b)
	}
	return r
}

func (p *peer) call(method, params string) reply {
	p.t.Helper()
	p.send(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":` + params + `}`)
	return p.receive()
}

// closed reads to the end and returns the code that the server closed with.
func (p *peer) closed() websocket.StatusCode {
	p.t.Helper()
	for {
		if _, _, err := p.conn.Read(p.t.Context()); err != nil {
			return websocket.CloseStatus(err)
		}
	}
}
