package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// KeeperConfined is the second argument of a keeper that is started before its sandbox is
// there: it calls Confine before all else.
const KeeperConfined = "confined"

const (
	keeperSocket = 3 // its own
	keeperTold   = 4

	toldGroups = "groups" // there are control groups, which it was put into
	toldNone   = "none"
)

// Confine waits until the keeper's sandbox is made, and leaves it no more rights
// than that has. It runs nothing before. Its root directory it gets from the
// builder, whose it shares. Errors: io.EOF, where there will be no sandbox.
func Confine() error {
	unix.CloseOnExec(keeperSocket)
	unix.CloseOnExec(keeperTold)
	told := os.NewFile(keeperTold, "builder")
	defer told.Close()
	if err := giveUpGains(); err != nil {
		return err
	}
	text, err := io.ReadAll(told)
	if err != nil {
		return err
	}
	switch string(text) {
	case toldGroups:
		if err := topGroups(); err != nil {
			return err
		}
	case toldNone:
	default:
		return io.EOF
	}
	if err := errors.Join(dropRights(), checkFiles(keeperSocket, keeperTold)); err != nil {
		told.WriteString(err.Error()) //nolint:errcheck // the builder takes anything else for a failure
		return err
	}
	_, err = told.WriteString(built)
	return err
}

// tellKeeper lets the keeper go on; what it does takes time, so it is heard later.
func (b *Prepared) tellKeeper(p *Plan) error {
	text := toldNone
	if len(p.Groups.Enter) > 0 {
		text = toldGroups
	}
	if _, err := b.keeper.WriteString(text); err != nil {
		return err
	}
	return os.NewSyscallError("shutdown", unix.Shutdown(int(b.keeper.Fd()), unix.SHUT_WR))
}

// hearKeeper waits until the keeper is confined, and looks whether it is where this process is.
func (b *Prepared) hearKeeper(*Plan) error {
	said, err := io.ReadAll(io.LimitReader(b.keeper, 4096))
	b.keeper.Close()
	if err != nil {
		return err
	}
	if string(said) != built {
		return fmt.Errorf("it is not confined: %s", said)
	}
	var here unix.Stat_t
	if err := unix.Stat("/", &here); err != nil {
		return err
	}
	for _, name := range []string{"root", "cwd"} {
		var there unix.Stat_t
		if err := unix.Stat("/proc/"+strconv.Itoa(b.Keeper.PID)+"/"+name, &there); err != nil {
			return err
		}
		if there.Dev != here.Dev || there.Ino != here.Ino {
			return fmt.Errorf("its %s is elsewhere", name)
		}
	}
	return nil
}
