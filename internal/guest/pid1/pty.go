package pid1

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/wire"
)

const terminalType = "xterm-256color"

// terminal is a pseudo terminal. Its master is ours, and does not block.
type terminal struct{ master, slave int }

// openTerminal opens one of the sandbox's own, for the user of its commands.
func openTerminal(size *wire.TTY, u *User) (*terminal, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("this sandbox has no terminals: %w", &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err})
	}
	slave, err := openSlave(master)
	if err != nil {
		unix.Close(master)
		return nil, fmt.Errorf("this sandbox has no terminals: %w", err)
	}
	// What may be refused of the rest, the command can do without.
	unix.Fchown(slave, int(u.UID), -1) //nolint:errcheck // it is open for it all the same
	setSize(master, size)              //nolint:errcheck // it has a size then, if another
	return &terminal{master, slave}, nil
}

// openSlave opens the other end by the master alone; a kernel that cannot do
// that finds it by its name.
func openSlave(master int) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, os.NewSyscallError("unlock", err)
	}
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	if slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags); errno == 0 {
		return int(slave), nil
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return -1, os.NewSyscallError("terminal's number", err)
	}
	name := "/dev/pts/" + strconv.Itoa(n)
	slave, err := unix.Open(name, flags, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return slave, nil
}
