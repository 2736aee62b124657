package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
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
func everyThread(name string, trap, a1, a2, a3 uintptr) error { //nolint:unparam // as the system call is
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
func dropRights() error {
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
	want := []string{
		fmt.Sprintf("\nCapInh:\t%016x\nCapPrm:\t%016x\nCapEff:\t%016x\nCapBnd:\t%016x\nCapAmb:\t%016x\n", 0, set, set, set, 0),
		"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n",
	}
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return err
	}
	defer dir.Close()
	threads, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	status := make([]byte, 8<<10)
	for _, t := range threads {
		n, err := readInto(status, "/proc/self/task/"+t+"/status")
		if err == unix.ENOENT || err == unix.ESRCH {
			continue // it has ended
		}
		if err != nil {
			return err
		}
		for _, w := range want {
			if !bytes.Contains(status[:n], []byte(w)) {
				return fmt.Errorf("thread %s is not confined: %s", t, status[:n])
			}
		}
	}
	return nil
}

// readInto reads a file of /proc that fits.
func readInto(b []byte, path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.Read(fd, b)
}

// checkFiles looks at what is open: nothing of the host's but the log and the
// null device may be, since whoever is root here could go through it. Those
// named are known.
func checkFiles(known ...int) error {
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
		if fd <= unix.Stderr || slices.Contains(known, fd) || fd == int(dir.Fd()) {
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
