package dashboard

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// filesAt serves a house with one environment of the owner "default" and a few files.
func filesAt(t *testing.T, change func(*Options)) (*house, string) {
	t.Helper()
	h := newHouse(t, change)
	h.plane.put(readyEnv("e1", "t"))
	h.plane.files.files = map[string][]byte{"f": []byte("0123456789"), "dir": bytes.Repeat([]byte("tar"), 1000), "empty": nil, "page.html": []byte("<script>")}
	srv := httptest.NewServer(h.handler())
	t.Cleanup(srv.Close)
	return h, srv.URL + "/api/v1/envs/e1/files"
}

// ask makes a request by a token; header has names and values.
func ask(t *testing.T, method, target, token string, body io.Reader, header ...string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return http.DefaultClient.Do(r)
}

func TestFilesByRole(t *testing.T) {
	h, at := filesAt(t, nil)
	h.tokens.by["tok-other"] = control.Principal{Name: "eve", Role: control.RoleAgent, Owner: "other"}
	for _, tc := range []struct {
		token, owner string
		status       int
		moved        string
	}{
		{"tok-agent", "", 200, `by agent:hermes for "default"`},
		{"tok-other", "", 404, `by agent:eve for "other"`},
		{"tok-other", "default", 404, `by agent:eve for "other"`}, // an agent speaks for nobody else
		{"op", "", 200, `by operator:ann for ""`},
		{"op", "default", 200, `by operator:ann for "default"`},
		{"op", "other", 404, `by operator:ann for "other"`},
		{"look", "", 403, ""},
		{"wrong", "", 401, ""},
		{"", "", 401, ""},
	} {
		for _, method := range []string{"GET", "HEAD", "PUT"} {
			h.plane.files.moves = nil
			var header []string
			if tc.owner != "" {
				header = []string{"Sandkeeper-Owner", tc.owner}
			}
			res, err := ask(t, method, at+"?path=f", tc.token, strings.NewReader("0123456789"), header...)
			if err != nil {
				t.Fatal(err)
			}
			body := read(t, res.Body)
			if res.StatusCode != tc.status {
				t.Errorf("%s by %q for %q: %d %s", method, tc.token, tc.owner, res.StatusCode, body)
			}
			if moves := strings.Join(h.plane.files.moves, ";"); (tc.moved == "") != (moves == "") || !strings.HasSuffix(moves, tc.moved) {
				t.Errorf("%s by %q for %q: %s", method, tc.token, tc.owner, moves)
			}
		}
	}
}

// A browser's session may look and download; it uploads with the page's proof alone.
func TestAnUploadByCookieNeedsTheFormsToken(t *testing.T) {
	h, _ := filesAt(t, nil)
	b := signedIn(t, h, "op")
	if res := b.do("GET", "/api/v1/envs/e1/files?path=f", nil); res.StatusCode != 200 || read(t, res.Body) != "0123456789" {
		t.Errorf("GET: %d", res.StatusCode)
	}
	put := func() int { return b.do("PUT", "/api/v1/envs/e1/files?path=f", url.Values{"csrf": {"x"}}).StatusCode }
	if status := put(); status != http.StatusForbidden {
		t.Errorf("without a proof: %d", status)
	}
	b.headers["Sec-Fetch-Site"] = "cross-site"
	if status := put(); status != http.StatusForbidden {
		t.Errorf("from another site: %d", status)
	}
	b.headers["Sec-Fetch-Site"] = "same-origin"
	if status := put(); status != http.StatusOK {
		t.Errorf("from the page: %d", status)
	}
	if got := string(h.plane.files.files["f"]); got != "csrf=x" { // whatever the body looks like
		t.Errorf("written was %q", got)
	}
	if status := signedIn(t, h, "look").do("GET", "/api/v1/envs/e1/files?path=f", nil).StatusCode; status != http.StatusForbidden {
		t.Errorf("a viewer's session: %d", status)
	}
}

// What is in a sandbox does not become a page of ours.
func TestAFileIsNoPage(t *testing.T) {
	_, at := filesAt(t, nil)
	res, err := ask(t, "GET", at+"?path=page.html", "op", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "sandbox; default-src 'none'", "Content-Disposition": "attachment; filename*=UTF-8''a%20name.txt",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if res.Body.Close(); res.StatusCode != 200 {
		t.Error(res.Status)
	}
}

func TestAFolderIsATar(t *testing.T) {
	h, at := filesAt(t, nil)
	for target, kind := range map[string]string{"?path=dir": "dir", "?path=f&format=tar": "file"} {
		res, err := ask(t, "GET", at+target, "op", nil, "Range", "bytes=1-2")
		if err != nil {
			t.Fatal(err)
		}
		body := read(t, res.Body)
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/x-tar" || res.Header.Get("Sandkeeper-Type") != kind || len(body) < 10 {
			t.Errorf("%s: %d %v, %d bytes", target, res.StatusCode, res.Header, len(body))
		}
	}
	res, err := ask(t, "PUT", at+"?path=d", "op", strings.NewReader("tar"), "Content-Type", "application/x-tar; charset=binary")
	if err != nil {
		t.Fatal(err)
	}
	if body := read(t, res.Body); res.StatusCode != 200 || body != `{"path":"d","entries":3}`+"\n" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if moves := h.plane.files.moves; !strings.HasPrefix(moves[len(moves)-1], "untar d") {
		t.Errorf("%q", moves)
	}
}

func TestFileCallsThatMakeNoSense(t *testing.T) {
	h, at := filesAt(t, nil)
	for name, tc := range map[string]struct {
		method, query string
		header        []string
		status        int
	}{
		"an unknown parameter":   {"GET", "?path=f&offset=1", nil, 400},
		"another format":         {"GET", "?path=f&format=zip", nil, 400},
		"a mode that is none":    {"PUT", "?path=f&mode=rwx", nil, 400},
		"a mode that is decimal": {"PUT", "?path=f&mode=0888", nil, 400},
		"a part":                 {"PUT", "?path=f", []string{"Content-Range", "bytes 0-1/2"}, 400},
		"a compressed body":      {"PUT", "?path=f", []string{"Content-Encoding", "gzip"}, 415},
		"another method":         {"POST", "?path=f", nil, 405},
		"nothing there":          {"GET", "?path=none", nil, 404},
	} {
		res, err := ask(t, tc.method, at+tc.query, "op", strings.NewReader("x"), tc.header...)
		if err != nil {
			t.Fatal(err)
		}
		if body := read(t, res.Body); res.StatusCode != tc.status || !strings.Contains(body, `"message"`) || res.Header.Get("Content-Disposition") != "" {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	if got := string(h.plane.files.files["f"]); got != "0123456789" {
		t.Errorf("it was written: %q", got)
	}
}

// Whatever fails once bytes are on their way ends the connection, not the answer.
func TestADownloadThatFailsIsBrokenOff(t *testing.T) {
	h, at := filesAt(t, nil)
	h.plane.files.fail = errors.New("broken")
	h.plane.files.files["f"] = bytes.Repeat([]byte("x"), 10_000)
	for _, target := range []string{"?path=f", "?path=dir", "?path=f&format=tar"} {
		res, err := ask(t, "GET", at+target, "op", nil)
		if err != nil {
			continue // broken off before its head came
		}
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: %d, %d bytes, and the end", target, res.StatusCode, len(b))
		}
		res.Body.Close()
	}
	h.awaitClosed(t)
}

// awaitClosed waits until no file is open.
func (h *house) awaitClosed(t *testing.T) {
	t.Helper()
	for ceiling := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		h.plane.files.mu.Lock()
		open := h.plane.files.open
		h.plane.files.mu.Unlock()
		if open == 0 {
			return
		}
		if time.Now().After(ceiling) {
			t.Fatalf("%d files stay open", open)
		}
	}
}

func TestAFullDiskIs507WithItsErrno(t *testing.T) {
	h, at := filesAt(t, nil)
	h.plane.files.fail = &control.Error{Kind: control.KindQuota, Message: "f: no space left on device", Errno: "ENOSPC"}
	res, err := ask(t, "PUT", at+"?path=f", "op", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	if body := read(t, res.Body); res.StatusCode != 507 || body != `{"error":{"kind":"quota_exceeded","message":"f: no space left on device","errno":"ENOSPC"}}`+"\n" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	h.awaitClosed(t)
}

// An upload that breaks off, or whose sender says nothing, writes nothing.
func TestAnUploadThatBreaksOffWritesNothing(t *testing.T) {
	h, at := filesAt(t, func(o *Options) { o.FileTimeout = 50 * time.Millisecond })
	for name, body := range map[string]io.Reader{
		"breaks off": io.MultiReader(strings.NewReader("new"), brokenReader{}),
		"says nothing": func() io.Reader { // for as long as the test runs
			r, w := io.Pipe()
			t.Cleanup(func() { w.Close() })
			return io.MultiReader(strings.NewReader("new"), r)
		}(),
	} {
		res, err := ask(t, "PUT", at+"?path=f", "op", body)
		if err == nil {
			if res.StatusCode == 200 {
				t.Errorf("%s: %s", name, read(t, res.Body))
			}
			res.Body.Close()
		}
	}
	h.awaitClosed(t)
	if got := string(h.plane.files.files["f"]); got != "0123456789" {
		t.Errorf("it was written: %q", got)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("broken") }
