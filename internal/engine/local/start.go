package local

import (
	"bufio"
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
		return fmt.Errorf("sandbox start: %w", errors.Join(err, e.can.groups.remove(clean, name)))
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
	// Counts are of a run: a group that is left over would bring those of the last.
	err := e.can.groups.remove(ctx, b.name)
	var plan launch.Plan
	if err == nil {
		var release func()
		if plan, release, err = e.plan(b.kept.Spec, b.dir); err == nil {
			defer release()
		}
	}
	listening.Wait()
	if err := errors.Join(err, listenErr, b.await()); err != nil {
		return err
	}
	r, err := e.launch(ctx, plan)
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
func (e *Engine) plan(spec control.SandboxSpec, dir string) (p launch.Plan, release func(), err error) {
	guest, err := json.Marshal(pid1.Config{Workdir: spec.Workdir, Link: launch.LinkTarget})
	if err != nil {
		return p, nil, err
	}
	made, err := e.can.groups.create(spec.Name, spec.Limits)
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

// launch has a plan carried out, by a launcher from the stock or by a new one, and waits
// for its answer.
func (e *Engine) launch(ctx context.Context, p launch.Plan) (*run, error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	var s *shell
	if !p.Probe {
		s = e.stock.take(p.Kind)
	}
	if s == nil {
		if s, err = e.newShell(p.Kind); err != nil {
			return nil, err
		}
	}
	defer s.answer.Close()
	stop := context.AfterFunc(ctx, func() { unix.Kill(s.pid, unix.SIGTERM) })
	_, err = s.plan.Write(raw)
	err = errors.Join(err, s.plan.Close())
	var line []byte
	if err == nil {
		line, err = bufio.NewReader(s.answer).ReadBytes('\n')
	}
	late := !stop()
	var status launch.Status
	switch {
	case late:
		<-s.ended
		return nil, ctx.Err()
	case err != nil:
		<-s.ended
		return nil, fmt.Errorf("the launcher ended: %w", errors.Join(err, logged(p.Dir)))
	}
	if err := json.Unmarshal(bytes.TrimSpace(line), &status); err != nil {
		return nil, fmt.Errorf("the launcher's answer: %w", err)
	}
	if status.Error != "" {
		<-s.ended
		return nil, errors.New(status.Error)
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
