package dashboard

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"sync"
	"time"
)

// codes are one-time passwords for signing in by a link. They live in memory
// only: a restart makes new ones. What is kept is their hash.
type codes struct {
	ttl time.Duration

	mu   sync.Mutex
	open map[[sha256.Size]byte]time.Time // guarded by mu; by hash, when each ends
}

func newCodes(ttl time.Duration) *codes {
	return &codes{ttl: ttl, open: map[[sha256.Size]byte]time.Time{}}
}

// make returns a new code of 130 random bits.
func (c *codes) make(now time.Time) string {
	code := rand.Text()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(now)
	c.open[sha256.Sum256([]byte(code))] = now.Add(c.ttl)
	return code
}

// take reports whether the code is one of ours, unused and in time; then it is
// used. It takes as long for a near miss as for a far one.
func (c *codes) take(code string, now time.Time) bool {
	sum := sha256.Sum256([]byte(code))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(now)
	found := 0
	for have := range c.open {
		found |= subtle.ConstantTimeCompare(have[:], sum[:])
	}
	if found == 1 {
		delete(c.open, sum)
	}
	return found == 1
}

// drop forgets the codes whose time has passed. mu is held.
func (c *codes) drop(now time.Time) {
	for sum, ends := range c.open {
		if !now.Before(ends) {
			delete(c.open, sum)
		}
	}
}
