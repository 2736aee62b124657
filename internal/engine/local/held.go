package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

const (
	// How long a sandbox is held. What it sees of the host is the host's of now, but
	// what it has seen the kernel may remember.
	heldFor = 10 * time.Minute

	// heldPrefix begins the names of their directories. A server that finds one that is not its own removes it.
	heldPrefix = ".held-"
)

// held is a sandbox that is nobody's yet: its files are there and empty, its
// processes wait, and nothing runs in it. It ends when its pipe does, so that
// it does not outlive us. What is asked of a new sandbox is laid over it: Create gives it
// the directory, by renaming its own, and Start the rest.
type held struct {
	*shell
	dir     string // "" once it is a sandbox's
	group   string // the name of its control groups
	plan    launch.Plan
	made    time.Time
	release func() // of what it shows of the host
}

// hold makes one.
func (e *Engine) hold(k launch.Kind) (*held, error) {
	id := strings.ToLower(rand.Text())
	h := &held{dir: e.path(sandboxesDir, heldPrefix+id), group: heldPrefix[1:] + id, made: time.Now(), release: func() {}}
	if err := e.furnish(k, h); err != nil {
		e.letGo(h)
		return nil, fmt.Errorf("hold a sandbox: %w", err)
	}
	return h, nil
}

func (e *Engine) furnish(k launch.Kind, h *held) error {
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		return err
	}
	if err := makeFiles(h.dir); err != nil {
		return err
	}
	network := "default"
	if k.NoNetwork {
		network = "none"
	}
	plan, release, err := e.plan(control.SandboxSpec{Network: network}, h.dir, h.group)
	if err != nil {
		return err
	}
	plan.Hold = true
	h.plan, h.release = plan, release
	if h.shell = e.stock.pop(k); h.shell == nil {
		if h.shell, err = e.newShell(k); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	e.filling.Go(func() {
		select {
		case <-e.closing:
			cancel()
		case <-ctx.Done():
		}
	})
	status, err := h.tell(ctx, plan)
	if err == nil && !status.Held {
		err = errors.New("the launcher does not hold it")
	}
	return err
}

// letGo ends one, and removes what is its own: not the directory that is a sandbox's now.
func (e *Engine) letGo(h *held) {
	if h.shell != nil {
		h.shell.letGo()
	}
	h.release()
	ctx, cancel := context.WithTimeout(context.Background(), letGoWait)
	defer cancel()
	if err := e.can.groups.remove(ctx, h.group); err != nil {
		e.log.Warn("control group stays", "group", h.group, "err", err)
	}
	if h.dir == "" {
		return
	}
	if err := removeTree(h.dir); err != nil {
		e.log.Warn("what was held stays", "dir", h.dir, "err", err)
	}
}

// dropOldHeld lets go what was held for too long.
func (e *Engine) dropOldHeld() {
	for _, h := range e.stock.old(time.Now().Add(-heldFor)) {
		e.letGo(h)
	}
}

// putHeld takes a new sandbox of nobody's, or says that it is too late.
func (s *stock) putHeld(k launch.Kind, h *held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	of := s.of(k)
	of.held = append(of.held, h)
	return true
}

// old takes out what was made before a time, and what has ended.
func (s *stock) old(before time.Time) (all []*held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.shelf {
		of.held = slices.DeleteFunc(of.held, func(h *held) bool {
			old := h.made.Before(before) || h.gone()
			if old {
				all = append(all, h)
			}
			return old
		})
	}
	return all
}

// takeHeld takes a sandbox of nobody's; nil where there is none. From then on there are to be some of this kind.
func (s *stock) takeHeld(k launch.Kind) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	defer s.ask()
	of := s.of(k)
	i := slices.IndexFunc(of.held, func(h *held) bool { return !h.gone() })
	if i < 0 {
		return nil
	}
	h := of.held[i]
	of.held = slices.Delete(of.held, i, i+1)
	return h
}

// name keeps one for the start of the sandbox of that name, whose directory it has.
func (s *stock) name(name string, h *held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.named[name] = h
	return true
}

// redeem returns what name named; nil where there is none.
func (s *stock) redeem(name string) *held {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.named[name]
	delete(s.named, name)
	return h
}

// become has what is held be a sandbox, as it is to be now. Where that is not what
// it was made for, or it fails, it is let go, and leaves the directory to another try.
func (e *Engine) become(ctx context.Context, b *box, h *held, ready func() error) error {
	if err := e.lay(ctx, b, h, ready); err != nil {
		e.letGo(h)
		return err
	}
	h.release()
	return nil
}

var errOutdated = errors.New("what sandboxes see is not what it was")

func (e *Engine) lay(ctx context.Context, b *box, h *held, ready func() error) error {
	plan, release, err := e.plan(b.kept.Spec, b.dir, h.group)
	if err != nil {
		return errors.Join(err, ready())
	}
	defer release()
	if err := ready(); err != nil {
		return err
	}
	if !plan.Suits(h.plan) {
		return errOutdated
	}
	return e.run(ctx, b, h.shell, plan)
}
