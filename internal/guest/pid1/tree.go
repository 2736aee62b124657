package pid1

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is one line of /proc.
type process struct {
	pid, parent int
	dead        bool // a zombie, or about to be one
}

// processes reads all that live. What forks meanwhile may be missed: who must
// have all looks again.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []process
	buf := make([]byte, 512)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := stat(pid, buf); ok {
			all = append(all, p)
		}
	}
	return all
}

func stat(pid int, buf []byte) (process, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return process{}, false
	}
	n, err := unix.Read(fd, buf)
	unix.Close(fd)
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, buf[:n])
}

// exiting is the kernel's PF_EXITING: set before a process closes its files, so
// that one whose output has ended is not taken for one that lives.
const exiting = 0x4

// parseStat reads "PID (NAME) STATE PPID PGRP SESSION TTY TPGID FLAGS …"; a name
// may hold anything.
func parseStat(pid int, b []byte) (process, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return process{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 7 {
		return process{}, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	if err != nil {
		return process{}, false
	}
	flags, err := strconv.ParseUint(string(f[6]), 10, 64)
	if err != nil {
		return process{}, false
	}
	return process{pid: pid, parent: parent, dead: f[0][0] == 'Z' || f[0][0] == 'X' || flags&exiting != 0}, true
}

// below returns what descends from a process, without the dead.
func below(root int, all []process) []int {
	children := make(map[int][]process)
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []int
	next := []int{root}
	for len(next) > 0 {
		kids := children[next[0]]
		delete(children, next[0]) // a pid that was used again must not make a circle
		next = next[1:]
		for _, p := range kids {
			if p.pid == root {
				continue
			}
			next = append(next, p.pid)
			if !p.dead {
				found = append(found, p.pid)
			}
		}
	}
	return found
}

// slay kills what find finds. It stops all of it first, so that nothing forks
// away while it looks; what it missed all the same, the next call gets.
func slay(find func() []int) {
	stopped := make(map[int]bool)
	for fresh := true; fresh; {
		fresh = false
		for _, pid := range find() {
			if !stopped[pid] {
				stopped[pid], fresh = true, true
				unix.Kill(pid, unix.SIGSTOP)
			}
		}
	}
	for pid := range stopped {
		unix.Kill(pid, unix.SIGKILL)
	}
}
