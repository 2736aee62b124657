package keeper

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Handle is PID 1's end of one keeper. Whoever makes it reaps its process.
type Handle struct {
	PID  int
	conn *net.UnixConn

	mu   sync.Mutex // guards the fields below
	seq  uint32
	tell func(Reply) // of the current command
	lost bool
}

// Spawn starts a keeper from the guest's binary. env is its own environment;
// commands get theirs with Start.
func Spawn(binary string, env []string) (*Handle, error) {
	return SpawnWith(binary, []string{Arg}, env)
}

// SpawnWith starts one with these arguments and, from number 4 on, these files.
func SpawnWith(binary string, args, env []string, files ...uintptr) (*Handle, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "keeper"), pair[1]
	defer ours.Close() // FileConn has one of its own
	defer unix.Close(theirs)
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(binary, append([]string{"sandkeeper"}, args...), &syscall.ProcAttr{
		Dir: "/", Env: env,
		Files: append([]uintptr{null.Fd(), null.Fd(), 2, uintptr(theirs)}, files...),
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("start keeper: %w", err)
	}
	return &Handle{PID: pid, conn: conn.(*net.UnixConn)}, nil
}

// Socket is the number of the file by which the keeper is reached, -1 where that is closed.
func (h *Handle) Socket() int {
	fd := -1
	raw, err := h.conn.SyscallConn()
	if err == nil {
		raw.Control(func(n uintptr) { fd = int(n) }) //nolint:errcheck // then it is closed
	}
	return fd
}

// Attend reads what the keeper tells until it is gone; then it calls ended, and
// the last that is told is Lost where a command was its charge. It is called
// once, by a goroutine of its own.
func (h *Handle) Attend(ended func()) {
	var b [replySize]byte
	for {
		if _, err := io.ReadFull(h.conn, b[:]); err != nil {
			break
		}
		r := parseReply(b)
		h.mu.Lock()
		tell := h.tell
		if r.Seq != h.seq {
			tell = nil
		}
		h.mu.Unlock()
		if tell != nil {
			tell(r)
		}
	}
	h.conn.Close()
	ended()
	h.mu.Lock()
	h.lost = true
	tell, seq := h.tell, h.seq
	h.tell = nil
	h.mu.Unlock()
	if tell != nil {
		tell(Reply{Event: Lost, Seq: seq})
	}
}

// Start has the keeper start a command with these files (stdin, stdout, stderr,
// and perhaps a fourth). tell is called with what becomes of it, one call at a
// time, until Failed, an Empty Exited, Gone or Lost. A keeper has one command at
// a time. An error means that nothing was started; net.ErrClosed that the
// keeper is of no more use.
func (h *Handle) Start(c *Command, files []int, tell func(Reply)) error {
	// Held while writing, so that a loss is either this call's error or told, not both.
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost {
		return net.ErrClosed
	}
	h.seq++
	c.Seq = h.seq
	b, err := c.append(nil)
	if err != nil {
		return err
	}
	n, _, err := h.conn.WriteMsgUnix(b, unix.UnixRights(files...), nil)
	if err == nil && n < len(b) {
		_, err = h.conn.Write(b[n:])
	}
	if err != nil {
		h.conn.Close()
		return net.ErrClosed
	}
	h.tell = tell
	return nil
}

// Rest says that the command is over: nothing more is told of it.
func (h *Handle) Rest() {
	h.mu.Lock()
	h.tell = nil
	h.mu.Unlock()
}

// Close lets the keeper go. It ends by itself once its command's tree is gone.
func (h *Handle) Close() { h.conn.Close() }
