package pid1

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/keeper"
)

const (
	// Each is three threads, of those that the sandbox may have.
	maxIdleKeepers = 16
	keeperIdleFor  = 20 * time.Second
)

// keepers are the keepers of a sandbox. One whose command's tree is gone is
// used again; idle ones go after a while.
type keepers struct {
	spawn func() (*keeper.Handle, error)
	wg    sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	alive map[int]*keeper.Handle
	idle  []*keeper.Handle
	reap  *time.Timer
}

func newKeepers(spawn func() (*keeper.Handle, error)) *keepers {
	return &keepers{spawn: spawn, alive: make(map[int]*keeper.Handle)}
}

// start has a keeper start a command.
func (k *keepers) start(c *keeper.Command, files []int, tell func(keeper.Reply)) (*keeper.Handle, error) {
	for {
		h, err := k.get()
		if err != nil {
			return nil, err
		}
		err = h.Start(c, files, tell)
		if err == nil {
			return h, nil
		}
		if !errors.Is(err, net.ErrClosed) {
			k.put(h)
			return nil, err
		}
		// Somebody killed it while it was idle: the next one.
	}
}

func (k *keepers) get() (*keeper.Handle, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.restedLocked(); h != nil {
		return h, nil
	}
	return k.spawnLocked()
}

// spawnLocked keeps the lock, so that killOrphans does not take a new keeper for an orphan.
func (k *keepers) spawnLocked() (*keeper.Handle, error) {
	h, err := k.spawn()
	if err != nil {
		return nil, err
	}
	k.attendLocked(h)
	return h, nil
}

func (k *keepers) attendLocked(h *keeper.Handle) {
	k.alive[h.PID] = h
	k.wg.Go(func() { h.Attend(func() { k.remove(h) }) })
}

// remove forgets a keeper that has gone, before its loss is told: while it is
// counted as alive, what it leaves is nobody's orphan yet.
func (k *keepers) remove(h *keeper.Handle) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.alive[h.PID] == h { // its number may be another's by now
		delete(k.alive, h.PID)
	}
	k.idle = slices.DeleteFunc(k.idle, func(o *keeper.Handle) bool { return o == h })
}

// attend takes a keeper that was started elsewhere.
func (k *keepers) attend(h *keeper.Handle) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.attendLocked(h)
}

// rested takes an idle keeper out, so that it does not go after a while; nil where there is none.
func (k *keepers) rested() *keeper.Handle {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.restedLocked()
}

func (k *keepers) restedLocked() *keeper.Handle {
	n := len(k.idle)
	if n == 0 {
		return nil
	}
	h := k.idle[n-1]
	k.idle = k.idle[:n-1]
	return h
}

// prepare starts an idle keeper, so that the first command need not wait for it.
func (k *keepers) prepare() {
	k.mu.Lock()
	h, err := k.spawnLocked()
	k.mu.Unlock()
	if err == nil {
		k.put(h)
	}
}

// put takes back a keeper whose command's tree is gone.
func (k *keepers) put(h *keeper.Handle) {
	h.Rest()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.alive[h.PID] != h {
		return
	}
	if len(k.idle) >= maxIdleKeepers {
		h.Close()
		return
	}
	k.idle = append(k.idle, h)
	if k.reap == nil {
		k.reap = time.AfterFunc(keeperIdleFor, k.dropIdle)
	} else {
		k.reap.Reset(keeperIdleFor)
	}
}

func (k *keepers) dropIdle() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range k.idle {
		h.Close()
	}
	k.idle = nil
}

// killOrphans kills what became a child of PID 1 because its keeper was killed.
// It returns once there is none.
func (k *keepers) killOrphans() {
	for wait := time.Millisecond; k.killOrphansOnce(); wait = min(2*wait, 100*time.Millisecond) {
		time.Sleep(wait) // they die, and are reaped elsewhere
	}
}

func (k *keepers) killOrphansOnce() (found bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	slay(func() []int {
		pids := k.orphansLocked()
		found = found || len(pids) > 0
		return pids
	})
	return found
}

func (k *keepers) orphansLocked() (pids []int) {
	all := processes()
	self := unix.Getpid()
	for _, p := range all {
		if p.parent != self || k.alive[p.pid] != nil {
			continue
		}
		if !p.dead {
			pids = append(pids, p.pid)
		}
		pids = append(pids, below(p.pid, all)...)
	}
	return pids
}
