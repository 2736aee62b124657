package pid1

import (
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/keeper"
	"sandkeeper/internal/guest/wire"
)

const (
	afterExit   = 250 * time.Millisecond // what is still written then belongs to what was left
	termGrace   = 2 * time.Second        // from TERM to KILL
	afterSignal = 100 * time.Millisecond // until survivors are counted

	exitTimedOut = 124
	exitNoExec   = 126
	exitMissing  = 127
)

// execution is one command, from its start until nothing of it lives.
type execution struct {
	name       string
	command    string // as shown to people
	program    string
	background bool
	tty        bool
	timeout    time.Duration
	startedAt  time.Time
	dir        string // where it runs
	cwdLost    string
	shell      *shellRun // nil: not shell text, or its state is not taken up

	run    *runner
	output *output

	expected []*cursor // of who is to join at once: they read nothing
	joined   sync.Once
	input    *input // nil: all of it was given at the start
	events   chan keeper.Reply
	open     atomic.Int32  // streams that have not ended
	eof      chan struct{} // closed once none is open

	started chan struct{} // closed once pid is known, or the start has failed
	pid     int
	refused error // why it was never to be started

	ended   chan struct{} // closed at its end; then end and endedAt are set
	end     wire.End
	endedAt time.Time
	oomBase int64

	gone chan struct{} // closed once nothing that it started lives
	over bool          // guarded by run.mu: gone, and its streams have ended

	mu       sync.Mutex // guards the fields below, and keeps the keeper from another command
	keeper   *keeper.Handle
	exited   bool
	timedOut bool
	killed   bool // by us, as a tree
}

// shellRun is what a shell command needs to commit its state.
type shellRun struct {
	from  *shellState
	env   map[string]string
	file  *os.File
	given int  // bytes that the file begins with
	save  bool // else it loads functions alone
}

// supervise is the goroutine of one execution. status is what a start that
// failed ends with, or -1.
func (e *execution) supervise(status int) {
	defer e.run.wg.Done()
	var timeout, grace <-chan time.Time
	if e.timeout > 0 && status < 0 {
		t := time.NewTimer(e.timeout)
		defer t.Stop()
		timeout = t.C
	}
	var wait unix.WaitStatus
	exited, empty, late := status >= 0, status >= 0, false
	if exited {
		close(e.started)
	}
	ended, eof := false, e.eof
	var out, errs <-chan struct{} // once the time after the exit is over
	for !ended || !empty || eof != nil {
		select {
		case r := <-e.events:
			switch r.Event {
			case keeper.Started:
				e.pid = r.PID
				close(e.started)
			case keeper.Failed:
				status = e.explain(unix.Errno(r.Errno))
				exited, empty = true, true
				close(e.started)
			case keeper.Exited:
				wait, exited, empty = unix.WaitStatus(r.Status), true, r.Empty
			case keeper.Gone:
				empty = true
			case keeper.Lost:
				e.run.keepers.killOrphans()
				switch {
				case exited:
				case e.pid == 0: // it did not live to start the command
					e.output.err.Write([]byte("sandkeeper: cannot start: the sandbox has no room for another process\n"))
					status, exited = exitNoExec, true
					close(e.started)
				default:
					wait, exited = unix.WaitStatus(unix.SIGKILL), true
				}
				empty = true
			}
			if exited {
				e.setExited()
				timeout = nil
				if grace == nil && eof != nil && !ended {
					t := time.NewTimer(afterExit)
					defer t.Stop()
					grace = t.C
					e.output.out.relax()
					e.output.err.relax()
				}
			}
			if empty {
				e.release()
			}
		case <-eof:
			eof = nil
		case <-grace:
			out, errs = e.output.out.catchUp(), e.output.err.catchUp()
		case <-out:
			out, late = nil, errs == nil
		case <-errs:
			errs, late = nil, out == nil
		case <-timeout:
			timeout = nil
			e.expire()
		}
		if !ended && exited && (late || eof == nil) && (empty || !e.ending()) {
			e.finish(status, wait, empty)
			ended = true
		}
	}
	if e.input != nil {
		e.input.close()
	}
	e.run.retire(e)
}

func (e *execution) setExited() {
	e.mu.Lock()
	e.exited = true
	e.mu.Unlock()
}

// ending reports whether we are killing the tree: then its end is told once
// nothing of it is left.
func (e *execution) ending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.timedOut || e.killed
}

// release lets the keeper go to the next command.
func (e *execution) release() {
	select {
	case <-e.gone:
		return
	default:
	}
	close(e.gone)
	e.mu.Lock()
	h := e.keeper
	e.keeper = nil
	e.mu.Unlock()
	if h != nil {
		e.run.keepers.put(h)
	}
}

// explain says on stderr why the command was not started, as a shell does.
func (e *execution) explain(errno unix.Errno) (status int) {
	name := e.program
	switch errno {
	case unix.ENOENT:
		e.output.err.Write([]byte(name + ": not found\n"))
		return exitMissing
	default:
		e.output.err.Write([]byte(name + ": " + errno.Error() + "\n"))
		return exitNoExec
	}
}

// finish makes the end known.
func (e *execution) finish(status int, wait unix.WaitStatus, empty bool) {
	e.endedAt = e.run.now()
	end := &e.end
	end.Duration = int64(e.endedAt.Sub(e.startedAt))
	end.Cwd, end.CwdLost = e.dir, e.cwdLost
	e.mu.Lock()
	timedOut, killed := e.timedOut, e.killed
	e.mu.Unlock()
	switch {
	case timedOut:
		end.TimedOut, end.ExitCode = true, exitTimedOut
	case status >= 0:
		end.ExitCode = status
	case wait.Signaled():
		end.ExitCode = 128 + int(wait.Signal())
		end.Signal = signalName(wait.Signal())
	default:
		end.ExitCode = wait.ExitStatus()
	}
	if s := e.shell; s != nil {
		if s.save && status < 0 && wait.Exited() && !timedOut && !killed {
			if left := readState(s.file, s.given); left != nil {
				end.Cwd = left.cwd
				from := s.from
				if e.cwdLost != "" { // told by now: what comes next begins where this one was
					from = &shellState{vars: from.vars, functions: from.functions}
				}
				e.run.shells.commit(from.next(e.dir, s.env, left))
			}
		}
		s.file.Close()
		e.shell = nil
	}
	end.OOM = e.outOfMemory(timedOut || killed)
	if !empty {
		end.Left = e.count()
	}
	close(e.ended)
}

// outOfMemory says whether the kernel killed a process of this command for want
// of memory. The counter is the sandbox's: it is this command's where this one
// died as from it, or where no other ran.
func (e *execution) outOfMemory(byUs bool) bool {
	kills, ok := e.run.oom.read()
	if !ok || kills <= e.oomBase {
		return false
	}
	if !byUs && e.end.ExitCode == 128+int(unix.SIGKILL) {
		return true
	}
	return e.run.alone(e)
}

// tree lists what lives of it. The caller holds e.mu.
func (e *execution) treeLocked() []int {
	if e.keeper == nil {
		return nil
	}
	return below(e.keeper.PID, processes())
}

func (e *execution) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.treeLocked())
}

// signal sends a signal to the tree, or to the command's own process.
func (e *execution) signal(sig unix.Signal, tree bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keeper == nil {
		return
	}
	if !tree {
		if !e.exited && e.pid > 0 {
			unix.Kill(e.pid, sig)
		}
		return
	}
	for _, pid := range e.treeLocked() {
		unix.Kill(pid, sig)
		if sig != unix.SIGKILL && sig != unix.SIGSTOP {
			unix.Kill(pid, unix.SIGCONT) // a stopped one would not get it
		}
	}
}

// kill kills the tree until nothing of it is left, or ctx ends.
func (e *execution) kill(ctx context.Context) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		e.mu.Lock()
		if e.keeper != nil {
			e.killed = true
			slay(e.treeLocked)
		}
		e.mu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-e.gone:
			t.Stop()
			return nil
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C: // something forked while we looked
		}
	}
}

// expire ends the tree because its time is over: TERM, 2 s, KILL.
func (e *execution) expire() {
	e.mu.Lock()
	if e.exited {
		e.mu.Unlock()
		return
	}
	e.timedOut = true
	e.mu.Unlock()
	e.signal(unix.SIGTERM, true)
	e.run.wg.Go(func() {
		t := time.NewTimer(termGrace)
		defer t.Stop()
		select {
		case <-e.gone:
		case <-t.C:
			e.kill(context.Background())
		}
	})
}

// drain reads a stream to its end, whoever writes to it.
func (e *execution) drain(f *os.File, s *stream) {
	defer func() {
		if e.open.Add(-1) == 0 {
			close(e.eof)
		}
	}()
	defer f.Close()
	defer s.close()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	// No buffer is held while there is nothing to read, or nobody to take it.
	raw.Read(func(fd uintptr) (done bool) { //nolint:errcheck // then it is closed
		for {
			err := s.fill(int(fd), s.admit())
			switch err {
			case nil, unix.EINTR:
			case unix.EAGAIN:
				s.rest()
				return false
			default: // io.EOF; EIO is that of a terminal
				return true
			}
		}
	})
}

// fill reads once, at most n bytes. Errors: the system call's, unwrapped; io.EOF.
func (s *stream) fill(fd, n int) error {
	buf := buffers.Get().(*[drainBuffer]byte)
	defer buffers.Put(buf)
	n, err := unix.Read(fd, buf[:n])
	switch {
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	s.Write(buf[:n]) //nolint:errcheck // it has none
	return nil
}

const drainBuffer = 64 << 10

var buffers = sync.Pool{New: func() any { return new([drainBuffer]byte) }}

func signalName(s unix.Signal) string {
	name := unix.SignalName(s)
	if len(name) > 3 {
		return name[3:]
	}
	return ""
}
