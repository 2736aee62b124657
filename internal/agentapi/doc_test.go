package agentapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nhooyr.io/websocket"
)

const protocolPage = "../../docs/protocol.md"

// line is one message of the page's examples.
type line struct {
	number int
	sent   bool
	text   string
}

// examples reads the blocks of the page that are marked rpc.
func examples(t *testing.T) (lines []line) {
	t.Helper()
	page, err := os.ReadFile(protocolPage)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for i, text := range strings.Split(string(page), "\n") {
		switch {
		case text == "```rpc":
			inside = true
		case text == "```":
			inside = false
		case !inside:
		case strings.HasPrefix(text, "→ "):
			lines = append(lines, line{i + 1, true, strings.TrimPrefix(text, "→ ")})
		case strings.HasPrefix(text, "← "):
			lines = append(lines, line{i + 1, false, strings.TrimPrefix(text, "← ")})
		default:
			lines[len(lines)-1].text += "\n" + text
		}
	}
	return lines
}

// Every example of the page is played against the server, on a real control
// plane; every method has one.
func TestTheExamplesOfTheProtocolsPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := serveReal(t)
		r.script()
		c := &conversation{peer: r.dial(t), names: map[string]string{}}
		shown := map[string]bool{}
		for _, l := range examples(t) {
			if l.sent {
				for m := range methodsIn(l.text) {
					shown[m] = true
				}
				c.send(c.translate(l.text))
				continue
			}
			if err := c.expect(l.text); err != nil {
				t.Fatalf("%s:%d: %v", protocolPage, l.number, err)
			}
		}
		for _, m := range features() {
			if !shown[m] {
				t.Errorf("%s has no example", m)
			}
		}
	})
}

var methodPattern = regexp.MustCompile(`"method":"([a-z._]+)"`)

func methodsIn(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range methodPattern.FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// conversation is the page's client. The page's own names for what the server
// names are learned from its answers.
type conversation struct {
	*peer
	names   map[string]string // the page's → the server's
	pending []string          // messages that came and were not expected yet
}

// translate writes a request with the server's names.
func (c *conversation) translate(text string) string {
	for ours, theirs := range c.names {
		text = strings.ReplaceAll(text, `"`+ours+`"`, `"`+theirs+`"`)
	}
	return text
}

// expect waits for a message as the page has it: the response to that id, or
// the next notification of that method that fits.
func (c *conversation) expect(text string) error {
	var want map[string]any
	if err := json.Unmarshal([]byte(text), &want); err != nil {
		return fmt.Errorf("the page's own JSON: %w", err)
	}
	for i, raw := range c.pending {
		if c.fits(want, raw) == nil {
			c.pending = slices.Delete(c.pending, i, i+1)
			return nil
		}
	}
	// Fake time: the longest wait on the page is for a lifetime to pass.
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Hour)
	defer cancel()
	for {
		b, err := c.read(ctx)
		if err != nil {
			return fmt.Errorf("%w; it was to be\n%s\nand there is\n%s", err, text, strings.Join(c.pending, "\n"))
		}
		err = c.fits(want, string(b))
		if err == nil {
			return nil
		}
		var got map[string]any
		if json.Unmarshal(b, &got) == nil && got["method"] == nil { // a response is to be this one
			return fmt.Errorf("%w\ngot  %s\nwant %s", err, b, text)
		}
		c.pending = append(c.pending, string(b))
	}
}

// fits compares, and learns names where all of it fits.
func (c *conversation) fits(want map[string]any, raw string) error {
	var got map[string]any
	if err := json.Unmarshal([]byte(raw), &got); err != nil {
		return err
	}
	m := matcher{maps.Clone(c.names)}
	if err := m.match("", "message", want, got); err != nil {
		return err
	}
	c.names = m.names
	return nil
}

type matcher struct{ names map[string]string }

var (
	timePattern = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)
	namePattern = regexp.MustCompile(`^[a-z0-9]{10,40}$`)
)

// named are the members whose values the server makes up.
var named = []string{"id", "env", "exec", "session", "ref"}

func (m matcher) match(key, path string, want, got any) error {
	if want == "…" {
		return nil
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %v", path, got)
		}
		for k, v := range w {
			if k == "…" {
				continue
			}
			if _, there := g[k]; !there {
				return fmt.Errorf("%s.%s is missing", path, k)
			}
			if err := m.match(k, path+"."+k, v, g[k]); err != nil {
				return err
			}
		}
		for k := range g {
			if _, known := w[k]; !known && w["…"] == nil {
				return fmt.Errorf("%s.%s is not on the page", path, k)
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s is %v", path, got)
		}
		// Lists are in no order that the page speaks of.
		g = slices.Clone(g)
		for i, v := range w {
			var first error
			at := slices.IndexFunc(g, func(e any) bool {
				try := matcher{maps.Clone(m.names)}
				err := try.match(key, fmt.Sprintf("%s[%d]", path, i), v, e)
				if err == nil {
					maps.Copy(m.names, try.names)
				} else if first == nil {
					first = err
				}
				return err == nil
			})
			if at < 0 {
				return first
			}
			g = slices.Delete(g, at, at+1)
		}
		return nil
	case string:
		g, ok := got.(string)
		switch {
		case !ok:
			return fmt.Errorf("%s is %v", path, got)
		case timePattern.MatchString(w):
			if !timePattern.MatchString(g) {
				return fmt.Errorf("%s is %q, which is no time", path, g)
			}
			return nil
		case m.names[w] != "":
			if g != m.names[w] {
				return fmt.Errorf("%s is %q, another than before", path, g)
			}
			return nil
		case slices.Contains(named, key) && namePattern.MatchString(w) && namePattern.MatchString(g):
			m.names[w] = g
			return nil
		}
	}
	if want != got {
		return fmt.Errorf("%s is %v", path, got)
	}
	return nil
}

// The page shows the close that a newer socket brings, and a resumption.
func TestASessionIsResumedAndTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := serveReal(t)
		older := r.dial(t)
		var hello struct {
			Session string `json:"session"`
			Resumed bool   `json:"resumed"`
		}
		say := func(p *peer, session string) {
			t.Helper()
			answer := p.call("hello", `{"agent":"a","session":"`+session+`"}`)
			if answer.Error != nil {
				t.Fatal(answer.Error)
			}
			if err := json.Unmarshal(answer.Result, &hello); err != nil {
				t.Fatal(err)
			}
		}
		say(older, "unknown")
		first := hello.Session
		if hello.Resumed {
			t.Error("an unknown session was resumed")
		}
		newer := r.dial(t)
		say(newer, first)
		if !hello.Resumed || hello.Session != first {
			t.Errorf("got %+v", hello)
		}
		if code := older.closed(); code != 4001 {
			t.Errorf("the older socket closed with %d, want 4001", code)
		}
		newer.conn.Close(websocket.StatusNormalClosure, "")
		again := r.dial(t)
		say(again, first)
		if !hello.Resumed {
			t.Error("within its grace it was not resumed")
		}
	})
}
