package keeper

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is a keeper where it was started as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Arg {
		if Run() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What started a sandbox may ignore signals, as nohup has its program do. A
// command that inherited that would not hear a Ctrl-C.
func TestACommandIgnoresNoSignalThatItsStarterDid(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGPIPE)
	defer signal.Reset()
	h, err := Spawn(self, nil)
	if err != nil {
		t.Fatal(err)
	}
	attended := make(chan struct{})
	go func() { h.Attend(func() {}); close(attended) }()
	defer func() {
		h.Close()
		<-attended
		unix.Wait4(h.PID, nil, 0, nil)
	}()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	over := make(chan Reply, 4)
	cat := &Command{Path: "/bin/cat", Dir: "/", Argv: []string{"cat", "/proc/self/status"}}
	if err := h.Start(cat, []int{int(null.Fd()), int(w.Fd()), int(null.Fd())}, func(r Reply) { over <- r }); err != nil {
		t.Fatal(err)
	}
	w.Close()
	status, err := io.ReadAll(r)
	_, ignored, _ := bytes.Cut(status, []byte("\nSigIgn:\t"))
	ignored, _, _ = bytes.Cut(ignored, []byte("\n"))
	mask, perr := strconv.ParseUint(string(ignored), 16, 64)
	// 32 and 33 are the C library's own, which nobody can send for what they mean.
	if mask &^= 3 << 31; err != nil || perr != nil || mask != 0 {
		t.Errorf("a command ignores the signals %q, %v %v", ignored, err, perr)
	}
	for (<-over).Event == Started {
	}
}
