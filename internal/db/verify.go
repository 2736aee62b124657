package db

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

// Report is what a file was found to hold.
type Report struct {
	Problems []string // each one sentence; empty: the file is whole
	Bytes    int64    // of the file
	Schema   int

	Envs     []*control.Env // all but the removed, without those that cannot be read
	Removed  int
	Tasks    int
	Sessions int
	Execs    int
	Orphans  int
	Tokens   int

	FirstEvent, LastEvent uint64 // the log's bounds; 0: it is empty
}

// maxProblems bounds what is told of a file: one fault can show in many records.
const maxProblems = 100

// VerifyFile reads every page and every record of a database that no server
// has open, and checks the records against each other. It changes nothing.
// What it finds is in the report; errors wrap ErrLocked, ErrNewer or ErrDamaged
// where the file cannot even be read, and are the context's or the disk's else.
func VerifyFile(ctx context.Context, path string) (*Report, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("database open: %w", err)
	}
	if info.Size() == 0 {
		return nil, refuse(path, fmt.Errorf("%w: it is empty", ErrDamaged))
	}
	b, err := openBolt(path, Options{LockTimeout: lockTimeout, readOnly: true})
	if err != nil {
		return nil, refuse(path, err)
	}
	v := verifier{ctx: ctx, Report: Report{Bytes: info.Size()}}
	err = guard(func() error {
		if err := whole(b); err != nil {
			return err
		}
		return b.View(v.all)
	})
	_ = guard(b.Close)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, refuse(path, err)
	}
	return &v.Report, nil
}

type verifier struct {
	ctx context.Context
	Report
	tx *bolt.Tx
}

func (v *verifier) problem(format string, args ...any) {
	if len(v.Problems) < maxProblems {
		v.Problems = append(v.Problems, fmt.Sprintf(format, args...))
	}
}

// all checks the pages first: records of a file with torn pages say nothing.
func (v *verifier) all(tx *bolt.Tx) (err error) {
	v.tx = tx
	for fault := range tx.Check() { // read to its end: it ends a goroutine
		v.problem("the file's pages: %v", fault)
	}
	if len(v.Problems) > 0 {
		return nil
	}
	if v.Schema, err = schemaOf(tx); err != nil {
		return err
	}
	switch latest := len(migrations); {
	case v.Schema == 0:
		return fmt.Errorf("%w: it is empty", ErrDamaged)
	case v.Schema > latest:
		return fmt.Errorf("%w: its schema is %d, this version knows up to %d", ErrNewer, v.Schema, latest)
	case v.Schema < latest: // an index may be of a later one
		return nil
	}
	for _, check := range []func(){v.envs, v.removed, v.tasks, v.execs, v.events, v.rest} {
		if v.ctx.Err() != nil {
			return nil
		}
		check()
	}
	return nil
}

func (v *verifier) bucket(name []byte) *bolt.Bucket { return v.tx.Bucket(name) }

// each decodes every record of a bucket, and passes those on that can be read.
func each[T any](v *verifier, bucket []byte, fn func(key []byte, rec T)) (n int) {
	b := v.bucket(bucket)
	if b == nil {
		v.problem("the bucket %s is missing", bucket)
		return 0
	}
	_ = b.ForEach(func(k, value []byte) error { // fails as the context does, which the caller sees
		n++
		if rec, err := decode[T](value); err != nil {
			v.problem("%s: the record %q cannot be read: %v", bucket, k, err)
		} else {
			fn(k, rec)
		}
		return v.ctx.Err()
	})
	return n
}

// keys passes every key of an index on.
func (v *verifier) keys(bucket []byte, fn func(key, value []byte)) {
	b := v.bucket(bucket)
	if b == nil {
		v.problem("the bucket %s is missing", bucket)
		return
	}
	_ = b.ForEach(func(k, value []byte) error {
		fn(k, value)
		return v.ctx.Err()
	})
}

func (v *verifier) has(bucket, key []byte) bool {
	b := v.bucket(bucket)
	return b != nil && b.Get(key) != nil
}

// hasAt is has for a time of whole milliseconds. Earlier keys are finer.
func (v *verifier) hasAt(bucket []byte, t time.Time, id string) bool {
	b := v.bucket(bucket)
	if b == nil {
		return false
	}
	end := timeKey(t.Add(time.Millisecond), "")
	c := b.Cursor()
	for k, _ := c.Seek(timeKey(t, "")); k != nil && bytes.Compare(k, end) < 0; k, _ = c.Next() {
		if string(k[timeKeyLen:]) == id {
			return true
		}
	}
	return false
}

// envs: each is under its id, and its key is its own as long as it holds it.
func (v *verifier) envs() {
	each(v, bucketEnvs, func(k []byte, e *control.Env) {
		v.Envs = append(v.Envs, e)
		switch {
		case e.ID != string(k):
			v.problem("environment %q is recorded as %q", e.ID, k)
		case e.State == control.Removed:
			v.problem("environment %s is removed and recorded as live", e.ID)
		case v.has(bucketRemoved, k):
			v.problem("environment %s is recorded both as live and as removed", e.ID)
		}
		if !e.Holder() {
			return
		}
		if b := v.bucket(bucketKeys); b == nil || string(b.Get(joined(e.Owner, e.Task, e.Name))) != e.ID {
			v.problem("environment %s does not have its key (%s, %s, %s)", e.ID, e.Owner, e.Task, e.Name)
		}
	})
	v.keys(bucketKeys, func(k, id []byte) {
		raw := v.bucket(bucketEnvs).Get(id)
		if raw == nil {
			v.problem("the key %q belongs to %q, which is not there", k, id)
			return
		}
		if e, err := decode[control.Env](raw); err == nil && (!e.Holder() || !bytes.Equal(k, joined(e.Owner, e.Task, e.Name))) {
			v.problem("the key %q belongs to %s, which does not hold it", k, id)
		}
	})
}

// removed: each is found by its time.
func (v *verifier) removed() {
	v.Removed = each(v, bucketRemoved, func(k []byte, e *control.Env) {
		switch {
		case e.ID != string(k) || e.State != control.Removed || e.Tombstone == nil:
			v.problem("the removed environment %q has no tombstone of its own", k)
		case !v.hasAt(bucketRemovedAt, e.Tombstone.At.Time, e.ID):
			v.problem("the removed environment %s is not found by its time, and would be kept for ever", e.ID)
		}
	})
	v.keys(bucketRemovedAt, func(k, _ []byte) {
		if len(k) <= timeKeyLen || !v.has(bucketRemoved, k[timeKeyLen:]) {
			v.problem("the index of removed environments has %q, which is not there", k)
		}
	})
}

// tasks: each open turn is found, and no other.
func (v *verifier) tasks() {
	v.Tasks = each(v, bucketTasks, func(k []byte, t *control.TaskRecord) {
		if !bytes.Equal(k, joined(t.Owner, t.Task)) {
			v.problem("task (%s, %s) is recorded as %q", t.Owner, t.Task, k)
		}
		if t.Open != v.has(bucketTasksOpen, k) {
			v.problem("task (%s, %s): whether its turn is open differs from the index", t.Owner, t.Task)
		}
	})
	v.keys(bucketTasksOpen, func(k, _ []byte) {
		if !v.has(bucketTasks, k) {
			v.problem("the index of open turns has %q, which is not there", k)
		}
	})
}

// execs: each is either running or ended, and an id leads to its exec.
func (v *verifier) execs() {
	v.Execs = each(v, bucketExecs, func(k []byte, x *control.ExecRecord) {
		if x.Exec != string(k) {
			v.problem("exec %q is recorded as %q", x.Exec, k)
		}
		running := v.has(bucketRunning, k)
		ended := !x.EndedAt.IsZero() && v.has(bucketEnded, timeKey(x.EndedAt, x.Exec))
		if running == ended {
			v.problem("exec %s is found neither as running nor as ended, or as both", x.Exec)
		}
		// An ended one may have lost its id to a later exec, that was pruned since.
		if x.ID != "" && running && !v.has(bucketExecIDs, joined(x.Env, x.ID)) {
			v.problem("exec %s is not found by its id %q, and could run again", x.Exec, x.ID)
		}
	})
	v.keys(bucketExecIDs, func(k, exec []byte) {
		if !v.has(bucketExecs, exec) {
			v.problem("the id %q leads to the exec %q, which is not there", k, exec)
		}
	})
	v.keys(bucketRunning, func(k, _ []byte) {
		if !v.has(bucketExecs, k) {
			v.problem("the index of running execs has %q, which is not there", k)
		}
	})
	v.keys(bucketEnded, func(k, _ []byte) {
		if len(k) <= timeKeyLen || !v.has(bucketExecs, k[timeKeyLen:]) {
			v.problem("the index of ended execs has %q, which is not there", k)
		}
	})
}

// events: the log has no gap, up to its counter.
func (v *verifier) events() {
	each(v, bucketEvents, func(k []byte, _ *control.Event) {
		if len(k) != 8 {
			v.problem("the event log has the key %x, which is no number", k)
			return
		}
		seq := binary.BigEndian.Uint64(k)
		switch {
		case v.FirstEvent == 0:
			v.FirstEvent = seq
		case seq != v.LastEvent+1:
			v.problem("the event log has a gap between %d and %d", v.LastEvent, seq)
		}
		v.LastEvent = seq
	})
	b := v.bucket(bucketEvents)
	if b == nil {
		return
	}
	if last := b.Sequence(); v.LastEvent > 0 && v.LastEvent != last {
		v.problem("the event log ends with %d, and its counter stands at %d", v.LastEvent, last)
	}
}

func (v *verifier) rest() {
	v.Sessions = each(v, bucketSessions, func(k []byte, s *control.SessionRecord) {
		if s.ID != string(k) {
			v.problem("session %q is recorded as %q", s.ID, k)
		}
	})
	v.Orphans = each(v, bucketOrphans, func(k []byte, o *control.Orphan) {
		if o.Name != string(k) {
			v.problem("orphan %q is recorded as %q", o.Name, k)
		}
	})
	v.Tokens = each(v, bucketTokens, func(k []byte, t *tokenRecord) {
		if t.ID != string(k) {
			v.problem("token %q is recorded as %q", t.ID, k)
		}
	})
}
