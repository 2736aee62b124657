package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// Whatever an address and a reader's place are, they are read within their
// bounds, or refused in words that are safe to show.
func FuzzQuery(f *testing.F) {
	f.Add("state=ready&task=t&owner=o&q=x&limit=5&after=a", "")
	f.Add("limit=99999999999999999999&limit=1", "18446744073709551615")
	f.Add("within=-1&after=%00&kind=a.b", " 7 ")
	f.Add("q=%zz;&before=\u202e", "-1")
	f.Fuzz(func(t *testing.T, raw, last string) {
		u := &url.URL{RawQuery: raw}
		for _, read := range []func() error{
			func() error {
				p := query(u, "state", "task", "owner", "q", "limit", "after")
				p.state()
				if n := p.limit(); p.err == nil && (n < 1 || n > maxLimit) {
					t.Fatalf("%q: a limit of %d", raw, n)
				}
				return p.err
			},
			func() error {
				p := query(u, "within")
				if d := p.within(); p.err == nil && (d < 0 || d > maxWithin) {
					t.Fatalf("%q: within %v", raw, d)
				}
				return p.err
			},
			func() error {
				p := query(u, "after", "env", "kind")
				eventFilter(p)
				lastEventID(&http.Request{URL: u, Header: http.Header{"Last-Event-Id": {last}}}, p)
				return p.err
			},
			func() error {
				fl, p := readFilter(u)
				if p.err == nil {
					if _, again := readFilter(&url.URL{RawQuery: strings.TrimPrefix(fl.address("", ""), "?")}); again.err != nil {
						t.Fatalf("%q: its own address %q is refused: %v", raw, fl.address("", ""), again.err)
					}
				}
				return p.err
			},
		} {
			if err := read(); err != nil {
				safe(t, describe(err).message)
			}
		}
	})
}

// Whatever a body is, it is read as the contract has it, or refused in words
// that are safe to show.
func FuzzBody(f *testing.F) {
	f.Add(`{"reason":"look","until":"2999-01-01T00:00:00Z"}`)
	f.Add(`{"reason":null}`)
	f.Add(`{"purge":"yes"}`)
	f.Add("{}{}")
	f.Add("{\"\u0000\":1}")
	f.Fuzz(func(t *testing.T, body string) {
		var kill struct {
			Purge bool `json:"purge"`
		}
		if err := decode(strings.NewReader(body), &kill); err != nil {
			safe(t, describe(err).message)
		} else if kill.Purge && !strings.Contains(strings.ToLower(body), "true") {
			t.Fatalf("%q purges", body)
		}
		var pin struct {
			Reason string  `json:"reason"`
			Until  *string `json:"until"`
		}
		if err := decode(strings.NewReader(body), &pin); err != nil {
			safe(t, describe(err).message)
		}
	})
}

func safe(t *testing.T, message string) {
	t.Helper()
	if !utf8.ValidString(message) || strings.ContainsFunc(message, unicode.IsControl) || len(message) > 2000 || message == "" {
		t.Fatalf("the message %q", message)
	}
}
