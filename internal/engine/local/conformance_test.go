package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
	"sandkeeper/internal/engine/enginetest"
	"sandkeeper/internal/guest"
)

func TestConformance(t *testing.T) {
	enginetest.Run(t, func(t *testing.T) enginetest.Harness {
		l := newLab(t)
		l.stockOf(t, "none") // as a server has it that was not started just now
		return l.harness()
	})
}

func (l *lab) harness() enginetest.Harness {
	return enginetest.Harness{
		Engine:   l.e,
		Instance: l.opts.Instance,
		Reopen:   func(t *testing.T) engine.Engine { return l.reopen(t) },
		Inside: func(t *testing.T, name string, argv ...string) (string, int) {
			return l.inside(t, name, argv...)
		},
		KillMain: func(t *testing.T, name string) {
			if err := signal(l.run(t, name).PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Talk:          talk,
		Unenforceable: control.Limits{DiskMB: 1},
		Memory:        l.e.can.groups.controller("memory"),
		ReadOnlyRoot:  !l.e.can.writable,
	}
}

var execs atomic.Int64

// talk has the guest run a command.
func talk(t *testing.T, conn io.ReadWriteCloser) {
	dials := 0
	fleet := guest.NewFleet(func(context.Context, string) (io.ReadWriteCloser, error) {
		if dials++; dials > 1 {
			return nil, errors.New("the connection was lost")
		}
		return conn, nil
	}, slog.New(slog.DiscardHandler))
	defer fleet.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g := fleet.Guest("the one")
	if err := g.Ping(ctx); err != nil {
		t.Errorf("ping: %v", err)
		return
	}
	exec := fmt.Sprintf("exec-%d", execs.Add(1))
	if _, err := g.Start(ctx, control.ExecStart{Exec: exec, Argv: []string{"echo", exec}, Workdir: "/workspace"}); err != nil {
		t.Errorf("start: %v", err)
		return
	}
	if end, err := g.Wait(ctx, exec, 1000); err != nil || end.ExitCode != 0 || string(end.Stdout) != exec+"\n" {
		t.Errorf("wait: %+v, %v", end, err)
	}
}
