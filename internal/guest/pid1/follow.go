package pid1

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/wire"
)

// maxBehind is how far a follower may be behind before the command waits. After
// the command's end all that is kept may be unread, so that the end itself, of
// which others are told too, waits for no follower.
const maxBehind = 256 << 10

var (
	errBeyond = &wire.Error{Code: wire.CodeInvalid, Message: "from is beyond what was written"}
	errLost   = errors.New("what was not read yet is no longer kept")
)

// cursor is how far one follower of a stream has come. While it follows, what it
// has not read stays, unless the sandbox's budget takes all of an ended command.
type cursor struct {
	s    *stream
	wake chan<- struct{} // of room for one; told that there is more
	at   int64           // guarded by s.mu
}

func (c *cursor) tell() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// follow adds a follower who has had the bytes up to from. skipped is how many
// from there on are no longer kept.
func (s *stream) follow(from int64, wake chan<- struct{}) (c *cursor, skipped int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from < 0 || from > s.total {
		return nil, 0, errBeyond
	}
	at := from
	first := s.total - int64(s.n) // of the ring
	switch {
	case s.lost:
		at = s.total
	case first > int64(len(s.head)):
		at = max(at, first)
	}
	c = &cursor{s: s, wake: wake, at: at}
	s.followers = append(s.followers, c)
	return c, at - from, nil
}

// read copies what comes next, up to the offset until. Errors: errLost.
func (c *cursor) read(p []byte, until int64) (int, error) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	p = p[:min(int64(len(p)), max(min(until, s.total)-c.at, 0))]
	if s.lost && len(p) > 0 {
		return 0, errLost
	}
	n := s.readAt(c.at, p)
	c.at += int64(n)
	s.room.Broadcast()
	return n, nil
}

// waiting is how many bytes there are to read up to the offset until.
func (c *cursor) waiting(until int64) int64 {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return max(min(until, c.s.total)-c.at, 0)
}

// leave ends the following.
func (c *cursor) leave() {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers = slices.DeleteFunc(s.followers, func(o *cursor) bool { return o == c })
	s.room.Broadcast()
}

// unreadLocked is how far the slowest follower is behind.
func (s *stream) unreadLocked() int {
	unread := int64(0)
	for _, c := range s.followers {
		unread = max(unread, s.total-c.at)
	}
	return int(unread)
}

// written is how many bytes there were by now.
func (s *stream) written() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// relax lets followers be as far behind as there are bytes kept.
func (s *stream) relax() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bound = tailSize
	s.room.Broadcast()
}

// admit waits until more is to be read for the stream, and returns how much.
// While followers are behind that is nothing, and then some at once.
func (s *stream) admit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = true
	for {
		s.catchUpLocked()
		if len(s.followers) == 0 || s.lost {
			return drainBuffer
		}
		bound := s.bound
		if s.fixed {
			bound = min(bound, len(s.ring))
		}
		if room := bound - s.unreadLocked(); room > 0 && room >= min(drainBuffer, bound/2) {
			return min(room, drainBuffer)
		}
		s.room.Wait()
	}
}

// rest says that there is nothing to read now.
func (s *stream) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	s.catchUpLocked()
}

// close says that nothing more comes; then the file may be closed.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy, s.fd = false, -1
	s.catchUpLocked()
}

// catchUp returns what is closed once all is written that the command had
// written by now: a follower that is behind may hold some of it in the pipe.
func (s *stream) catchUp() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{})
	s.caught, s.caughtAt = c, -1
	if !s.busy {
		s.catchUpLocked()
	}
	return c
}

// catchUpLocked is called where no byte is between fd and the stream.
func (s *stream) catchUpLocked() {
	if s.caught == nil {
		return
	}
	if s.caughtAt < 0 {
		s.caughtAt = s.total + int64(pending(s.fd))
	}
	if s.total >= s.caughtAt || s.fd < 0 {
		close(s.caught)
		s.caught = nil
	}
}

// pending is how many bytes there are to read.
func pending(fd int) int {
	if fd < 0 {
		return 0
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}
