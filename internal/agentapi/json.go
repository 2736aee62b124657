package agentapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// The functions below take apart JSON text that json.Valid has accepted,
// without recursion and without building a tree: each value stays a part of the
// frame until a field with a type asks for it. encoding/json alone is not
// strict enough here: it matches names whatever their case, and takes the last
// of two members of one name.

// jsonKind names the type of a valid JSON value for a person.
func jsonKind(raw []byte) string {
	switch raw[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// skipSpace returns the first index at or after i that is no white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index after the value that begins at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth < 0 { // a number ends where its parent does
				return i
			}
		case ',', ':', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return i
			}
			i++
			continue
		default:
			if depth == 0 { // a number or a literal
				for i < len(b) && !bytes.ContainsRune([]byte(",:]} \n\t\r"), rune(b[i])) {
					i++
				}
				return i
			}
		}
		i++
		if depth == 0 {
			return i
		}
	}
	return i
}

// eachMember calls fn with the members of an object, in order, until fn fails.
func eachMember(raw []byte, fn func(name string, value json.RawMessage) error) error {
	for i := skipSpace(raw, 1); raw[i] != '}'; {
		end := skipValue(raw, i)
		name, err := unquote(raw[i:end])
		if err != nil {
			return fmt.Errorf("a member's name: %w", err)
		}
		i = skipSpace(raw, skipSpace(raw, end)+1) // past the colon
		end = skipValue(raw, i)
		if err := fn(name, raw[i:end:end]); err != nil {
			return err
		}
		i = skipSpace(raw, end)
		if raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return nil
}

// eachElement calls fn with the elements of an array, in order, until fn fails.
func eachElement(raw []byte, fn func(i int, value json.RawMessage) error) error {
	n := 0
	for i := skipSpace(raw, 1); raw[i] != ']'; n++ {
		end := skipValue(raw, i)
		if err := fn(n, raw[i:end:end]); err != nil {
			return err
		}
		i = skipSpace(raw, end)
		if raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
	}
	return nil
}

var errLoneSurrogate = errors.New("holds half of a surrogate pair, which is no text")

// unquote decodes a JSON string. Half a surrogate pair is refused: to replace it
// would make one name of two.
func unquote(raw []byte) (string, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		i++
		if raw[i] != 'u' {
			continue
		}
		switch r := hex4(raw[i+1:]); {
		case r >= 0xDC00 && r <= 0xDFFF:
			return "", errLoneSurrogate
		case r >= 0xD800 && r <= 0xDBFF:
			next := raw[i+5:]
			if len(next) < 6 || next[0] != '\\' || next[1] != 'u' {
				return "", errLoneSurrogate
			}
			if low := hex4(next[2:]); low < 0xDC00 || low > 0xDFFF {
				return "", errLoneSurrogate
			}
			i += 6
		}
		i += 4
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// hex4 reads the four digits of a \u escape that is known to be valid.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= 'a':
			c -= 'a' - 10
		case c >= 'A':
			c -= 'A' - 10
		default:
			c -= '0'
		}
		r = r<<4 | rune(c)
	}
	return r
}

// request is one frame as a JSON-RPC request.
type request struct {
	id     json.RawMessage // nil: a notification, which gets no answer
	method string
	params json.RawMessage // nil: none
}

var null = json.RawMessage("null")

// parseRequest reads a frame. On an error the request's id is what the answer
// is to carry: its own where that could be read, else null.
func parseRequest(frame []byte) (request, *wireError) {
	bad := request{id: null}
	if !utf8.Valid(frame) || !json.Valid(frame) {
		return bad, parseError()
	}
	frame = bytes.TrimSpace(frame)
	switch frame[0] {
	case '[':
		return bad, invalidRequest("batches are not taken: send each request in a frame of its own")
	case '{':
	default:
		return bad, invalidRequest("a request is an object, this is %s", jsonKind(frame))
	}
	var version, id, method, params json.RawMessage
	err := eachMember(frame, func(name string, value json.RawMessage) error {
		var to *json.RawMessage
		switch name {
		case "jsonrpc":
			to = &version
		case "id":
			to = &id
		case "method":
			to = &method
		case "params":
			to = &params
		default:
			return fmt.Errorf("unknown member %q of a request", shorten(name))
		}
		if *to != nil {
			return fmt.Errorf("two members %q", name)
		}
		*to = value
		return nil
	})
	if id != nil {
		if k := jsonKind(id); k != "a string" && k != "a number" && k != "null" {
			return bad, invalidRequest("id is %s; it may be a string, a number or null", k)
		}
		bad.id = id
	}
	if err != nil {
		return bad, invalidRequest("%v", err)
	}
	if string(version) != `"2.0"` {
		return bad, invalidRequest(`jsonrpc must be "2.0"`)
	}
	if method == nil || method[0] != '"' {
		return bad, invalidRequest("method must be a string")
	}
	name, err := unquote(method)
	if err != nil {
		return bad, invalidRequest("method: %v", err)
	}
	if params != nil && params[0] == 'n' {
		params = nil
	}
	return request{id: id, method: name, params: params}, nil
}
