package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pty opens a terminal, and the other end of it.
func pty(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func discipline(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	a, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *a
}

func TestATerminalIsRawUntilItIsRestored(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, term *Terminal){
		"by its owner": func(_ *testing.T, term *Terminal) { term.Restore(); term.Restore() },
		"by a panic": func(t *testing.T, term *Terminal) {
			defer func() {
				if v := recover(); v != "a fault" {
					t.Errorf("the panic goes on as %v", v)
				}
			}()
			term.Guard(func() { panic("a fault") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := pty(t)
			before := discipline(t, slave)
			term, err := Open(slave, slave)
			if err != nil {
				t.Fatal(err)
			}
			if raw := discipline(t, slave); raw.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) != 0 {
				t.Errorf("open, its flags are %x", raw.Lflag)
			}
			fmt.Fprint(term, "\x1b[?1049h\x1b[?25lfull screen")
			end(t, term)
			if after := discipline(t, slave); after != before {
				t.Errorf("it was %+v and is %+v", before, after)
			}
			if _, err := io.WriteString(term, "late"); !errors.Is(err, os.ErrClosed) {
				t.Errorf("a write behind it: %v", err)
			}
			fmt.Fprint(slave, "END")
			var screen strings.Builder
			for b := make([]byte, 100); !strings.HasSuffix(screen.String(), "END"); {
				n, err := master.Read(b)
				if err != nil {
					t.Fatal(err)
				}
				screen.Write(b[:n])
			}
			if want := "\x1b[?1049h\x1b[?25lfull screen\x1b[?1049l\x1b[?25hEND"; screen.String() != want {
				t.Errorf("it showed %q", screen.String())
			}
		})
	}
}

func TestATerminalThatTakesNothingIsRestoredAllTheSame(t *testing.T) {
	_, slave := pty(t)
	before := discipline(t, slave)
	term, err := Open(slave, slave)
	if err != nil {
		t.Fatal(err)
	}
	term.writing <- struct{}{} // as a write does that Ctrl-S holds
	term.Restore()
	if after := discipline(t, slave); after != before {
		t.Errorf("it was %+v and is %+v", before, after)
	}
}

func TestAPipeIsNoTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	_, slave := pty(t)
	for _, files := range [][2]*os.File{{r, w}, {r, slave}, {slave, w}} {
		if _, err := Open(files[0], files[1]); !errors.Is(err, ErrNone) {
			t.Errorf("open: %v", err)
		}
	}
}
