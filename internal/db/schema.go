package db

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
)

// The buckets. Values are JSON unless said otherwise. Ids and names are joined
// by a NUL where a key is made of several.
var (
	bucketMeta      = []byte("meta")          // "schema" (decimal), "ran" (big-endian nanoseconds)
	bucketEnvs      = []byte("envs")          // id → control.Env, all but the removed
	bucketRemoved   = []byte("removed")       // id → control.Env
	bucketRemovedAt = []byte("removed_at")    // time, id → nothing
	bucketKeys      = []byte("keys")          // owner, task, name → id of the environment that has it
	bucketTasks     = []byte("tasks")         // owner, task → control.TaskRecord
	bucketTasksOpen = []byte("tasks_open")    // owner, task → nothing: a turn is open
	bucketSessions  = []byte("sessions")      // id → control.SessionRecord
	bucketExecs     = []byte("execs")         // exec → control.ExecRecord
	bucketExecIDs   = []byte("exec_ids")      // env, id → exec
	bucketRunning   = []byte("execs_running") // exec → nothing
	bucketEnded     = []byte("execs_ended")   // time, exec → its key in exec_ids
	bucketEvents    = []byte("events")        // seq (big-endian) → control.Event; the bucket's sequence is the counter
	bucketOrphans   = []byte("orphans")       // sandbox → control.Orphan
	bucketTokens    = []byte("tokens")        // id → tokenRecord

	keySchema = []byte("schema")
	keyRan    = []byte("ran")
)

// migrations has at i what takes a file from version i to i+1. Version 0 is an
// empty file. What is released is never changed, only followed by another.
var migrations = []func(*bolt.Tx) error{
	func(tx *bolt.Tx) error {
		for _, name := range [][]byte{
			bucketMeta, bucketEnvs, bucketRemoved, bucketRemovedAt, bucketKeys, bucketTasks,
			bucketTasksOpen, bucketSessions, bucketExecs, bucketExecIDs, bucketRunning, bucketEnded, bucketEvents,
			bucketOrphans, bucketTokens,
		} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return nil
	},
}

// migrate brings the file to the latest version, in one transaction.
func migrate(b *bolt.DB) error {
	var version int
	err := b.View(func(tx *bolt.Tx) (err error) {
		version, err = schemaOf(tx)
		return err
	})
	if err != nil {
		return err
	}
	latest := len(migrations)
	if version > latest {
		return fmt.Errorf("%w: its schema is %d, this version knows up to %d", ErrNewer, version, latest)
	}
	if version == latest {
		return nil
	}
	return b.Update(func(tx *bolt.Tx) error {
		for v := version; v < latest; v++ {
			if err := migrations[v](tx); err != nil {
				return fmt.Errorf("migration to schema %d: %w", v+1, err)
			}
		}
		return tx.Bucket(bucketMeta).Put(keySchema, strconv.AppendInt(nil, int64(latest), 10))
	})
}

// schemaOf reads the file's version; 0 where it is empty.
func schemaOf(tx *bolt.Tx) (int, error) {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		if name, _ := tx.Cursor().First(); name != nil {
			return 0, fmt.Errorf("%w: it has a bucket %q and no schema version", ErrDamaged, name)
		}
		return 0, nil
	}
	text := meta.Get(keySchema)
	version, err := strconv.Atoi(string(text))
	if err != nil || version < 1 {
		return 0, fmt.Errorf("%w: %q is no schema version", ErrDamaged, text)
	}
	return version, nil
}

// joined makes one key of several parts; all but the last must have no NUL.
func joined(parts ...string) []byte {
	var k []byte
	for i, p := range parts {
		if i > 0 {
			k = append(k, 0)
		}
		k = append(k, p...)
	}
	return k
}

// timeKeyLen is the length of a time at the front of a key.
const timeKeyLen = 12

// timeKey makes a key that sorts by time.
func timeKey(t time.Time, rest string) []byte {
	k := make([]byte, 0, timeKeyLen+len(rest))
	k = binary.BigEndian.AppendUint64(k, uint64(t.Unix())^1<<63)
	k = binary.BigEndian.AppendUint32(k, uint32(t.Nanosecond()))
	return append(k, rest...)
}

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
