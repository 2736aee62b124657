package agentapi

import (
	"context"
	"errors"
	"sync"
)

// mostCredit bounds an account: no window that somebody means is as large, and
// sums below it cannot overflow.
const mostCredit = 1 << 40

var errCreditOverflow = errors.New("more credit than an account may have")

// account is how many bytes of payload may be sent in one direction of a channel.
type account struct {
	mu   sync.Mutex
	left int64
	more chan struct{} // holds a token after left grew
}

func newAccount(window int64) *account {
	return &account{left: window, more: make(chan struct{}, 1)}
}

// give adds to the account. Errors: errCreditOverflow.
func (a *account) give(n int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left+n > mostCredit {
		return errCreditOverflow
	}
	a.left += n
	select {
	case a.more <- struct{}{}:
	default:
	}
	return nil
}

// spend takes n off, or nothing where less is left.
func (a *account) spend(n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > a.left {
		return false
	}
	a.left -= n
	return true
}

// take waits until something is left, and takes up to most of it. One goroutine
// takes. Errors: ctx's.
func (a *account) take(ctx context.Context, most int64) (int64, error) {
	for {
		a.mu.Lock()
		n := min(most, a.left)
		a.left -= n
		a.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-a.more:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
