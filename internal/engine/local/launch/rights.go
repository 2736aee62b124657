package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kept are the capabilities that root has in a sandbox, as with every engine.
var kept = []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID}

// everyThread makes a system call in every thread of this process; threads that
// are made later take after those. One thread that differs ends the process.
func everyThread(name string, trap, a1, a2, a3 uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3); errno != 0 {
		return os.NewSyscallError(name, errno)
	}
	return nil
}

// giveUpGains leaves no way to more rights than there are: none to be had by
// what is executed.
func giveUpGains() error {
	if err := everyThread("no_new_privs", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); err != nil {
		return err
	}
	for c := uintptr(0); ; c++ {
		if slices.Contains(kept, uint(c)) {
			continue
		}
		err := everyThread("bounding set", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel has no more
		}
		if err != nil {
			return err
		}
	}
	return everyThread("ambient set", unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0)
}

// dropRights leaves every thread of this process, and what it starts, the kept
// capabilities alone, and says so only after it has looked.
func dropRights(*Plan) error {
	if err := filterCalls(); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for _, c := range kept {
		data[c/32].Effective |= 1 << (c % 32)
		data[c/32].Permitted |= 1 << (c % 32)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return checkRights()
}

// checkRights looks at what every thread may.
func checkRights() error {
	var set uint64
	for _, c := range kept {
		set |= 1 << c
	}
	want := map[string]string{
		"CapInh": fmt.Sprintf("%016x", 0), "CapPrm": fmt.Sprintf("%016x", set), "CapEff": fmt.Sprintf("%016x", set),
		"CapBnd": fmt.Sprintf("%016x", set), "CapAmb": fmt.Sprintf("%016x", 0), "NoNewPrivs": "1", "Seccomp": "2",
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		status, err := os.ReadFile(filepath.Join("/proc/self/task", t.Name(), "status"))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return err
		}
		found := 0
		for line := range bytes.Lines(status) {
			name, value, _ := strings.Cut(string(bytes.TrimSpace(line)), ":")
			w, ok := want[name]
			if !ok {
				continue
			}
			if value = strings.TrimSpace(value); value != w {
				return fmt.Errorf("%s of thread %s is %s, not %s", name, t.Name(), value, w)
			}
			found++
		}
		if found != len(want) {
			return fmt.Errorf("thread %s tells %d of its %d rights", t.Name(), found, len(want))
		}
	}
	return nil
}

// checkFiles looks at what is open: nothing of the host's but the log and the
// null device may be, since whoever is root here could go through it.
func checkFiles(*Plan) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			return err
		}
		if fd <= unix.Stderr || fd == builderStatus || fd == int(dir.Fd()) {
			continue
		}
		to, err := os.Readlink("/proc/self/fd/" + name)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(to, "anon_inode:[event") { // the runtime's own
			return fmt.Errorf("%s is open", to)
		}
	}
	return nil
}
