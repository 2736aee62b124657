package db

import (
	"bytes"
	"context"
	"encoding/binary"
	"time"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

// pruneChunk bounds how much one transaction drops, so that no write waits long behind it.
const pruneChunk = 500

// pruning is one kind of record that gets old. find reads up to pruneChunk keys
// that are due; drop deletes them, and passes over one that has changed since.
type pruning struct {
	find func(*bolt.Tx) ([][]byte, error)
	drop func(*bolt.Tx, [][]byte) error
}

// Prune drops what is past its time. Where nothing is, it writes nothing.
func (s *Store) Prune(ctx context.Context, p control.PruneLimits) error {
	for _, kind := range []pruning{
		{olderThan(bucketRemovedAt, p.TombstonesBefore), dropRemoved},
		{olderThan(bucketEnded, p.ExecsEndedBefore), dropExecs},
		{oldEvents(p.EventsBefore, p.EventsKeep), dropEvents},
	} {
		if err := s.prune(ctx, kind); err != nil {
			return err
		}
	}
	return s.dropExpiredTokens(ctx)
}

func (s *Store) prune(ctx context.Context, kind pruning) error {
	for {
		var due [][]byte
		err := s.read(func(tx *bolt.Tx) (err error) {
			due, err = kind.find(tx)
			return err
		})
		if err != nil || len(due) == 0 {
			return err
		}
		err = s.submit(ctx, &write{apply: func(tx *bolt.Tx) error { return kind.drop(tx, due) }})
		if err != nil {
			return err
		}
	}
}

// olderThan finds the keys of an index by time that are before a time; none for the zero time.
func olderThan(index []byte, before time.Time) func(*bolt.Tx) ([][]byte, error) {
	return func(tx *bolt.Tx) (due [][]byte, err error) {
		if before.IsZero() {
			return nil, nil
		}
		end := timeKey(before, "")
		c := tx.Bucket(index).Cursor()
		for k, _ := c.First(); k != nil && len(due) < pruneChunk && bytes.Compare(k, end) < 0; k, _ = c.Next() {
			due = append(due, bytes.Clone(k))
		}
		return due, nil
	}
}

func dropRemoved(tx *bolt.Tx, due [][]byte) error {
	times, removed := tx.Bucket(bucketRemovedAt), tx.Bucket(bucketRemoved)
	for _, k := range due {
		if times.Get(k) == nil {
			continue
		}
		if err := times.Delete(k); err != nil {
			return err
		}
		if err := removed.Delete(k[timeKeyLen:]); err != nil {
			return err
		}
	}
	return nil
}

func dropExecs(tx *bolt.Tx, due [][]byte) error {
	ended, execs, ids := tx.Bucket(bucketEnded), tx.Bucket(bucketExecs), tx.Bucket(bucketExecIDs)
	for _, k := range due {
		idKey := bytes.Clone(ended.Get(k))
		if idKey == nil {
			continue
		}
		exec := k[timeKeyLen:]
		if err := ended.Delete(k); err != nil {
			return err
		}
		if err := execs.Delete(exec); err != nil {
			return err
		}
		if len(idKey) == 0 || !bytes.Equal(ids.Get(idKey), exec) { // none, or a later exec's
			continue
		}
		if err := ids.Delete(idKey); err != nil {
			return err
		}
	}
	return nil
}

// oldEvents finds events from the front of the log on: it keeps no gaps.
func oldEvents(before time.Time, keep int) func(*bolt.Tx) ([][]byte, error) {
	return func(tx *bolt.Tx) (due [][]byte, err error) {
		events := tx.Bucket(bucketEvents)
		last := events.Sequence()
		c := events.Cursor()
		for k, v := c.First(); k != nil && len(due) < pruneChunk; k, v = c.Next() {
			if keep <= 0 || last-binary.BigEndian.Uint64(k) < uint64(keep) { // not beyond the count
				e, err := decode[control.Event](v)
				if err != nil {
					return nil, err
				}
				if !e.Time.Before(before) {
					break
				}
			}
			due = append(due, bytes.Clone(k))
		}
		return due, nil
	}
}

func dropEvents(tx *bolt.Tx, due [][]byte) error {
	events := tx.Bucket(bucketEvents)
	for _, k := range due {
		if err := events.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
