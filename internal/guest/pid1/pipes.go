package pid1

import (
	"os"

	"golang.org/x/sys/unix"
)

// pipes are a command's three streams: [0] is read, [1] is written.
type pipes struct{ in, out, err [2]int }

// openPipes opens them. Our ends do not block, theirs do.
func openPipes() (*pipes, error) {
	p := new(pipes)
	for i, pair := range []*[2]int{&p.in, &p.out, &p.err} {
		if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
			for _, open := range []*[2]int{&p.in, &p.out}[:i] {
				unix.Close(open[0])
				unix.Close(open[1])
			}
			return nil, os.NewSyscallError("pipe2", err)
		}
	}
	for _, fd := range []int{p.in[1], p.out[0], p.err[0]} {
		unix.SetNonblock(fd, true)
	}
	return p, nil
}

func (p *pipes) closeTheirs() {
	unix.Close(p.in[0])
	unix.Close(p.out[1])
	unix.Close(p.err[1])
}

func (p *pipes) closeOurs() {
	unix.Close(p.in[1])
	unix.Close(p.out[0])
	unix.Close(p.err[0])
}

// feed writes a command's whole input and closes it. What does not fit the pipe
// is written as it is read, for as long as somebody may read it.
func feed(fd int, data []byte) {
	if len(data) > 0 {
		n, _ := unix.Write(fd, data)
		data = data[max(n, 0):]
	}
	if len(data) == 0 {
		unix.Close(fd)
		return
	}
	go func() {
		f := os.NewFile(uintptr(fd), "stdin")
		f.Write(data)
		f.Close()
	}()
}
