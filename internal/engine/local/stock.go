package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/engine/local/launch"
)

const (
	// How many launchers of a kind wait for a plan. Each is three processes.
	stocked = 1
	// And how many sandboxes of a kind are held, each of three processes too.
	heldSandboxes = 1
	// How long a shelf that was taken from stays so: the new sandbox goes first.
	restockAfter = 150 * time.Millisecond
	// How long a launcher may take to let go.
	letGoWait = 2 * time.Second
)

// shell is a launcher that waits for a plan, its namespaces around a builder
// that waits too. It is of no sandbox: it has no name, no files and no control
// group, and ends when its pipe does, so that none outlives us.
type shell struct {
	pid    int
	plan   *os.File
	answer *os.File
	said   *bufio.Reader // of the answer
	ended  chan struct{}
}

// gone says that it has ended, of itself.
func (s *shell) gone() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// close lets it go: it has an end of its pipe to wait for.
func (s *shell) close() {
	s.plan.Close()
	s.answer.Close()
}

// kind is what a network, of those that there are, asks of a launcher.
func (e *Engine) kind(network string) launch.Kind {
	return launch.Kind{Bin: e.bin.dir, Stage: e.path(stageDir), UserNS: !e.can.root, NoNetwork: network == "none"}
}

// tell gives it a plan, and waits for its answer. Where that is an error, it has ended.
func (s *shell) tell(ctx context.Context, p launch.Plan) (status launch.Status, err error) {
	raw, err := json.Marshal(p)
	if err != nil {
		return status, err
	}
	stop := context.AfterFunc(ctx, func() { unix.Kill(s.pid, unix.SIGTERM) })
	_, err = s.plan.Write(append(raw, '\n'))
	var line []byte
	if err == nil {
		line, err = s.said.ReadBytes('\n')
	}
	switch late := !stop(); {
	case late:
		<-s.ended
		return status, ctx.Err()
	case err != nil:
		s.plan.Close()
		<-s.ended
		return status, fmt.Errorf("the launcher ended: %w", errors.Join(err, logged(p.Dir)))
	}
	if err := json.Unmarshal(bytes.TrimSpace(line), &status); err != nil {
		return status, fmt.Errorf("the launcher's answer: %w", err)
	}
	if status.Error != "" {
		<-s.ended
		return status, errors.New(status.Error)
	}
	return status, nil
}

// newShell starts a launcher. It has nothing of ours but the two pipes: it is in
// a session of its own.
func (e *Engine) newShell(k launch.Kind) (*shell, error) {
	raw, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	answer, answerW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer answerW.Close()
	planR, plan, err := os.Pipe()
	if err != nil {
		answer.Close()
		return nil, err
	}
	defer planR.Close()
	pid, err := syscall.ForkExec(e.bin.path(), []string{"sandkeeper", launch.Arg}, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{launch.Variable + "=" + string(raw), "GOMAXPROCS=1", "GODEBUG=madvdontneed=1"},
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd(), answerW.Fd(), planR.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		answer.Close()
		plan.Close()
		return nil, fmt.Errorf("launcher: %w", err)
	}
	s := &shell{pid: pid, plan: plan, answer: answer, said: bufio.NewReader(answer), ended: make(chan struct{})}
	// It is our child until we end; then it is the system's, which waits for it.
	e.wg.Go(func() { e.reap(pid, s.ended) })
	return s, nil
}

// letGo ends a shell that gets no plan.
func (s *shell) letGo() {
	s.close()
	t := time.NewTimer(letGoWait)
	defer t.Stop()
	select {
	case <-s.ended:
		return
	case <-t.C:
	}
	unix.Kill(s.pid, unix.SIGKILL) // ours until it is reaped; its builder goes with it
	t.Reset(letGoWait)
	select {
	case <-s.ended:
	case <-t.C: // nobody waits for it any more
	}
}

// stock holds shells of each kind that was asked for, and sandboxes that are
// nobody's yet (held), so that a start need not wait for processes to start, nor
// a new sandbox for anything but its name. It is filled by one goroutine, apart from who takes.
type stock struct {
	want chan struct{} // holds one token once something was taken
	fill sync.Mutex    // held by who fills it

	mu     sync.Mutex // guards the fields below
	closed bool
	shelf  map[launch.Kind]*shelf
	named  map[string]*held // by the sandbox whose directory theirs is now: made, and not started yet
}

// shelf is what there is of a kind.
type shelf struct {
	shells []*shell
	held   []*held
}

// expect has there be some of a kind.
func (s *stock) expect(k launch.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(k)
	s.ask()
}

func newStock() *stock {
	return &stock{want: make(chan struct{}, 1), shelf: make(map[launch.Kind]*shelf), named: make(map[string]*held)}
}

// of is the shelf of a kind, of which there are to be some from now on. The caller holds mu.
func (s *stock) of(k launch.Kind) *shelf {
	if s.shelf[k] == nil {
		s.shelf[k] = new(shelf)
	}
	return s.shelf[k]
}

// take takes a shell; nil where there is none. From then on there are to be some of this kind.
func (s *stock) take(k launch.Kind) *shell {
	defer s.ask()
	return s.pop(k)
}

// pop is take for who fills the stock.
func (s *stock) pop(k launch.Kind) *shell {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	of := s.of(k)
	for len(of.shells) > 0 {
		last := of.shells[len(of.shells)-1]
		of.shells = of.shells[:len(of.shells)-1]
		if !last.gone() {
			return last
		}
		last.close() // somebody ended it
	}
	return nil
}

func (s *stock) ask() {
	select {
	case s.want <- struct{}{}:
	default:
	}
}

// lacking returns a kind of which there are too few, and says whether it is sandboxes.
func (s *stock) lacking() (k launch.Kind, sandbox, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return k, false, false
	}
	for k, of := range s.shelf {
		if len(of.held) < heldSandboxes {
			return k, true, true
		}
	}
	for k, of := range s.shelf {
		if len(of.shells) < stocked {
			return k, false, true
		}
	}
	return k, false, false
}

// put takes a new shell, or says that it is too late.
func (s *stock) put(k launch.Kind, one *shell) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	of := s.of(k)
	of.shells = append(of.shells, one)
	return true
}

// close returns what there is; there will be no more.
func (s *stock) close() (shells []*shell, all []*held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, of := range s.shelf {
		shells, all = append(shells, of.shells...), append(all, of.held...)
	}
	for _, h := range s.named {
		all = append(all, h)
	}
	clear(s.shelf)
	clear(s.named)
	return shells, all
}

// keepStock fills the stock until the engine is closed. Where it cannot, starts
// do without.
func (e *Engine) keepStock() {
	old := time.NewTimer(heldFor)
	defer old.Stop()
	for {
		select {
		case <-e.stock.want:
			t := time.NewTimer(restockAfter)
			select {
			case <-t.C:
			case <-e.closing:
				t.Stop()
				return
			}
		case <-old.C:
		case <-e.closing:
			return
		}
		e.dropOldHeld()
		e.fillStock()
		old.Reset(heldFor)
	}
}

func (e *Engine) fillStock() {
	e.stock.fill.Lock()
	defer e.stock.fill.Unlock()
	for {
		k, sandbox, ok := e.stock.lacking()
		if !ok {
			return
		}
		if err := e.restock(k, sandbox); err != nil {
			e.log.Warn("nothing is held ready for sandboxes to come", "err", err)
			return
		}
	}
}

func (e *Engine) restock(k launch.Kind, sandbox bool) error {
	if sandbox {
		h, err := e.hold(k)
		if err == nil && !e.stock.putHeld(k, h) {
			e.letGo(h)
		}
		return err
	}
	one, err := e.newShell(k)
	if err == nil && !e.stock.put(k, one) {
		one.letGo()
	}
	return err
}

// clearStock ends what the stock holds.
func (e *Engine) clearStock() {
	var wg sync.WaitGroup
	shells, all := e.stock.close()
	for _, s := range shells {
		wg.Go(s.letGo)
	}
	for _, h := range all {
		wg.Go(func() { e.letGo(h) })
	}
	wg.Wait()
}
