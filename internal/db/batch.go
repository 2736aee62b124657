package db

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

// encoded is a batch as it goes to disk. It is made by the caller's goroutine,
// so that the committer has no more to do than needs the transaction.
type encoded struct {
	envs     []envWrite
	execs    []execWrite
	others   []change
	events   [][]byte
	firstSeq uint64 // of the events; set by apply
}

type envWrite struct {
	id      string
	key     []byte // in keys
	holder  bool
	removed bool
	at      time.Time // of a removed one's tombstone
	value   []byte
}

type execWrite struct {
	exec  string
	idKey []byte    // in exec_ids; nil: it has no id
	ended time.Time // zero: it runs
	value []byte
}

// change puts a value under a key of a bucket; nil deletes it.
type change struct {
	bucket, key, value []byte
}

func (c change) apply(tx *bolt.Tx) error {
	b := tx.Bucket(c.bucket)
	switch old := b.Get(c.key); {
	case c.value == nil:
		return b.Delete(c.key)
	case old != nil && bytes.Equal(old, c.value): // no page is written for what is there
		return nil
	}
	return b.Put(c.key, c.value)
}

// nothing is the value of a key that says all by itself.
var nothing = []byte{}

// encode checks the records by themselves and makes their JSON. Of two records
// of one thing the later counts, and a deletion counts more than a record.
func encode(b *control.Batch) (*encoded, error) {
	var (
		e   encoded
		enc encoder
	)
	e.envs = latest(len(b.Envs), func(i int) (string, envWrite) { return b.Envs[i].ID, enc.env(b.Envs[i]) })
	e.execs = latest(len(b.Execs), func(i int) (string, execWrite) { return b.Execs[i].Exec, enc.exec(&b.Execs[i]) })
	for i := range b.Tasks {
		t := &b.Tasks[i]
		key := enc.key("task", t.Owner, t.Task)
		open := change{bucketTasksOpen, key, nil}
		if t.Open {
			open.value = nothing
		}
		e.others = append(e.others, change{bucketTasks, key, enc.value(t)}, open)
	}
	for i := range b.Sessions {
		e.others = append(e.others, change{bucketSessions, enc.key("session", b.Sessions[i].ID), enc.value(&b.Sessions[i])})
	}
	for _, id := range b.DeleteSessions {
		e.others = append(e.others, change{bucketSessions, enc.key("session", id), nil})
	}
	for i := range b.Orphans {
		e.others = append(e.others, change{bucketOrphans, enc.key("orphan", b.Orphans[i].Name), enc.value(&b.Orphans[i])})
	}
	for _, name := range b.DeleteOrphans {
		e.others = append(e.others, change{bucketOrphans, enc.key("orphan", name), nil})
	}
	if b.Ran != 0 {
		e.others = append(e.others, change{bucketMeta, keyRan, binary.BigEndian.AppendUint64(nil, uint64(b.Ran))})
	}
	for _, ev := range b.Events {
		ev.Seq = 0 // its key has it
		e.events = append(e.events, enc.value(&ev))
	}
	if enc.err != nil {
		return nil, enc.err
	}
	return &e, nil
}

// latest makes n writes and keeps the last of each id.
func latest[T any](n int, one func(int) (id string, w T)) []T {
	var (
		writes []T
		at     = map[string]int{}
	)
	for i := range n {
		id, w := one(i)
		if j, ok := at[id]; ok {
			writes[j] = w
			continue
		}
		at[id] = len(writes)
		writes = append(writes, w)
	}
	return writes
}

// check refuses what would break a rule of the records among each other.
func (e *encoded) check(tx *bolt.Tx) error {
	if err := e.checkEnvs(tx); err != nil {
		return err
	}
	return e.checkExecs(tx)
}

func (e *encoded) checkEnvs(tx *bolt.Tx) error {
	keys, removed := tx.Bucket(bucketKeys), tx.Bucket(bucketRemoved)
	claimed := make(map[string]string, len(e.envs)) // key → id
	for _, w := range e.envs {
		if !w.removed && removed.Get([]byte(w.id)) != nil {
			return fmt.Errorf("environment %s: %w: it was removed", w.id, ErrInvalid)
		}
		if !w.holder {
			continue
		}
		holder, ok := claimed[string(w.key)]
		if !ok {
			holder = string(keys.Get(w.key))
		}
		if holder != "" && holder != w.id && !e.releases(holder) {
			return fmt.Errorf("environment %s: %w: %s", w.id, ErrKeyHeld, holder)
		}
		claimed[string(w.key)] = w.id
	}
	return nil
}

// releases reports whether the batch takes its key from an environment.
func (e *encoded) releases(id string) bool {
	for _, w := range e.envs {
		if w.id == id {
			return !w.holder
		}
	}
	return false
}

func (e *encoded) checkExecs(tx *bolt.Tx) error {
	ids, running := tx.Bucket(bucketExecIDs), tx.Bucket(bucketRunning)
	started := make(map[string]string, len(e.execs)) // key in exec_ids → exec
	for _, w := range e.execs {
		if w.idKey == nil || !w.ended.IsZero() {
			continue
		}
		other, ok := started[string(w.idKey)]
		if !ok {
			other = string(ids.Get(w.idKey))
			ok = other != "" && running.Get([]byte(other)) != nil
		}
		if ok && other != w.exec && !e.ends(other) {
			return fmt.Errorf("exec %s: %w: %s runs by the same id", w.exec, ErrInvalid, other)
		}
		started[string(w.idKey)] = w.exec
	}
	return nil
}

// ends reports whether the batch ends an exec.
func (e *encoded) ends(exec string) bool {
	for _, w := range e.execs {
		if w.exec == exec {
			return !w.ended.IsZero()
		}
	}
	return false
}

// apply puts everything. Its errors are the transaction's.
func (e *encoded) apply(tx *bolt.Tx) error {
	for _, w := range e.envs {
		if err := w.apply(tx); err != nil {
			return err
		}
	}
	// Keys are taken once all are let go: a batch may hand one on.
	keys := tx.Bucket(bucketKeys)
	for _, w := range e.envs {
		if !w.holder || string(keys.Get(w.key)) == w.id {
			continue
		}
		if err := keys.Put(w.key, []byte(w.id)); err != nil {
			return err
		}
	}
	for _, w := range e.execs {
		if err := w.apply(tx); err != nil {
			return err
		}
	}
	for _, c := range e.others {
		if err := c.apply(tx); err != nil {
			return err
		}
	}
	return e.applyEvents(tx)
}

// applyEvents gives the events their numbers from the durable counter.
func (e *encoded) applyEvents(tx *bolt.Tx) error {
	if len(e.events) == 0 {
		return nil
	}
	events := tx.Bucket(bucketEvents)
	events.FillPercent = 0.95 // the log only grows at its end
	seq := events.Sequence()
	e.firstSeq = seq + 1
	for _, value := range e.events {
		seq++
		if err := events.Put(seqKey(seq), value); err != nil {
			return err
		}
	}
	return events.SetSequence(seq)
}

// apply puts the record, and lets go of the key where it is no holder's.
func (w *envWrite) apply(tx *bolt.Tx) error {
	id := []byte(w.id)
	if !w.holder {
		if keys := tx.Bucket(bucketKeys); string(keys.Get(w.key)) == w.id {
			if err := keys.Delete(w.key); err != nil {
				return err
			}
		}
	}
	if !w.removed {
		return tx.Bucket(bucketEnvs).Put(id, w.value)
	}
	if err := tx.Bucket(bucketEnvs).Delete(id); err != nil {
		return err
	}
	removed, times := tx.Bucket(bucketRemoved), tx.Bucket(bucketRemovedAt)
	if old := removed.Get(id); old != nil { // its time may be another
		env, err := decode[control.Env](old)
		if err != nil {
			return err
		}
		if err := times.Delete(timeKey(env.Tombstone.At.Time, w.id)); err != nil {
			return err
		}
	}
	if err := removed.Put(id, w.value); err != nil {
		return err
	}
	return times.Put(timeKey(w.at, w.id), nothing)
}

// apply puts the record and its indexes. An ended one leaves an id that a later exec has taken.
func (w *execWrite) apply(tx *bolt.Tx) error {
	exec := []byte(w.exec)
	execs, running, ended := tx.Bucket(bucketExecs), tx.Bucket(bucketRunning), tx.Bucket(bucketEnded)
	if old := execs.Get(exec); old != nil && running.Get(exec) == nil { // its time may be another
		rec, err := decode[control.ExecRecord](old)
		if err != nil {
			return err
		}
		if err := ended.Delete(timeKey(rec.EndedAt, w.exec)); err != nil {
			return err
		}
	}
	if err := execs.Put(exec, w.value); err != nil {
		return err
	}
	if ids := tx.Bucket(bucketExecIDs); w.idKey != nil && (w.ended.IsZero() || ids.Get(w.idKey) == nil) {
		if err := ids.Put(w.idKey, exec); err != nil {
			return err
		}
	}
	if w.ended.IsZero() {
		return running.Put(exec, nothing)
	}
	if err := running.Delete(exec); err != nil {
		return err
	}
	return ended.Put(timeKey(w.ended, w.exec), w.idKey)
}

// encoder makes keys and values, and keeps the first error.
type encoder struct{ err error }

func (e *encoder) fail(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf(format, args...)
	}
}

func (e *encoder) env(env *control.Env) envWrite {
	w := envWrite{
		id:      env.ID,
		key:     e.key("environment", env.Owner, env.Task, env.Name),
		holder:  env.Holder(),
		removed: env.State == control.Removed,
		value:   e.value(env),
	}
	e.key("environment", env.ID)
	if w.removed {
		if env.Tombstone == nil {
			e.fail("environment %s: %w: removed without a tombstone", env.ID, ErrInvalid)
			return w
		}
		w.at = env.Tombstone.At.Truncate(time.Millisecond) // as the record has it, by which it is found again
	}
	return w
}

func (e *encoder) exec(rec *control.ExecRecord) execWrite {
	w := execWrite{exec: rec.Exec, ended: rec.EndedAt, value: e.value(rec)}
	e.key("exec", rec.Exec)
	if rec.ID != "" {
		w.idKey = e.key("exec", rec.Env, rec.ID)
	}
	return w
}

// maxKey leaves room below bbolt's own limit for a time in front.
const maxKey = bolt.MaxKeySize - timeKeyLen

// key joins names to a key. None may be empty, and none but the last of several may have a NUL.
func (e *encoder) key(what string, names ...string) []byte {
	for i, n := range names {
		if n == "" || i < len(names)-1 && strings.IndexByte(n, 0) >= 0 {
			e.fail("%s %q: %w: %q is no name", what, names, ErrInvalid, n)
		}
	}
	k := joined(names...)
	if len(k) > maxKey {
		e.fail("%s: %w: its names have %d bytes", what, ErrInvalid, len(k))
	}
	return k
}

func (e *encoder) value(record any) []byte {
	v, err := json.Marshal(record)
	if err != nil {
		e.fail("record: %w: %w", ErrInvalid, err)
	}
	return v
}

// decode reads one record. One that cannot be read is damage.
func decode[T any](value []byte) (T, error) {
	var rec T
	if err := json.Unmarshal(value, &rec); err != nil {
		return rec, fmt.Errorf("%w: %T: %w", ErrDamaged, rec, err)
	}
	return rec, nil
}
