package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
	"sandkeeper/internal/guest/link"
)

// specFile holds what was asked for, in a sandbox's directory. A directory
// without it is one that never came to be.
const specFile = "spec.json"

// kept is what specFile holds.
type kept struct {
	Spec      control.SandboxSpec `json:"spec"`
	CreatedAt time.Time           `json:"created_at"`
	FilesOnly bool                `json:"files_only"` // the workspace is what is left
}

// box is one sandbox. What is on disk is the truth; this is what was read.
type box struct {
	name string
	dir  string
	turn chan struct{} // holds one token while nobody changes the sandbox

	settled chan error // how its names got on disk; of who has the turn

	// Guarded by the engine's mu.
	kept    *kept       // nil: there is none
	last    *launch.Run // nil: it never ran
	run     *run        // nil: it does not run
	listens *link.Listener
}

// run is a run of a sandbox that we wait for the end of.
type run struct {
	pid   launch.Process
	ended <-chan struct{} // closed once its launcher is gone
	done  chan struct{}   // closed once its end is known
}

func newRun(pid launch.Process, ended <-chan struct{}) *run {
	return &run{pid: pid, ended: ended, done: make(chan struct{})}
}

// ours says that a name is one of this instance's.
func (e *Engine) ours(name string) error {
	if !validName.MatchString(name) || !strings.HasPrefix(name, "sandkeeper-"+e.opts.Instance+"-") {
		return fmt.Errorf("sandbox %q is not of the instance %q, and is left alone", name, e.opts.Instance)
	}
	return nil
}

// take takes the sandbox of that name, there or not, for a change of it.
func (e *Engine) take(ctx context.Context, name string) (*box, error) {
	if err := e.ours(name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for {
		b := e.box(name)
		select {
		case <-b.turn:
		case <-ctx.Done():
			return nil, fmt.Errorf("sandbox %s is busy: %w", name, ctx.Err())
		}
		e.mu.Lock()
		current := e.boxes[name] == b
		e.mu.Unlock()
		if current {
			return b, nil
		}
		b.turn <- struct{}{} // it was removed meanwhile, and is nobody's
	}
}

func (e *Engine) box(name string) *box {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.boxes[name]
	if b == nil {
		b = &box{name: name, dir: e.path(sandboxesDir, name), turn: make(chan struct{}, 1)}
		b.turn <- struct{}{}
		e.boxes[name] = b
	}
	return b
}

// give ends a change. A sandbox that is not there is forgotten.
func (e *Engine) give(b *box) {
	e.mu.Lock()
	if b.kept == nil && e.boxes[b.name] == b {
		delete(e.boxes, b.name)
	}
	e.mu.Unlock()
	b.turn <- struct{}{}
}

// running returns a sandbox's run and its record; nil where it does not run.
func (e *Engine) running(b *box) (*run, *launch.Run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return b.run, b.last
}

// set changes what is known of a sandbox.
func (e *Engine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// there says whether there is a sandbox, not merely its workspace. Its
// directory may have gone behind our back.
func (b *box) there() bool {
	if b.kept == nil || b.kept.FilesOnly {
		return false
	}
	_, err := os.Stat(filepath.Join(b.dir, specFile))
	return !errors.Is(err, fs.ErrNotExist)
}

// write puts the spec on disk for good.
func (b *box) write(k kept) error {
	place, err := prepare(b.dir, k)
	if err != nil {
		return err
	}
	if err := place(); err != nil {
		return err
	}
	return syncDir(b.dir)
}

// prepare puts the spec on disk, under a name that means nothing; place renames it.
func prepare(dir string, k kept) (place func() error, err error) {
	raw, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return nil, err
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return func() error {
		if err := os.Rename(f.Name(), filepath.Join(dir, specFile)); err != nil {
			return errors.Join(err, os.Remove(f.Name()))
		}
		return nil
	}, nil
}

// settle has the disk take the names of a new sandbox for good.
func (b *box) settle(e *Engine) {
	settled := make(chan error, 1)
	b.settled = settled
	parent := e.path(sandboxesDir)
	e.wg.Go(func() { settled <- errors.Join(syncDir(b.dir), syncDir(parent)) })
}

// await waits for that.
func (b *box) await() error {
	if b.settled == nil {
		return nil
	}
	err := <-b.settled
	b.settled = nil
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// read reads what is on disk of a sandbox. Errors: fs.ErrNotExist, where it never came to be.
func (b *box) read() error {
	raw, err := os.ReadFile(filepath.Join(b.dir, specFile))
	if err != nil {
		return err
	}
	var k kept
	if err := json.Unmarshal(raw, &k); err != nil {
		return fmt.Errorf("%s: %w", specFile, err)
	}
	last, err := launch.ReadRun(b.dir)
	if err != nil {
		return err
	}
	b.kept, b.last = &k, last
	return nil
}

// makeFiles makes the directories of a sandbox.
func makeFiles(dir string) error {
	for _, d := range []struct {
		name string
		mode fs.FileMode
	}{
		{launch.WorkspaceDir, 0o755}, {launch.HomeDir, 0o700}, {launch.LinkDir, 0o755}, {launch.UpperDir, 0o755}, {launch.WorkDir, 0o700},
	} {
		if err := os.Mkdir(filepath.Join(dir, d.name), d.mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return makeRoot(filepath.Join(dir, launch.RootDir))
}

// load takes over what is on disk: sandboxes that run are waited for, and what a
// crash left half made or half removed goes.
func (e *Engine) load(ctx context.Context) error {
	entries, err := os.ReadDir(e.path(sandboxesDir))
	if err != nil {
		return fmt.Errorf("sandboxes: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		dir := e.path(sandboxesDir, name)
		if strings.HasPrefix(name, ".") {
			if err := removeTree(dir); err != nil {
				e.log.Warn("what was removed stays", "dir", dir, "err", err)
			}
			continue
		}
		if e.ours(name) != nil {
			continue
		}
		b := e.box(name)
		err := b.read()
		if errors.Is(err, fs.ErrNotExist) {
			delete(e.boxes, name)
			if err := removeTree(dir); err != nil {
				e.log.Warn("what was half made stays", "sandbox", name, "err", err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", name, err)
		}
		e.adopt(b)
	}
	if !e.opts.PruneOnly {
		e.dropOldMasks()
	}
	e.dropOldGroups(ctx)
	return nil
}

// dropOldGroups removes the control groups of what no longer runs.
func (e *Engine) dropOldGroups(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	used := make(map[string]bool)
	for _, b := range e.boxes {
		if r, _ := e.running(b); r != nil {
			used[b.group()] = true
		}
	}
	for _, name := range e.can.groups.left() {
		if used[name] {
			continue
		}
		if err := e.can.groups.remove(ctx, name); err != nil {
			e.log.Warn("control group stays", "group", name, "err", err)
		}
	}
}
