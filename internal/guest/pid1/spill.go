package pid1

import (
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Output that is more than its answer can hold is also written to files of the
// sandbox, as its user and with their rights: on disk where that can be written
// (/var/tmp), else in memory (/tmp). Files are bounded, each and together; the
// oldest of ended commands go first. A file that cannot be written stays as long
// as it is: the command does not notice.
const (
	spillFileMax  = 8 << 20
	spillTotalMax = 32 << 20
	spillFolder   = "sandkeeper-output"
)

var spillBases = []string{"/var/tmp", "/tmp"}

// spills are the files of a sandbox.
type spills struct {
	user  *User
	bases []string
	total int64 // bytes that all may have

	mu    sync.Mutex // guards the fields below, and path and size of each spill
	dir   string     // "": not made yet
	used  int64
	ended []*spill // oldest first
}

func newSpills(u *User) *spills { return &spills{user: u, bases: spillBases, total: spillTotalMax} }

// spill is one stream's file. Its methods but file are the stream's writer's.
type spill struct {
	all   *spills
	name  string
	limit int64 // of the answer
	f     *os.File
	over  bool // nothing more is written

	path string // "": there is none
	size int64
}

// of makes the spills of an exec's streams.
func (a *spills) of(exec string, limit int) (out, errs *spill) {
	return &spill{all: a, name: exec + ".stdout", limit: int64(limit)}, &spill{all: a, name: exec + ".stderr", limit: int64(limit)}
}

// add takes what is about to be written to s, which has kept what came before.
func (sp *spill) add(s *stream, p []byte) {
	if sp == nil || sp.over {
		return
	}
	if sp.f == nil {
		s.mu.Lock()
		total := s.total
		if total+int64(len(p)) <= sp.limit {
			s.mu.Unlock()
			return
		}
		before := make([]byte, total)
		n := s.readAt(0, before)
		s.mu.Unlock()
		if int64(n) < total || !sp.open() { // the sandbox keeps too much to keep all of this
			sp.over = true
			return
		}
		sp.write(before)
	}
	sp.write(p)
}

func (sp *spill) write(p []byte) {
	if sp.over {
		return
	}
	want := int(min(int64(len(p)), spillFileMax-sp.size))
	n := sp.all.take(want)
	written, err := sp.f.Write(p[:n])
	sp.all.mu.Lock()
	sp.size += int64(written)
	sp.all.used -= int64(n - written)
	sp.all.mu.Unlock()
	if err != nil || n < len(p) {
		sp.over = true
	}
}

// take reserves up to n bytes.
func (a *spills) take(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.total-a.used < int64(n) && len(a.ended) > 0 {
		a.dropLocked(a.ended[0])
		a.ended = a.ended[1:]
	}
	n = int(min(int64(n), a.total-a.used))
	a.used += int64(n)
	return n
}

func (a *spills) dropLocked(sp *spill) {
	a.user.do(func() error { return os.Remove(sp.path) }) //nolint:errcheck // somebody else may have removed it
	a.used -= sp.size
	sp.path, sp.size = "", 0
}

// open makes the file, never through a link that somebody laid there.
func (sp *spill) open() bool {
	a := sp.all
	a.mu.Lock()
	defer a.mu.Unlock()
	if sp.name != filepath.Base(sp.name) || a.dir == "" && !a.makeDirLocked() {
		return false
	}
	path := filepath.Join(a.dir, sp.name)
	err := a.user.do(func() (err error) {
		sp.f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		sp.f = nil
		return false
	}
	sp.path = path
	return true
}

// makeDirLocked makes the folder anew: what an earlier run of the sandbox left goes.
func (a *spills) makeDirLocked() bool {
	for _, base := range a.bases {
		dir := filepath.Join(base, spillFolder)
		err := a.user.do(func() error {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			return os.Mkdir(dir, 0o700)
		})
		if err == nil {
			a.dir = dir
			return true
		}
	}
	return false
}

// end says that nothing more is written: the file may go. One with nothing in it goes.
func (a *spills) end(all ...*spill) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, sp := range all {
		if sp == nil || sp.f == nil {
			continue
		}
		sp.f.Close()
		if sp.size == 0 {
			a.dropLocked(sp)
		} else {
			a.ended = append(a.ended, sp)
		}
	}
}

// file names the file, "" where there is none.
func (sp *spill) file() string {
	if sp == nil {
		return ""
	}
	sp.all.mu.Lock()
	defer sp.all.mu.Unlock()
	if sp.size == 0 {
		return ""
	}
	return sp.path
}
