package agentapi

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"nhooyr.io/websocket"

	"sandkeeper/internal/control"
)

func TestWhoIsLetIn(t *testing.T) {
	s := serve(t, func(o *Options) { o.AllowedOrigins = []string{"ok.example", "https://also.example:8443/"} })
	host := strings.TrimSuffix(strings.TrimPrefix(s.url, "ws://"), Path)
	owners := make(chan string, 1)
	s.plane.hello = func(owner string, _ control.Hello, _ control.Sink) (bool, error) {
		owners <- owner
		return false, nil
	}
	for name, tt := range map[string]struct {
		header http.Header
		status int
		owner  string
	}{
		"no token":                      {http.Header{}, 401, ""},
		"no bearer":                     {http.Header{"Authorization": {"Basic agent"}}, 401, ""},
		"an empty token":                {http.Header{"Authorization": {"Bearer "}}, 401, ""},
		"a wrong token":                 {http.Header{"Authorization": {"Bearer guess"}}, 401, ""},
		"a viewer":                      {http.Header{"Authorization": {"Bearer viewer"}}, 403, ""},
		"an agent":                      {http.Header{"Authorization": {"Bearer agent"}}, 101, "hermes"},
		"the scheme in any case":        {http.Header{"Authorization": {"bearer agent"}}, 101, "hermes"},
		"an agent names another owner":  {http.Header{"Authorization": {"Bearer agent"}, "Sandkeeper-Owner": {"zeus"}}, 101, "hermes"},
		"an operator":                   {http.Header{"Authorization": {"Bearer operator"}}, 101, "default"},
		"an operator for an owner":      {http.Header{"Authorization": {"Bearer operator"}, "Sandkeeper-Owner": {"zeüs 🌩"}}, 101, "zeüs 🌩"},
		"an operator for no name":       {http.Header{"Authorization": {"Bearer operator"}, "Sandkeeper-Owner": {strings.Repeat("x", 129)}}, 400, ""},
		"the server's own origin":       {http.Header{"Authorization": {"Bearer agent"}, "Origin": {"http://" + host}}, 101, "hermes"},
		"an allowed host":               {http.Header{"Authorization": {"Bearer agent"}, "Origin": {"https://OK.example"}}, 101, "hermes"},
		"an allowed origin":             {http.Header{"Authorization": {"Bearer agent"}, "Origin": {"https://also.example:8443"}}, 101, "hermes"},
		"an allowed host, another port": {http.Header{"Authorization": {"Bearer agent"}, "Origin": {"https://ok.example:1"}}, 403, ""},
		"a foreign origin":              {http.Header{"Authorization": {"Bearer agent"}, "Origin": {"http://evil.example"}}, 403, ""},
		"the null origin":               {http.Header{"Authorization": {"Bearer agent"}, "Origin": {"null"}}, 403, ""},
		"one good and one bad origin":   {http.Header{"Authorization": {"Bearer agent"}, "Origin": {"http://" + host, "http://evil.example"}}, 403, ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn, resp, err := websocket.Dial(t.Context(), s.url, &websocket.DialOptions{HTTPHeader: tt.header}) //nolint:bodyclose // the websocket package does
			if resp == nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d, want %d", resp.StatusCode, tt.status)
			}
			if tt.status != 101 {
				return
			}
			defer conn.CloseNow() //nolint:errcheck // it may be closed already
			p := &peer{t: t, conn: conn}
			p.call("hello", `{"agent":"a"}`)
			if got := <-owners; got != tt.owner {
				t.Errorf("acts for %q, want %q", got, tt.owner)
			}
		})
	}
}

func TestTheSubprotocolIsNegotiated(t *testing.T) {
	s := serve(t)
	if got := s.dial(t).conn.Subprotocol(); got != "sandkeeper.v1" {
		t.Errorf("subprotocol %q", got)
	}
}

func TestARequestThatIsNoUpgradeIsToldSo(t *testing.T) {
	s := serve(t)
	req, _ := http.NewRequest(http.MethodGet, "http"+strings.TrimPrefix(s.url, "ws"), nil)
	req.Header.Set("Authorization", "Bearer agent")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("status %d, want 426", resp.StatusCode)
	}
}

func TestShutdownClosesSocketsAsGoingAway(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(t.Context()) }()
	if r := p.receive(); r.Method != "server.draining" {
		t.Errorf("got %q, want server.draining first", r.Method)
	}
	if code := p.closed(); code != websocket.StatusGoingAway {
		t.Errorf("closed with %d, want 1001", code)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_, resp, err := websocket.Dial(t.Context(), s.url, &websocket.DialOptions{ //nolint:bodyclose // the websocket package does
		HTTPHeader: http.Header{"Authorization": {"Bearer agent"}},
	})
	if err == nil || resp == nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("after it: %v, want 503", err)
	}
}

func TestFeaturesAreWhatIsServed(t *testing.T) {
	f := features()
	if !slices.IsSorted(f) || !slices.Contains(f, "hello") || !slices.Contains(f, "exec.start") {
		t.Errorf("features %q", f)
	}
	for name := range methods {
		if !slices.Contains(f, name) {
			t.Errorf("%s is not listed", name)
		}
	}
	listed := 1 + len(methods) // hello
	if len(f) != listed {
		t.Errorf("%d features for %d methods", len(f), listed)
	}
}
