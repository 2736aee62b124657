package pid1

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// oomCounter reads how many processes of the sandbox the kernel has killed for
// want of memory. Where the cgroup cannot be seen, it is silent.
type oomCounter struct{ file *os.File }

func openOOMCounter() oomCounter {
	for _, path := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		c := oomCounter{f}
		if _, ok := c.read(); ok {
			return c
		}
		f.Close()
	}
	return oomCounter{}
}

func (c oomCounter) read() (kills int64, ok bool) {
	if c.file == nil {
		return 0, false
	}
	var b [512]byte
	n, err := unix.Pread(int(c.file.Fd()), b[:], 0)
	if err != nil {
		return 0, false
	}
	return parseOOMKills(b[:n])
}

func parseOOMKills(b []byte) (kills int64, ok bool) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == "oom_kill" {
			v, err := strconv.ParseInt(string(f[1]), 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}
