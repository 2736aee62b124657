package pid1

import (
	"sync"
	"unicode/utf8"
)

// What is kept of each stream: its beginning, and its latest bytes. The head
// serves the first 40 % of the largest answer (400,000 bytes); the tail serves
// the rest of it and those who come back to a stream.
const (
	headSize  = 160 << 10
	tailSize  = 1 << 20
	firstSize = 4 << 10 // what each grows from, by doubling

	// budgetSize bounds the output kept for a sandbox. A stream that it has no
	// room for keeps a tail of firstSize all the same.
	budgetSize = 16 << 20
)

// budget is what all streams of a sandbox keep. Where it is used up, the
// output of ended commands goes, oldest ended first; running ones stop growing.
type budget struct {
	mu    sync.Mutex // guards the fields below
	left  int
	ended []*output
}

func newBudget() *budget { return &budget{left: budgetSize} }

// take reports whether n more bytes may be kept.
func (b *budget) take(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.left < n && len(b.ended) > 0 {
		b.dropLocked(b.ended[0])
	}
	if b.left < n {
		return false
	}
	b.left -= n
	return true
}

// end says that nothing more is written to o: it may be dropped.
func (b *budget) end(o *output) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = append(b.ended, o)
}

// drop forgets an ended command's output.
func (b *budget) drop(o *output) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLocked(o)
}

func (b *budget) dropLocked(o *output) {
	for i, e := range b.ended {
		if e == o {
			b.ended = append(b.ended[:i], b.ended[i+1:]...)
			b.left += o.out.forget() + o.err.forget()
			return
		}
	}
}

// output is what an exec wrote.
type output struct{ out, err stream }

func newOutput(b *budget) *output {
	o := &output{out: stream{budget: b, bound: maxBehind, fd: -1}, err: stream{budget: b, bound: maxBehind, fd: -1}}
	o.out.room.L, o.err.room.L = &o.out.mu, &o.err.mu
	return o
}

// lost reports whether it was dropped.
func (o *output) lost() bool {
	o.out.mu.Lock()
	defer o.out.mu.Unlock()
	return o.out.lost
}

// stream keeps the bytes [0, len(head)) and [total-n, total) of what was written.
type stream struct {
	budget *budget
	spill  *spill // nil: there is no file

	mu    sync.Mutex // guards the fields below
	lost  bool
	total int64
	held  int // bytes of the budget

	head     []byte
	headFull bool

	ring  []byte
	fixed bool // the ring does not grow any more
	start int  // of the oldest byte in it
	n     int  // bytes in it

	followers []*cursor
	room      sync.Cond // a follower has read or left, or the bound has changed
	bound     int       // how far the slowest follower may be behind

	fd       int  // from which the bytes come; -1: none any more
	busy     bool // bytes may have left fd that are not written yet
	caught   chan struct{}
	caughtAt int64 // closes caught; -1: not known yet
}

// Write keeps what it can of p, and never fails. It waits where a follower would
// lose bytes by it.
func (s *stream) Write(p []byte) (int, error) {
	s.spill.add(s, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		k := s.keepLocked(p)
		s.total += int64(k)
		p = p[k:]
		for _, c := range s.followers {
			c.tell()
		}
		if k == 0 {
			s.room.Wait()
		}
	}
	s.catchUpLocked()
	return n, nil
}

// keepLocked keeps as much of p as no follower loses by, and returns how much.
func (s *stream) keepLocked(p []byte) int {
	if s.lost {
		return len(p)
	}
	if len(s.followers) == 0 {
		s.fillRing(s.fillHead(p))
		return len(p)
	}
	unread := s.unreadLocked()
	p = p[:min(len(p), max(s.bound-unread, 0))]
	if k := len(p) - len(s.fillHead(p)); k > 0 || len(p) == 0 {
		return k
	}
	s.growRing(s.n + len(p))
	p = p[:min(len(p), len(s.ring)-min(s.n, unread))]
	s.fillRing(p)
	return len(p)
}

func (s *stream) fillHead(p []byte) []byte {
	if s.headFull || len(p) == 0 {
		return p
	}
	want := min(len(s.head)+len(p), headSize)
	if want > cap(s.head) {
		size := min(max(firstSize, 2*cap(s.head), want), headSize)
		if !s.grow(size - cap(s.head)) {
			s.headFull = true
			want = cap(s.head)
		} else {
			s.head = append(make([]byte, 0, size), s.head...)
		}
	}
	k := want - len(s.head)
	s.head = append(s.head, p[:k]...)
	s.headFull = s.headFull || len(s.head) == headSize
	return p[k:]
}

func (s *stream) grow(n int) bool {
	if !s.budget.take(n) {
		return false
	}
	s.held += n
	return true
}

func (s *stream) fillRing(p []byte) {
	if len(p) == 0 {
		return
	}
	s.growRing(s.n + len(p))
	if len(p) >= len(s.ring) {
		copy(s.ring, p[len(p)-len(s.ring):])
		s.start, s.n = 0, len(s.ring)
		return
	}
	at := (s.start + s.n) % len(s.ring)
	k := copy(s.ring[at:], p)
	copy(s.ring, p[k:])
	s.n += len(p)
	if over := s.n - len(s.ring); over > 0 {
		s.start = (s.start + over) % len(s.ring)
		s.n -= over
	}
}

func (s *stream) growRing(want int) {
	if s.fixed || want <= len(s.ring) {
		return
	}
	size := min(max(firstSize, 2*len(s.ring), want), tailSize)
	if !s.grow(size - len(s.ring)) {
		s.fixed = true
		if len(s.ring) > 0 {
			return
		}
		size = firstSize
	}
	s.fixed = s.fixed || size == tailSize
	s.ring = append(make([]byte, 0, size), s.ring[:s.n]...)[:size] // not wrapped yet: it never was full
}

// forget drops all that is kept, and returns how much of the budget that frees.
func (s *stream) forget() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held
	s.head, s.ring, s.start, s.n, s.held, s.lost = nil, nil, 0, 0, 0, true
	return held
}

// readAt copies what is kept from off on, and returns how many bytes without a gap.
func (s *stream) readAt(off int64, p []byte) int {
	n := 0
	if off < int64(len(s.head)) {
		n = copy(p, s.head[off:])
		off += int64(n)
	}
	first := s.total - int64(s.n)
	if off >= first && off < s.total && n < len(p) {
		i := int(off - first)
		want := min(len(p)-n, s.n-i)
		at := (s.start + i) % len(s.ring)
		k := copy(p[n:n+want], s.ring[at:])
		copy(p[n+k:n+want], s.ring)
		n += want
	}
	return n
}

// join returns at most limit bytes: the first 40 % and the last 60 % of it, cut
// between characters where the text is UTF-8, and how many bytes it left out.
func (s *stream) join(limit int) (b []byte, omitted int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost || limit < 0 {
		return nil, s.total
	}
	head := int64(limit) * 40 / 100
	tail := int64(limit) - head
	first := s.total - int64(s.n) // of the ring
	whole := first <= int64(len(s.head))
	if whole && s.total <= int64(limit) {
		b = make([]byte, s.total)
		s.readAt(0, b)
		return b, 0
	}
	end := s.cut(min(head, int64(len(s.head))), false)
	from := s.total - tail
	if !whole {
		from = max(from, first)
	}
	from = s.cut(max(from, end), true)
	b = make([]byte, end+s.total-from)
	s.readAt(0, b[:end])
	s.readAt(from, b[end:])
	return b, from - end
}

// cut moves a place out of the middle of a character: ahead of it, or behind it.
func (s *stream) cut(at int64, behind bool) int64 {
	var around [2 * (utf8.UTFMax - 1)]byte
	lead := min(at, utf8.UTFMax-1)
	n := s.readAt(at-lead, around[:])
	for back := int64(1); back <= lead && int(lead) < n; back++ {
		c := around[lead-back : n]
		if !utf8.RuneStart(c[0]) {
			continue
		}
		_, size := utf8.DecodeRune(c)
		switch {
		case behind && int64(size) > back:
			return at - back + int64(size)
		case !behind && (int64(size) > back || !utf8.FullRune(c)):
			return at - back
		}
		break
	}
	return at
}
