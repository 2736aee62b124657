package launch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// closeOOM is how near to the end of PID 1 memory must have run out to be its
// cause. Memory that ran out earlier killed somebody else.
const closeOOM = 2 * time.Second

// memoryWatch follows a control group's count of processes that were killed for
// want of memory. The count is of this run alone: it is compared with the start's.
type memoryWatch struct {
	fd   int // readable when memory has run out
	file string
	two  bool

	first, seen int64 // counts: at the start, and when last read
	last        time.Time
	told        time.Time // version 1: when memory ran out, while nobody is counted as killed for it
}

// Version 1's count is read anew until it has who was killed, or for so long. Else he
// would be counted with whatever ends PID 1 later.
const (
	recount    = 50 * time.Millisecond
	recountFor = 10 * time.Second
)

// pending says whether the count has to be read anew.
func (w *memoryWatch) pending() bool {
	return !w.told.IsZero() && time.Since(w.told) < recountFor
}

func watchMemory(group string, two bool) (*memoryWatch, error) {
	w := &memoryWatch{file: filepath.Join(group, "memory.oom_control"), two: two}
	if two {
		w.file = filepath.Join(group, "memory.events")
	}
	count, err := w.count()
	if err != nil {
		return nil, err
	}
	w.first, w.seen = count, count
	if two {
		if w.fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
			return nil, os.NewSyscallError("inotify_init1", err)
		}
		if _, err := unix.InotifyAddWatch(w.fd, w.file, unix.IN_MODIFY); err != nil {
			return nil, os.NewSyscallError("inotify_add_watch", err)
		}
		return w, nil
	}
	if w.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	control, err := os.Open(w.file)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	return w, os.WriteFile(filepath.Join(group, "cgroup.event_control"), fmt.Appendf(nil, "%d %d", w.fd, control.Fd()), 0)
}

// note takes an event. Version 1 tells that memory has run out before it kills;
// version 2 tells of every change of the counts, afterwards.
func (w *memoryWatch) note() {
	var b [4096]byte
	told := false
	for {
		n, err := unix.Read(w.fd, b[:])
		if n <= 0 || err != nil && err != unix.EINTR {
			break
		}
		told = true
	}
	now := time.Now()
	if told && !w.two {
		w.last, w.told = now, now
	}
	if count, err := w.count(); err == nil {
		if count > w.seen {
			w.last, w.told = now, time.Time{}
		}
		w.seen = count
	}
}

// justRanOut says whether a process was killed for want of memory in this run, and just now.
func (w *memoryWatch) justRanOut() bool {
	w.note()
	return w.seen > w.first && time.Since(w.last) <= closeOOM
}

func (w *memoryWatch) count() (int64, error) {
	b, err := os.ReadFile(w.file)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == "oom_kill" {
			return strconv.ParseInt(string(f[1]), 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no oom_kill", filepath.Base(w.file))
}
