package launch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Status is the launcher's answer to a plan, one line of JSON; nothing is a failure too.
type Status struct {
	Held  bool    `json:"held,omitempty"` // it waits for the next plan
	Error string  `json:"error,omitempty"`
	PID   Process `json:"pid"`
}

// Main is the life of a launcher; it returns the exit code. SIGTERM to it ends
// the sandbox at once, by hand.
func Main() int {
	// PID 1 dies with the thread that cloned it: that is this one, for ever.
	runtime.LockOSThread()
	debug.SetGCPercent(20)
	unix.CloseOnExec(StatusFile)
	unix.CloseOnExec(PlanFile)
	l := &launcher{}
	pid, err := l.start()
	if errors.Is(err, errLetGo) {
		return 0
	}
	l.answer(Status{PID: pid}, err)
	unix.Close(StatusFile)
	if err != nil {
		return 1
	}
	if err := l.wait(); err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper: launcher: "+err.Error())
		return 1
	}
	return 0
}

type launcher struct {
	kind   Kind
	unread []byte // of the plans
	plan   Plan
	run    Run
	pidfd  int
	memory *memoryWatch
	byHand atomic.Bool
}

// errUnsuited is a second plan that the first does not allow.
var errUnsuited = errors.New("what is held is of another plan")

// errLetGo: whoever started the launcher has no plan for it, or is gone.
var errLetGo = errors.New("no plan")

func (l *launcher) answer(s Status, err error) {
	if err != nil {
		s.Error = err.Error()
	}
	b, _ := json.Marshal(s)
	unix.Write(StatusFile, append(b, '\n')) // whoever started us may be gone
}

func (l *launcher) start() (Process, error) {
	if err := json.Unmarshal([]byte(os.Getenv(Variable)), &l.kind); err != nil {
		return Process{}, fmt.Errorf("kind: %w", err)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM)
	// Taken and not ignored: what is ignored, also by whoever started the server
	// (nohup, a shell's &), would stay so in what the sandbox runs.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGPIPE)
	status, plan, err := l.clone()
	if err != nil {
		return Process{}, err
	}
	defer status.Close()
	defer plan.Close()
	go func() {
		<-term
		l.byHand.Store(true)
		unix.PidfdSendSignal(l.pidfd, unix.SIGKILL, nil, 0)
	}()
	rehearse()
	if err := l.carryOut(plan, status); err != nil {
		return Process{}, errors.Join(err, l.abandon())
	}
	return l.run.PID, nil
}

// clone starts the builder in its namespaces. It waits for the plan, and tells
// on status how it went.
func (l *launcher) clone() (status, plan *os.File, err error) {
	status, statusW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer statusW.Close()
	planR, plan, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer planR.Close()
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  unix.SIGKILL,
		PidFD:      &l.pidfd,
	}
	if l.kind.NoNetwork {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	if l.kind.UserNS {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"sandkeeper", BuildArg, os.Getenv(Variable)}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{},
		Files: []uintptr{0, 1, 2, statusW.Fd(), planR.Fd()},
		Sys:   attr,
	})
	if err != nil {
		status.Close()
		plan.Close()
		return nil, nil, fmt.Errorf("namespaces: %w", err)
	}
	l.run.PID.ID = pid
	return status, plan, nil
}

// await waits for the next plan, for as long as it takes, and returns its line.
// Errors: errLetGo.
func (l *launcher) await() ([]byte, error) {
	buf := make([]byte, 16<<10)
	for {
		if end := bytes.IndexByte(l.unread, '\n') + 1; end > 0 {
			line := l.unread[:end]
			l.unread = l.unread[end:]
			return line, l.plan.read(line)
		}
		fds := []unix.PollFd{{Fd: PlanFile, Events: unix.POLLIN}, {Fd: int32(l.pidfd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return nil, os.NewSyscallError("poll", err)
		}
		if fds[0].Revents == 0 {
			if l.byHand.Load() {
				return nil, errLetGo
			}
			return nil, errors.New("the builder ended")
		}
		n, err := unix.Read(PlanFile, buf)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, os.NewSyscallError("read the plan", err)
		case n > 0:
			l.unread = append(l.unread, buf[:n]...)
		default:
			return nil, errLetGo
		}
	}
}

// carryOut has the plans carried out: what they start is on disk before it is
// anybody's and does anything.
func (l *launcher) carryOut(plan, status *os.File) error {
	raw, err := l.await()
	if err != nil {
		return err
	}
	if l.plan.Kind != l.kind {
		return errors.New("the plan is for another kind of launcher")
	}
	if err := l.stand(); err != nil {
		return err
	}
	said := bufio.NewReader(io.LimitReader(status, 4096))
	if l.plan.Hold {
		if err := have(raw, held, plan, said); err != nil {
			return err
		}
		l.answer(Status{Held: true}, nil)
		first := l.plan
		if raw, err = l.await(); err != nil {
			return err
		}
		if l.plan.Hold || !l.plan.Suits(first) {
			return errUnsuited
		}
	}
	unix.Close(PlanFile)
	if err := l.record(); err != nil {
		return err
	}
	return have(raw, built, plan, said)
}

// stand has the launcher be where it will stand for the life of a sandbox.
func (l *launcher) stand() error {
	log, err := os.OpenFile(filepath.Join(l.plan.Dir, LogFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := unix.Dup3(int(log.Fd()), unix.Stderr, 0); err != nil {
		return os.NewSyscallError("log", err)
	}
	for _, group := range l.plan.Groups.Stand {
		if err := enter(group, 0); err != nil {
			return err
		}
	}
	if l.plan.Groups.Memory != "" {
		if l.memory, err = watchMemory(l.plan.Groups.Memory, l.plan.Groups.Two); err != nil {
			return fmt.Errorf("watch memory: %w", err)
		}
	}
	return nil
}

// have has the builder carry out a plan, and waits until it says so.
func have(raw []byte, done string, plan *os.File, said *bufio.Reader) error {
	if _, err := plan.Write(raw); err != nil {
		return fmt.Errorf("the builder takes no plan: %w", err)
	}
	word, err := said.ReadString('\n')
	if err == nil && word == done {
		return nil
	}
	rest, _ := io.ReadAll(said)
	if word += string(rest); word != "" {
		return errors.New(strings.TrimSpace(word))
	}
	return errors.New("the builder ended")
}

// record writes down what runs, before it does anything.
func (l *launcher) record() (err error) {
	if l.run.Boot, err = Boot(); err != nil {
		return err
	}
	if l.run.PID, err = ProcessOf(l.run.PID.ID); err != nil {
		return err
	}
	if l.run.Launcher, err = ProcessOf(os.Getpid()); err != nil {
		return err
	}
	l.run.Started, l.run.Masks, l.run.Group = time.Now().UTC(), l.plan.Masks, l.plan.Groups.Name
	if err := l.run.Write(l.plan.Dir); err != nil {
		return fmt.Errorf("record of the run: %w", err)
	}
	return nil
}

// abandon ends what never came to run, and its record.
func (l *launcher) abandon() error {
	unix.PidfdSendSignal(l.pidfd, unix.SIGKILL, nil, 0)
	var status unix.WaitStatus
	if err := wait(l.run.PID.ID, &status); err != nil {
		return err
	}
	if l.plan.Dir == "" {
		return nil
	}
	if err := os.Remove(filepath.Join(l.plan.Dir, RecordFile)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// wait waits for the end of PID 1, and with it of all that is in the sandbox,
// and writes down how it came.
func (l *launcher) wait() error {
	fds := []unix.PollFd{{Fd: int32(l.pidfd), Events: unix.POLLIN}}
	if l.memory != nil {
		fds = append(fds, unix.PollFd{Fd: int32(l.memory.fd), Events: unix.POLLIN})
	}
	for fds[0].Revents == 0 {
		timeout := -1 // for ever
		if l.memory != nil && l.memory.pending() {
			timeout = int(recount.Milliseconds())
		}
		n, err := unix.Poll(fds, timeout)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		if l.memory != nil && (n == 0 || fds[1].Revents != 0) {
			l.memory.note()
		}
	}
	var status unix.WaitStatus
	if err := wait(l.run.PID.ID, &status); err != nil {
		return err
	}
	l.run.Finished = time.Now().UTC()
	l.run.ExitCode = status.ExitStatus()
	if status.Signaled() {
		l.run.ExitCode = 128 + int(status.Signal())
	}
	killed := status.Signaled() && status.Signal() == unix.SIGKILL && !l.byHand.Load()
	l.run.OOM = killed && l.memory != nil && l.memory.justRanOut()
	return l.run.Write(l.plan.Dir)
}

func wait(pid int, status *unix.WaitStatus) error {
	for {
		_, err := unix.Wait4(pid, status, 0, nil)
		if err != unix.EINTR {
			return os.NewSyscallError("wait4", err)
		}
	}
}

// enter puts a process into a control group; 0 is this one.
func enter(group string, pid int) error {
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("enter control group: %w", err)
	}
	return nil
}
