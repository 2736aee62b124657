package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
	"sandkeeper/internal/engine/enginetest"
	"sandkeeper/internal/guest"
)

func TestConformance(t *testing.T) {
	l := needLab(t)
	enginetest.Run(t, func(t *testing.T) enginetest.Harness { return l.harness(t, LinkAuto) })
}

func TestConformanceOfDialByEachLink(t *testing.T) {
	l := needLab(t)
	for _, way := range []string{LinkSocket, LinkAttach} {
		t.Run(way, func(t *testing.T) {
			enginetest.RunDial(t, func(t *testing.T) enginetest.Harness { return l.harness(t, way) })
		})
	}
}

func (l *lab) harness(t *testing.T, way string) enginetest.Harness {
	opts := l.options(t)
	opts.Link = way
	opts.Binary = func(string) ([]byte, error) { return l.guest, nil }
	e := open(t, opts)
	deadOpts := opts
	deadOpts.Host = Host{Address: "unix://" + filepath.Join(t.TempDir(), "docker.sock"), Why: "the test"}
	info, err := l.cli.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := enginetest.Harness{
		Engine:   e,
		Instance: opts.Instance,
		Reopen: func(t *testing.T) engine.Engine {
			e.Close()
			e = open(t, opts)
			return e
		},
		Dead: open(t, deadOpts),
		Inside: func(t *testing.T, name string, argv ...string) (string, int) {
			return l.inside(t, name, "0:0", argv...)
		},
		KillMain: func(t *testing.T, name string) {
			if err := l.cli.ContainerKill(t.Context(), name, "SIGKILL"); err != nil {
				t.Fatal(err)
			}
		},
		Talk:         talk,
		Foreign:      l.foreign,
		Image:        testImage,
		MissingImage: "127.0.0.1:9/no/such/image:1",
		Memory:       info.MemoryLimit,
	}
	if !mayBoundDisk(info) {
		h.Unenforceable = control.Limits{DiskMB: 1}
	}
	return h
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

// foreign makes a container and a volume by a sandbox's names, without our label.
func (l *lab) foreign(t *testing.T, name string) func() bool {
	ctx := t.Context()
	if _, err := l.cli.VolumeCreate(ctx, volume.CreateOptions{Name: workspaceOf(name)}); err != nil {
		t.Fatal(err)
	}
	made, err := l.cli.ContainerCreate(ctx, &container.Config{Image: testImage, Cmd: []string{"sleep", "1000"}},
		&container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		clean := context.WithoutCancel(ctx)
		if err := l.cli.ContainerRemove(clean, made.ID, container.RemoveOptions{Force: true}); err != nil && !absent(err) {
			t.Error(err)
		}
		if err := l.cli.VolumeRemove(clean, workspaceOf(name), false); err != nil && !absent(err) {
			t.Error(err)
		}
	})
	if err := l.cli.ContainerStart(ctx, made.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	before, err := l.cli.ContainerInspect(ctx, made.ID)
	if err != nil {
		t.Fatal(err)
	}
	return func() bool {
		after, err := l.cli.ContainerInspect(ctx, name)
		if err != nil || after.ID != before.ID || !after.State.Running || after.State.StartedAt != before.State.StartedAt {
			t.Logf("the container: %v, %+v", err, after.State)
			return false
		}
		if _, err := l.cli.VolumeInspect(ctx, workspaceOf(name)); err != nil {
			t.Logf("the volume: %v", err)
			return false
		}
		return true
	}
}
