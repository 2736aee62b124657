package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"golang.org/x/sys/unix"
)

// Arg is the argument by which the guest's binary becomes a keeper.
const Arg = "keeper"

const socketFD = 3

// Run is the life of a keeper, until PID 1 closes its socket.
func Run() error {
	debug.SetGCPercent(20)
	unix.CloseOnExec(socketFD)
	unix.Umask(0o022)
	heed()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("child subreaper: %w", err)
	}
	// Commands inherit this: where memory runs out, they go before PID 1 does.
	// Where it cannot be written, the kernel goes by their size.
	os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	var buf []byte
	for {
		var files []int
		var err error
		buf, files, err = receive(buf)
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		c, err := parseCommand(buf)
		if err != nil {
			return err
		}
		pid, startErr := start(&c, files)
		for _, f := range files {
			unix.Close(f)
		}
		if err := attend(c.Seq, pid, startErr); err != nil {
			return err
		}
		if cap(buf) > 64<<10 {
			buf = nil
		}
	}
}

// heed undoes it where whatever started the sandbox ignores signals, as nohup
// has its program do: commands would inherit that. What is caught is back at its
// default in them; these are the signals that the runtime does not catch by itself.
func heed() {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unix.SIGHUP, unix.SIGINT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU, unix.SIGCONT)
}

// receive reads one command and the files that came with it.
func receive(buf []byte) ([]byte, []int, error) {
	var size [4]byte
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, err := recvmsg(size[:], oob)
	if err != nil {
		return nil, nil, err
	}
	var files []int
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, nil, err
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return nil, nil, err
		}
		files = append(files, fds...)
	}
	if err := readFull(size[n:]); err != nil {
		return nil, nil, err
	}
	length := int(binary.LittleEndian.Uint32(size[:]))
	if length > MaxCommand {
		return nil, nil, errCommand
	}
	if length > cap(buf) {
		buf = make([]byte, length)
	}
	buf = buf[:length]
	return buf, files, readFull(buf)
}

func recvmsg(p, oob []byte) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(socketFD, p, oob, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, 0, err
		case n == 0:
			return 0, 0, io.EOF
		default:
			return n, oobn, nil
		}
	}
}

func readFull(p []byte) error {
	for len(p) > 0 {
		n, err := unix.Read(socketFD, p)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		default:
			p = p[n:]
		}
	}
	return nil
}

func start(c *Command, files []int) (pid int, err error) {
	const none = ^uintptr(0)
	attr := &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: c.TTY}}
	if c.Switch {
		attr.Sys.Credential = &syscall.Credential{Uid: c.UID, Gid: c.GID, Groups: c.Groups}
	}
	for i, f := range files {
		for i == 3 && len(attr.Files) < c.Extra {
			attr.Files = append(attr.Files, none)
		}
		attr.Files = append(attr.Files, uintptr(f))
	}
	return syscall.ForkExec(c.Path, c.Argv, attr)
}

// attend reaps until nothing is left of the command's tree, and tells.
func attend(seq uint32, pid int, startErr error) error {
	if startErr != nil {
		errno := unix.EIO
		errors.As(startErr, &errno)
		return tell(Reply{Event: Failed, Seq: seq, Errno: uint32(errno)})
	}
	if err := tell(Reply{Event: Started, Seq: seq, PID: pid}); err != nil {
		return err
	}
	var end Reply // of the command, until it is told
	told := false
	for {
		flags := 0
		if end.Event != 0 && !told {
			flags = unix.WNOHANG // is anything left?
		}
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, flags, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD:
			if told {
				return tell(Reply{Event: Gone, Seq: seq})
			}
			end.Empty = true
			return tell(end)
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case got == 0:
			if err := tell(end); err != nil {
				return err
			}
			told = true
		case got == pid && end.Event == 0:
			end = Reply{Event: Exited, Seq: seq, Status: uint32(status)}
		}
	}
}

func tell(r Reply) error {
	b := r.encode()
	p := b[:]
	for len(p) > 0 {
		n, err := unix.Write(socketFD, p)
		if err != nil && err != unix.EINTR {
			return err
		}
		p = p[max(n, 0):]
	}
	return nil
}
