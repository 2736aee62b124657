package control

import (
	"sync/atomic"
	"time"
)

// clock tells the plane's time: the wall clock as it was at start, carried on
// by the monotonic one. A wall clock that is set anew changes nothing until
// rebase says so, so that no deadline comes early because of it.
type clock struct {
	wall  func() time.Time
	start time.Time    // with its monotonic reading
	shift atomic.Int64 // nanoseconds added by rebases
}

func newClock(wall func() time.Time) *clock {
	if wall == nil {
		wall = time.Now
	}
	c := &clock{wall: wall, start: time.Now()}
	c.shift.Store(int64(wall().Round(0).Sub(c.start.Round(0))))
	return c
}

// now has no monotonic reading: it is compared with times from disk.
func (c *clock) now() time.Time {
	return c.start.Round(0).Add(time.Since(c.start) + time.Duration(c.shift.Load())).UTC()
}

// origin is the start of this process on our clock.
func (c *clock) origin() time.Time {
	return c.start.Round(0).Add(time.Duration(c.shift.Load())).UTC()
}

// drift is how far the wall clock has parted from ours.
func (c *clock) drift() time.Duration { return c.wall().Round(0).Sub(c.now()) }

func (c *clock) rebase(by time.Duration) { c.shift.Add(int64(by)) }
