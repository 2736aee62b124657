package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"sandkeeper/internal/control"
)

// The admin socket is how the commands on this machine find a running server:
// a unix socket in the data directory, for the server's own user alone. It
// speaks HTTP: GET /status, POST /tokens, POST /backup (the database as it is,
// which breaks off where it fails) and GET /sandboxes (what the engine lists).

// errNoServer: nobody serves the data directory.
var errNoServer = errors.New("no server runs on this data")

// What either end reads of the other, and how long it takes a part of it.
const (
	maxAdminBody   = 64 << 10
	maxAdminAnswer = 64 << 20
	adminPatience  = time.Minute
)

type adminStatus struct {
	Instance string `json:"instance"`
	PID      int    `json:"pid"`
	URL      string `json:"url"` // "" until it serves agents
}

type adminToken struct {
	Token string `json:"token"`
}

type adminSandboxes struct {
	Sandboxes []control.SandboxStatus `json:"sandboxes"`
}

type adminError struct {
	Error string `json:"error"`
}

// tokenMaker makes a token that is shown once.
type tokenMaker func(ctx context.Context, spec tokenSpec) (string, error)

// adminCalls is what a server does for the commands on its machine.
type adminCalls struct {
	createToken tokenMaker
	backup      func(w io.Writer) (int64, error)
	sandboxes   func(ctx context.Context) ([]control.SandboxStatus, error)
}

// tokenSpec is what token create asks for.
type tokenSpec struct {
	Role  string `json:"role"`
	Owner string `json:"owner"`
	Name  string `json:"name"`
}

// admin serves the admin socket.
type admin struct {
	server *http.Server
	path   string
	done   chan error
	url    atomic.Value // string: where agents and operators are served
}

// startAdmin serves the socket of dir. Whoever calls it holds the database's
// lock, so a socket that is there is a dead server's.
func startAdmin(dir, instance string, calls adminCalls) (*admin, error) {
	l, err := listenPrivate(dir, adminSocket)
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	mux := http.NewServeMux()
	a := &admin{
		server: &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: adminPatience},
		path:   filepath.Join(dir, adminSocket),
		done:   make(chan error, 1),
	}
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		url, _ := a.url.Load().(string)
		answer(w, http.StatusOK, adminStatus{instance, os.Getpid(), url})
	})
	mux.HandleFunc("POST /tokens", func(w http.ResponseWriter, r *http.Request) {
		var spec tokenSpec
		if err := json.NewDecoder(io.LimitReader(r.Body, maxAdminBody)).Decode(&spec); err != nil {
			answer(w, http.StatusBadRequest, adminError{"the request is no JSON of a token"})
			return
		}
		tok, err := calls.createToken(r.Context(), spec)
		if err != nil {
			answer(w, http.StatusUnprocessableEntity, adminError{err.Error()})
			return
		}
		answer(w, http.StatusOK, adminToken{tok})
	})
	mux.HandleFunc("POST /backup", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		if _, err := calls.backup(&patientWriter{w, http.NewResponseController(w)}); err != nil {
			panic(http.ErrAbortHandler) // what was sent is not the whole of it
		}
	})
	mux.HandleFunc("GET /sandboxes", func(w http.ResponseWriter, r *http.Request) {
		list, err := calls.sandboxes(r.Context())
		if err != nil {
			answer(w, http.StatusServiceUnavailable, adminError{err.Error()})
			return
		}
		answer(w, http.StatusOK, adminSandboxes{list})
	})
	go func() { a.done <- a.server.Serve(l) }()
	return a, nil
}

// serving tells where agents and operators are served, from now on.
func (a *admin) serving(url string) { a.url.Store(url) }

// stop ends the socket and waits a moment for what runs on it.
func (a *admin) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	err := a.server.Shutdown(ctx)
	if served := <-a.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if e := os.Remove(a.path); !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return err
}

// patientWriter gives each write the time that else the whole answer has.
type patientWriter struct {
	w       io.Writer
	control *http.ResponseController
}

func (p *patientWriter) Write(b []byte) (int, error) {
	if err := p.control.SetWriteDeadline(time.Now().Add(adminPatience)); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that is gone needs no answer
}

// listenPrivate makes the unix socket dir/name with mode 0600. It comes to life
// in a directory of its own and takes its place by a rename, so that nobody else can
// connect in between, whatever dir allows, and a stale one is replaced.
func listenPrivate(dir, name string) (net.Listener, error) {
	tmp, err := os.MkdirTemp(dir, ".admin-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	addr, release, err := socketAddr(tmp, "s")
	if err != nil {
		return nil, err
	}
	defer release()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: addr, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then the name it was bound to is no longer its own
	sock := filepath.Join(tmp, "s")
	if err := errors.Join(os.Chmod(sock, 0o600), os.Rename(sock, filepath.Join(dir, name))); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// socketAddr is dir/name as a socket's address, which has room for about a
// hundred bytes. On Linux a longer path goes through an open directory. release
// is called once the address was used.
func socketAddr(dir, name string) (addr string, release func(), err error) {
	path := filepath.Join(dir, name)
	if len(path) < 100 || runtime.GOOS != "linux" {
		return path, func() {}, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name), func() { d.Close() }, nil
}

// callAdmin asks the server of a data directory. It fails with errNoServer
// where none answers there.
func callAdmin(ctx context.Context, dir, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	res, err := doAdmin(ctx, dir, method, path, in)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAdminAnswer)).Decode(out); err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	return nil
}

// streamAdmin posts to the server of a data directory and copies its answer,
// however long that takes.
func streamAdmin(ctx context.Context, dir, path string, w io.Writer) error {
	res, err := doAdmin(ctx, dir, http.MethodPost, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(w, res.Body); err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	return nil
}

// doAdmin makes one call; the answer is a good one.
func doAdmin(ctx context.Context, dir, method, path string, in any) (*http.Response, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			addr, release, err := socketAddr(dir, adminSocket)
			if err != nil {
				return nil, err
			}
			defer release()
			return new(net.Dialer).DialContext(ctx, "unix", addr)
		},
	}}
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	res, err := client.Do(req)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errNoServer
	}
	if err != nil {
		return nil, fmt.Errorf("admin socket: %w", err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	var e adminError
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAdminBody)).Decode(&e); err != nil {
		return nil, fmt.Errorf("admin socket: %s", res.Status)
	}
	return nil, errors.New(e.Error)
}
