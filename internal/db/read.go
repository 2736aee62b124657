package db

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

// Load reads what the plane keeps in memory. It costs what is live, not what
// was ever recorded.
func (s *Store) Load(ctx context.Context) (*control.Records, error) {
	var r control.Records
	err := s.read(func(tx *bolt.Tx) (err error) {
		if r.Envs, err = all[*control.Env](ctx, tx, bucketEnvs); err != nil {
			return err
		}
		if r.Tasks, err = liveTasks(ctx, tx, r.Envs); err != nil {
			return err
		}
		if r.Sessions, err = all[control.SessionRecord](ctx, tx, bucketSessions); err != nil {
			return err
		}
		if r.Execs, err = runningExecs(ctx, tx); err != nil {
			return err
		}
		if r.Orphans, err = all[control.Orphan](ctx, tx, bucketOrphans); err != nil {
			return err
		}
		if ran := tx.Bucket(bucketMeta).Get(keyRan); ran != nil {
			if len(ran) != 8 {
				return fmt.Errorf("%w: %q is no running time", ErrDamaged, ran)
			}
			r.Ran = time.Duration(binary.BigEndian.Uint64(ran))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// read runs fn in a read transaction; damage that it meets is an error.
func (s *Store) read(fn func(*bolt.Tx) error) error {
	if err := guard(func() error { return s.bolt.View(fn) }); err != nil {
		return fmt.Errorf("database read: %w", err)
	}
	return nil
}

// all reads every record of a bucket.
func all[T any](ctx context.Context, tx *bolt.Tx, bucket []byte) ([]T, error) {
	var recs []T
	err := tx.Bucket(bucket).ForEach(func(_, v []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		rec, err := decode[T](v)
		recs = append(recs, rec)
		return err
	})
	return recs, err
}

// liveTasks reads the tasks that have an open turn or one of these environments.
func liveTasks(ctx context.Context, tx *bolt.Tx, envs []*control.Env) ([]control.TaskRecord, error) {
	var (
		tasks = tx.Bucket(bucketTasks)
		seen  = make(map[string]bool, len(envs))
		recs  []control.TaskRecord
	)
	add := func(key []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		v := tasks.Get(key)
		if v == nil || seen[string(key)] {
			return nil
		}
		seen[string(key)] = true
		rec, err := decode[control.TaskRecord](v)
		recs = append(recs, rec)
		return err
	}
	for _, e := range envs {
		if err := add(joined(e.Owner, e.Task)); err != nil {
			return nil, err
		}
	}
	err := tx.Bucket(bucketTasksOpen).ForEach(func(key, _ []byte) error { return add(key) })
	return recs, err
}

func runningExecs(ctx context.Context, tx *bolt.Tx) ([]control.ExecRecord, error) {
	var (
		execs = tx.Bucket(bucketExecs)
		recs  []control.ExecRecord
	)
	err := tx.Bucket(bucketRunning).ForEach(func(exec, _ []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		rec, err := decode[control.ExecRecord](execs.Get(exec))
		recs = append(recs, rec)
		return err
	})
	return recs, err
}

// one reads the record under a key; ok is false where there is none.
func one[T any](tx *bolt.Tx, bucket, key []byte) (rec T, ok bool, err error) {
	v := tx.Bucket(bucket).Get(key)
	if v == nil {
		return rec, false, nil
	}
	rec, err = decode[T](v)
	return rec, err == nil, err
}

// Task reads one task's record.
func (s *Store) Task(k control.TaskKey) (rec control.TaskRecord, ok bool, err error) {
	err = s.read(func(tx *bolt.Tx) (err error) {
		rec, ok, err = one[control.TaskRecord](tx, bucketTasks, joined(k.Owner, k.Task))
		return err
	})
	return rec, ok, err
}

// Exec finds an exec by its environment and the id that its caller gave it: the latest of that id.
func (s *Store) Exec(env, id string) (rec control.ExecRecord, ok bool, err error) {
	err = s.read(func(tx *bolt.Tx) (err error) {
		exec := tx.Bucket(bucketExecIDs).Get(joined(env, id))
		if exec == nil {
			return nil
		}
		rec, ok, err = one[control.ExecRecord](tx, bucketExecs, exec)
		return err
	})
	return rec, ok, err
}

// ExecByName finds an exec by the plane's own name for it.
func (s *Store) ExecByName(exec string) (rec control.ExecRecord, ok bool, err error) {
	err = s.read(func(tx *bolt.Tx) (err error) {
		rec, ok, err = one[control.ExecRecord](tx, bucketExecs, []byte(exec))
		return err
	})
	return rec, ok, err
}

// RemovedEnvs lists the removed environments whose tombstones are kept, the latest removed last.
func (s *Store) RemovedEnvs() ([]*control.Env, error) {
	var envs []*control.Env
	err := s.read(func(tx *bolt.Tx) error {
		removed := tx.Bucket(bucketRemoved)
		return tx.Bucket(bucketRemovedAt).ForEach(func(k, _ []byte) error {
			env, err := decode[*control.Env](removed.Get(k[timeKeyLen:]))
			envs = append(envs, env)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return envs, nil
}

// RemovedEnv finds a removed environment by its id.
func (s *Store) RemovedEnv(id string) (env *control.Env, ok bool, err error) {
	err = s.read(func(tx *bolt.Tx) (err error) {
		env, ok, err = one[*control.Env](tx, bucketRemoved, []byte(id))
		return err
	})
	return env, ok, err
}

// Events reads up to limit events (none for 0) with Seq > after that match the
// filter, and the log's bounds: first is 0 while it is empty, last is the
// latest number ever given.
func (s *Store) Events(after uint64, limit int, f control.EventFilter) (ev []control.Event, first, last uint64, err error) {
	m := newMatcher(f)
	err = s.read(func(tx *bolt.Tx) error {
		events := tx.Bucket(bucketEvents)
		last = events.Sequence()
		c := events.Cursor()
		k, _ := c.First()
		if k == nil {
			return nil
		}
		first = binary.BigEndian.Uint64(k)
		if after >= last {
			return nil
		}
		for k, v := c.Seek(seqKey(after + 1)); k != nil && len(ev) < limit; k, v = c.Next() {
			e, ok, err := m.match(v)
			if err != nil {
				return err
			}
			if ok {
				e.Seq = binary.BigEndian.Uint64(k)
				ev = append(ev, e)
			}
		}
		return nil
	})
	if err != nil {
		return nil, 0, 0, err
	}
	return ev, first, last, nil
}

// matcher tells an event that passes a filter. It decodes only what can pass:
// what it looks for must stand in the JSON as the encoder writes it.
type matcher struct {
	filter  control.EventFilter
	needles [][]byte
}

func newMatcher(f control.EventFilter) matcher {
	m := matcher{filter: f}
	for _, text := range []string{f.Env, f.Owner, string(f.Kind)} {
		if text != "" {
			needle, _ := json.Marshal(text) // a string always has a form
			m.needles = append(m.needles, needle)
		}
	}
	return m
}

func (m *matcher) match(value []byte) (e control.Event, ok bool, err error) {
	for _, n := range m.needles {
		if !bytes.Contains(value, n) {
			return e, false, nil
		}
	}
	if e, err = decode[control.Event](value); err != nil {
		return e, false, err
	}
	f := m.filter
	ok = (f.Env == "" || f.Env == e.Env) && (f.Owner == "" || f.Owner == e.Owner) && (f.Kind == "" || f.Kind == e.Kind)
	return e, ok, nil
}
