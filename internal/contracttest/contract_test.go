package contracttest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"sandkeeper/docs"
)

func TestEveryDefinitionCompiles(t *testing.T) {
	if len(Names()) < 100 {
		t.Fatalf("%d definitions", len(Names()))
	}
	for _, name := range Names() {
		if _, err := read().definition(name); err != nil {
			t.Error(err)
		}
	}
}

// Whatever one of the files refers to is there.
func TestEveryReferenceOfTheContractLeadsSomewhere(t *testing.T) {
	for name, file := range map[string][]byte{"schema.json": docs.Schema, "asyncapi.json": docs.AsyncAPI, "openapi.json": docs.OpenAPI} {
		var doc any
		if err := json.Unmarshal(file, &doc); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		count := 0
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case []any:
				for _, e := range v {
					walk(e)
				}
			case map[string]any:
				if ref, ok := v["$ref"].(string); ok {
					count++
					definition, inSchema := strings.CutPrefix(ref, "schema.json#/$defs/")
					if name == "schema.json" {
						definition, inSchema = strings.CutPrefix(ref, "#/$defs/")
					}
					switch {
					case inSchema:
						if !slices.Contains(Names(), definition) && definition != "client" && definition != "server" {
							t.Errorf("%s: %s leads nowhere", name, ref)
						}
					case !reaches(doc, ref):
						t.Errorf("%s: %s leads nowhere", name, ref)
					}
				}
				for _, e := range v {
					walk(e)
				}
			}
		}
		walk(doc)
		if count == 0 {
			t.Errorf("%s refers to nothing", name)
		}
	}
}

// reaches follows a reference within a document.
func reaches(doc any, ref string) bool {
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		m, _ := doc.(map[string]any)
		if doc, ok = m[part]; !ok {
			return false
		}
	}
	return true
}

// The agents' file has an operation for each message of the contract, and no other.
func TestTheAsyncAPIFileHasEveryMessage(t *testing.T) {
	var api struct {
		Operations map[string]struct {
			Action   string
			Messages []struct {
				Ref string `json:"$ref"`
			}
		}
		Components struct {
			Messages map[string]struct {
				Payload struct {
					Schema struct {
						Ref string `json:"$ref"`
					}
				}
			}
		}
	}
	if err := json.Unmarshal(docs.AsyncAPI, &api); err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		method, asked := strings.CutSuffix(name, ".request")
		action := "receive"
		if !asked {
			if method, asked = strings.CutSuffix(name, ".notification"); !asked {
				continue
			}
			action = "send"
		}
		op := api.Operations[method]
		if op.Action != action || len(op.Messages) != 1 || op.Messages[0].Ref != "#/channels/agent/messages/"+name {
			t.Errorf("the operation %s is %+v", method, op)
		}
	}
	for name, m := range api.Components.Messages {
		if want := "schema.json#/$defs/" + name; name != "stream" && m.Payload.Schema.Ref != want {
			t.Errorf("the message %s has the schema %q", name, m.Payload.Schema.Ref)
		}
	}
}

func TestWhatIsNotInTheContractIsTold(t *testing.T) {
	const (
		get    = `{"jsonrpc":"2.0","id":1,"method":"turn.begin","params":{"task":"t"}}`
		answer = `{"jsonrpc":"2.0","id":1,"result":{"turn":1,"opened":true}}`
	)
	for name, tt := range map[string]struct {
		sent, got string
		fine      bool
	}{
		"a result":                      {get, answer, true},
		"a member that is null":         {`{"jsonrpc":"2.0","id":1,"method":"env.list","params":{"task":null}}`, `{"jsonrpc":"2.0","id":1,"result":{"envs":[]}}`, true},
		"a refusal":                     {get, `{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"m","data":{"kind":"not_found"}}}`, true},
		"a result with another member":  {get, `{"jsonrpc":"2.0","id":1,"result":{"turn":1,"opened":true,"since":1}}`, false},
		"a result without a member":     {get, `{"jsonrpc":"2.0","id":1,"result":{"turn":1}}`, false},
		"another member of the frame":   {get, `{"jsonrpc":"2.0","id":1,"result":{"turn":1,"opened":true},"error":null}`, false},
		"a result of another type":      {get, `{"jsonrpc":"2.0","id":1,"result":{"turn":"1","opened":true}}`, false},
		"a result for nothing":          {get, `{"jsonrpc":"2.0","id":2,"result":{"turn":1,"opened":true}}`, false},
		"a typo that was taken":         {strings.Replace(get, "task", "taks", 1), answer, false},
		"a code of another kind":        {get, `{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"m","data":{"kind":"conflict"}}}`, false},
		"an error with another member":  {get, `{"jsonrpc":"2.0","id":1,"error":{"code":-32010,"message":"m","data":{"kind":"not_found","stack":"…"}}}`, false},
		"a refusal of what is there":    {get, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"task: unknown field","data":{"kind":"invalid_params","field":"task"}}}`, false},
		"a notification":                {"", `{"jsonrpc":"2.0","method":"server.draining","params":{"seconds_left":1}}`, true},
		"a notification that is none":   {"", `{"jsonrpc":"2.0","method":"server.dancing","params":{}}`, false},
		"an end without its reason":     {"", `{"jsonrpc":"2.0","method":"exec.exit","params":{"exec":"x","channel":1,"exit_code":null,"timed_out":false,"duration_ms":0,"cwd":"/"}}`, false},
		"an event of no kind":           {"", `{"jsonrpc":"2.0","method":"event","params":{"seq":1,"time":"2026-03-01T12:00:00.000Z","kind":"env.danced","env":null,"owner":null,"task":null,"name":null,"actor":"server","reason":"","data":{}}}`, false},
		"an event's data of another":    {"", `{"jsonrpc":"2.0","method":"event","params":{"seq":1,"time":"2026-03-01T12:00:00.000Z","kind":"env.touched","env":null,"owner":null,"task":null,"name":null,"actor":"server","reason":"","data":{"a":1}}}`, false},
		"a time without decimals":       {"", `{"jsonrpc":"2.0","method":"env.expiring","params":{"env":"e","deadline":"2026-03-01T12:00:00Z","seconds_left":1}}`, false},
		"two texts for the same output": {`{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"env":"e","command":"true"}}`, `{"jsonrpc":"2.0","id":1,"result":{"exec":"x","exit_code":0,"stdout":"","stdout_base64":"","stderr":"","truncated":{"stdout":0,"stderr":0},"timed_out":false,"duration_ms":0,"cwd":"/"}}`, false},
	} {
		var c Conversation
		c.Sent([]byte(tt.sent))
		if err := c.Received([]byte(tt.got)); (err == nil) != tt.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBodiesOfTheOperatorAPI(t *testing.T) {
	for name, tt := range map[string]struct {
		method, path, sent string
		status             int
		answer             string
		fine               bool
	}{
		"a page of none":       {"GET", "/api/v1/envs?limit=1", "", 200, `{"envs":[],"next":null}`, true},
		"with another member":  {"GET", "/api/v1/envs", "", 200, `{"envs":[],"next":null,"total":0}`, false},
		"an error":             {"POST", "/api/v1/envs/e1/kill", `{"purge":1}`, 400, `{"error":{"kind":"invalid_params","message":"m"}}`, true},
		"an error that is not": {"GET", "/api/v1/envs/e1", "", 404, `{"message":"m"}`, false},
		"a typo that is taken": {"POST", "/api/v1/envs/e1/kill", `{"pruge":true}`, 200, `{}`, false},
		"none of its calls":    {"GET", "/healthz", "", 200, `ok`, true},
	} {
		if err := Exchange(tt.method, tt.path, []byte(tt.sent), tt.status, []byte(tt.answer)); (err == nil) != tt.fine {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShapesAreComparedBothWays(t *testing.T) {
	type right struct {
		Turn   int64 `json:"turn"`
		Opened bool  `json:"opened"`
	}
	type more struct {
		right
		Since string `json:"since"`
	}
	type less struct {
		Turn int64 `json:"turn"`
	}
	type loose struct {
		Turn   int64 `json:"turn,omitempty"`
		Opened bool  `json:"opened"`
	}
	if err := Shape("turn.begin.result", right{}); err != nil {
		t.Error(err)
	}
	for _, v := range []any{more{}, less{}, loose{}} {
		if Shape("turn.begin.result", v) == nil {
			t.Errorf("%T was taken", v)
		}
	}
}
