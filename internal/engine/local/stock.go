package local

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/engine/local/launch"
)

const (
	// How many launchers of a kind wait for a plan. Each is two processes.
	stocked = 2
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
	ended  chan struct{}
}

// kind is what a network, of those that there are, asks of a launcher.
func (e *Engine) kind(network string) launch.Kind {
	return launch.Kind{Bin: e.bin.dir, Stage: e.path(stageDir), UserNS: !e.can.root, NoNetwork: network == "none"}
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
	s := &shell{pid: pid, plan: plan, answer: answer, ended: make(chan struct{})}
	// It is our child until we end; then it is the system's, which waits for it.
	e.wg.Go(func() { e.reap(pid, s.ended) })
	return s, nil
}

// letGo ends a shell that gets no plan.
func (s *shell) letGo() {
	s.plan.Close()
	s.answer.Close()
	t := time.NewTimer(letGoWait)
	defer t.Stop()
	select {
	case <-s.ended:
	case <-t.C:
		unix.Kill(s.pid, unix.SIGKILL) // ours until it is reaped; its builder goes with it
		<-s.ended
	}
}

// stock holds shells of each kind that was asked for, so that a start need not
// wait for processes to start. It is filled by one goroutine, apart from who takes.
type stock struct {
	want chan struct{} // holds one token once something was taken

	mu     sync.Mutex // guards the fields below
	closed bool
	shells map[launch.Kind][]*shell
}

func newStock() *stock {
	return &stock{want: make(chan struct{}, 1), shells: make(map[launch.Kind][]*shell)}
}

// take takes a shell; nil where there is none. From then on there are to be some of this kind.
func (s *stock) take(k launch.Kind) *shell {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	defer s.ask()
	shelf := s.shells[k]
	for len(shelf) > 0 {
		last := shelf[len(shelf)-1]
		shelf = shelf[:len(shelf)-1]
		s.shells[k] = shelf
		select {
		case <-last.ended: // somebody ended it
			last.plan.Close()
			last.answer.Close()
		default:
			return last
		}
	}
	s.shells[k] = shelf
	return nil
}

func (s *stock) ask() {
	select {
	case s.want <- struct{}{}:
	default:
	}
}

// lacking returns a kind of which there are too few.
func (s *stock) lacking() (launch.Kind, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, shelf := range s.shells {
		if len(shelf) < stocked && !s.closed {
			return k, true
		}
	}
	return launch.Kind{}, false
}

// put takes a new shell, or says that it is too late.
func (s *stock) put(k launch.Kind, one *shell) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.shells[k] = append(s.shells[k], one)
	return true
}

// close returns what there is; there will be no more.
func (s *stock) close() (all []*shell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, shelf := range s.shells {
		all = append(all, shelf...)
	}
	clear(s.shells)
	return all
}

// keepStock fills the stock until the engine is closed. Where it cannot, starts
// do without.
func (e *Engine) keepStock() {
	for {
		select {
		case <-e.stock.want:
		case <-e.closing:
			return
		}
		t := time.NewTimer(restockAfter)
		select {
		case <-t.C:
		case <-e.closing:
			t.Stop()
			return
		}
		e.fillStock()
	}
}

func (e *Engine) fillStock() {
	for {
		k, ok := e.stock.lacking()
		if !ok {
			return
		}
		one, err := e.newShell(k)
		if err != nil {
			e.log.Warn("no launcher in stock", "err", err)
			return
		}
		if !e.stock.put(k, one) {
			one.letGo()
		}
	}
}

// clearStock ends what the stock holds.
func (e *Engine) clearStock() {
	var wg sync.WaitGroup
	for _, s := range e.stock.close() {
		wg.Go(s.letGo)
	}
	wg.Wait()
}
