// Package db keeps the control plane's records in one bbolt file. It implements
// control.Store, and keeps the tokens.
//
// Every write goes through one committer, which takes all that wait into one
// transaction: a lone write costs one synced transaction, a thousand at once
// cost two. What is refused (a key that is held, an exec that would run twice)
// is refused alone. A transaction that fails, as on a full disk, fails all in it
// and leaves everything as it was; the next one may succeed. Only where a
// failure leaves it unknown what is on the disk does the store refuse all
// further writes, until it is opened anew.
//
// A file that is damaged, foreign, locked or of a newer schema is refused by
// Open and left as it is.
package db

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"sandkeeper/internal/control"
)

var (
	// ErrLocked: another process has the database open.
	ErrLocked = errors.New("database is locked")
	// ErrNewer: a newer version of the program wrote the database.
	ErrNewer = errors.New("database is newer")
	// ErrDamaged: the file is damaged, or is no database of ours.
	ErrDamaged = errors.New("database is damaged")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("database is closed")
	// ErrKeyHeld: the batch would give a second environment the same key.
	ErrKeyHeld = errors.New("key is held by another environment")
	// ErrInvalid: the batch has a record that cannot be kept.
	ErrInvalid = errors.New("invalid record")
)

// refusal is an error of Open: one sentence that says what to do, and the class.
type refusal struct {
	class    error
	sentence string
}

func (r *refusal) Error() string { return r.sentence }
func (r *refusal) Unwrap() error { return r.class }

// Options configures a Store. The zero value is good.
type Options struct {
	LockTimeout time.Duration // how long to wait for another process to let go; 500 ms

	readOnly     bool
	maxSize      int   // bytes; tests use it as a full disk
	compactAbove int64 // bytes; tests have small files
}

const lockTimeout = 500 * time.Millisecond

// mapSize is how much address space is mapped at once. Growing the map waits
// for every reader, so it is chosen never to grow in practice. It takes no memory.
const mapSize = 1 << 30

// Store is an open database.
type Store struct {
	bolt *bolt.DB
	path string

	mu      sync.Mutex // guards the fields below
	wake    sync.Cond  // on mu: waiting or closed changed
	waiting []*write
	closed  bool

	publish func([]control.Event) // set before the first Commit
	finish  func(*bolt.Tx) error  // commits; tests let it fail
	broken  error                 // the committer's own: why nothing can be written any more
	stopped chan struct{}         // closed once the committer has ended

	tokens tokens
}

var _ control.Store = (*Store)(nil)

// Open opens the database at path, creates it where there is no file, and
// brings an older schema up to date. Its directory must exist. Errors wrap
// ErrLocked, ErrNewer or ErrDamaged and are each a sentence that says what to do.
func Open(path string, o Options) (*Store, error) {
	if o.LockTimeout <= 0 {
		o.LockTimeout = lockTimeout
	}
	if o.compactAbove == 0 {
		o.compactAbove = compactAbove
	}
	_, err := os.Stat(path)
	created := errors.Is(err, fs.ErrNotExist)
	b, err := openBolt(path, o)
	if err != nil {
		return nil, refuse(path, err)
	}
	if !created && wasteful(b, o.compactAbove) {
		if b, err = compacted(b, path, o); err != nil {
			return nil, refuse(path, err)
		}
	}
	s := &Store{bolt: b, path: path, stopped: make(chan struct{}),
		publish: func([]control.Event) {}, finish: (*bolt.Tx).Commit}
	s.wake.L = &s.mu
	if err := s.prepare(created); err != nil {
		_ = b.Close() // nothing was written that could be lost
		return nil, refuse(path, err)
	}
	go s.run()
	return s, nil
}

// prepare makes the file ready for use and reads what is kept in memory.
func (s *Store) prepare(created bool) error {
	return guard(func() error {
		if err := whole(s.bolt); err != nil {
			return err
		}
		if err := migrate(s.bolt); err != nil {
			return err
		}
		if created {
			if err := syncDir(filepath.Dir(s.path)); err != nil {
				return err
			}
		}
		if err := private(s.path); err != nil {
			return err
		}
		return s.bolt.View(s.tokens.load)
	})
}

// Close waits for the writes that were asked for, and lets go of the file.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.wake.Signal()
	s.mu.Unlock()
	<-s.stopped
	if err := s.bolt.Close(); err != nil {
		return fmt.Errorf("database close: %w", err)
	}
	return nil
}

// openBolt opens the file that has the name once the lock is had: who waited
// for the lock may have got that of a file which was replaced meanwhile.
func openBolt(path string, o Options) (*bolt.DB, error) {
	for {
		b, file, err := openFile(path, o)
		if err != nil {
			return nil, err
		}
		now, err := os.Stat(path)
		if had, statErr := file.Stat(); err == nil && statErr == nil && os.SameFile(now, had) {
			return b, nil
		}
		if cerr := guard(b.Close); cerr != nil || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, cerr)
		}
	}
}

// openFile opens the file. A damaged one can make bbolt panic, or read beyond
// the file's end; that is an error here.
func openFile(path string, o Options) (b *bolt.DB, file *os.File, err error) {
	err = guard(func() error {
		b, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout:         o.LockTimeout,
			FreelistType:    bolt.FreelistMapType,
			InitialMmapSize: mapSize,
			MaxSize:         o.maxSize,
			ReadOnly:        o.readOnly,
			OpenFile: func(name string, flag int, perm os.FileMode) (*os.File, error) {
				f, err := os.OpenFile(name, flag, perm)
				file = f
				return f, err
			},
		})
		return err
	})
	if err == nil {
		return b, file, nil
	}
	if file != nil { // bbolt has closed it, unless it panicked; its map would keep the lock
		_ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN)
		_ = file.Close()
	}
	if _, ok := errors.AsType[syscall.Errno](err); !ok && !errors.Is(err, berrors.ErrTimeout) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err) // not the system's refusal, so bbolt's
	}
	return nil, nil, err
}

// guard turns a panic, and a fault of the memory map, into an ErrDamaged.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	return fn()
}

// whole refuses a file that is shorter than what it says it holds.
func whole(b *bolt.DB) error {
	return b.View(func(tx *bolt.Tx) error {
		info, err := os.Stat(b.Path())
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("%w: %d of %d bytes are there", ErrDamaged, info.Size(), tx.Size())
		}
		return nil
	})
}

// private takes the file from everybody but its owner: it holds variables that may be secret.
func private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	return os.Chmod(path, 0o600)
}

// syncDir makes a new file's name durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// refuse says in one sentence why the file cannot be used and what to do.
func refuse(path string, err error) error {
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return &refusal{ErrLocked, fmt.Sprintf(
			"database %s is in use by another process: stop that one first, or choose another data directory", path)}
	case errors.Is(err, ErrNewer):
		return &refusal{ErrNewer, fmt.Sprintf(
			"database %s was written by a newer version (%v): start that version or a later one with it", path, err)}
	case errors.Is(err, ErrDamaged):
		return &refusal{ErrDamaged, fmt.Sprintf(
			"database %s is damaged or belongs to another program (%v): it was left as it is; see what is wrong with it by `sandkeeper check`, put a backup in its place by `sandkeeper restore FILE`, or choose another data directory", path, err)}
	}
	return fmt.Errorf("database open: %w", err)
}
