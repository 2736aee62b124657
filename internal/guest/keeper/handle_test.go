package keeper

import (
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// The loss is told last: who hears of it looks for what the keeper left, and
// must not find the keeper counted among those that live.
func TestAKeepersEndIsKnownBeforeItsLossIsTold(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	h := &Handle{conn: conn.(*net.UnixConn)}
	var order []string
	err = h.Start(&Command{Path: "/p", Argv: []string{"p"}}, nil, func(r Reply) {
		if r.Event == Lost {
			order = append(order, "lost")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	theirs.Close() // as by its end
	h.Attend(func() { order = append(order, "ended") })
	if !slices.Equal(order, []string{"ended", "lost"}) {
		t.Errorf("%q", order)
	}
}
