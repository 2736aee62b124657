package docker

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"sandkeeper/internal/control"
)

// muteImage makes an image whose guest never dials in.
func (l *lab) muteImage(t *testing.T) string {
	t.Helper()
	const ref = "sandkeeper-engine-test:mute"
	if err := l.importImage(t.Context(), ref, "ENV SANDKEEPER_TEST_MUTE=1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.removeImage(ref) })
	return ref
}

func TestGuestThatDoesNotDialInIsAttachedTo(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	opts.LinkWait = 2 * time.Second
	spec := named(opts, "a")
	spec.Image = l.muteImage(t)
	b := startBox(t, l, opts, spec)
	dial := func() time.Duration {
		began := time.Now()
		conn, err := b.e.Dial(t.Context(), spec.Name)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		echo(t, conn)
		conn.Close()
		return took
	}
	dial()
	quickest := time.Hour
	for range 5 { // it is waited for in full once only; an engine may be slow once
		if quickest = min(quickest, dial()); quickest < opts.LinkWait {
			return
		}
	}
	t.Errorf("the quickest dial after the first took %v", quickest)
}

func TestOnlyPID1IsTakenForTheGuest(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	opts.Link = LinkSocket
	opts.LinkWait = 2 * time.Second
	spec := named(opts, "a")
	spec.Image = l.muteImage(t)
	b := startBox(t, l, opts, spec)
	// Another process of the sandbox, as its root, says all that a guest says.
	made, err := l.cli.ContainerExecCreate(t.Context(), spec.Name, container.ExecOptions{
		User: "0:0", Cmd: []string{guestPath, "init"}, Env: []string{"SANDKEEPER_TEST_MUTE="},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.cli.ContainerExecStart(t.Context(), made.ID, container.ExecStartOptions{Detach: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.e.Dial(t.Context(), spec.Name); !errors.Is(err, control.ErrGuestUnreachable) {
		t.Errorf("dial: %v, want the guest to be unreachable", err)
	}
}

func TestRestartBehindOurBackIsDialledAnew(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	opts.Link = LinkSocket
	spec := named(opts, "a")
	b := startBox(t, l, opts, spec)
	for range 2 {
		conn, err := b.e.Dial(t.Context(), spec.Name)
		if err != nil {
			t.Fatal(err)
		}
		echo(t, conn)
		conn.Close()
		if err := l.cli.ContainerRestart(t.Context(), spec.Name, container.StopOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// echo has the stub echo something.
func echo(t *testing.T, conn io.ReadWriteCloser) {
	t.Helper()
	said := bytes.Repeat([]byte("how do you do? "), 10_000)
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(said)
		wrote <- err
	}()
	heard := make([]byte, len(said))
	if _, err := io.ReadFull(conn, heard); err != nil || !bytes.Equal(heard, said) {
		t.Errorf("the guest does not echo: %v", err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("write: %v", err)
	}
}
