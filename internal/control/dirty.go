package control

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// writeBehind bounds how long activity stamps and countdowns may be in memory alone.
const writeBehind = 3 * time.Second

// dirtySet holds what has changed in memory and is not on disk yet. A timer
// runs only while there is something.
type dirtySet struct {
	mu       sync.Mutex
	tasks    map[*task]struct{}
	sessions map[*Session]struct{}
	armed    bool
}

func (d *dirtySet) has(t *task) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.tasks[t]
	return ok
}

func (p *Plane) markDirty(t *task) {
	d := &p.dirty
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks == nil {
		d.tasks = map[*task]struct{}{}
	}
	d.tasks[t] = struct{}{}
	p.armFlush()
}

func (p *Plane) markSessionDirty(s *Session) {
	d := &p.dirty
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions == nil {
		d.sessions = map[*Session]struct{}{}
	}
	d.sessions[s] = struct{}{}
	p.armFlush()
}

// armFlush starts the timer; d.mu is held.
func (p *Plane) armFlush() {
	if p.dirty.armed || p.ctx.Err() != nil {
		return
	}
	p.dirty.armed = true
	p.background(func() {
		t := time.NewTimer(writeBehind)
		defer t.Stop()
		select {
		case <-t.C:
		case <-p.ctx.Done():
			return // Close flushes
		}
		p.flush(p.ctx) //nolint:errcheck // logged; what failed is marked again
	})
}

// flush writes what is dirty, task by task; the committer joins them.
func (p *Plane) flush(ctx context.Context) error {
	d := &p.dirty
	d.mu.Lock()
	tasks := slices.Collect(maps.Keys(d.tasks))
	sessions := slices.Collect(maps.Keys(d.sessions))
	d.tasks, d.sessions, d.armed = nil, nil, false
	d.mu.Unlock()

	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		slot = make(chan struct{}, 64)
	)
	try := func(f func() error, again func()) {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			if err := f(); err != nil {
				again()
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	for _, t := range tasks {
		try(func() error { return t.write(ctx) }, func() { p.markDirty(t) })
	}
	for _, s := range sessions {
		try(func() error { return s.write(ctx) }, func() { p.markSessionDirty(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// write puts the task as it is in memory on disk.
func (t *task) write(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone { // it had nothing to decide, and another may be on disk by now
		return nil
	}
	b := &Batch{Tasks: []TaskRecord{t.rec}}
	for _, e := range t.all() {
		b.Envs = append(b.Envs, e.rec.Load())
	}
	return t.p.commit(ctx, b)
}
