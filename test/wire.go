package test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
	"sandkeeper/test/rfc6455"
)

// Params are a call's.
type Params = map[string]any

// Wire is an agent that speaks the protocol by itself, without the client
// package: what a client that nobody here wrote would see.
type Wire struct {
	Session string
	Resumed bool
	Boot    string

	ws   *rfc6455.Conn
	said contracttest.Conversation // what goes over it is held against the contract
	done chan struct{}             // closed once nothing more is read

	mu      sync.Mutex // guards the fields below
	last    int
	waiting map[int]chan answer
	told    []Told
	more    chan struct{} // closed and replaced with each of told
	err     error         // how the socket ended
}

// Told is what came without being asked for: a notification, or, with Method
// "", a response to no request of ours.
type Told struct {
	Method string
	Params json.RawMessage
	Error  *WireError
}

// WireError is the error object of a response.
type WireError struct {
	Code    int
	Message string
	Data    struct {
		Kind         string
		Field        string
		RetryAfterMS int64 `json:"retry_after_ms"`
		Tombstone    *control.Tombstone
		Drift        []string
		Errno        string
	}
}

func (e *WireError) Error() string { return fmt.Sprintf("%d %s: %s", e.Code, e.Data.Kind, e.Message) }

type answer struct {
	result json.RawMessage
	err    error
}

// Identity is who a Wire says it is.
type Identity struct {
	Token   string // the first agent's token unless given
	Agent   string // "tester" unless given
	Session string // to resume
	Grace   *int   // disconnect_grace_seconds
	Header  http.Header
}

// Wire connects an agent with the first agent's token, as the owner "default".
func (s *Server) Wire(t testing.TB) *Wire {
	t.Helper()
	return s.WireAs(t, Identity{})
}

// WireAs connects an agent. Its socket closes at the end of the test.
func (s *Server) WireAs(t testing.TB, who Identity) *Wire {
	t.Helper()
	w := s.Upgrade(t, who)
	if err := w.hello(who); err != nil {
		t.Fatal(err)
	}
	return w
}

// Upgrade opens the socket and says no hello.
func (s *Server) Upgrade(t testing.TB, who Identity) *Wire {
	t.Helper()
	w, err := upgrade(s.URL, s.header(t, who))
	if err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	t.Cleanup(func() {
		w.Drop()
		if e, ok := errors.AsType[*contractError](w.err); ok {
			t.Error(e)
		}
	})
	return w
}

// TryWire connects an agent to a server that may be about to die.
func TryWire(url string, who Identity) (*Wire, error) {
	w, err := upgrade(url, http.Header{"Authorization": {"Bearer " + who.Token}})
	if err != nil {
		return nil, err
	}
	if err := w.hello(who); err != nil {
		w.Drop()
		return nil, err
	}
	return w, nil
}

func upgrade(url string, header http.Header) (*Wire, error) {
	ws, err := rfc6455.Dial(url, "/api/v1/agent", header)
	if err != nil {
		return nil, err
	}
	w := &Wire{ws: ws, done: make(chan struct{}), waiting: map[int]chan answer{}, more: make(chan struct{})}
	go w.readAll()
	return w, nil
}

func (w *Wire) hello(who Identity) error {
	p := Params{"agent": "tester"}
	if who.Agent != "" {
		p["agent"] = who.Agent
	}
	if who.Session != "" {
		p["session"] = who.Session
	}
	if who.Grace != nil {
		p["disconnect_grace_seconds"] = *who.Grace
	}
	var hello struct {
		Session  string
		Resumed  bool
		Boot     string
		Protocol int
	}
	if err := w.Try("hello", p, &hello); err != nil {
		return err
	}
	if hello.Session == "" || hello.Boot == "" || hello.Protocol != 1 {
		return fmt.Errorf("hello answers %+v", hello)
	}
	w.Session, w.Resumed, w.Boot = hello.Session, hello.Resumed, hello.Boot
	return nil
}

func (s *Server) header(t testing.TB, who Identity) http.Header {
	t.Helper()
	if who.Token == "" {
		who.Token = s.Token(t, "agent")
	}
	h := http.Header{}
	if who.Header != nil {
		h = who.Header.Clone()
	}
	if h.Get("Authorization") == "" {
		h.Set("Authorization", "Bearer "+who.Token)
	}
	return h
}

// UpgradeRefused tries to open the socket, which must be answered with a status.
func (s *Server) UpgradeRefused(t testing.TB, who Identity) (status int) {
	t.Helper()
	w, err := upgrade(s.URL, s.header(t, who))
	if err == nil {
		w.Drop()
		t.Fatal("the upgrade was not refused")
	}
	r, ok := errors.AsType[*rfc6455.Refused](err)
	if !ok {
		t.Fatal(err)
	}
	return r.Status
}

func (w *Wire) readAll() {
	var err error
	for err == nil {
		var (
			op  byte
			msg []byte
		)
		if op, msg, err = w.ws.Read(); err == nil && op == rfc6455.Text {
			err = w.take(msg)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	for _, c := range w.waiting {
		c <- answer{err: err}
	}
	w.waiting = nil
	close(w.done)
}

// contractError is a message that is not as the contract has it.
type contractError struct {
	msg []byte
	err error
}

func (e *contractError) Error() string {
	return fmt.Sprintf("the server sent %.2000s: %v", e.msg, e.err)
}

func (w *Wire) take(msg []byte) error {
	if err := w.said.Received(msg); err != nil {
		return &contractError{msg, err}
	}
	var m struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params"`
		Result  json.RawMessage `json:"result"`
		Error   *WireError      `json:"error"`
	}
	if err := json.Unmarshal(msg, &m); err != nil {
		return fmt.Errorf("the server sent %q: %w", msg, err)
	}
	if m.JSONRPC != "2.0" {
		return fmt.Errorf("the server sent %q", msg)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var id int
	if m.Method == "" && json.Unmarshal(m.ID, &id) == nil && w.waiting[id] != nil {
		a := answer{result: m.Result}
		if m.Error != nil {
			a.err = m.Error
		}
		w.waiting[id] <- a
		delete(w.waiting, id)
		return nil
	}
	w.told = append(w.told, Told{m.Method, m.Params, m.Error})
	close(w.more)
	w.more = make(chan struct{})
	return nil
}

// Pending is a request whose answer has not been looked at.
type Pending struct {
	method string
	c      chan answer
}

// Go sends a request.
func (w *Wire) Go(t testing.TB, method string, params any) *Pending {
	t.Helper()
	p, err := w.send(method, params)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *Wire) send(method string, params any) (*Pending, error) {
	c := make(chan answer, 1)
	w.mu.Lock()
	w.last++
	id := w.last
	if w.waiting == nil {
		c <- answer{err: w.err}
	} else {
		w.waiting[id] = c
	}
	w.mu.Unlock()
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	w.said.Sent(b)
	w.ws.Write(rfc6455.Text, b) //nolint:errcheck // a broken socket answers every request
	return &Pending{method, c}, nil
}

var errUnanswered = errors.New("it is not answered")

func (p *Pending) wait() (json.RawMessage, error) {
	select {
	case a := <-p.c:
		return a.result, a.err
	case <-time.After(patience):
		return nil, errUnanswered
	}
}

// Wait returns the result, or the error: a *WireError, or what ended the socket.
func (p *Pending) Wait(t testing.TB) (json.RawMessage, error) {
	t.Helper()
	result, err := p.wait()
	if errors.Is(err, errUnanswered) {
		t.Fatalf("%s: %v", p.method, err)
	}
	return result, err
}

// Try makes a request and reads its result, or returns the error: a
// *WireError, or what ended the socket.
func (w *Wire) Try(method string, params, out any) error {
	p, err := w.send(method, params)
	if err != nil {
		return err
	}
	result, err := p.wait()
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(result, out)
}

// Into reads the result, which must be one.
func (p *Pending) Into(t testing.TB, out any) {
	t.Helper()
	result, err := p.Wait(t)
	if err != nil {
		t.Fatalf("%s: %v", p.method, err)
	}
	if out == nil {
		return
	}
	if err := json.Unmarshal(result, out); err != nil {
		t.Fatalf("%s answers %s: %v", p.method, result, err)
	}
}

// Refused returns the error, which must be the server's.
func (p *Pending) Refused(t testing.TB) *WireError {
	t.Helper()
	result, err := p.Wait(t)
	if err == nil {
		t.Fatalf("%s was not refused, but answered with %.300s", p.method, result)
	}
	e, ok := errors.AsType[*WireError](err)
	if !ok {
		t.Fatalf("%s: %v", p.method, err)
	}
	return e
}

// Call makes a request that must succeed, and reads its result.
func (w *Wire) Call(t testing.TB, method string, params, out any) {
	t.Helper()
	w.Go(t, method, params).Into(t, out)
}

// Refused makes a request that must be refused with an error of that kind.
func (w *Wire) Refused(t testing.TB, kind, method string, params any) *WireError {
	t.Helper()
	e := w.Go(t, method, params).Refused(t)
	if e.Data.Kind != kind {
		t.Fatalf("%s is refused with %v, not with %s", method, e, kind)
	}
	return e
}

// Send writes a text frame as it is.
func (w *Wire) Send(t testing.TB, frame string) {
	t.Helper()
	w.said.Sent([]byte(frame))
	if err := w.ws.Write(rfc6455.Text, []byte(frame)); err != nil {
		t.Fatal(err)
	}
}

// SendBinary writes a binary frame.
func (w *Wire) SendBinary(t testing.TB, frame []byte) {
	t.Helper()
	if err := w.ws.Write(rfc6455.Binary, frame); err != nil {
		t.Fatal(err)
	}
}

// SendRaw writes a frame that begins with this byte and has no mask where masked is false.
func (w *Wire) SendRaw(t testing.TB, first byte, masked bool, payload []byte) {
	t.Helper()
	if err := w.ws.WriteRaw(first, masked, payload); err != nil {
		t.Fatal(err)
	}
}

// Notified returns the first notification, of those that came and those to
// come, that matches.
func (w *Wire) Notified(t testing.TB, what string, match func(Told) bool) Told {
	t.Helper()
	return w.NotifiedAfter(t, 0, what, match)
}

// NotifiedAfter is Notified without the first n that came.
func (w *Wire) NotifiedAfter(t testing.TB, n int, what string, match func(Told) bool) Told {
	t.Helper()
	timeout := time.After(patience)
	for {
		w.mu.Lock()
		told, more := w.told[n:], w.more
		w.mu.Unlock()
		if i := slices.IndexFunc(told, match); i >= 0 {
			return told[i]
		}
		select {
		case <-more:
		case <-w.done:
			t.Fatalf("the socket ended (%v) before %s", w.err, what)
		case <-timeout:
			t.Fatalf("nothing tells that %s; told was %s", what, w.Told())
		}
	}
}

// Told returns what came without being asked for.
func (w *Wire) Told() []Told {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.told)
}

// Closed waits until the server has closed the socket and returns its code; 0 where it closed without one.
func (w *Wire) Closed(t testing.TB) int {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		t.Fatal("the socket stays open")
	}
	if c, ok := errors.AsType[*rfc6455.Closed](w.err); ok {
		return c.Code
	}
	return 0
}

// Drop ends the connection as a lost line does, and waits for its reader.
func (w *Wire) Drop() {
	w.ws.Hang() //nolint:errcheck // it may be closed already
	<-w.done
}

// Ran is the result of exec.run.
type Ran struct {
	Exec       string
	ExitCode   *int `json:"exit_code"`
	Signal     string
	OOM        bool
	Stdout     string
	Stderr     string
	StdoutB64  string `json:"stdout_base64"`
	StderrB64  string `json:"stderr_base64"`
	Truncated  struct{ Stdout, Stderr int64 }
	TimedOut   bool  `json:"timed_out"`
	DurationMS int64 `json:"duration_ms"`
	Cwd        string
	OutputLost bool                            `json:"output_lost"`
	Files      struct{ Stdout, Stderr string } `json:"output_files"`
	Notice     *control.Notice
}

// Acquire acquires an environment; params beyond task may be nil.
func (w *Wire) Acquire(t testing.TB, task string, params Params) control.Acquired {
	t.Helper()
	var got control.Acquired
	w.Call(t, "env.acquire", with(params, "task", task), &got)
	if got.Env.State != control.Ready {
		t.Fatalf("acquired is %q, in state %q", got.Env.ID, got.Env.State)
	}
	return got
}

// Run runs shell text in an environment; it must end with 0.
func (w *Wire) Run(t testing.TB, env, command string) Ran {
	t.Helper()
	return w.RunWith(t, env, Params{"command": command}, 0)
}

// AnyCode is for a command whose exit code does not matter.
const AnyCode = -1

// RunWith runs a command with more params; its exit code must be this one.
func (w *Wire) RunWith(t testing.TB, env string, params Params, code int) Ran {
	t.Helper()
	var ran Ran
	w.Call(t, "exec.run", with(params, "env", env), &ran)
	if ran.ExitCode == nil || *ran.ExitCode != code && code != AnyCode {
		got := "null"
		if ran.ExitCode != nil {
			got = fmt.Sprint(*ran.ExitCode)
		}
		t.Fatalf("exec.run %v ends with %s, not with %d; stdout %q, stderr %q", params, got, code, ran.Stdout, ran.Stderr)
	}
	return ran
}

// EndTurn ends the task's turn.
func (w *Wire) EndTurn(t testing.TB, task string) control.TurnEnd {
	t.Helper()
	var end control.TurnEnd
	w.Call(t, "turn.end", Params{"task": task}, &end)
	return end
}

// Get reads an environment as its agent sees it.
func (w *Wire) Get(t testing.TB, env string) control.View {
	t.Helper()
	var got struct{ Env control.View }
	w.Call(t, "env.get", Params{"env": env}, &got)
	return got.Env
}

// Execs lists an environment's commands.
func (w *Wire) Execs(t testing.TB, env string) []control.ExecView {
	t.Helper()
	var got struct{ Execs []control.ExecView }
	w.Call(t, "exec.list", Params{"env": env}, &got)
	return got.Execs
}

// WriteFile writes a file.
func (w *Wire) WriteFile(t testing.TB, env, path, text string) {
	t.Helper()
	w.Call(t, "file.write", Params{"env": env, "path": path, "data": base64.StdEncoding.EncodeToString([]byte(text))}, nil)
}

// ReadFile reads a short file whole.
func (w *Wire) ReadFile(t testing.TB, env, path string) string {
	t.Helper()
	var got struct {
		Data []byte
		EOF  bool
	}
	w.Call(t, "file.read", Params{"env": env, "path": path}, &got)
	if !got.EOF {
		t.Fatalf("%s was not read to its end", path)
	}
	return string(got.Data)
}

func with(params Params, key string, value any) Params {
	p := Params{key: value}
	maps.Copy(p, params)
	return p
}

// Notification returns the first notification of a method whose params match.
func Notification[P any](t testing.TB, w *Wire, method string, match func(P) bool) (params P) {
	t.Helper()
	w.Notified(t, method, func(told Told) bool {
		if told.Method != method {
			return false
		}
		var p P
		if err := json.Unmarshal(told.Params, &p); err != nil {
			t.Fatalf("%s: %v: %s", method, err, told.Params)
		}
		params = p
		return match(p)
	})
	return params
}
