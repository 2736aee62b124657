package reaper

import (
	"container/heap"
	"time"
)

// queue holds one deadline to a key. Each change costs the logarithm of its length.
type queue struct {
	byTime entries
	byKey  map[string]*entry
	seq    uint64
}

type entry struct {
	key string
	at  time.Time
	seq uint64 // of equal deadlines, the one set first comes first
	pos int    // in the heap
}

func newQueue() *queue { return &queue{byKey: map[string]*entry{}} }

// set gives a key its deadline, in place of the one that it had.
func (q *queue) set(key string, at time.Time) {
	q.seq++
	if e, ok := q.byKey[key]; ok {
		e.at, e.seq = at, q.seq
		heap.Fix(&q.byTime, e.pos)
		return
	}
	e := &entry{key: key, at: at, seq: q.seq}
	q.byKey[key] = e
	heap.Push(&q.byTime, e)
}

// clear takes a key's deadline away, if it has one.
func (q *queue) clear(key string) {
	e, ok := q.byKey[key]
	if !ok {
		return
	}
	delete(q.byKey, key)
	heap.Remove(&q.byTime, e.pos)
}

// first returns the earliest deadline; ok is false where there is none.
func (q *queue) first() (at time.Time, ok bool) {
	if len(q.byTime) == 0 {
		return time.Time{}, false
	}
	return q.byTime[0].at, true
}

// popDue takes out the key with the earliest deadline, if that is not after now.
func (q *queue) popDue(now time.Time) (key string, ok bool) {
	if len(q.byTime) == 0 || q.byTime[0].at.After(now) {
		return "", false
	}
	e := heap.Pop(&q.byTime).(*entry)
	delete(q.byKey, e.key)
	return e.key, true
}

// entries is a heap, the earliest first.
type entries []*entry

func (h entries) Len() int { return len(h) }

func (h entries) Less(i, j int) bool {
	if h[i].at.Equal(h[j].at) {
		return h[i].seq < h[j].seq
	}
	return h[i].at.Before(h[j].at)
}

func (h entries) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *entries) Push(x any) {
	e := x.(*entry)
	e.pos = len(*h)
	*h = append(*h, e)
}

func (h *entries) Pop() any {
	old := *h
	last := len(old) - 1
	e := old[last]
	old[last] = nil
	*h = old[:last]
	return e
}
