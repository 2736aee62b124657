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
	mu     sync.Mutex // guards the fields below, and the listeners' own
	open   map[string]*listener
	closed bool
	worked bool // some guest has dialled in
	mute   bool // none has, and one was waited for
}

type listener struct {
	*link.Listener
	since time.Time
	mute  bool // no guest dialled in when it was last waited for
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

// note keeps whether a guest dialled in. Where none ever did, as on an engine in
// a virtual machine that shares files but no sockets, none is waited for long.
func (l *listeners) note(have *listener, dialled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	have.mute = !dialled
	l.worked = l.worked || dialled
	l.mute = !l.worked
}

// isMute says whether no guest is to be expected.
func (l *listeners) isMute(have *listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return have.mute || l.mute
}

// names are those of what was opened before.
func (l *listeners) names(before time.Time) (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, have := range l.open {
		if have.since.Before(before) {
			names = append(names, name)
		}
	}
	return names
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

func (e *Engine) removeLinkDir(name string) {
	if e.links == "" || !validName.MatchString(name) {
		return
	}
	if err := os.RemoveAll(filepath.Join(e.links, name)); err != nil {
		e.log.Warn("link directory stays", "container", name, "err", err)
	}
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
func (e *Engine) unlisten(name string) { e.unlistenBefore(name, time.Now()) }

// unlistenBefore closes it if it was opened before then.
func (e *Engine) unlistenBefore(name string, then time.Time) {
	if err := e.listened.drop(name, then); err != nil {
		e.log.Warn("guest's socket", "container", name, "err", err)
	}
}

// unlistenOthers closes the sockets of what a listing that began then does not show running.
func (e *Engine) unlistenOthers(listed []control.SandboxStatus, began time.Time) {
	states := make(map[string]control.SandboxState, len(listed))
	for _, s := range listed {
		states[s.Name] = s.State
	}
	for _, name := range e.listened.names(began) {
		state, there := states[name]
		if state == control.SandboxRunning {
			continue
		}
		e.unlistenBefore(name, began)
		if !there {
			e.removeLinkDir(name)
		}
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
		e.listened.note(l, err == nil)
	}
	return conn, err
}
