package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
	"sandkeeper/internal/guest/link"
	"sandkeeper/internal/guest/pid1"
)

// smallMemoryMB is the memory limit below which a sandbox gets the small /dev/shm.
const smallMemoryMB = 2048

// Start starts PID 1. A running one is success.
func (e *Engine) Start(ctx context.Context, name string) error {
	b, err := e.take(ctx, name)
	if err != nil {
		return err
	}
	defer e.give(b)
	if !b.there() {
		return fmt.Errorf("sandbox %s: %w", name, control.ErrNoSandbox)
	}
	if r, _ := e.running(b); r != nil {
		return nil
	}
	if err := e.networkOf(b.kept.Spec.Network); err != nil {
		return err
	}
	if err := e.start(ctx, b); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		e.set(func() { err = errors.Join(err, b.unlisten()) })
		return fmt.Errorf("sandbox start: %w", errors.Join(err, e.removeGroups(clean, b)))
	}
	return nil
}

func (e *Engine) start(ctx context.Context, b *box) error {
	if err := e.bin.install(e.opts.Binary); err != nil {
		return err
	}
	var listening sync.WaitGroup
	var listenErr error
	listening.Go(func() { listenErr = e.listen(b) })
	// Waited for as late as can be: before anything of the sandbox's runs.
	ready := sync.OnceValue(func() error {
		listening.Wait()
		return errors.Join(listenErr, b.await())
	})
	if h := e.stock.redeem(b.name); h != nil {
		err := e.become(ctx, b, h, ready)
		if err == nil || ctx.Err() != nil {
			return err
		}
		e.log.Info("a sandbox that was held is not used", "sandbox", b.name, "err", err)
	}
	// Counts are of a run: a group that is left over would bring those of the last.
	err := e.removeGroups(ctx, b)
	var plan launch.Plan
	if err == nil {
		var release func()
		if plan, release, err = e.plan(b.kept.Spec, b.dir, b.name); err == nil {
			defer release()
		}
	}
	if err := errors.Join(err, ready()); err != nil {
		return err
	}
	s := e.stock.take(plan.Kind)
	if s == nil {
		if s, err = e.newShell(plan.Kind); err != nil {
			return err
		}
	}
	return e.run(ctx, b, s, plan)
}

// run has a launcher run a sandbox.
func (e *Engine) run(ctx context.Context, b *box, s *shell, plan launch.Plan) error {
	r, err := e.launch(ctx, s, plan)
	if err != nil {
		return err
	}
	last, err := launch.ReadRun(b.dir)
	if err == nil && last == nil {
		err = errors.New("the launcher left no record")
	}
	if err != nil {
		return err
	}
	e.set(func() { b.last, b.run = last, r })
	e.events.add(control.EngineEvent{Name: b.name, Env: b.kept.Spec.Env, Kind: control.SandboxStarted, At: last.Started})
	e.attend(b, r)
	return nil
}

// plan says what a sandbox is and may do; its control groups are made. What it
// shows of the host stays until release was called.
func (e *Engine) plan(spec control.SandboxSpec, dir, group string) (p launch.Plan, release func(), err error) {
	guest, err := json.Marshal(pid1.Config{Workdir: spec.Workdir, Link: launch.LinkTarget})
	if err != nil {
		return p, nil, err
	}
	made, err := e.can.groups.create(group, spec.Limits)
	if err != nil {
		return p, nil, err
	}
	trees, masks, release, err := e.view.now()
	if err != nil {
		return p, nil, fmt.Errorf("what sandboxes see: %w", err)
	}
	p = launch.Plan{
		Kind:     e.kind(spec.Network),
		Hostname: spec.Env,
		Dir:      dir,
		Writable: e.can.writable,
		Trees:    trees,
		Masks:    masks,
		Files:    resolver(),
		Shm:      1 << 30,
		Guest:    guest,
		Groups:   made,
	}
	if spec.Limits.MemoryMB > 0 {
		// It is in memory, so half of the limit bounds it: a full /tmp is told as such, not as death.
		p.Tmp = max(spec.Limits.MemoryMB/2, 1) << 20
		if spec.Limits.MemoryMB < smallMemoryMB {
			p.Shm = 64 << 20
		}
	}
	return p, release, nil
}

// launch has a launcher carry out a plan, and waits until it has.
func (e *Engine) launch(ctx context.Context, s *shell, p launch.Plan) (*run, error) {
	defer s.close()
	status, err := s.tell(ctx, p)
	if err != nil {
		return nil, err
	}
	return newRun(status.PID, s.ended), nil
}

// reap waits for a launcher that is our child, or for Close.
func (e *Engine) reap(pid int, ended chan<- struct{}) {
	p, err := launch.ProcessOf(pid)
	if err == nil {
		var gone bool
		if gone, err = awaitEnd(e.ctx, p); err == nil && !gone {
			return
		}
	}
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
			break
		}
	}
	close(ended)
}

// logged is what a launcher or a guest said, as an error; nil for nothing.
func logged(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, launch.LogFile))
	if err != nil || len(b) == 0 {
		return nil //nolint:nilerr // nothing is known that it said
	}
	return errors.New(string(bytes.TrimSpace(b[:min(len(b), 1000)])))
}

// listen opens the socket that the guest dials.
func (e *Engine) listen(b *box) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.listens != nil {
		return nil
	}
	l, err := link.Listen(filepath.Join(b.dir, launch.LinkDir))
	if err != nil {
		return err
	}
	b.listens = l
	return nil
}

// unlisten closes it; the engine's mu is held.
func (b *box) unlisten() error {
	if b.listens == nil {
		return nil
	}
	err := b.listens.Close()
	b.listens = nil
	if errors.Is(err, fs.ErrNotExist) {
		return nil // with its directory
	}
	return err
}
