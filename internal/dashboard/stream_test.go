package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// sse reads a stream as a browser would.
type sse struct {
	t    testing.TB
	res  *http.Response
	scan *bufio.Scanner
	stop context.CancelFunc
}

func openSSE(t testing.TB, base, path, lastID string) *sse {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	r, err := http.NewRequestWithContext(ctx, "GET", base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer look")
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("stream: %d %s", res.StatusCode, read(t, res.Body))
	}
	s := &sse{t: t, res: res, scan: bufio.NewScanner(res.Body), stop: stop}
	s.scan.Buffer(nil, 16<<20)
	t.Cleanup(s.close)
	return s
}

func (s *sse) close() { s.stop(); s.res.Body.Close() }

// next reads one message; event "comment" for a comment, "end" at the end.
func (s *sse) next() message {
	s.t.Helper()
	var m message
	var data []string
	for s.scan.Scan() {
		line := s.scan.Text()
		switch field, value, _ := strings.Cut(line, ":"); {
		case line == "":
			m.data = []byte(strings.Join(data, "\n"))
			return m
		case field == "":
			m.event = "comment"
		case field == "id":
			m.id = strings.TrimPrefix(value, " ")
		case field == "event":
			m.event = strings.TrimPrefix(value, " ")
		case field == "data":
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return message{event: "end"}
}

// event reads the next event of the log, past comments.
func (s *sse) event() (m message, ev control.Event) {
	s.t.Helper()
	for {
		m = s.next()
		switch m.event {
		case "comment":
			continue
		case "":
			if err := json.Unmarshal(m.data, &ev); err != nil {
				s.t.Fatalf("%v in %q", err, m.data)
			}
		}
		return m, ev
	}
}

func serve(t testing.TB, h *house) string {
	t.Helper()
	srv := httptest.NewServer(h.handler())
	t.Cleanup(func() {
		if err := h.Shutdown(t.Context()); err != nil {
			ctx, stop := context.WithTimeout(context.Background(), time.Minute)
			defer stop()
			if err := h.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		}
		srv.Close()
		if n := h.plane.watching(); n != 0 {
			t.Errorf("%d watches are left open", n)
		}
	})
	return srv.URL
}

func (h *house) happened(n int) {
	for range n {
		h.plane.happen(control.Event{Kind: control.EnvTouched, Env: "e1", Actor: "operator:ann"})
	}
}

func TestEventStreamResumesWithoutGapOrRepeat(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.happened(3)

	s := openSSE(t, base, "/api/v1/events/stream", "1")
	var got []uint64
	for range 2 {
		m, ev := s.event()
		if m.id != fmt.Sprint(ev.Seq) {
			t.Errorf("id %q of event %d", m.id, ev.Seq)
		}
		got = append(got, ev.Seq)
	}
	h.happened(2)
	for range 2 {
		_, ev := s.event()
		got = append(got, ev.Seq)
	}
	s.close()

	h.happened(4)
	s = openSSE(t, base, "/api/v1/events/stream", fmt.Sprint(got[len(got)-1]))
	for range 4 {
		_, ev := s.event()
		got = append(got, ev.Seq)
	}
	for i, seq := range got {
		if seq != uint64(i)+2 {
			t.Fatalf("sequence %v", got)
		}
	}
}

func TestEventStreamOfANewReaderBeginsNow(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.happened(3)
	s := openSSE(t, base, "/api/v1/events/stream", "")
	if m := s.next(); m.event != "comment" {
		t.Fatalf("the stream does not open with a comment: %+v", m)
	}
	h.happened(1)
	if _, ev := s.event(); ev.Seq != 4 {
		t.Errorf("the first event is %d, want 4", ev.Seq)
	}
}

func TestEventStreamTellsOnceWhereItCannotFollow(t *testing.T) {
	tests := []struct {
		name, last string
		after      uint64 // where it goes on
	}{
		{"the log was pruned", "2", 5},
		{"another log", "99", 8},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t, nil)
			base := serve(t, h)
			h.happened(8)
			h.plane.prune(6)
			s := openSSE(t, base, "/api/v1/events/stream", tt.last)
			m, _ := s.event()
			if m.event != "reset" || m.id != fmt.Sprint(tt.after) {
				t.Fatalf("first message %+v, want a reset at %d", m, tt.after)
			}
			h.happened(1)
			for seq := tt.after + 1; seq <= 9; seq++ {
				if m, ev := s.event(); m.event != "" || ev.Seq != seq {
					t.Fatalf("%+v, want event %d", m, seq)
				}
			}
			s.close()
			// Resumed by the reset's own id, it is no reset again.
			s = openSSE(t, base, "/api/v1/events/stream", m.id)
			if m, ev := s.event(); m.event != "" || ev.Seq != tt.after+1 {
				t.Errorf("resumed after the reset: %+v", m)
			}
		})
	}
}

func TestEventStreamNarrowsByEnvAndKind(t *testing.T) {
	h := newHouse(t, nil)
	base := serve(t, h)
	h.plane.happen(control.Event{Kind: control.EnvReady, Env: "e1"}, control.Event{Kind: control.EnvReady, Env: "e2"}, control.Event{Kind: control.EnvDormant, Env: "e2"})
	s := openSSE(t, base, "/api/v1/events/stream?env=e2&kind=env.dormant", "0")
	if _, ev := s.event(); ev.Seq != 3 {
		t.Errorf("event %d, want 3", ev.Seq)
	}
}

func TestEventStreamRefusesWhatIsNoSequenceNumber(t *testing.T) {
	h := newHouse(t, nil)
	r := httptest.NewRequest("GET", "/api/v1/events/stream", nil)
	r.Header.Set("Authorization", "Bearer op")
	r.Header.Set("Last-Event-ID", "yesterday")
	w := httptest.NewRecorder()
	h.handler().ServeHTTP(w, r)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "yesterday") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestSilentStreamsShowSignsOfLife(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.Heartbeat = 5 * time.Millisecond })
	base := serve(t, h)
	s := openSSE(t, base, "/api/v1/events/stream", "")
	for range 3 {
		if m := s.next(); m.event != "comment" {
			t.Fatalf("%+v, want a comment", m)
		}
	}
	p := openSSE(t, base, "/stream", "")
	for beats := 0; beats < 3; {
		switch m := p.next(); m.event {
		case "sandkeeper:beat":
			var b beat
			if err := json.Unmarshal(m.data, &b); err != nil || b.Now == 0 || b.Edition != h.edition {
				t.Fatalf("beat %s", m.data)
			}
			beats++
		case "end":
			t.Fatal("the stream ended")
		}
	}
}

func TestShutdownEndsStreamsAndLetsNoneBegin(t *testing.T) {
	h := newHouse(t, nil)
	srv := httptest.NewServer(h.handler())
	defer srv.Close()
	streams := []*sse{openSSE(t, srv.URL, "/api/v1/events/stream", ""), openSSE(t, srv.URL, "/stream", "")}
	if err := h.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range streams {
		for m := s.next(); m.event != "end"; m = s.next() {
		}
	}
	if n := h.plane.watching(); n != 0 {
		t.Errorf("%d watches are left", n)
	}
	res := call(t, h.handler(), "GET", "/api/v1/events/stream", "op", "")
	if body := read(t, res.Body); res.StatusCode != 503 || !strings.Contains(body, "draining") {
		t.Errorf("a stream after it: %d %s", res.StatusCode, body)
	}
}

func TestAReaderThatTakesNothingIsDropped(t *testing.T) {
	h := newHouse(t, func(o *Options) { o.WriteTimeout = 50 * time.Millisecond })
	base := serve(t, h)
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer look\r\n\r\n")
	if _, err := io.ReadFull(conn, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	// Nothing is read from here on, until the sockets between are full.
	big := control.Event{Kind: control.EnvChanged, Reason: strings.Repeat("x", 1<<20)}
	for deadline := time.Now().Add(20 * time.Second); h.plane.watching() > 0; {
		if time.Now().After(deadline) {
			t.Fatal("the reader was not dropped")
		}
		h.plane.happen(big)
	}
}

func TestDataNeverBeginsAFieldOfItsOwn(t *testing.T) {
	tests := map[string]string{
		"a":                "data: a\n",
		"a\nb":             "data: a\ndata: b\n",
		"a\r\nb\rc\n\nd":   "data: a\ndata: b\ndata: c\ndata: \ndata: d\n",
		"x\rid: 5\revent:": "data: x\ndata: id: 5\ndata: event:\n",
		"":                 "",
	}
	for in, want := range tests {
		var b bytes.Buffer
		writeData(&b, []byte(in))
		if b.String() != want {
			t.Errorf("%q is written %q, want %q", in, b.String(), want)
		}
	}
}
