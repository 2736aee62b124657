package test_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"sandkeeper/client"
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
	t.Run("a large file", func(t *testing.T) { largeFile(t, s, env) })
	t.Run("a folder", func(t *testing.T) { folder(t, s, w, env) })
	t.Run("who may", func(t *testing.T) { whoMay(t, s, env) })
	t.Run("by the client", func(t *testing.T) { byTheClient(t, s, w, env) })
	t.Run("a cut upload", func(t *testing.T) { cutUpload(t, s, w, env) })
	t.Run("it is held", func(t *testing.T) { heldWhileItMoves(t, s, w, env) })
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

// largeFile sends 300 MB in and out, and looks at what the server takes for it.
func largeFile(t *testing.T, s *test.Server, env string) {
	const size = 300_000_000
	ctx := t.Context()
	in := sha256.New()
	pattern := rand.New(rand.NewPCG(1, 2))
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(pattern.Uint32())
	}
	before := resident(t, s.PID)
	body := io.TeeReader(io.LimitReader(&repeated{block: block}, size), in)
	res := s.Files(t, ctx, test.FileCall{Method: "PUT", Env: env, Path: "large", Body: body})
	answer, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || string(answer) != `{"path":"large","size":300000000}`+"\n" {
		t.Fatalf("PUT: %d %s, %v", res.StatusCode, answer, err)
	}
	out := sha256.New()
	res = s.Files(t, ctx, test.FileCall{Method: "GET", Env: env, Path: "large"})
	n, err := io.Copy(out, res.Body)
	res.Body.Close()
	if err != nil || n != size || !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
		t.Errorf("GET: %d bytes, %v", n, err)
	}
	if after := resident(t, s.PID); after > before+200<<10 { // far less than went through, with the race detector too
		t.Errorf("the server has %d KiB, and had %d", after, before)
	}
	if status, body, _ := s.FileText(t, test.FileCall{Method: "PUT", Env: env, Path: "large", Body: strings.NewReader("")}); status != 200 {
		t.Errorf("emptied: %d %s", status, body)
	}
}

// repeated is a block without end, each time with another first byte.
type repeated struct {
	block []byte
	at    int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.at == len(r.block) {
		r.at = 0
		r.block[0]++
	}
	n := copy(p, r.block[r.at:])
	r.at += n
	return n, nil
}

// resident is what a process has in memory, in KiB.
func resident(t *testing.T, pid int) (kb int) {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		t.Fatal(err)
	}
	return kb
}

func folder(t *testing.T, s *test.Server, w *test.Wire, env string) {
	w.Run(t, env, `mkdir -p p/src p/empty; cd p; echo main > src/main.c; echo '#!/bin/sh' > run; chmod 0750 run; ln run src/also; ln -s src/main.c link; ln -s /etc/passwd away; cd ..`)
	status, archive, h := s.FileText(t, test.FileCall{Method: "GET", Env: env, Path: "p"})
	if status != 200 || h.Get("Content-Type") != "application/x-tar" || h.Get("Sandkeeper-Type") != "dir" {
		t.Fatalf("GET: %d %v", status, h)
	}
	tarred := http.Header{"Content-Type": {"application/x-tar"}}
	status, body, _ := s.FileText(t, test.FileCall{Method: "PUT", Env: env, Path: "q/r", Header: tarred, Body: strings.NewReader(archive)})
	if status != 200 || body != `{"path":"q/r","entries":8}`+"\n" {
		t.Fatalf("PUT: %d %s", status, body)
	}
	list := func(dir string) string {
		return w.Run(t, env, "cd /workspace/"+dir+" && find . | sort | xargs stat -c '%A %h %N' && cat src/main.c run; cd /workspace").Stdout
	}
	if got, want := list("q/r"), list("p"); got != want || !strings.Contains(got, "-rwxr-x---") {
		t.Errorf("%s\nwant %s", got, want)
	}
	status, body, _ = s.FileText(t, test.FileCall{Method: "PUT", Env: env, Path: "q/r", Header: tarred, Body: strings.NewReader(archive[:1300])})
	if status != 400 || !strings.Contains(body, "cut off") {
		t.Errorf("cut off: %d %s", status, body)
	}
}

func whoMay(t *testing.T, s *test.Server, env string) {
	other := s.CLI(t, "token", "create", "--role", "agent", "--owner", "other")
	viewer := s.CLI(t, "token", "create", "--role", "viewer")
	for token, want := range map[string]int{s.Token(t, "agent"): 200, s.Token(t, "operator"): 200, other: 404, viewer: 403, "wrong": 401} {
		for _, method := range []string{"GET", "PUT", "HEAD"} {
			call := test.FileCall{Method: method, Env: env, Path: "run.sh", Token: token}
			if method == "PUT" {
				call.Body = strings.NewReader("echo ran")
			}
			if status, body, _ := s.FileText(t, call); status != want {
				t.Errorf("%s: %d, want %d: %s", method, status, want, body)
			}
		}
	}
	agent := s.Token(t, "agent")
	if status, _, _ := s.FileText(t, test.FileCall{Method: "GET", Env: "nosuchenv0", Path: "x", Token: agent}); status != 404 {
		t.Errorf("of none: %d", status)
	}
	w := s.Wire(t)
	gone := w.Acquire(t, "gone", nil).Env.ID
	w.EndTurn(t, "gone")
	s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, gone))
	for token, want := range map[string]int{agent: 410, s.Token(t, "operator"): 410, other: 404} {
		if status, body, _ := s.FileText(t, test.FileCall{Method: "GET", Env: gone, Path: "x", Token: token}); status != want || strings.Contains(body, "tombstone") != (want == 410) {
			t.Errorf("of a removed one: %d %s, want %d", status, body, want)
		}
	}
}

func byTheClient(t *testing.T, s *test.Server, w *test.Wire, env string) {
	c, at := s.Agent(t, "mover").Client, client.ByTask("files")
	ctx := t.Context()
	if err := c.Upload(ctx, at, "c/run", strings.NewReader("#!/bin/sh\necho ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Upload(ctx, client.ByID(env), "c/run", strings.NewReader("#!/bin/sh\necho again\n"), 0); err != nil {
		t.Fatal(err)
	}
	if got := w.Run(t, env, "c/run").Stdout; got != "again\n" {
		t.Errorf("%q", got)
	}
	var b bytes.Buffer
	if n, err := c.Download(ctx, at, "c/run", &b); err != nil || n != 21 || b.String() != "#!/bin/sh\necho again\n" {
		t.Errorf("%d bytes, %q, %v", n, &b, err)
	}
	fsys := fstest.MapFS{"a/b": {Data: []byte("b"), Mode: 0o600}, "link": {Data: []byte("a/b"), Mode: fs.ModeSymlink | 0o777}}
	if n, err := c.UploadDir(ctx, at, "c/dir", fsys); err != nil || n != 3 {
		t.Errorf("%d entries, %v", n, err)
	}
	if got := w.Run(t, env, "stat -c %a c/dir/a/b; readlink c/dir/link; cat c/dir/link").Stdout; got != "600\na/b\nb" {
		t.Errorf("%q", got)
	}
	b.Reset()
	if _, err := c.DownloadTar(ctx, at, "c/dir", &b); err != nil {
		t.Error(err)
	}
	if n, err := c.UploadTar(ctx, at, "c/copy", &b); err != nil || n != 4 {
		t.Errorf("%d entries, %v", n, err)
	}
	_, err := c.Download(ctx, at, "c/none", io.Discard)
	if e, ok := errors.AsType[*client.Error](err); !ok || e.Kind != client.KindNotFound || e.Errno != "ENOENT" {
		t.Errorf("%v", err)
	}
	if _, err := c.UploadTar(ctx, at, "c/none", strings.NewReader("no tar")); !errors.Is(err, client.KindInvalidParams) {
		t.Errorf("%v", err)
	}
}

// begin begins an upload without an end; stop breaks it off.
func begin(t *testing.T, s *test.Server, env, path string) (written *io.PipeWriter, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, s.URL+"/api/v1/envs/"+env+"/files?path="+path, r)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token(t, "agent"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
		}
		r.CloseWithError(io.ErrClosedPipe)
	}()
	stop = func() {
		cancel()
		w.CloseWithError(io.ErrClosedPipe) // what waits for more of the body ends too
		<-done
	}
	t.Cleanup(stop)
	if _, err := w.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	return w, stop
}

func holds(v control.View, kind control.HoldKind) bool {
	return slices.ContainsFunc(v.Holds, func(h control.Hold) bool { return h.Kind == kind })
}

func cutUpload(t *testing.T, s *test.Server, w *test.Wire, env string) {
	w.Run(t, env, "mkdir -p cut; echo old > cut/f")
	_, stop := begin(t, s, env, "cut/f")
	test.Eventually(t, "it is held", func() bool { return holds(s.Env(t, env), control.HoldFile) })
	stop()
	test.Eventually(t, "it is let go", func() bool { return !holds(s.Env(t, env), control.HoldFile) })
	test.Eventually(t, "nothing is left of it", func() bool { return w.Run(t, env, "ls -A cut; cat cut/f").Stdout == "f\nold\n" })
}

// A transfer keeps the countdown from running; whoever stops the environment cuts
// it, and it does not pass for done.
func heldWhileItMoves(t *testing.T, s *test.Server, w *test.Wire, env string) {
	w.Run(t, env, "echo old > cut/f")
	written, stop := begin(t, s, env, "cut/f")
	defer stop()
	test.Eventually(t, "it is held", func() bool { return holds(s.Env(t, env), control.HoldFile) })
	w.EndTurn(t, "files")
	if v := s.Env(t, env); v.Deadline != nil || len(v.Holds) != 1 {
		t.Errorf("deadline %v, holds %+v", v.Deadline, v.Holds)
	}
	s.Act(t, env, "stop", nil)
	s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, env))
	for { // what is written is refused in the end
		if _, err := written.Write(make([]byte, 1<<20)); err != nil {
			break
		}
	}
	if got := w.Run(t, env, "ls -A cut; cat cut/f").Stdout; got != "f\nold\n" {
		t.Errorf("%q", got)
	}
	if v := s.Env(t, env); holds(v, control.HoldFile) {
		t.Errorf("holds %+v", v.Holds)
	}
}

func dormantIsResumed(t *testing.T, s *test.Server, w *test.Wire, env string) {
	before := s.Env(t, env).Generation
	for i, call := range []test.FileCall{
		{Method: "GET", Path: "run.sh"}, {Method: "PUT", Path: "run.sh", Body: strings.NewReader("x")},
	} {
		w.EndTurn(t, "files")
		s.Act(t, env, "stop", nil)
		test.Eventually(t, "it is dormant", func() bool { return s.Env(t, env).State == control.Dormant })
		call.Env = env
		if status, body, _ := s.FileText(t, call); status != 200 {
			t.Fatalf("%s: %d %s", call.Method, status, body)
		}
		if v := s.Env(t, env); v.State != control.Ready || v.Generation != before+int64(i)+1 {
			t.Errorf("it is %s, generation %d", v.State, v.Generation)
		}
	}
}
