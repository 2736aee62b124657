package controltest

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Fault is something that goes wrong with calls. Its parts happen in this
// order: Delay, Hang, the call itself where After is set, Err.
type Fault struct {
	Call  string          // the method's name, such as "Stop"; "": any
	Name  string          // of the sandbox (of the image for "Pull"); "": any
	Times int             // how many calls it meets; 0: all, until it is removed
	Delay time.Duration   // how long the call takes
	Hang  <-chan struct{} // the call waits until this is closed, or its context ends
	Err   error           // what the call returns; nil: it goes on
	After bool            // Err comes once the call took effect: its answer is lost
}

// Call is one call that was made.
type Call struct {
	Method string
	Name   string // of the sandbox, or the image
	At     time.Time
}

// Faults injects faults and keeps a list of the calls. The zero value has none.
type Faults struct {
	mu     sync.Mutex // guards the fields below
	faults []*Fault
	calls  []Call
}

// Inject makes a fault happen to calls from now on. Faults add up: a call meets
// all that match, in the order in which they were injected, up to an error.
func (f *Faults) Inject(fault Fault) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &fault
	f.faults = append(f.faults, p)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.faults = slices.DeleteFunc(f.faults, func(q *Fault) bool { return q == p })
	}
}

// Clear removes every fault. Calls that hang go on hanging.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Calls lists the calls of a method that were made, finished or not; "" lists all.
func (f *Faults) Calls(method string) []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []Call
	for _, c := range f.calls {
		if method == "" || c.Method == method {
			list = append(list, c)
		}
	}
	return list
}

// do makes a call: the faults that match, and fn between them.
func (f *Faults) do(ctx context.Context, method, name string, fn func() error) error {
	faults := f.take(method, name)
	var late error
	for _, fault := range faults {
		if err := fault.wait(ctx); err != nil {
			return err
		}
		switch {
		case fault.Err == nil:
		case fault.After:
			late = fault.Err
		default:
			return fault.Err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	return late
}

// take notes the call and uses up what matches it.
func (f *Faults) take(method, name string) (matching []*Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{method, name, time.Now()})
	f.faults = slices.DeleteFunc(f.faults, func(p *Fault) bool {
		if p.Call != "" && p.Call != method || p.Name != "" && p.Name != name {
			return false
		}
		matching = append(matching, p)
		if p.Times == 0 {
			return false
		}
		p.Times--
		return p.Times == 0
	})
	return matching
}

func (p *Fault) wait(ctx context.Context) error {
	if p.Delay > 0 {
		t := time.NewTimer(p.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if p.Hang != nil {
		select {
		case <-p.Hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
