package terminal

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ErrNone says that there is no terminal: keys or output are a file or a pipe.
var ErrNone = errors.New("terminal: none")

// Terminal is a raw terminal. Its methods are safe for use by many goroutines.
type Terminal struct {
	in, out *os.File
	cooked  *term.State
	resized chan os.Signal

	writing chan struct{} // has room for one; who fills it has the fields below
	modes   modes
	over    bool
}

// writeTime is how long Restore waits for a write under way: a terminal that
// was stopped by Ctrl-S takes none.
const writeTime = 500 * time.Millisecond

// Is reports whether keys and output are a terminal.
func Is(in, out *os.File) bool {
	return term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd()))
}

// Open makes the terminal raw until Restore. It fails with ErrNone where there is none.
func Open(in, out *os.File) (*Terminal, error) {
	if !Is(in, out) {
		return nil, ErrNone
	}
	t := &Terminal{in: in, out: out, resized: make(chan os.Signal, 1), writing: make(chan struct{}, 1)}
	signal.Notify(t.resized, unix.SIGWINCH)
	var err error
	if t.cooked, err = term.MakeRaw(int(in.Fd())); err != nil {
		signal.Stop(t.resized)
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return t, nil
}

// Resized has a value whenever the size may have changed.
func (t *Terminal) Resized() <-chan os.Signal { return t.resized }

// Size returns the terminal's size in characters; 80 by 24 where it has none.
func Size(out *os.File) (cols, rows int) {
	cols, rows, err := term.GetSize(int(out.Fd()))
	if err != nil || cols < 1 || rows < 1 {
		return 80, 24
	}
	return cols, rows
}

// Write shows output.
func (t *Terminal) Write(b []byte) (int, error) {
	t.writing <- struct{}{}
	defer func() { <-t.writing }()
	if t.over {
		return 0, os.ErrClosed
	}
	n, err := t.out.Write(b)
	t.modes.follow(b[:n])
	return n, err
}

// Restore gives the terminal back as it was; once is enough.
func (t *Terminal) Restore() {
	signal.Stop(t.resized)
	select {
	case t.writing <- struct{}{}:
		if undo := t.modes.undo(); !t.over && undo != "" {
			t.out.WriteString(undo) //nolint:errcheck // nothing is left to do about it
		}
		t.over = true
		<-t.writing
	case <-time.After(writeTime):
	}
	term.Restore(int(t.in.Fd()), t.cooked) //nolint:errcheck // likewise
}

// Guard runs f, and has a panic in it give the terminal back before it goes on.
func (t *Terminal) Guard(f func()) {
	defer func() {
		if v := recover(); v != nil {
			t.Restore()
			panic(v)
		}
	}()
	f()
}
