package client

import (
	"encoding/json"
	"sync"
	"time"
)

// mergeFrom is how many notifications wait in full for the callbacks. Beyond it
// only the latest state of each environment waits.
const mergeFrom = 256

// notes hands notifications to the callbacks, one at a time, so that a callback
// may take its time and use the client.
type notes struct {
	opt  Options
	wake chan struct{}

	mu     sync.Mutex // guards the fields below
	queue  []*note
	states map[string]*note // by environment: the last that waits
	closed bool
}

type note struct {
	env  string // of a state
	call func()
}

func newNotes(o Options) *notes {
	n := &notes{opt: o, wake: make(chan struct{}, 1), states: map[string]*note{}}
	go n.run()
	return n
}

// close lets the callbacks have what waits, and no more. It does not wait for
// them: one of them may be what closes the client.
func (n *notes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	n.signal()
}

func (n *notes) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notes) put(env string, call func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	if waiting := n.states[env]; env != "" && waiting != nil && len(n.queue) >= mergeFrom {
		waiting.call = call
		return
	}
	e := &note{env, call}
	n.queue = append(n.queue, e)
	if env != "" {
		n.states[env] = e
	}
	n.signal()
}

func (n *notes) take() (call func(), more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		return nil, !n.closed
	}
	e := n.queue[0]
	n.queue = n.queue[1:]
	if n.states[e.env] == e {
		delete(n.states, e.env)
	}
	return e.call, true
}

func (n *notes) run() {
	for {
		call, more := n.take()
		switch {
		case call != nil:
			call()
		case !more:
			return
		default:
			<-n.wake
		}
	}
}

// add takes a notification of the server's. One that is not known is for a newer client.
func (n *notes) add(m message) {
	switch m.Method {
	case "env.state":
		var p struct {
			Env Env `json:"env"`
		}
		if n.opt.OnEnvState != nil && json.Unmarshal(m.Params, &p) == nil {
			n.put(p.Env.ID, func() { n.opt.OnEnvState(p.Env) })
		}
	case "env.expiring":
		var p Expiring
		if n.opt.OnEnvExpiring != nil && json.Unmarshal(m.Params, &p) == nil {
			n.put("", func() { n.opt.OnEnvExpiring(p) })
		}
	case "server.draining":
		var p struct {
			SecondsLeft int64 `json:"seconds_left"`
		}
		if n.opt.OnDraining != nil && json.Unmarshal(m.Params, &p) == nil {
			n.put("", func() { n.opt.OnDraining(time.Duration(p.SecondsLeft) * time.Second) })
		}
	}
}

func (n *notes) connected(h Hello) {
	if n.opt.OnConnected != nil {
		n.put("", func() { n.opt.OnConnected(h) })
	}
}

func (n *notes) dropped(err error) {
	if n.opt.OnDropped != nil {
		n.put("", func() { n.opt.OnDropped(err) })
	}
}
