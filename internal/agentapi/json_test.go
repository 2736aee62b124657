package agentapi

import (
	"log/slog"

	"bytes"
	"encoding/json"
	"reflect"
	"sandkeeper/internal/control"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestFramesThatAreNoRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		frame string
		code  int
		id    string
	}{
		"nothing":                     {"", codeParse, "null"},
		"no JSON":                     {"{oops", codeParse, "null"},
		"two values":                  {"{} {}", codeParse, "null"},
		"no UTF-8":                    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", codeParse, "null"},
		"NUL bytes":                   {"\x00\x00", codeParse, "null"},
		"nested without end":          {strings.Repeat("[", 100_000), codeParse, "null"},
		"nested beyond all reason":    {strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), codeParse, "null"},
		"a batch":                     {`[{"jsonrpc":"2.0","id":1,"method":"env.list"}]`, codeInvalidRequest, "null"},
		"an empty batch":              {` [] `, codeInvalidRequest, "null"},
		"a string":                    {`"hello"`, codeInvalidRequest, "null"},
		"an empty object":             {`{}`, codeInvalidRequest, "null"},
		"no version":                  {`{"id":1,"method":"env.list"}`, codeInvalidRequest, "1"},
		"another version":             {`{"jsonrpc":"1.0","id":1,"method":"env.list"}`, codeInvalidRequest, "1"},
		"a version that is a number":  {`{"jsonrpc":2.0,"id":1,"method":"env.list"}`, codeInvalidRequest, "1"},
		"no method":                   {`{"jsonrpc":"2.0","id":"a"}`, codeInvalidRequest, `"a"`},
		"a method that is a number":   {`{"jsonrpc":"2.0","id":1,"method":7}`, codeInvalidRequest, "1"},
		"an id that is an object":     {`{"jsonrpc":"2.0","id":{},"method":"env.list"}`, codeInvalidRequest, "null"},
		"an id that is a boolean":     {`{"jsonrpc":"2.0","id":true,"method":"env.list"}`, codeInvalidRequest, "null"},
		"a member of another name":    {`{"jsonrpc":"2.0","id":1,"method":"env.list","param":{}}`, codeInvalidRequest, "1"},
		"a member in another case":    {`{"jsonrpc":"2.0","ID":1,"method":"env.list"}`, codeInvalidRequest, "null"},
		"a member that comes twice":   {`{"jsonrpc":"2.0","id":1,"id":2,"method":"env.list"}`, codeInvalidRequest, "1"},
		"half of a surrogate pair":    {`{"jsonrpc":"2.0","id":1,"method":"\ud800"}`, codeInvalidRequest, "1"},
		"an answer instead of a call": {`{"jsonrpc":"2.0","id":1,"result":{}}`, codeInvalidRequest, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := parseRequest([]byte(tt.frame))
			if err == nil {
				t.Fatalf("taken as %q", req.method)
			}
			if err.Code != tt.code || string(req.id) != tt.id {
				t.Errorf("%d for id %s, want %d for id %s: %s", err.Code, req.id, tt.code, tt.id, err.Message)
			}
		})
	}
}

func TestIDsComeBackAsTheyWere(t *testing.T) {
	for _, id := range []string{`1`, `-1`, `1.50`, `1e400`, `"x"`, `"\u00e9\n"`, `null`, `18446744073709551616`} {
		req, err := parseRequest([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"m"}`))
		if err != nil || string(req.id) != id {
			t.Errorf("id %s came back as %s: %v", id, req.id, err)
		}
	}
	if req, err := parseRequest([]byte(`{"jsonrpc":"2.0","method":"m"}`)); err != nil || req.id != nil {
		t.Errorf("a notification has the id %s: %v", req.id, err)
	}
}

func TestStrings(t *testing.T) {
	for raw, want := range map[string]string{
		`"plain"`:              "plain",
		`"\ud83d\ude00"`:       "😀",
		`"\uD83D\uDE00"`:       "😀",
		`"\\ud800"`:            `\ud800`,
		`"\ufffd"`:             "\ufffd",
		`"a\u0000b"`:           "a\x00b",
		`"\"\\\/\b\f\n\r\t"`:   "\"\\/\b\f\n\r\t",
		`"\u00e9\u2028\u000a"`: "é\u2028\n",
	} {
		if got, err := unquote([]byte(raw)); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", raw, got, err, want)
		}
	}
	for _, raw := range []string{`"\ud800"`, `"\udc00"`, `"\ud800\ud800"`, `"\ud800x"`, `"\ud800\n"`, `"\ud800\u0041"`} {
		if got, err := unquote([]byte(raw)); err == nil {
			t.Errorf("%s was taken as %q", raw, got)
		}
	}
}

// What takes JSON apart here must agree with encoding/json on all that is valid.
func FuzzMembersAndElements(f *testing.F) {
	for _, s := range []string{
		`{}`, `[]`, ` { "a" : 1 , "b" : [ 1 , {"c":"}"} ] } `, `{"a":"\"","b":{},"c":[]}`, `[1,"]",[],{"x":null},true ]`,
		`{"a":-1.5e+3,"b":false}`, `{"":""}`, `[[[["deep"]]]]`, "{\n\t\"a\"\r:\n0}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = []byte(strings.TrimSpace(string(raw)))
		if !utf8.Valid(raw) || !json.Valid(raw) || !(raw[0] == '{' || raw[0] == '[') {
			return
		}
		equal := func(a, b []byte) bool {
			var x, y any
			if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
				return bytes.Equal(a, b) // a number beyond float64
			}
			return reflect.DeepEqual(x, y)
		}
		if raw[0] == '[' {
			var want []json.RawMessage
			if json.Unmarshal(raw, &want) != nil {
				return
			}
			n := 0
			err := eachElement(raw, func(i int, v json.RawMessage) error {
				if i >= len(want) || !equal(v, want[i]) {
					t.Fatalf("element %d is %s", i, v)
				}
				n++
				return nil
			})
			if err != nil || n != len(want) {
				t.Fatalf("%d elements, want %d: %v", n, len(want), err)
			}
			return
		}
		want := map[string]json.RawMessage{}
		if json.Unmarshal(raw, &want) != nil {
			return
		}
		got := map[string]json.RawMessage{}
		if err := eachMember(raw, func(name string, v json.RawMessage) error {
			got[name] = v
			return nil
		}); err != nil {
			return // a name with half a surrogate pair
		}
		if len(got) != len(want) {
			t.Fatalf("%d members, want %d", len(got), len(want))
		}
		for name, v := range want {
			if !equal(got[name], v) {
				t.Fatalf("member %q is %s, want %s", name, got[name], v)
			}
		}
	})
}

// Whatever comes, a frame is either a request or gets an error with a code, and
// no method's params make a reader panic.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"env.acquire","params":{"task":"t","limits":{"cpus":1e400,"pids":-1}}}`,
		`{"jsonrpc":"2.0","id":"x","method":"exec.run","params":{"env":"e1","argv":["a",1],"variables":{"A":"b"}}}`,
		`{"jsonrpc":"2.0","method":"file.write","params":{"task":"t","path":"p","data":"!","mode":4096}}`,
		`{"jsonrpc":"2.0","id":null,"method":"turn.end","params":{"task":"\ud800","turn":1.5}}`,
		`[]`, `{`, `{"jsonrpc":"2.0","id":1,"method":"env.get","params":[]}`,
	} {
		f.Add([]byte(s))
	}
	fake := newFake()
	fake.events = func(*uint64) (control.Subscription, uint64, error) { return newFakeFeed(), 0, nil }
	session := fakeSession{fake, "o"}
	f.Fuzz(func(t *testing.T, frame []byte) {
		on := newSocket(New(Options{}), "o", nil, nil, slog.New(slog.DiscardHandler))
		on.ctx = t.Context()
		defer on.events.end()
		defer on.channels.end()
		req, bad := parseRequest(frame)
		if bad != nil {
			if bad.Code != codeParse && bad.Code != codeInvalidRequest || req.id == nil {
				t.Fatalf("code %d for id %q", bad.Code, req.id)
			}
			return
		}
		for name, m := range methods {
			var result any
			var err error
			if p := readParams(req.params, m.fields); m.open != nil {
				result, err = m.open(t.Context(), on, session, p)
				if o, ok := result.(opened); ok {
					o.end()
					result = o.result
				}
			} else {
				result, err = m.run(t.Context(), session, p)
			}
			if err != nil {
				if e := wireErrorOf(err); e.Code == codeInternal {
					t.Fatalf("%s: %v", name, err)
				}
				continue
			}
			if _, err := json.Marshal(answer(req.id, result)); err != nil && req.id != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}
