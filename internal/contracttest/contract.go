// Package contracttest holds what really goes over the wire against the
// machine-readable contract in docs/schema.json, in tests.
//
// The contract lets the server's messages have more members than it knows, so
// that clients live through an upgrade. Here they may not: what the server sends
// is in the contract, or the test fails. Whatever a server took as a request
// must be one by the contract too. A contract that cannot be read panics.
package contracttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"sandkeeper/docs"
)

const location = "urn:sandkeeper:protocol:1"

// contract is the compiled schema; its definitions are compiled as they are needed.
type contract struct {
	mu       sync.Mutex // guards the compiler and compiled
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
	names    []string
}

var read = sync.OnceValue(func() *contract {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(docs.Schema))
	if err != nil {
		panic(err)
	}
	c := &contract{compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}}
	c.names = slices.Sorted(maps.Keys(doc.(map[string]any)["$defs"].(map[string]any)))
	shut(doc)
	if err := c.compiler.AddResource(location, doc); err != nil {
		panic(err)
	}
	return c
})

// shut lets no object have a member that its schema does not name. An object's
// own schema says that it is one; the conditions within it do not.
func shut(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			shut(e)
		}
	case map[string]any:
		if _, some := v["properties"]; some && isObject(v["type"]) && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			shut(e)
		}
	}
}

func isObject(t any) bool {
	if l, ok := t.([]any); ok {
		return slices.Contains(l, any("object"))
	}
	return t == "object"
}

// Names are those of the contract's definitions, in order.
func Names() []string { return slices.Clone(read().names) }

// Has reports whether the contract has a definition.
func Has(name string) bool {
	_, found := slices.BinarySearch(read().names, name)
	return found
}

// definition returns a definition, which must be there.
func (c *contract) definition(name string) (*jsonschema.Schema, error) {
	if !Has(name) {
		return nil, fmt.Errorf("the contract has no %q", name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.compiled[name]; s != nil {
		return s, nil
	}
	s, err := c.compiler.Compile(location + "#/$defs/" + name)
	if err != nil {
		panic(err)
	}
	c.compiled[name] = s
	return s, nil
}

// Check holds JSON text against a definition of the contract.
func Check(name string, text []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return check(name, v)
}

func check(name string, v any) error {
	s, err := read().definition(name)
	if err != nil {
		return err
	}
	if err := s.Validate(v); err != nil {
		return fmt.Errorf("%s is not as the contract has it: %w", name, err)
	}
	return nil
}

// Event holds an event, as clients read it, against the contract. It must be of
// a kind that is there.
func Event(text []byte) error {
	var e struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	if !Has("data." + e.Kind) {
		return fmt.Errorf("the contract has no event %q", e.Kind)
	}
	return Check("event", text)
}

// Request holds a client's text frame against the contract. A member of params
// that is null counts as left out.
func Request(frame []byte) error {
	method, v, err := request(frame)
	if err != nil {
		return err
	}
	return check(method+".request", v)
}

func request(frame []byte) (method string, v map[string]any, err error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(frame))
	if err != nil {
		return "", nil, err
	}
	v, _ = doc.(map[string]any)
	method, _ = v["method"].(string)
	if method == "" {
		return "", nil, errors.New("it names no method")
	}
	if params, ok := v["params"]; ok && params == nil {
		delete(v, "params")
	}
	if params, ok := v["params"].(map[string]any); ok {
		omitNulls(params)
		for _, name := range []string{"limits", "from"} {
			if in, ok := params[name].(map[string]any); ok {
				omitNulls(in)
			}
		}
	}
	return method, v, nil
}

func omitNulls(m map[string]any) {
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
}

// Conversation is what went over one socket. It is safe for use by many goroutines.
type Conversation struct {
	mu    sync.Mutex
	asked map[string][]byte // requests, by id
}

// Sent notes a text frame of the client's, which may be anything.
func (c *Conversation) Sent(frame []byte) {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(frame, &m) != nil || m.ID == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = map[string][]byte{}
	}
	c.asked[string(m.ID)] = bytes.Clone(frame)
}

// Received holds a text frame of the server's against the contract, and against
// what it answers.
func (c *Conversation) Received(frame []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(frame))
	if err != nil {
		return err
	}
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
		Params json.RawMessage `json:"params"`
		Error  *struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(frame, &m); err != nil {
		return err
	}
	if m.Method != nil {
		if *m.Method == "event" {
			if err := Event(m.Params); err != nil {
				return err
			}
		}
		return check(*m.Method+".notification", v)
	}
	c.mu.Lock()
	asked := c.asked[string(m.ID)]
	delete(c.asked, string(m.ID))
	c.mu.Unlock()
	method, sent := "", map[string]any(nil)
	if asked != nil {
		method, sent, _ = request(asked)
	}
	if m.Error != nil {
		if Has(method+".request") && strings.HasSuffix(m.Error.Message, ": unknown field") && check(method+".request", sent) == nil {
			return fmt.Errorf("%s refuses what the contract has: %s", method, m.Error.Message)
		}
		return check("error.response", v)
	}
	if method == "" {
		return fmt.Errorf("a result for no request: %.300s", frame)
	}
	if err := check(method+".request", sent); err != nil {
		return fmt.Errorf("a request was taken that is none: %w", err)
	}
	return check(method+".response", v)
}

// calls are the operator API's, each by its method and path.
var calls = sync.OnceValue(func() map[string]operation {
	var api struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(docs.OpenAPI, &api); err != nil {
		panic(err)
	}
	all := map[string]operation{}
	for path, item := range api.Paths {
		for method, raw := range item {
			if method == "parameters" {
				continue
			}
			var op operation
			if err := json.Unmarshal(raw, &op); err != nil {
				panic(err)
			}
			all[strings.ToUpper(method)+" "+path] = op
		}
	}
	return all
})

type content struct {
	Content map[string]struct {
		Schema struct {
			Ref string `json:"$ref"`
		} `json:"schema"`
	} `json:"content"`
}

// body names the definition of a JSON body; "" where there is none.
func (c content) body() string {
	return strings.TrimPrefix(c.Content["application/json"].Schema.Ref, "schema.json#/$defs/")
}

type operation struct {
	Parameters []struct {
		Name string `json:"name"`
		In   string `json:"in"`
	} `json:"parameters"`
	RequestBody content            `json:"requestBody"`
	Responses   map[string]content `json:"responses"`
}

// Calls are the operator API's, as "GET /api/v1/envs/{id}", in order.
func Calls() []string { return slices.Sorted(maps.Keys(calls())) }

// Queries are the names of a call's parameters in the query, in order.
func Queries(call string) (names []string) {
	for _, p := range calls()[call].Parameters {
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Exchange holds a call of the operator API against the contract: the body that
// was sent, nil for none, and what was answered. Paths that the contract does
// not have are not its business.
func Exchange(method, path string, sent []byte, status int, answer []byte) error {
	path, _, _ = strings.Cut(path, "?")
	for call, op := range calls() {
		if m, pattern, _ := strings.Cut(call, " "); m != method || !matches(pattern, path) {
			continue
		}
		if status != 200 {
			return Check("http.error", answer)
		}
		if name := op.RequestBody.body(); name != "" && len(bytes.TrimSpace(sent)) > 0 {
			if err := Check(name, sent); err != nil {
				return fmt.Errorf("a body was taken that is none: %w", err)
			}
		}
		if name := op.Responses["200"].body(); name != "" {
			return Check(name, answer)
		}
	}
	return nil
}

func matches(pattern, path string) bool {
	return slices.EqualFunc(strings.Split(pattern, "/"), strings.Split(path, "/"), func(p, s string) bool {
		return p == s || strings.HasPrefix(p, "{") && s != ""
	})
}
