package agentapi

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/contracttest"
	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// realServer is an API on a real control plane, over an engine, guests and alarms in memory.
type realServer struct {
	*server
	plane  *control.Plane
	engine *controltest.Engine
	guests *controltest.Guests
	pipes  *pipes
}

// serveReal serves within a synctest bubble.
func serveReal(t *testing.T) *realServer {
	t.Helper()
	r := &realServer{engine: controltest.NewEngine(), pipes: newPipes()}
	r.guests = controltest.NewGuests(r.engine)
	info, err := r.engine.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.engine.SetInfo(info, "disk_mb")
	alarms := controltest.NewAlarms()
	r.plane, err = control.Open(t.Context(), control.Options{
		Instance: "test", Store: controltest.NewMemoryStore(), Engine: r.engine, Guests: r.guests, Alarms: alarms,
		EngineInfo: info, Image: "debian:bookworm-slim", Retention: 7 * 24 * time.Hour, Limits: control.Limits{CPUs: 1, MemoryMB: 5120, Pids: 256, DiskMB: 2048},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { alarms.Run(ctx, r.plane) })
	t.Cleanup(func() { // after the sockets are closed
		cancel()
		running.Wait()
		if err := r.plane.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	r.server = serveOn(t, r.pipes, func(o *Options) { o.Plane = On(r.plane) })
	return r
}

func (r *realServer) dial(t *testing.T) *peer {
	t.Helper()
	p := dial(t, r.url, r.pipes.dial)
	p.said = &contracttest.Conversation{}
	return p
}

// script plays a small shell: what the examples run.
func (r *realServer) script() {
	r.guests.OnStart(func(_ string, s control.ExecStart) *control.ExecEnd {
		switch command := s.Shell + strings.Join(s.Argv, " "); {
		case strings.HasPrefix(command, "echo "):
			return &control.ExecEnd{Stdout: []byte(strings.TrimPrefix(command, "echo ") + "\n")}
		case strings.HasPrefix(command, "ls "):
			return &control.ExecEnd{ExitCode: 2, Stderr: []byte("ls: cannot access '/nowhere': No such file or directory\n")}
		case strings.HasPrefix(command, "sleep "):
			return nil
		case strings.HasPrefix(command, "seq "):
			return &control.ExecEnd{Stdout: []byte("1\n2\n3\n4\n5\n6\n7\n8\n9\n"), FileOut: "/var/tmp/sandkeeper-output/" + s.Exec + ".stdout"}
		}
		return &control.ExecEnd{}
	})
}
