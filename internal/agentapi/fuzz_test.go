package agentapi

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"slices"
	"testing"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
)

// Whatever a call brings, it is done or refused with an error of the protocol,
// and done only where each of its members is one of the contract.
func FuzzCall(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"env.acquire","params":{"task":"t","limits":{"cpus":0.5,"pids":null},"labels":{"a":"b"},"variables":{}}}`,
		`{"jsonrpc":"2.0","id":"a","method":"exec.run","params":{"env":"e1","argv":["a",""],"timeout_seconds":1e3}}`,
		`{"jsonrpc":"2.0","id":1,"method":"exec.start","params":{"task":"t","command":"c","tty":{"cols":80,"rows":24},"window":1}}`,
		`{"jsonrpc":"2.0","id":1,"method":"exec.attach","params":{"exec":"x1","from":{"stdout":9223372036854775808},"stdin":false}}`,
		`{"jsonrpc":"2.0","id":1,"method":"exec.wait","params":{"exec":"x1","timeout_seconds":-1}}`,
		`{"jsonrpc":"2.0","id":1,"method":"exec.signal","params":{"exec":"x1","signal":"KILL","tree":false}}`,
		`{"jsonrpc":"2.0","id":1,"method":"exec.resize","params":{"exec":"x1","cols":0,"rows":65536}}`,
		`{"jsonrpc":"2.0","id":1,"method":"file.write","params":{"env":"e1","path":"p","data":"YQ==","mode":4095}}`,
		`{"jsonrpc":"2.0","id":1,"method":"file.read","params":{"env":"e1","path":"p","offset":0.5}}`,
		`{"jsonrpc":"2.0","id":1,"method":"turn.end","params":{"task":"t","turn":-0}}`,
		`{"jsonrpc":"2.0","id":1,"method":"env.get","params":{"env":"e1","\u0065nv":"e2"}}`,
		`{"jsonrpc":"2.0","id":null,"method":"env.list","params":{"task":"\ud800"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"events.subscribe","params":{"after":18446744073709551615}}`,
		`{"jsonrpc":"2.0","id":1,"method":"env.release","params":[]}`,
	} {
		f.Add([]byte(seed))
	}
	a := New(Options{Plane: newFake(), Auth: tokens{}})
	f.Fuzz(func(t *testing.T, frame []byte) {
		req, bad := parseRequest(frame)
		if bad != nil {
			return
		}
		m, known := methods[req.method]
		if !known {
			return
		}
		on := newSocket(a, "hermes", nil, nil, slog.New(slog.DiscardHandler))
		on.ctx, on.calls = t.Context(), t.Context()
		p := readParams(req.params, m.fields)
		var err error
		if m.open == nil {
			_, err = m.run(t.Context(), fakeSession{newFake(), "hermes"}, p)
		} else {
			var result any
			result, err = m.open(t.Context(), on, fakeSession{newFake(), "hermes"}, p)
			if o, ok := result.(opened); ok {
				o.end()
			}
		}
		if err != nil {
			e := wireErrorOf(err)
			if e.Code == codeInternal && !errors.Is(err, io.EOF) && control.AsError(err).Message != "no log" {
				t.Fatalf("%s: %v", frame, err)
			}
			if cerr := contracttest.Check("error", marshal(t, e)); cerr != nil {
				t.Fatalf("%s: %v", frame, cerr)
			}
			return
		}
		var params map[string]json.RawMessage
		if req.params != nil {
			if err := json.Unmarshal(req.params, &params); err != nil {
				t.Fatalf("%s was taken: %v", frame, err)
			}
		}
		for name := range params {
			if !slices.Contains(contracttest.Members(req.method+".params"), name) {
				t.Fatalf("%s was taken with %q", frame, name)
			}
		}
	})
}

// A name is one to the socket and to the plane, or to neither.
func FuzzName(f *testing.F) {
	for _, s := range []string{"t", "", "a\x00", "é", "\u0085", "\x7f", "\xff", "مهمة", "a\u202eb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if here, there := checkName(s), control.CheckName("task", s); (here == nil) != (there == nil) {
			t.Fatalf("%q: %v here, %v there", s, here, there)
		}
		b, err := json.Marshal(s)
		if err != nil {
			return
		}
		var read string
		if json.Unmarshal(b, &read); read == s && (checkName(s) == nil) != (contracttest.Check("name", b) == nil) {
			t.Fatalf("%q: %v here, %v by the contract", s, checkName(s), contracttest.Check("name", b))
		}
	})
}
