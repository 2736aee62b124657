package db

import (
	"context"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

// write is one caller's part of a transaction.
type write struct {
	check   func(*bolt.Tx) error // may refuse this write alone; it changes nothing. nil: none
	apply   func(*bolt.Tx) error // its error fails the transaction
	durable func()               // once on disk, before any later write's. nil: none
	done    chan error
}

// submit hands a write to the committer and waits for its outcome. A write that
// waits cannot be withdrawn, so a context that ends meanwhile changes nothing.
func (s *Store) submit(ctx context.Context, w *write) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w.done = make(chan error, 1)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.waiting = append(s.waiting, w)
	s.wake.Signal()
	s.mu.Unlock()
	return <-w.done
}

// run is the committer. It ends when the store is closed and nothing waits.
func (s *Store) run() {
	defer close(s.stopped)
	for {
		group := s.next()
		if group == nil {
			return
		}
		s.commit(group)
	}
}

// next waits for writes and takes all of them; nil once closed.
func (s *Store) next() []*write {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) == 0 {
		if s.closed {
			return nil
		}
		s.wake.Wait()
	}
	group := s.waiting
	s.waiting = nil
	return group
}

// commit writes a group in one transaction and tells each its outcome, in order.
func (s *Store) commit(group []*write) {
	refused := make([]error, len(group))
	err := s.transact(func(tx *bolt.Tx) (changed bool, err error) {
		for i, w := range group {
			if w.check != nil {
				if refused[i] = w.check(tx); refused[i] != nil {
					continue
				}
			}
			if err := w.apply(tx); err != nil {
				return false, err
			}
			changed = true
		}
		return changed, nil
	})
	for i, w := range group {
		outcome := err
		if outcome == nil {
			outcome = refused[i]
		}
		if outcome == nil && w.durable != nil {
			w.durable()
		}
		w.done <- outcome
	}
}

// transact runs fn in a transaction that is durable when it returns nil.
func (s *Store) transact(fn func(*bolt.Tx) (changed bool, err error)) error {
	if s.broken != nil {
		return s.broken
	}
	tx, err := s.bolt.Begin(true)
	if err != nil {
		return fmt.Errorf("database begin: %w", err)
	}
	changed, err := fn(tx)
	if err != nil || !changed {
		return errors.Join(err, tx.Rollback())
	}
	id := tx.ID()
	err = s.finish(tx)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("database write: %w", err)
	if s.reached(id) {
		// The last page was written and its sync failed: the file shows the
		// transaction, and nobody can say what the disk has of it.
		s.broken = fmt.Errorf("database can take no more writes until the next start, which will show what the disk has of the last: %w", err)
		return s.broken
	}
	return err
}

// reached reports whether a transaction, or a later one, shows in the file. What cannot be read counts as yes.
func (s *Store) reached(id int) bool {
	tx, err := s.bolt.Begin(false)
	if err != nil {
		return true
	}
	defer func() { _ = tx.Rollback() }() // a read has nothing to lose
	return tx.ID() >= id
}

// Publish sets who is told of committed events.
func (s *Store) Publish(fn func([]control.Event)) { s.publish = fn }

// Commit writes the batch, as control.Store says. The events' Seqs are filled
// in the batch itself too. Errors wrap ErrKeyHeld, ErrInvalid or ErrClosed, or
// are the disk's.
func (s *Store) Commit(ctx context.Context, b *control.Batch) error {
	enc, err := encode(b)
	if err != nil {
		return err
	}
	return s.submit(ctx, &write{
		check: enc.check,
		apply: enc.apply,
		durable: func() {
			for i := range b.Events {
				b.Events[i].Seq = enc.firstSeq + uint64(i)
			}
			if b.Applied != nil {
				b.Applied()
			}
			if len(b.Events) > 0 {
				s.publish(b.Events)
			}
		},
	})
}
