package pid1

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/wire"
)

var errNoTTY = &wire.Error{Code: wire.CodeNoTTY, Message: "the exec has no terminal"}

// input is the stdin of a command that may be given more after its start. One
// giver at a time may: the last that joined. What a giver brings goes straight
// into the pipe, and waits there for the command.
type input struct {
	f     *os.File
	tty   bool
	begun chan struct{} // closed once what it reads first is in

	mu      sync.Mutex // guards the fields below
	free    sync.Cond  // nobody writes
	writing bool
	open    bool
	ending  bool // to be closed once nobody writes
	midline bool // of a terminal: what was given last did not end a line
	giver   *giver
	taken   int64 // of what givers brought, in bytes
}

// giver is who may give stdin.
type giver struct {
	over chan struct{} // closed once it may not any more
}

// newInput makes the input of a command that reads first at first.
func newInput(f *os.File, first []byte, tty bool) *input {
	in := &input{f: f, tty: tty, open: true, begun: make(chan struct{})}
	in.free.L = &in.mu
	if len(first) == 0 {
		close(in.begun)
		return in
	}
	in.writing = true
	go func() { // until it is read, or in is closed
		n, err := f.Write(first)
		close(in.begun)
		in.mu.Lock()
		defer in.mu.Unlock()
		in.wroteLocked(first[:n], err)
	}()
	return in
}

// join makes a new giver, in the place of the one before. taken is exact: what
// the one before has brought beyond it, it brought in vain.
func (in *input) join() (g *giver, taken int64) {
	g = &giver{over: make(chan struct{})}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.open {
		return nil, in.taken
	}
	in.replaceLocked(g)
	for in.writing && done(in.begun) {
		in.free.Wait()
	}
	return g, in.taken
}

// given is how much of what givers brought was taken by now.
func (in *input) given() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken
}

// leave ends a giver's part; stdin stays open.
func (in *input) leave(g *giver) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if g != nil && in.giver == g {
		in.replaceLocked(nil)
	}
}

// replaceLocked stops the giver that there is, also one that waits for the command to read.
func (in *input) replaceLocked(g *giver) {
	if in.giver != nil {
		close(in.giver.over)
		if in.writing {
			in.f.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // then it is closed
		}
	}
	in.giver = g
}

// write writes what a giver brings, until the command has room for all of it or
// the giver may not go on; then the rest is dropped.
func (in *input) write(g *giver, p []byte) {
	if g == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for in.writing && in.giver == g {
		in.free.Wait()
	}
	if in.giver != g {
		return
	}
	in.writing = true
	in.f.SetWriteDeadline(time.Time{}) //nolint:errcheck // then it is closed
	in.mu.Unlock()
	n, err := in.f.Write(p)
	in.mu.Lock()
	in.taken += int64(n)
	in.wroteLocked(p[:n], err)
}

// wroteLocked ends a write.
func (in *input) wroteLocked(p []byte, err error) {
	in.writing = false
	if len(p) > 0 {
		last := p[len(p)-1]
		in.midline = last != '\n' && last != '\r'
	}
	if in.ending || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		in.endLocked() // as asked, or the command reads no more
	}
	in.free.Broadcast()
}

// end is what the giver's zero-length frame asks for.
func (in *input) end(g *giver) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if g != nil && in.giver == g {
		in.finishLocked()
	}
}

// finish ends the input behind what is being written.
func (in *input) finish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.finishLocked()
}

func (in *input) finishLocked() {
	if in.writing {
		in.ending = true
		return
	}
	in.endLocked()
}

// endLocked closes a pipe. On a terminal it types the end of file, as a person
// does, and the terminal stays.
func (in *input) endLocked() {
	in.ending = false
	if !in.open {
		return
	}
	if in.tty {
		in.typeEOF()
		return
	}
	in.open = false
	in.replaceLocked(nil)
	in.f.Close()
}

// typeEOF types the terminal's character for the end of file: twice where a line
// was begun, since the first one only sends that.
func (in *input) typeEOF() {
	in.control(func(fd int) {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return
		}
		eof := []byte{t.Cc[unix.VEOF]}
		if in.midline && t.Lflag&unix.ICANON != 0 {
			eof = append(eof, eof[0])
		}
		in.midline = false
		unix.Write(fd, eof) //nolint:errcheck // it is full: the program does not read
	})
}

// resize sets the size of the terminal.
func (in *input) resize(size *wire.TTY) error {
	if !in.tty {
		return errNoTTY
	}
	in.control(func(fd int) { setSize(fd, size) }) //nolint:errcheck // then nobody sees it
	return nil
}

func (in *input) control(fn func(fd int)) {
	raw, err := in.f.SyscallConn()
	if err != nil {
		return
	}
	raw.Control(func(fd uintptr) { fn(int(fd)) }) //nolint:errcheck // then it is closed
}

// close ends it because nothing of the command lives.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open = false
	in.replaceLocked(nil)
	in.f.Close()
}
