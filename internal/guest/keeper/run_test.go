package keeper

import (
	"bytes"
	"io"
	"os"
	"os/signal"
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
	if err != nil || !bytes.Contains(status, []byte("SigIgn:\t0000000000000000\n")) {
		t.Errorf("a command has %s, %v", status, err)
	}
	for (<-over).Event == Started {
	}
}
