package test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/test/need"
)

// EngineProxy stands between a server and the engine's socket: it decides what
// becomes of a request. Patterns are as of path.Match, on the method and the path
// without its version: "POST /containers/*/stop".
type EngineProxy struct {
	Host string // for the server's DOCKER_HOST

	socket string
	proxy  *httputil.ReverseProxy

	mu       sync.Mutex // guards the fields below
	listener net.Listener
	conns    map[net.Conn]struct{}
	serving  sync.WaitGroup
	faults   []*Fault
}

// Fault is what happens to requests that match.
type Fault struct {
	pattern string
	left    int // how many requests it is for; below 0: all
	status  int // answer with this instead of asking the engine; 0: hold
	after   bool
	arrived chan struct{}
	release chan struct{}
	once    sync.Once
	opened  sync.Once
	hits    int
}

// NewEngineProxy starts a proxy of the tests' engine.
func NewEngineProxy(t testing.TB) *EngineProxy {
	t.Helper()
	OpenDocker(t)
	target := engineAddress(t)
	dir, err := os.MkdirTemp("", "sk-proxy-*") // short: a socket's path is bounded
	if err != nil {
		t.Fatal(err)
	}
	p := &EngineProxy{socket: filepath.Join(dir, "docker.sock"), conns: map[net.Conn]struct{}{}}
	p.Host = "unix://" + p.socket
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, target.Scheme, strings.TrimPrefix(target.String(), target.Scheme+"://"))
	}
	p.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine"
		},
		Transport:      &http.Transport{DialContext: dial, DisableCompression: true, MaxIdleConnsPerHost: 16},
		FlushInterval:  -1,
		ModifyResponse: func(res *http.Response) error { return p.hold(res.Request, true) },
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.Up(t)
	t.Cleanup(func() {
		p.Down(t)
		p.proxy.Transport.(*http.Transport).CloseIdleConnections()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return p
}

// engineAddress is where the docker command finds the engine.
func engineAddress(t testing.TB) *url.URL {
	t.Helper()
	host := os.Getenv("DOCKER_HOST")
	if host == "" {
		out, err := exec.Command("docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}").Output()
		if err != nil {
			t.Fatalf("find the engine's socket: %v", err)
		}
		host = strings.TrimSpace(string(out))
	}
	u, err := url.Parse(host)
	if err != nil {
		t.Fatal(err)
	}
	if u.Scheme != "unix" && u.Scheme != "tcp" {
		need.Missing(t, "docker", "the engine at "+host+" has no socket that a test could stand before")
	}
	return u
}

// Up lets servers connect.
func (p *EngineProxy) Up(t testing.TB) {
	t.Helper()
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	srv := &http.Server{Handler: http.HandlerFunc(p.serve), ConnState: p.track, ReadHeaderTimeout: patience}
	p.serving.Go(func() { srv.Serve(l) }) //nolint:errcheck // it ends with Down
}

// Down makes the engine unreachable: every connection breaks, none is taken.
func (p *EngineProxy) Down(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	if p.listener != nil {
		p.listener.Close() //nolint:errcheck // closed already
		p.listener = nil
	}
	for c := range p.conns {
		c.Close() //nolint:errcheck // broken already
	}
	clear(p.conns)
	for _, f := range p.faults {
		f.open()
	}
	p.faults = nil
	p.mu.Unlock()
	p.serving.Wait()
}

func (p *EngineProxy) track(c net.Conn, s http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch s {
	case http.StateNew:
		if p.listener == nil {
			c.Close() //nolint:errcheck // it came while we went down
			return
		}
		p.conns[c] = struct{}{}
	case http.StateClosed:
		delete(p.conns, c)
	}
}

// Fail answers the next n requests that match with a status, and all of them where n is below 0.
func (p *EngineProxy) Fail(pattern string, n, status int) *Fault {
	return p.add(&Fault{pattern: pattern, left: n, status: status})
}

// Hold stops the next request that matches, before the engine hears of it.
func (p *EngineProxy) Hold(pattern string) *Fault {
	return p.add(&Fault{pattern: pattern, left: 1})
}

// HoldAnswer stops the engine's answer to the next request that matches: the
// engine has done it, and the server does not know.
func (p *EngineProxy) HoldAnswer(pattern string) *Fault {
	return p.add(&Fault{pattern: pattern, left: 1, after: true})
}

func (p *EngineProxy) add(f *Fault) *Fault {
	f.arrived, f.release = make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// Arrived waits for the first request, or answer, that the fault met.
func (f *Fault) Arrived(t testing.TB) {
	t.Helper()
	select {
	case <-f.arrived:
	case <-time.After(patience):
		t.Fatalf("no %s came to the engine", f.pattern)
	}
}

// Release lets go of what is held.
func (f *Fault) Release() { f.open() }

func (f *Fault) open() { f.opened.Do(func() { close(f.release) }) }

// Hits is how many requests the fault met.
func (p *EngineProxy) Hits(f *Fault) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f.hits
}

var versionPrefix = regexp.MustCompile(`^/v[0-9.]+/`)

// meet finds the fault of a request.
func (p *EngineProxy) meet(r *http.Request, after bool) *Fault {
	what := r.Method + " " + versionPrefix.ReplaceAllString(r.URL.Path, "/")
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.faults, func(f *Fault) bool {
		ok, err := path.Match(f.pattern, what)
		return err == nil && ok && f.after == after && f.left != 0
	})
	if i < 0 {
		return nil
	}
	f := p.faults[i]
	f.left--
	f.hits++
	f.once.Do(func() { close(f.arrived) })
	return f
}

func (p *EngineProxy) serve(w http.ResponseWriter, r *http.Request) {
	if f := p.meet(r, false); f != nil {
		if f.status != 0 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(f.status)
			fmt.Fprintln(w, `{"message":"the test says no"}`)
			return
		}
		if f.wait(r.Context()) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	p.proxy.ServeHTTP(w, r)
}

func (p *EngineProxy) hold(r *http.Request, after bool) error {
	if f := p.meet(r, after); f != nil {
		return f.wait(r.Context())
	}
	return nil
}

func (f *Fault) wait(ctx context.Context) error {
	select {
	case <-f.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
