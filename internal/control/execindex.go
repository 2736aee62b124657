package control

import (
	"sync"
	"time"
)

// execIndex finds execs by their names, also for a while after their end.
type execIndex struct {
	mu    sync.Mutex // guards the fields below
	names map[string]*exec
	ended []endedExec // oldest first
}

type endedExec struct {
	x  *exec
	at time.Time
}

const indexedEnded = 10_000 // at most that many ended ones

func (i *execIndex) add(x *exec) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.names == nil {
		i.names = map[string]*exec{}
	}
	i.names[x.name] = x
}

// end says that the exec of x's name has ended; it is found as x for endedKept from then on.
func (i *execIndex) end(x *exec, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.names[x.name] != nil {
		i.names[x.name] = x
	}
	i.ended = append(i.ended, endedExec{x, now})
	for len(i.ended) > 0 && (len(i.ended) > indexedEnded || now.Sub(i.ended[0].at) > endedKept) {
		if old := i.ended[0].x; i.names[old.name] == old {
			delete(i.names, old.name)
		}
		i.ended[0] = endedExec{}
		i.ended = i.ended[1:]
	}
}

func (i *execIndex) find(name string) *exec {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.names[name]
}
