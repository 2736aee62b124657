package test_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// The codes of the protocol by their kinds.
var codes = map[string]int{
	"parse": -32700, "invalid_request": -32600, "unknown_method": -32601, "invalid_params": -32602, "internal": -32603,
	"hello_required": -32001, "forbidden": -32002, "not_found": -32010, "generation_gone": -32011, "quota_exceeded": -32012,
	"engine_unavailable": -32013, "image_unavailable": -32014, "conflict": -32015, "draining": -32016,
}

// livesOn checks that the connection, another one, and the environment are as good as before.
func livesOn(t *testing.T, s *test.Server, w *test.Wire, env string) {
	t.Helper()
	if text := w.Run(t, env, "echo alive").Stdout; text != "alive\n" {
		t.Errorf("afterwards the connection answers %q", text)
	}
	if text := s.WireAs(t, test.Identity{Session: ""}).Run(t, env, "echo alive").Stdout; text != "alive\n" {
		t.Errorf("afterwards a new connection answers %q", text)
	}
}

func TestBadFramesAreAnsweredAndTheSocketStays(t *testing.T) {
	test.Each(t, badFramesAreAnsweredAndTheSocketStays)
}

func badFramesAreAnsweredAndTheSocketStays(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "frames", test.Params{"persistent": true}).Env.ID
	deep := strings.Repeat("[", 100_000)
	for _, c := range []struct{ name, frame, kind string }{
		{"nothing", "", "parse"},
		{"no JSON", "hello?", "parse"},
		{"half an object", `{"jsonrpc":"2.0","id":1,`, "parse"},
		{"two values", `{} {}`, "parse"},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"method\":\"env.list\",\"x\":\"\xff\"}", "parse"},
		{"a NUL byte", "\x00", "parse"},
		{"depth without end", deep, "parse"},
		{"a depth that ends", deep + strings.Repeat("]", len(deep)), ""},
		{"a number", "42", "invalid_request"},
		{"null", "null", "invalid_request"},
		{"a string", `"env.list"`, "invalid_request"},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"env.list"},{"jsonrpc":"2.0","id":2,"method":"env.list"}]`, "invalid_request"},
		{"an empty batch", `[]`, "invalid_request"},
		{"no version", `{"id":77001,"method":"env.list"}`, "invalid_request"},
		{"another version", `{"jsonrpc":"1.0","id":77002,"method":"env.list"}`, "invalid_request"},
		{"no method", `{"jsonrpc":"2.0","id":77003}`, "invalid_request"},
		{"a method that is a number", `{"jsonrpc":"2.0","id":77004,"method":7}`, "invalid_request"},
		{"an id that is an object", `{"jsonrpc":"2.0","id":{},"method":"env.list"}`, "invalid_request"},
		{"an unknown field beside params", `{"jsonrpc":"2.0","id":77005,"method":"env.list","parms":{}}`, ""},
		{"a number beyond all bounds", `{"jsonrpc":"2.0","id":1e99999,"method":"env.list"}`, ""},
	} {
		before := len(w.Told())
		w.Send(t, c.frame)
		told := w.NotifiedAfter(t, before, "there is an answer to "+c.name, func(told test.Told) bool { return told.Method == "" })
		if told.Error == nil {
			if c.kind != "" {
				t.Errorf("%s is answered with %+v", c.name, told)
			}
			continue
		}
		if kind := told.Error.Data.Kind; c.kind != "" && kind != c.kind || told.Error.Code != codes[kind] {
			t.Errorf("%s is answered with %v", c.name, told.Error)
		}
	}
	livesOn(t, s, w, env)
	if n := len(w.Told()); n < 19 {
		t.Errorf("%d answers came", n)
	}

	// Binary frames belong to no channel here: dropped, and never fatal.
	for _, frame := range [][]byte{nil, {1}, {0, 0, 0, 1}, {0, 0, 0, 1, 0}, {0xff, 0xff, 0xff, 0xff, 9, 1, 2, 3}, make([]byte, 1<<16)} {
		w.SendBinary(t, frame)
	}
	// A request without an id gets no answer, also where it is wrong.
	before := len(w.Told())
	w.Send(t, `{"jsonrpc":"2.0","method":"env.get","params":{"env":"nosuch"}}`)
	w.Send(t, `{"jsonrpc":"2.0","method":"no.such"}`)
	livesOn(t, s, w, env)
	for _, told := range w.Told()[before:] {
		if told.Method == "" {
			t.Errorf("a request without an id, or a binary frame, was answered with %+v", told)
		}
	}
}

func TestFramesAgainstTheStandardCloseTheirSocketAlone(t *testing.T) {
	test.Each(t, framesAgainstTheStandardCloseTheirSocketAlone)
}

func framesAgainstTheStandardCloseTheirSocketAlone(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "standard", test.Params{"persistent": true}).Env.ID
	for _, c := range []struct {
		name  string
		send  func(w *test.Wire)
		codes []int
	}{
		{"a frame over the limit", func(w *test.Wire) { w.Send(t, `"`+strings.Repeat("x", 1<<20)+`"`) }, []int{1009}},
		{"a binary frame over the limit", func(w *test.Wire) { w.SendBinary(t, make([]byte, 1<<20+1)) }, []int{1009}},
		{"no mask", func(w *test.Wire) { w.SendRaw(t, 0x81, false, []byte(`{}`)) }, []int{0, 1002}},
		{"a reserved opcode", func(w *test.Wire) { w.SendRaw(t, 0x83, true, []byte(`{}`)) }, []int{0, 1002}},
		{"reserved bits", func(w *test.Wire) { w.SendRaw(t, 0xF1, true, []byte(`{}`)) }, []int{0, 1002}},
		{"a continuation of nothing", func(w *test.Wire) { w.SendRaw(t, 0x80, true, []byte(`{}`)) }, []int{0, 1002}},
		{"a ping that is too long", func(w *test.Wire) { w.SendRaw(t, 0x89, true, make([]byte, 126)) }, []int{0, 1002}},
	} {
		bad := s.Wire(t)
		c.send(bad)
		code := bad.Closed(t)
		ok := false
		for _, want := range c.codes {
			ok = ok || code == want
		}
		if !ok {
			t.Errorf("%s closes the socket with %d, not with one of %v", c.name, code, c.codes)
		}
	}
	livesOn(t, s, w, env)
}

func TestHelloComesFirst(t *testing.T) { test.Each(t, helloComesFirst) }

func helloComesFirst(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Upgrade(t, test.Identity{})
	for _, method := range []string{"env.list", "env.acquire", "turn.begin", "exec.run"} {
		if e := w.Refused(t, "hello_required", method, test.Params{"task": "x"}); e.Code != codes["hello_required"] {
			t.Errorf("%s before hello: %v", method, e)
		}
	}
	for _, p := range []test.Params{
		{}, {"agent": ""}, {"agent": 7}, {"agent": "a\u0000b"}, {"agent": strings.Repeat("é", 129)}, {"agent": "a\u0085b"},
		{"agent": "a", "colour": "red"}, {"agent": "a", "disconnect_grace_seconds": -1}, {"agent": "a", "disconnect_grace_seconds": 1.5},
		{"agent": "a", "session": 5},
	} {
		w.Refused(t, "invalid_params", "hello", p)
	}
	var hello struct {
		Resumed bool
		Grace   int64 `json:"disconnect_grace_seconds"`
		Limits  struct {
			MaxFrameBytes int64 `json:"max_frame_bytes"`
		}
		Features []string
	}
	w.Call(t, "hello", test.Params{"agent": "<b>agent</b> \u202e🐙", "session": "no-such-session", "disconnect_grace_seconds": 999_999}, &hello)
	if hello.Resumed || hello.Grace != 60 || hello.Limits.MaxFrameBytes != 1<<20 || len(hello.Features) == 0 {
		t.Errorf("hello answers %+v", hello)
	}
}

func TestBadCallsGetTheErrorThatTheProtocolNames(t *testing.T) {
	test.Each(t, badCallsGetTheErrorThatTheProtocolNames)
}

func badCallsGetTheErrorThatTheProtocolNames(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "calls", test.Params{"persistent": true}).Env.ID
	w.Run(t, env, "mkdir dir; echo text > file; ln -s loop loop; mkfifo fifo")
	type P = test.Params
	run := func(p P) P { p["env"] = env; return p }
	deep := json.RawMessage(strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000))
	long := strings.Repeat("x", 129)
	for _, c := range []struct {
		method string
		params any
		kind   string
		field  string // named by data.field or by the message; "" for any
		errno  string
	}{
		{"no.such", P{}, "unknown_method", "", ""},
		{"exec.start", run(P{"command": "true", "tty": P{"cols": 0, "rows": 1}}), "invalid_params", "tty", ""},
		{"exec.attach", P{"exec": "xnever"}, "not_found", "", ""},
		{"exec.wait", P{}, "invalid_params", "exec", ""},
		{"events.subscribe", P{"after": -1}, "invalid_params", "after", ""},
		{"", P{}, "unknown_method", "", ""},
		{strings.Repeat("m", 100_000), P{}, "unknown_method", "", ""},

		{"env.acquire", P{}, "invalid_params", "task", ""},
		{"env.acquire", []int{1}, "invalid_params", "", ""},
		{"env.acquire", "task", "invalid_params", "", ""},
		{"env.acquire", P{"task": "t", "persistant": true}, "invalid_params", "persistant", ""},
		{"env.acquire", P{"task": 7}, "invalid_params", "task", ""},
		{"env.acquire", P{"task": ""}, "invalid_params", "task", ""},
		{"env.acquire", P{"task": long}, "invalid_params", "task", ""},
		{"env.acquire", P{"task": "a\nb"}, "invalid_params", "task", ""},
		{"env.acquire", P{"task": "a\x00b"}, "invalid_params", "task", ""},
		{"env.acquire", P{"task": "a\u009bb"}, "invalid_params", "task", ""},
		{"env.acquire", P{"task": "t", "name": "a\x7fb"}, "invalid_params", "name", ""},
		{"env.acquire", P{"task": "t", "persistent": "yes"}, "invalid_params", "persistent", ""},
		{"env.acquire", P{"task": "t", "persistent": 1}, "invalid_params", "persistent", ""},
		{"env.acquire", P{"task": "t", "lifetime_seconds": -1}, "invalid_params", "lifetime_seconds", ""},
		{"env.acquire", P{"task": "t", "lifetime_seconds": 0}, "invalid_params", "lifetime_seconds", ""},
		{"env.acquire", P{"task": "t", "lifetime_seconds": 1.5}, "invalid_params", "lifetime_seconds", ""},
		{"env.acquire", P{"task": "t", "lifetime_seconds": "5"}, "invalid_params", "lifetime_seconds", ""},
		{"env.acquire", P{"task": "t", "lifetime_seconds": 31_536_001}, "invalid_params", "lifetime_seconds", ""},
		{"env.acquire", P{"task": "t", "lifetime_seconds": uint64(math.MaxUint64)}, "invalid_params", "lifetime_seconds", ""},
		{"env.acquire", P{"task": "t", "lifetime_seconds": json.RawMessage("1e400")}, "invalid_params", "lifetime_seconds", ""},
		{"env.acquire", P{"task": "t", "max_age_seconds": -5}, "invalid_params", "max_age_seconds", ""},
		{"env.acquire", P{"task": "t", "limits": P{"cpus": -1}}, "invalid_params", "cpus", ""},
		{"env.acquire", P{"task": "t", "limits": P{"memory_mb": 1 << 50}}, "invalid_params", "memory_mb", ""},
		{"env.acquire", P{"task": "t", "limits": P{"memory": 1}}, "invalid_params", "memory", ""},
		{"env.acquire", P{"task": "t", "limits": 5}, "invalid_params", "limits", ""},
		{"env.acquire", P{"task": "t", "network": "host"}, "invalid_params", "network", ""},
		{"env.acquire", P{"task": "t", "workdir": "relative"}, "invalid_params", "workdir", ""},
		{"env.acquire", P{"task": "t", "workdir": "/a\x00b"}, "invalid_params", "workdir", ""},
		{"env.acquire", P{"task": "t", "variables": P{"A=B": "c"}}, "invalid_params", "variables", ""},
		{"env.acquire", P{"task": "t", "variables": P{"A": "c\x00d"}}, "invalid_params", "variables", ""},
		{"env.acquire", P{"task": "t", "variables": P{"A": 1}}, "invalid_params", "variables", ""},
		{"env.acquire", P{"task": "t", "labels": P{"a": []int{}}}, "invalid_params", "labels", ""},
		{"env.acquire", P{"task": "t", "labels": deep}, "invalid_params", "", ""},
		{"env.acquire", P{"task": "t", "on_drift": "panic"}, "invalid_params", "on_drift", ""},
		{"env.acquire", P{"task": "t", "image": ""}, "invalid_params", "image", ""},
		{"env.acquire", P{"task": "t", "image": "a b"}, "invalid_params", "image", ""},
		{"env.acquire", P{"task": "t", "image": "../../etc"}, "image_unavailable", "", ""},
		{"env.acquire", P{"task": "t", "image": "Upper/Case"}, "image_unavailable", "", ""},
		{"env.acquire", P{"task": "t", "image": "127.0.0.1:1/no/such:image"}, "image_unavailable", "127.0.0.1:1/no/such:image", ""},

		{"env.get", P{}, "invalid_params", "", ""},
		{"env.get", P{"env": env, "task": "calls"}, "invalid_params", "", ""},
		{"env.get", P{"env": "nosuchenv0"}, "not_found", "", ""},
		{"env.get", P{"env": strings.Repeat("x", 100_000)}, "not_found", "", ""},
		{"env.get", P{"env": "../../../etc"}, "not_found", "", ""},
		{"env.get", P{"task": "never"}, "not_found", "", ""},
		{"env.get", P{"task": "calls", "name": "never"}, "not_found", "", ""},

		{"turn.end", P{}, "invalid_params", "task", ""},
		{"turn.end", P{"task": "calls", "turn": 99}, "invalid_params", "turn", ""},
		{"turn.end", P{"task": "calls", "turn": -1}, "invalid_params", "turn", ""},
		{"turn.end", P{"task": "calls", "outcome": "great"}, "invalid_params", "outcome", ""},
		{"turn.begin", P{"task": "a\tb"}, "invalid_params", "task", ""},

		{"exec.run", run(P{}), "invalid_params", "command", ""},
		{"exec.run", run(P{"command": ""}), "invalid_params", "command", ""},
		{"exec.run", run(P{"command": "a\x00b"}), "invalid_params", "command", ""},
		{"exec.run", run(P{"command": strings.Repeat("#", 500_000)}), "invalid_params", "command", ""},
		{"exec.run", run(P{"command": "true", "argv": []string{"true"}}), "invalid_params", "", ""},
		{"exec.run", run(P{"argv": []string{}}), "invalid_params", "argv", ""},
		{"exec.run", run(P{"argv": []any{"true", 5}}), "invalid_params", "argv", ""},
		{"exec.run", run(P{"argv": []string{""}}), "invalid_params", "argv", ""},
		{"exec.run", run(P{"argv": []string{"echo", "a\x00b"}}), "invalid_params", "argv", ""},
		{"exec.run", run(P{"command": "true", "timeout_seconds": 0}), "invalid_params", "timeout_seconds", ""},
		{"exec.run", run(P{"command": "true", "timeout_seconds": 86_401}), "invalid_params", "timeout_seconds", ""},
		{"exec.run", run(P{"command": "true", "timeout_seconds": json.RawMessage("-9e99")}), "invalid_params", "timeout_seconds", ""},
		{"exec.run", run(P{"command": "true", "output_limit": -1}), "invalid_params", "output_limit", ""},
		{"exec.run", run(P{"command": "true", "output_limit": 400_001}), "invalid_params", "output_limit", ""},
		{"exec.run", run(P{"command": "true", "variables": P{"": "x"}}), "invalid_params", "variables", ""},
		{"exec.run", run(P{"command": "true", "id": ""}), "invalid_params", "id", ""},
		{"exec.run", run(P{"command": "true", "id": long}), "invalid_params", "id", ""},
		{"exec.run", run(P{"command": "true", "id": "a\x1bb"}), "invalid_params", "id", ""},
		{"exec.run", run(P{"command": "true", "stdin": 5}), "invalid_params", "stdin", ""},
		{"exec.run", run(P{"command": "true", "cwd": "/no/such/place"}), "not_found", "", ""},
		{"exec.run", run(P{"command": "true", "cwd": "a\x00b"}), "invalid_params", "cwd", ""},
		{"exec.run", run(P{"command": "true", "cwd": strings.Repeat("d/", 5000)}), "invalid_params", "cwd", ""},
		{"exec.run", run(P{"command": "true", "generation": 7}), "generation_gone", "", ""},
		{"exec.run", run(P{"command": "true", "generation": 0}), "generation_gone", "", ""},
		{"exec.run", P{"env": "nosuchenv0", "command": "a\x00b"}, "not_found", "", ""},

		{"file.read", run(P{}), "invalid_params", "path", ""},
		{"file.read", run(P{"path": ""}), "invalid_params", "path", ""},
		{"file.read", run(P{"path": "a\x00b"}), "invalid_params", "path", ""},
		{"file.read", run(P{"path": "never"}), "not_found", "", ""},
		{"file.read", run(P{"path": "dir"}), "invalid_params", "", "EISDIR"},
		{"file.read", run(P{"path": "file/below"}), "invalid_params", "", "ENOTDIR"},
		{"file.read", run(P{"path": "loop"}), "invalid_params", "", "ELOOP"},
		{"file.read", run(P{"path": strings.Repeat("n", 300)}), "invalid_params", "", "ENAMETOOLONG"},
		{"file.read", run(P{"path": "file", "offset": -1}), "invalid_params", "offset", ""},
		{"file.read", run(P{"path": "file", "length": 1 << 30}), "invalid_params", "length", ""},
		{"file.write", run(P{"path": "x"}), "invalid_params", "data", ""},
		{"file.write", run(P{"path": "x", "data": "no base64!"}), "invalid_params", "data", ""},
		{"file.write", run(P{"path": "dir", "data": ""}), "invalid_params", "", "EISDIR"},
		{"file.write", run(P{"path": "no/such/dir", "data": ""}), "not_found", "", ""},
		{"file.write", run(P{"path": "x", "data": "", "mode": -1}), "invalid_params", "mode", ""},
		{"file.write", run(P{"path": "x", "data": "", "mode": 1 << 20}), "invalid_params", "mode", ""},
		{"file.list", run(P{"path": "file"}), "invalid_params", "", "ENOTDIR"},
		{"file.list", run(P{"path": "never"}), "not_found", "", ""},
		{"file.stat", run(P{"path": "never"}), "not_found", "", ""},
		{"file.remove", run(P{"path": "dir/"}), "", "", ""},
		{"file.mkdir", run(P{"path": "file"}), "invalid_params", "", "EEXIST"},
		{"file.mkdir", run(P{"path": "file/below", "recursive": true}), "invalid_params", "", "ENOTDIR"},
	} {
		name := fmt.Sprintf("%.40s %.120v", c.method, c.params)
		_, err := w.Go(t, c.method, c.params).Wait(t)
		if err == nil {
			if c.kind != "" {
				t.Errorf("%s was not refused", name)
			}
			continue
		}
		e, ok := err.(*test.WireError)
		if !ok {
			t.Fatalf("%s ended the socket: %v", name, err)
		}
		if c.kind == "" {
			continue
		}
		if e.Data.Kind != c.kind || e.Code != codes[c.kind] || e.Message == "" {
			t.Errorf("%s is refused with %.300v, not with %s", name, e, c.kind)
		}
		if c.field != "" && !strings.Contains(e.Data.Field, c.field) && !strings.Contains(e.Message, c.field) {
			t.Errorf("%s is refused without naming %s: %.300v", name, c.field, e)
		}
		if c.errno != e.Data.Errno && c.errno != "" {
			t.Errorf("%s is refused with %q, not with %s: %v", name, e.Data.Errno, c.errno, e)
		}
		if len(e.Message) > 2000 {
			t.Errorf("%s is refused in %d bytes", name, len(e.Message))
		}
	}
	livesOn(t, s, w, env)
	if n := len(s.Envs(t)); n > 4 {
		t.Errorf("refused calls made environments: there are %d", n)
	}
}

// A failed acquire leaves an environment that says why, and nothing on the engine.
func TestUnknownImageLeavesNothing(t *testing.T) { test.Each(t, unknownImageLeavesNothing) }

func unknownImageLeavesNothing(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	e := w.Refused(t, "image_unavailable", "env.acquire", test.Params{"task": "image", "image": "127.0.0.1:1/no/such:image"})
	if !strings.Contains(e.Message, "127.0.0.1:1/no/such:image") {
		t.Errorf("the message names no image: %s", e.Message)
	}
	v := s.EnvOf(t, "image")
	if v.State != control.Failed || v.Error == nil || v.Deadline == nil {
		t.Errorf("it is %s, its error %v, its deadline %v", v.State, v.Error, v.Deadline)
	}
	engineHas(t, s, nil)
	// With an image that is there the same key works.
	got := w.Acquire(t, "image", test.Params{"image": s.Docker.Image})
	if got.Env.ID != v.ID || got.Env.Error != nil {
		t.Errorf("acquired again it is %s, its error %v", got.Env.ID, got.Env.Error)
	}
	w.EndTurn(t, "image")
	s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, v.ID))
	engineHas(t, s, nil)
}

func TestFilesAndBytesOfEveryKind(t *testing.T) { test.Each(t, filesAndBytesOfEveryKind) }

func filesAndBytesOfEveryKind(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "bytes", nil).Env.ID
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	data := base64.StdEncoding.EncodeToString(every)
	w.Call(t, "file.write", test.Params{"env": env, "path": "sub/every\nname", "data": data, "mkdirs": true, "mode": 0o640}, nil)
	var got struct {
		Data []byte
		Size int64
		Mode int64
	}
	w.Call(t, "file.read", test.Params{"env": env, "path": "/workspace/sub/every\nname"}, &got)
	if string(got.Data) != string(every) || got.Size != 256 || got.Mode&0o7777 != 0o640 {
		t.Errorf("read is %+v", got)
	}
	ran := w.RunWith(t, env, test.Params{"argv": []string{"cat", "sub/every\nname"}}, 0)
	if ran.StdoutB64 != data || ran.Stdout != "" {
		t.Errorf("bytes that are no UTF-8 come as %+v", ran)
	}
	ran = w.RunWith(t, env, test.Params{"argv": []string{"cat"}, "stdin": "räksmörgås\x00\n"}, 0)
	if ran.Stdout != "räksmörgås\x00\n" {
		t.Errorf("stdin comes back as %q", ran.Stdout)
	}
	ran = w.RunWith(t, env, test.Params{"command": "seq 1 200000; echo e >&2", "output_limit": 1000}, 0)
	if len(ran.Stdout) != 1000 || !strings.HasPrefix(ran.Stdout, "1\n2\n") || !strings.HasSuffix(ran.Stdout, "\n200000\n") ||
		ran.Truncated.Stdout != 1_288_895-1000 || ran.Truncated.Stderr != 0 || ran.Stderr != "e\n" {
		t.Errorf("of too much output come %d bytes, left out %+v", len(ran.Stdout), ran.Truncated)
	}
	for _, c := range []struct {
		params test.Params
		code   int
		signal string
	}{
		{test.Params{"command": "exit 42"}, 42, ""},
		{test.Params{"command": "kill -KILL $$"}, 137, "KILL"},
		{test.Params{"command": "kill -TERM $$"}, 143, "TERM"},
		{test.Params{"argv": []string{"no-such-program"}}, 127, ""},
		{test.Params{"command": "no-such-program"}, 127, ""},
		{test.Params{"argv": []string{"/etc/passwd"}}, 126, ""},
		{test.Params{"argv": []string{"/workspace"}}, 126, ""},
		{test.Params{"argv": []string{"sh", "-c", "exit 3"}}, 3, ""},
	} {
		if ran := w.RunWith(t, env, c.params, c.code); ran.Signal != c.signal {
			t.Errorf("%v ends by the signal %q", c.params, ran.Signal)
		}
	}
}
