package test_test

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// One sandbox of each engine, on which files go in and out.
func TestFilesOverHTTP(t *testing.T) { test.Each(t, filesOverHTTP) }

func filesOverHTTP(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "files", test.Params{"persistent": true, "lifetime_seconds": 3600}).Env.ID
	t.Run("a file and its ranges", func(t *testing.T) { fileAndRanges(t, s, w, env) })
	t.Run("a dormant one is resumed", func(t *testing.T) { dormantIsResumed(t, s, w, env) })
}

func fileAndRanges(t *testing.T, s *test.Server, w *test.Wire, env string) {
	put := func(path, body string, query url.Values) {
		t.Helper()
		status, answer, _ := s.FileText(t, test.FileCall{Method: "PUT", Env: env, Path: path, Query: query, Body: strings.NewReader(body)})
		if status != 200 || !strings.Contains(answer, `"size":`) {
			t.Fatalf("PUT %s: %d %s", path, status, answer)
		}
	}
	put("deep/in/it.txt", "0123456789", nil)
	put("run.sh", "echo ran", url.Values{"mode": {"0755"}})
	if got := w.Run(t, env, "./run.sh; stat -c '%a %s' run.sh deep/in/it.txt; touch -d '2020-01-01 00:00:00' deep/in/it.txt").Stdout; got != "ran\n755 8\n644 10\n" {
		t.Errorf("%q", got)
	}
	status, body, h := s.FileText(t, test.FileCall{Method: "GET", Env: env, Path: "deep/in/it.txt"})
	if status != 200 || body != "0123456789" || h.Get("Content-Length") != "10" || h.Get("Sandkeeper-Mode") != "0644" ||
		h.Get("Last-Modified") != "Wed, 01 Jan 2020 00:00:00 GMT" || h.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("GET: %d %q %v", status, body, h)
	}
	tag := h.Get("ETag")
	if !strings.HasPrefix(tag, `"`) {
		t.Errorf("the tag of an old file is %s", tag)
	}
	ranged := func(header ...string) (int, string, http.Header) {
		t.Helper()
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return s.FileText(t, test.FileCall{Method: "GET", Env: env, Path: "deep/in/it.txt", Header: h})
	}
	for name, tc := range map[string]struct {
		header []string
		status int
		body   string
	}{
		"the middle":     {[]string{"Range", "bytes=2-4"}, 206, "234"},
		"the rest":       {[]string{"Range", "bytes=7-"}, 206, "789"},
		"the end":        {[]string{"Range", "bytes=-2"}, 206, "89"},
		"of this":        {[]string{"Range", "bytes=2-4", "If-Range", tag}, 206, "234"},
		"of another":     {[]string{"Range", "bytes=2-4", "If-Range", `"another"`}, 200, "0123456789"},
		"several at all": {[]string{"Range", "bytes=0-1,3-4"}, 200, "0123456789"},
		"behind the end": {[]string{"Range", "bytes=10-"}, 416, "*"},
		"known":          {[]string{"If-None-Match", tag}, 304, ""},
	} {
		status, body, h := ranged(tc.header...)
		if status != tc.status || tc.body != "*" && body != tc.body {
			t.Errorf("%s: %d %q", name, status, body)
		}
		if status == 206 && !strings.HasSuffix(h.Get("Content-Range"), "/10") || status == 416 && h.Get("Content-Range") != "bytes */10" {
			t.Errorf("%s: Content-Range %q", name, h.Get("Content-Range"))
		}
	}
	status, body, h = s.FileText(t, test.FileCall{Method: "HEAD", Env: env, Path: "deep/in/it.txt"})
	if status != 200 || body != "" || h.Get("Content-Length") != "10" || h.Get("Sandkeeper-Type") != "file" {
		t.Errorf("HEAD: %d %q %v", status, body, h)
	}
	put("deep/in/it.txt", "abcdefghij", nil)
	if status, body, _ := ranged("Range", "bytes=2-4", "If-Range", tag); status != 200 || body != "abcdefghij" {
		t.Errorf("a range of what it was: %d %q", status, body)
	}
	for path, want := range map[string]string{"none": "404 ENOENT", "deep/in/it.txt/x": "400 ENOTDIR", "": "400 ", "/dev/null": "400 EINVAL"} {
		status, body, _ := s.FileText(t, test.FileCall{Method: "GET", Env: env, Path: path})
		if wantStatus, errno, _ := strings.Cut(want, " "); wantStatus != strconv.Itoa(status) || !strings.Contains(body, errno) {
			t.Errorf("%q: %d %s", path, status, body)
		}
	}
	if v := s.Env(t, env); v.LastActivity.Kind != "file" {
		t.Errorf("the last activity is %+v", v.LastActivity)
	}
}

func dormantIsResumed(t *testing.T, s *test.Server, w *test.Wire, env string) {
	for i, call := range []test.FileCall{
		{Method: "GET", Path: "run.sh"}, {Method: "PUT", Path: "run.sh", Body: strings.NewReader("x")},
	} {
		w.EndTurn(t, "files")
		s.Act(t, env, "stop", nil)
		s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, env))
		call.Env = env
		if status, body, _ := s.FileText(t, call); status != 200 {
			t.Fatalf("%s: %d %s", call.Method, status, body)
		}
		if v := s.Env(t, env); v.State != control.Ready || v.Generation != int64(i+2) {
			t.Errorf("it is %s, generation %d", v.State, v.Generation)
		}
	}
}
