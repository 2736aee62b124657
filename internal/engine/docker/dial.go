package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest/link"
)

// A guest is reached in one of two ways. Where the engine shares this machine's
// files, each sandbox has a directory of ours mounted read-only, with a socket
// that its guest dials. What dials it is believed only if the kernel says that
// it is the container's PID 1. Elsewhere, and where no guest dials in, we attach
// to PID 1's stdin and stdout.

// listeners are the sockets that guests dial, by the sandboxes' names.
type listeners struct {
	mu     sync.Mutex // guards the fields below
	open   map[string]*listener
	closed bool
}

type listener struct {
	*link.Listener
	since time.Time
	mute  bool // no guest dialled in when it was last waited for; guarded by listeners.mu
}

func (l *listeners) get(name string) *listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open[name]
}

// ensure opens the listener of that name unless it is open.
func (l *listeners) ensure(name, dir string) (*listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if have := l.open[name]; have != nil {
		return have, nil
	}
	if l.closed {
		return nil, errors.New("the engine is closed")
	}
	opened, err := link.Listen(dir)
	if err != nil {
		return nil, err
	}
	made := &listener{Listener: opened, since: time.Now()}
	if l.open == nil {
		l.open = make(map[string]*listener)
	}
	l.open[name] = made
	return made, nil
}

// drop closes the listener of that name if it was opened before.
func (l *listeners) drop(name string, before time.Time) error {
	l.mu.Lock()
	have := l.open[name]
	if have == nil || !have.since.Before(before) {
		l.mu.Unlock()
		return nil
	}
	delete(l.open, name)
	l.mu.Unlock()
	return have.Close()
}

func (l *listeners) setMute(have *listener, mute bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have.mute = mute
}

func (l *listeners) isMute(have *listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return have.mute
}

func (l *listeners) closeAll() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	var errs []error
	for _, have := range l.open {
		errs = append(errs, have.Close())
	}
	clear(l.open)
	return errors.Join(errs...)
}

// makeLinkDir makes the directory of a sandbox's socket, to be mounted. It
// returns "" where none can be.
func (e *Engine) makeLinkDir(name string) (string, error) {
	if e.links == "" || e.isBare() {
		return "", nil
	}
	dir := filepath.Join(e.links, name)
	// Nobody but us gets past the parent; inside, the guest may be another user.
	if err := os.MkdirAll(e.links, 0o700); err != nil {
		return "", fmt.Errorf("link directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("link directory: %w", err)
	}
	return dir, nil
}

// goBare remembers that the engine does not see our directories.
func (e *Engine) goBare() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bare = true
}

func (e *Engine) isBare() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bare
}

// listen opens the socket of a sandbox that has one. A failure leaves attach.
func (e *Engine) listen(name string, s *sandbox) *listener {
	if e.links == "" || !s.linked {
		return nil
	}
	opened, err := e.listened.ensure(name, filepath.Join(e.links, name))
	if err != nil {
		e.log.Warn("guest's socket", "container", name, "err", err)
		return nil
	}
	return opened
}

// unlisten closes the socket of a sandbox that does not run.
func (e *Engine) unlisten(name string) { e.dropListener(name, time.Now()) }

// dropListener closes the socket of a sandbox that was seen not to run then.
func (e *Engine) dropListener(name string, then time.Time) {
	if err := e.listened.drop(name, then); err != nil {
		e.log.Warn("guest's socket", "container", name, "err", err)
	}
}

// Dial opens a byte stream to the sandbox's guest.
func (e *Engine) Dial(ctx context.Context, name string) (io.ReadWriteCloser, error) {
	s, found, err := e.inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	if found.State == nil || !found.State.Running {
		return nil, fmt.Errorf("container %s does not run: %w", name, control.ErrNoSandbox)
	}
	pid := found.State.Pid
	opened := e.listen(name, s)
	if opened != nil {
		conn, err := e.dialSocket(ctx, opened, pid)
		if err == nil {
			return conn, nil
		}
		if e.opts.Link == LinkSocket || ctx.Err() != nil {
			return nil, fmt.Errorf("guest socket: %w: %w", control.ErrGuestUnreachable, err)
		}
		e.log.Info("no guest on its socket, attaching", "container", name, "err", err)
	} else if e.opts.Link == LinkSocket {
		return nil, fmt.Errorf("guest socket: %w: the sandbox was made without one", control.ErrGuestUnreachable)
	}
	return e.attach(ctx, name, s)
}

// muteWait is how long a guest that did not dial in before is waited for.
const muteWait = 50 * time.Millisecond

func (e *Engine) dialSocket(ctx context.Context, l *listener, pid int) (io.ReadWriteCloser, error) {
	wait := e.opts.LinkWait
	if e.opts.Link == LinkAuto && e.listened.isMute(l) {
		wait = muteWait
	}
	dialled, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := l.Dial(dialled, func(peer int) error {
		if peer != pid {
			return fmt.Errorf("process %d dialled in, and the container's PID 1 is %d", peer, pid)
		}
		return nil
	})
	if ctx.Err() == nil {
		e.listened.setMute(l, err != nil)
	}
	return conn, err
}
