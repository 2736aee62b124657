package dashboard

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
)

// browser keeps cookies and follows nothing.
type browser struct {
	t       testing.TB
	e       *echo.Echo
	cookies map[string]*http.Cookie
	headers map[string]string
}

func newBrowser(t testing.TB, e *echo.Echo) *browser {
	return &browser{t: t, e: e, cookies: map[string]*http.Cookie{}, headers: map[string]string{}}
}

func (b *browser) do(method, target string, form url.Values) *http.Response {
	b.t.Helper()
	r := httptest.NewRequest(method, target, strings.NewReader(form.Encode()))
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	for k, v := range b.headers {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	b.e.ServeHTTP(w, r)
	res := w.Result()
	for _, c := range res.Cookies() {
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		} else {
			b.cookies[c.Name] = c
		}
	}
	return res
}

// csrf reads the form token out of a page.
func csrf(t testing.TB, page string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `name="csrf" value="`)
	if !ok {
		t.Fatal("the page has no form token")
	}
	token, _, _ := strings.Cut(rest, `"`)
	return token
}

func signedIn(t testing.TB, h *house, token string) *browser {
	t.Helper()
	b := newBrowser(t, h.handler())
	if res := b.do("POST", "/sign-in", url.Values{"token": {token}}); res.StatusCode != http.StatusSeeOther {
		t.Fatalf("sign-in: %d %s", res.StatusCode, read(t, res.Body))
	}
	return b
}

func TestSignInByTokenByRole(t *testing.T) {
	tests := []struct {
		name, token string
		status      int
		has         string
		event       control.EventKind
		actor       string
	}{
		{"operator", "op", 303, "", control.OperatorLogin, "operator:ann"},
		{"viewer", " look\n", 303, "", control.OperatorLogin, "operator:vic"},
		{"agent", "tok-agent", 403, "agent&#39;s token", control.OperatorRefused, "server"},
		{"nobody", "nope", 401, "not known", control.OperatorRefused, "server"},
		{"nothing", "", 401, "not known", control.OperatorRefused, "server"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t, nil)
			b := newBrowser(t, h.handler())
			res := b.do("POST", "/sign-in", url.Values{"token": {tt.token}})
			body := read(t, res.Body)
			if res.StatusCode != tt.status || !strings.Contains(body, tt.has) {
				t.Fatalf("%d, want %d with %q: %s", res.StatusCode, tt.status, tt.has, body)
			}
			events, _, _, _ := h.plane.Events(0, 10, control.EventFilter{})
			if len(events) != 1 || events[0].Kind != tt.event || events[0].Actor != tt.actor {
				t.Errorf("events: %+v", events)
			}
			if tok := strings.TrimSpace(tt.token); tok != "" && strings.Contains(events[0].Reason, tok) {
				t.Errorf("the event shows the token: %+v", events[0])
			}
			if signed := len(b.cookies) == 1; signed != (tt.status == 303) {
				t.Errorf("cookies: %v", b.cookies)
			}
			for _, c := range b.cookies {
				if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Value == strings.TrimSpace(tt.token) {
					t.Errorf("cookie: %+v", c)
				}
			}
		})
	}
}

func TestSessionCookieIsSecureWhereTheConnectionIs(t *testing.T) {
	h := newHouse(t, nil)
	r := httptest.NewRequest("POST", "https://keeper.example/sign-in", strings.NewReader("token=op"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.handler().ServeHTTP(w, r)
	if c := w.Result().Cookies(); len(c) != 1 || !c[0].Secure {
		t.Errorf("cookies over TLS: %+v", c)
	}
}

func TestSignInCodeWorksOnceAndLeavesTheAddress(t *testing.T) {
	h := newHouse(t, nil)
	e := h.handler()
	code := h.NewCode()

	if res := newBrowser(t, e).do("HEAD", "/sign-in?code="+code, nil); res.StatusCode != 401 {
		t.Errorf("a HEAD used the code up or got in: %d", res.StatusCode)
	}
	b := newBrowser(t, e)
	res := b.do("GET", "/sign-in?code="+code, nil)
	if res.StatusCode != 303 || res.Header.Get("Location") != "/" || len(b.cookies) != 1 {
		t.Fatalf("first use: %d to %q, cookies %v", res.StatusCode, res.Header.Get("Location"), b.cookies)
	}
	if res := b.do("GET", "/", nil); res.StatusCode != 200 {
		t.Errorf("the page after it: %d", res.StatusCode)
	}
	other := newBrowser(t, e)
	if res := other.do("GET", "/sign-in?code="+code, nil); res.StatusCode != 401 || len(other.cookies) != 0 {
		t.Errorf("second use: %d, cookies %v", res.StatusCode, other.cookies)
	}
}

func TestSignInCodeEndsAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCodes(15 * time.Minute)
		early, late := c.make(time.Now()), c.make(time.Now())
		time.Sleep(15*time.Minute - time.Nanosecond)
		if !c.take(early, time.Now()) {
			t.Error("a code in time was refused")
		}
		time.Sleep(time.Nanosecond)
		if c.take(late, time.Now()) {
			t.Error("a code past its time was taken")
		}
		if len(c.open) != 0 {
			t.Errorf("%d codes are still kept", len(c.open))
		}
	})
}

func TestAttemptsToSignInAreBounded(t *testing.T) {
	h := newHouse(t, nil)
	b := newBrowser(t, h.handler())
	for range attemptsBurst {
		if res := b.do("GET", "/sign-in?code=guess", nil); res.StatusCode != 401 {
			t.Fatalf("attempt: %d", res.StatusCode)
		}
	}
	if res := b.do("GET", "/sign-in?code=guess", nil); res.StatusCode != 429 {
		t.Errorf("one too many: %d, want 429", res.StatusCode)
	}
	if res := b.do("GET", "/sign-in", nil); res.StatusCode != 200 {
		t.Errorf("the form itself: %d", res.StatusCode)
	}
}

func TestPagesByWhoAsks(t *testing.T) {
	h := newHouse(t, nil)
	h.plane.put(readyEnv("e1", "t-1"))
	e := h.handler()
	tests := []struct {
		name, target, token string
		status              int
		has                 string
		hasNot              string
	}{
		{"nobody is led to sign in", "/", "", 303, "", ""},
		{"an operator's bearer token serves the page", "/", "op", 200, `formaction="/envs/e1/pin"`, `name="csrf"`},
		{"a viewer sees no buttons", "/", "look", 200, `id="env-e1"`, "formaction"},
		{"a viewer's page of one environment has none either", "/envs/e1", "look", 200, `id="env"`, "formaction"},
		{"a viewer gets no kill page", "/envs/e1/kill", "look", 403, "operator", ""},
		{"an agent is told where it belongs", "/", "tok-agent", 403, "/api/v1/agent", ""},
		{"a wrong token is no way in", "/", "nope", 401, "not known", ""},
		{"no such environment", "/envs/nope", "op", 404, "no environment", ""},
		{"a stream without a token", "/stream", "", 303, "", ""},
		{"an unknown filter is named", "/?stat=ready", "op", 400, "stat", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := call(t, e, "GET", tt.target, tt.token, "")
			body := read(t, res.Body)
			if res.StatusCode != tt.status || !strings.Contains(body, tt.has) {
				t.Errorf("%d, want %d with %q: %.800s", res.StatusCode, tt.status, tt.has, body)
			}
			if tt.hasNot != "" && strings.Contains(body, tt.hasNot) {
				t.Errorf("it has %q: %.800s", tt.hasNot, body)
			}
			if csp := res.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'self'") || strings.Contains(csp, "unsafe") {
				t.Errorf("content policy %q", csp)
			}
		})
	}
}

func TestAStreamWithoutASessionIsRefusedNotRedirected(t *testing.T) {
	b := newBrowser(t, newHouse(t, nil).handler())
	b.headers["Accept"] = "text/html, text/event-stream"
	if res := b.do("GET", "/stream", nil); res.StatusCode != 401 {
		t.Errorf("status %d, want 401", res.StatusCode)
	}
}

func TestSessionRequestsThatOthersForgedAreRefused(t *testing.T) {
	tests := []struct {
		name    string
		headers map[string]string
		token   bool // the form's token comes along
		status  int
	}{
		{"our form, a modern browser", map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": "http://example.com"}, true, 303},
		{"our script, a modern browser", map[string]string{"Sec-Fetch-Site": "same-origin"}, false, 303},
		{"our form, an old browser", map[string]string{"Origin": "http://example.com"}, true, 303},
		{"our form, a browser that says nothing", nil, true, 303},
		{"an allowed origin's form with the token", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://ops.example"}, true, 303},
		{"an allowed origin without the token", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://ops.example"}, false, 403},
		{"no word and no token", nil, false, 403},
		{"our origin without the token", map[string]string{"Origin": "http://example.com"}, false, 403},
		{"another site", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, true, 403},
		{"a sibling site", map[string]string{"Sec-Fetch-Site": "same-site", "Origin": "https://evil.example.com"}, true, 403},
		{"another site, an old browser", map[string]string{"Origin": "https://evil.example"}, true, 403},
		{"no origin to tell", map[string]string{"Origin": "null"}, true, 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t, func(o *Options) { o.AllowedOrigins = []string{"https://ops.example"} })
			h.plane.put(readyEnv("e1", "t-1"))
			b := signedIn(t, h, "op")
			form := url.Values{}
			token := csrf(t, read(t, b.do("GET", "/", nil).Body))
			if tt.token {
				form.Set("csrf", token)
			}
			b.headers = tt.headers
			if b.headers == nil {
				b.headers = map[string]string{}
			}
			res := b.do("POST", "/envs/e1/pin", form)
			if res.StatusCode != tt.status {
				t.Fatalf("form: %d, want %d: %s", res.StatusCode, tt.status, read(t, res.Body))
			}
			if pinned := len(h.plane.calls) == 1; pinned != (tt.status == 303) {
				t.Errorf("calls: %v", h.plane.calls)
			}
			// The API with a session is held to the same.
			if tt.token {
				b.headers["X-CSRF-Token"] = token
			}
			want := 200
			if tt.status == 403 {
				want = 403
			}
			if res := b.do("POST", "/api/v1/envs/e1/touch", nil); res.StatusCode != want {
				t.Errorf("API: %d, want %d: %s", res.StatusCode, want, read(t, res.Body))
			}
		})
	}
}

func TestAnothersFormTokenIsNoToken(t *testing.T) {
	h := newHouse(t, nil)
	h.plane.put(readyEnv("e1", "t-1"))
	mine, theirs := signedIn(t, h, "op"), signedIn(t, h, "op")
	token := csrf(t, read(t, theirs.do("GET", "/", nil).Body))
	if res := mine.do("POST", "/envs/e1/pin", url.Values{"csrf": {token}}); res.StatusCode != 403 {
		t.Errorf("status %d, want 403", res.StatusCode)
	}
}

func TestSignOutEndsTheSessionEverywhere(t *testing.T) {
	h := newHouse(t, nil)
	b := signedIn(t, h, "op")
	token := csrf(t, read(t, b.do("GET", "/", nil).Body))
	var stolen *http.Cookie
	for _, c := range b.cookies {
		stolen = c
	}
	if res := b.do("POST", "/sign-out", url.Values{}); res.StatusCode != 403 {
		t.Errorf("a forged sign-out: %d", res.StatusCode)
	}
	if res := b.do("POST", "/sign-out", url.Values{"csrf": {token}}); res.StatusCode != 303 || len(b.cookies) != 0 {
		t.Fatalf("sign-out: %d, cookies %v", res.StatusCode, b.cookies)
	}
	b.cookies["old"] = stolen
	if res := b.do("GET", "/", nil); res.StatusCode != 303 {
		t.Errorf("the old session still shows the page: %d", res.StatusCode)
	}
}

func TestSignInLeadsBackOnlyToOurOwnPages(t *testing.T) {
	tests := map[string]string{
		"/envs/e1": "/envs/e1", "/?state=ready": "/?state=ready", "": "/", "//evil.example/": "/", "https://evil.example/": "/",
		"/\\evil.example": "/", "javascript:alert(1)": "/", "/api/v1/envs": "/", "/sign-in?code=x": "/", "/envs/../../x\r\nSet-Cookie: a=b": "/",
	}
	for in, want := range tests {
		if got := nextAddress(in); got != want {
			t.Errorf("nextAddress(%q) = %q, want %q", in, got, want)
		}
	}
}
