package local

import (
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/engine/local/launch"
)

// view is what a sandbox sees of the host when it starts. The masks of root's
// are made anew where something changed in what they look at: the kernel says so,
// by inotify. Where it cannot watch, they are made for each start.
type view struct {
	dir           string // of masks, a directory for each time that they were made
	root          bool
	shown, masked []string
	log           *slog.Logger

	mu       sync.Mutex // guards the fields below
	trees    []launch.Tree
	name     string         // of their masks
	inotify  int            // -1: there is none
	watching bool           // all of it
	starting map[string]int // starts under way, by the name of their masks
}

func newView(dir string, root bool, log *slog.Logger) *view {
	return &view{dir: dir, root: root, shown: shown, masked: masked, log: log, inotify: -1, starting: make(map[string]int)}
}

// now returns what there is to show, and the name of its masks, which stay until
// release was called. What runs keeps the masks that it was started with.
func (v *view) now() (trees []launch.Tree, name string, release func(), err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.trees == nil || v.root && v.changed() {
		if err := v.look(); err != nil {
			return nil, "", nil, err
		}
	}
	name = v.name
	v.starting[name]++
	return v.trees, name, func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.starting[name]--; v.starting[name] == 0 {
			delete(v.starting, name)
		}
	}, nil
}

// changed says whether there is news since the last look.
func (v *view) changed() bool {
	if !v.watching {
		return true
	}
	var b [4096]byte
	for {
		_, err := unix.Read(v.inotify, b[:])
		if err != unix.EINTR {
			return err != unix.EAGAIN // an event, or no way to tell
		}
	}
}

// look lists what there is to show, with new masks.
func (v *view) look() error {
	v.unwatch()
	var watch func(dir string)
	if v.root {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		v.inotify, v.watching = fd, err == nil
		watch = func(dir string) {
			const news = unix.IN_ATTRIB | unix.IN_CREATE | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW
			if v.watching {
				_, err := unix.InotifyAddWatch(v.inotify, dir, news)
				v.watching = err == nil || err == unix.ENOENT
			}
		}
	}
	name := strings.ToLower(rand.Text())
	trees, err := findTrees(v, filepath.Join(v.dir, name), watch)
	if err != nil {
		v.watching = false
		return err
	}
	v.trees, v.name = trees, name
	return nil
}

func (v *view) unwatch() {
	if v.inotify >= 0 {
		unix.Close(v.inotify)
	}
	v.inotify, v.watching = -1, false
}

// close ends the watch.
func (v *view) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.unwatch()
}

// drop removes the masks that are not today's, of no start that is under way, and
// not among those that used names. It asks for these once no start can end unseen.
func (v *view) drop(used func() (names []string, known bool)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	names, known := used()
	if !known {
		return
	}
	entries, _ := os.ReadDir(v.dir)
	for _, e := range entries {
		if e.Name() == v.name || v.starting[e.Name()] > 0 || slices.Contains(names, e.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(v.dir, e.Name())); err != nil {
			v.log.Warn("old masks stay", "err", err)
		}
	}
}

// dropOldMasks removes the masks that nothing uses any more. What runs would lose its own.
func (e *Engine) dropOldMasks() {
	if e.opts.PruneOnly {
		return // all of them go
	}
	e.view.drop(func() (names []string, known bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, b := range e.boxes {
			if b.run == nil {
				continue
			}
			if b.last.Masks == "" { // an older server's: they may be any
				return nil, false
			}
			names = append(names, b.last.Masks)
		}
		return names, true
	})
}
