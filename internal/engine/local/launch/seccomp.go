package launch

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused are the system calls that no capability guards, or guards only
// outside of a user namespace that anybody may make, and that reach what is the
// host's: its keys, its kernel's programs, and namespaces in which all
// capabilities come back. Sandboxes have no use for them.
var refused = []uint32{
	unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_IO_URING_ENTER,
	unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MOUNT,
	unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_OPEN_TREE, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_PIVOT_ROOT, unix.SYS_QUOTACTL, unix.SYS_REQUEST_KEY, unix.SYS_SETNS, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD,
}

// Offsets of struct seccomp_data.
const (
	dataNr   = 0
	dataArch = 4
	dataArg0 = 16 // its low half: both machines are little-endian
)

const (
	archAMD64 = 0xC000003E
	archARM64 = 0xC00000B7
	x32       = 0x40000000 // amd64's other calls

	retAllow = 0x7fff0000
	retErrno = 0x00050000

	newNamespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP
)

// filterCalls has the kernel refuse them to every thread of this process and to
// what it becomes and starts. The calls of another architecture, which amd64 has in
// its old one, are refused as a whole.
func filterCalls() error {
	arch := uint32(archAMD64)
	if runtime.GOARCH == "arm64" {
		arch = archARM64
	}
	program := filter(arch)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	if thread != 0 {
		return fmt.Errorf("thread %d has a filter of its own", thread)
	}
	return nil
}

func filter(arch uint32) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jump := func(kind uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | kind | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	answer := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k}
	}
	const eperm, enosys = retErrno | uint32(unix.EPERM), retErrno | uint32(unix.ENOSYS)
	p := []unix.SockFilter{
		load(dataArch),
		jump(unix.BPF_JEQ, arch, 1, 0),
		answer(enosys),
		load(dataNr),
		jump(unix.BPF_JGE, x32, 0, 1),
		answer(enosys),
		// A program falls back from clone3, whose flags no filter can read.
		jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1),
		answer(enosys),
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 4),
		load(dataArg0),
		jump(unix.BPF_JSET, newNamespaces, 0, 1),
		answer(eperm),
		answer(retAllow),
	}
	for _, nr := range refused {
		p = append(p, jump(unix.BPF_JEQ, nr, 0, 1), answer(eperm))
	}
	return append(p, answer(retAllow))
}
