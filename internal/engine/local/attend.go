package local

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

// awaitEnd waits until a process has ended, or ctx has. It costs no thread.
func awaitEnd(ctx context.Context, p launch.Process) (gone bool, err error) {
	fd, err := p.Open(true)
	if errors.Is(err, unix.ESRCH) {
		return true, nil
	}
	if err != nil {
		return false, os.NewSyscallError("pidfd_open", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := f.SyscallConn()
	if err != nil {
		return false, err
	}
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		gone = n > 0 && err == nil
		return gone
	})
	if gone || ctx.Err() != nil {
		return gone, nil
	}
	return false, err
}

// adopt takes over a sandbox that another server started, if it runs.
func (e *Engine) adopt(b *box) {
	if b.last == nil || !b.last.Finished.IsZero() || b.kept.FilesOnly {
		return
	}
	boot, err := launch.Boot()
	gone := err == nil && boot != b.last.Boot
	if !gone {
		fd, err := b.last.Launcher.Open(false)
		if err == nil {
			unix.Close(fd)
		}
		gone = errors.Is(err, unix.ESRCH)
	}
	ended := make(chan struct{})
	r := newRun(b.last.PID, ended)
	e.set(func() { b.run = r })
	if gone {
		close(ended)
		e.finish(b, r)
		return
	}
	if err := e.listen(b); err != nil {
		e.log.Warn("guest's socket", "sandbox", b.name, "err", err)
	}
	launcher := b.last.Launcher
	e.wg.Go(func() {
		gone, err := awaitEnd(e.ctx, launcher)
		if err != nil {
			e.log.Error("the end of a sandbox is not waited for", "sandbox", b.name, "err", err)
		}
		if gone {
			close(ended)
		}
	})
	e.attend(b, r)
}

// attend sees to the end of a run.
func (e *Engine) attend(b *box, r *run) {
	e.wg.Go(func() {
		select {
		case <-r.ended:
			e.finish(b, r)
		case <-e.ctx.Done():
		}
	})
}

// groupsWait is how long the news of an end waits for its control groups to be empty.
const groupsWait = 200 * time.Millisecond

// finish takes the end of a run: the launcher is gone, and has written how it
// ended. Where it was killed, PID 1 was too, with it.
func (e *Engine) finish(b *box, r *run) {
	last, err := launch.ReadRun(b.dir)
	if last == nil || err != nil {
		e.mu.Lock()
		copied := *b.last // its directory may be gone
		e.mu.Unlock()
		last = &copied
	}
	if last.Finished.IsZero() {
		e.awaitKilled(last)
		last.Finished, last.ExitCode = time.Now().UTC(), 128+int(syscall.SIGKILL)
		if err := last.Write(b.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			e.log.Warn("the end of a sandbox is not on disk", "sandbox", b.name, "err", err)
		}
	}
	// Whoever starts it again removes what is busy for longer.
	ctx, cancel := context.WithTimeout(context.Background(), groupsWait)
	defer cancel()
	group := last.Group
	if group == "" {
		group = b.name
	}
	if err := e.can.groups.remove(ctx, group); err != nil {
		e.log.Debug("control group stays for now", "sandbox", b.name, "err", err)
	}
	defer close(r.done)
	defer e.dropOldMasks()
	e.mu.Lock()
	b.last, b.run = last, nil
	env := b.kept.Spec.Env
	if err := b.unlisten(); err != nil {
		e.log.Warn("guest's socket", "sandbox", b.name, "err", err)
	}
	e.mu.Unlock()
	e.events.add(control.EngineEvent{Name: b.name, Env: env, Kind: control.SandboxDied, ExitCode: last.ExitCode, OOM: last.OOM, At: last.Finished})
}

// awaitKilled sees to it that nothing is left of a run whose launcher was killed.
func (e *Engine) awaitKilled(last *launch.Run) {
	if boot, err := launch.Boot(); err == nil && boot != last.Boot {
		return
	}
	fd, err := last.PID.Open(false)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	unix.Poll(fds, 5000)
}
