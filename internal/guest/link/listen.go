package link

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	socketName = "guest.sock"
	nonceName  = "nonce"

	greeting = "sandkeeper-guest-1 " // then the nonce and a newline
	claimed  = 'c'                   // control plane to guest: this connection is in use from now on
	ready    = 'r'                   // guest to control plane: and is served

	nonceLen        = 64 // hex digits
	greetingTimeout = 5 * time.Second

	maxSpares   = 4  // connections kept for a Dial; the oldest goes first
	maxGreeting = 16 // connections that have not said who they are
)

// ErrClosed is returned by Dial on a closed Listener.
var ErrClosed = errors.New("link is closed")

// Listener is the control plane's end of the socket of one sandbox.
type Listener struct {
	dir   string
	ln    *net.UnixListener
	file  os.FileInfo // of the socket, to tell it from a successor's
	nonce string
	wg    sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	closed   bool
	spares   []*spare
	greeting map[net.Conn]struct{}
	arrived  chan struct{} // closed and replaced when a spare comes
}

type spare struct {
	*net.UnixConn
	pid int
}

// Listen makes dir/guest.sock and dir/nonce (fresh random) for one sandbox, and
// dir itself where it is missing. Files that an earlier Listen left are
// replaced. dir may be longer than a socket's address allows. Files in dir can
// be read by whoever can reach it: keep it below a directory that others cannot
// enter.
func Listen(dir string) (*Listener, error) {
	l, err := listen(dir)
	if err != nil {
		return nil, fmt.Errorf("link listen: %w", err)
	}
	l.wg.Go(l.accept)
	return l, nil
}

func listen(dir string) (*Listener, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	nonce, err := writeNonce(dir)
	if err != nil {
		return nil, err
	}
	ln, err := bind(dir)
	if err != nil {
		return nil, err
	}
	file, err := os.Lstat(filepath.Join(dir, socketName))
	if err != nil {
		ln.Close()
		return nil, err
	}
	return &Listener{
		dir: dir, ln: ln, file: file, nonce: nonce,
		greeting: make(map[net.Conn]struct{}),
		arrived:  make(chan struct{}),
	}, nil
}

// writeNonce replaces the nonce by rename, so that a guest never reads half of one.
func writeNonce(dir string) (string, error) {
	var raw [nonceLen / 2]byte
	rand.Read(raw[:])
	nonce := hex.EncodeToString(raw[:])
	tmp := filepath.Join(dir, nonceName+".new")
	// The guest may be another user here (user namespaces), so all may read it.
	if err := os.WriteFile(tmp, []byte(nonce), 0o644); err != nil {
		return "", err
	}
	if err := os.Chmod(tmp, 0o644); err != nil {
		return "", err
	}
	return nonce, os.Rename(tmp, filepath.Join(dir, nonceName))
}

// bind listens through /proc/self/fd, since the address of a unix socket holds
// 107 bytes, and moves the socket to its name once it can be dialled.
func bind(dir string) (*net.UnixListener, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	const tmp = socketName + ".new"
	if err := unix.Unlinkat(fd, tmp, 0); err != nil && err != unix.ENOENT {
		return nil, &os.PathError{Op: "unlink", Path: filepath.Join(dir, tmp), Err: err}
	}
	short := fmt.Sprintf("/proc/self/fd/%d/%s", fd, tmp)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // by then the number in its address may be another file's
	if err = os.Chmod(short, 0o666); err == nil {
		err = unix.Renameat(fd, tmp, fd, socketName)
	}
	if err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// Close ends the listener and every connection that nobody claimed, and removes
// the socket. Claimed connections go on.
func (l *Listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	for _, s := range l.spares {
		s.Close()
	}
	l.spares = nil
	for c := range l.greeting {
		c.Close()
	}
	close(l.arrived)
	l.mu.Unlock()

	err := l.ln.Close()
	l.wg.Wait()
	path := filepath.Join(l.dir, socketName)
	if now, statErr := os.Lstat(path); statErr == nil && os.SameFile(now, l.file) {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func (l *Listener) accept() {
	for {
		c, err := l.ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of file descriptors: others must end first
			continue
		}
		if !l.admit(c) {
			c.Close()
			continue
		}
		l.wg.Go(func() { l.greet(c) })
	}
}

func (l *Listener) admit(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.greeting) >= maxGreeting {
		return false
	}
	l.greeting[c] = struct{}{}
	return true
}

// greet makes a spare of a connection that knows the nonce, and closes any other.
func (l *Listener) greet(c *net.UnixConn) {
	pid, err := l.introduce(c)

	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.greeting, c)
	if err != nil || l.closed {
		c.Close()
		return
	}
	if len(l.spares) >= maxSpares {
		l.spares[0].Close()
		l.spares = l.spares[1:]
	}
	l.spares = append(l.spares, &spare{c, pid})
	close(l.arrived)
	l.arrived = make(chan struct{})
}

func (l *Listener) introduce(c *net.UnixConn) (pid int, err error) {
	if err := c.SetReadDeadline(time.Now().Add(greetingTimeout)); err != nil {
		return 0, err
	}
	// A guest says nothing after its greeting until it is claimed, so that
	// reading the exact length takes nothing that belongs to the stream.
	buf := make([]byte, len(greeting)+nonceLen+1)
	if _, err := io.ReadFull(c, buf); err != nil {
		return 0, err
	}
	want := greeting + l.nonce + "\n"
	if subtle.ConstantTimeCompare(buf, []byte(want)) != 1 {
		return 0, errors.New("wrong nonce")
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	return peerPID(c)
}

func peerPID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, fmt.Errorf("peer credentials: %w", credErr)
	}
	return int(cred.Pid), nil
}

// Dial claims a connection that the guest dialled in; it waits for one until
// ctx ends. check is given the process id of who dialled, as this machine
// numbers it, and refuses by an error; nil takes any.
func (l *Listener) Dial(ctx context.Context, check func(pid int) error) (io.ReadWriteCloser, error) {
	var refused error
	for {
		s, arrived, err := l.take()
		if err != nil {
			return nil, err
		}
		if s == nil {
			select {
			case <-arrived:
				continue
			case <-ctx.Done():
				return nil, errors.Join(fmt.Errorf("the guest has not dialled in: %w", ctx.Err()), refused)
			}
		}
		if check != nil {
			if err := check(s.pid); err != nil {
				s.Close()
				refused = fmt.Errorf("process %d: %w", s.pid, err)
				continue
			}
		}
		if err := s.claim(ctx); err != nil {
			s.Close() // its guest is gone, or hangs
			if ctx.Err() != nil {
				return nil, fmt.Errorf("the guest does not answer: %w", ctx.Err())
			}
			continue
		}
		return s.UnixConn, nil
	}
}

// take returns the latest spare, which is the least likely to be of a guest that is gone.
func (l *Listener) take() (s *spare, arrived <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, ErrClosed
	}
	if n := len(l.spares); n > 0 {
		s, l.spares = l.spares[n-1], l.spares[:n-1]
	}
	return s, l.arrived, nil
}

func (s *spare) claim(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.SetDeadline(time.Unix(1, 0)) })
	_, err := s.Write([]byte{claimed})
	if err == nil {
		err = expect(s, ready)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	return err
}

func expect(r io.Reader, want byte) error {
	var b [1]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	if b[0] != want {
		return fmt.Errorf("unexpected byte %#x", b[0])
	}
	return nil
}
