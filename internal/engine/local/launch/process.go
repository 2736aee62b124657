package launch

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process names one process for good: its id may be another's later, with
// another start.
type Process struct {
	ID    int    `json:"id"`
	Start uint64 `json:"start"` // clock ticks since boot, as /proc tells
}

// ProcessOf names the process that has this id now.
func ProcessOf(pid int) (Process, error) {
	s, err := ReadStat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{pid, s.Start}, nil
}

// Open opens a pidfd of exactly this process. Errors: unix.ESRCH where it is gone.
func (p Process) Open(nonblock bool) (int, error) {
	if p.ID <= 0 {
		return -1, unix.ESRCH
	}
	flags := 0
	if nonblock {
		flags = unix.PIDFD_NONBLOCK
	}
	fd, err := unix.PidfdOpen(p.ID, flags)
	if err != nil {
		if err == unix.EINVAL { // a thread by now
			err = unix.ESRCH
		}
		return -1, err
	}
	// What the descriptor names cannot change from here on.
	if now, err := ProcessOf(p.ID); err != nil || now != p {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// Stat is what /proc/PID/stat says.
type Stat struct {
	State  byte
	Parent int
	Start  uint64
	Ticks  uint64 // CPU time, of ended children that were waited for too
	Pages  int64  // resident
}

// ReadStat reads /proc/PID/stat. A process that is gone is an error.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, err
	}
	return parseStat(b)
}

func parseStat(b []byte) (s Stat, err error) {
	// The command's name is in parentheses and may hold any of them.
	i := bytes.LastIndexByte(b, ')')
	f := bytes.Fields(b[i+1:])
	if i < 0 || len(f) < 22 || len(f[0]) != 1 {
		return s, fmt.Errorf("stat of a process: %q", b)
	}
	num := func(i int) (v uint64) {
		n, e := strconv.ParseInt(string(f[i]), 10, 64)
		if e != nil && err == nil {
			err = fmt.Errorf("stat of a process: %w", e)
		}
		return uint64(n)
	}
	s = Stat{State: f[0][0], Parent: int(num(1)), Start: num(19), Pages: int64(num(21))}
	for i := 11; i <= 14; i++ {
		s.Ticks += num(i)
	}
	return s, err
}

// Boot names this boot of the machine.
func Boot() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
