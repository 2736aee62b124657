package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
)

// serveEcho serves the router with a few handlers. logged ends it and returns its log.
func serveEcho(t *testing.T) (url string, logged func() string) {
	t.Helper()
	var log bytes.Buffer
	e := newEcho(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	e.GET("/panic", func(echo.Context) error { panic("the secret of the handler") })
	e.GET("/ip", func(c echo.Context) error { return c.String(http.StatusOK, c.RealIP()) })
	e.POST("/echo", func(c echo.Context) error { return c.Stream(http.StatusOK, "text/plain", c.Request().Body) })
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	return srv.URL, func() string {
		srv.Close() // it waits for the handlers, which log last
		return log.String()
	}
}

func do(t *testing.T, method, url, body string, header ...string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestPanicIsAnsweredWithoutItsCause(t *testing.T) {
	url, logged := serveEcho(t)
	status, body := do(t, http.MethodGet, url+"/panic", "")
	if status != http.StatusInternalServerError || strings.Contains(body, "secret") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := do(t, http.MethodGet, url+"/ip", ""); status != http.StatusOK {
		t.Errorf("after it: %d", status)
	}
	if s := logged(); !strings.Contains(s, "the secret of the handler") {
		t.Errorf("the log lacks the cause: %s", s)
	}
}

func TestLogHasNoQueryAndNoToken(t *testing.T) {
	url, logged := serveEcho(t)
	do(t, http.MethodGet, url+"/ip?code=ONCE-ONLY", "", "Authorization", "Bearer TOP-SECRET", "Cookie", "session=TOP-SECRET")
	if s := logged(); !strings.Contains(s, "path=/ip") || strings.Contains(s, "ONCE-ONLY") || strings.Contains(s, "TOP-SECRET") {
		t.Errorf("logged %s", s)
	}
}

func TestAddressFromAHeaderIsNotBelieved(t *testing.T) {
	url, _ := serveEcho(t)
	if _, ip := do(t, http.MethodGet, url+"/ip", "", "X-Forwarded-For", "6.6.6.6", "X-Real-IP", "6.6.6.6"); ip != "127.0.0.1" {
		t.Errorf("the address is %s", ip)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	url, _ := serveEcho(t)
	for _, tc := range []struct {
		size   int
		status int
	}{{0, 200}, {1, 200}, {maxBody, 200}, {maxBody + 1, 413}, {4 * maxBody, 413}} {
		status, body := do(t, http.MethodPost, url+"/echo", strings.Repeat("x", tc.size))
		if status != tc.status || status == 200 && len(body) != tc.size {
			t.Errorf("%d bytes: %d with %d bytes", tc.size, status, len(body))
		}
	}
}
