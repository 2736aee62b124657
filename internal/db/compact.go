package db

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// A bbolt file never shrinks: what was pruned is used again, but a burst of
// records leaves a large file for good. So Open writes a file anew that is
// mostly free pages.
const (
	compactAbove = 64 << 20 // bytes; below it, nobody minds
	compactTx    = 4 << 20  // bytes of one transaction while writing anew
)

// wasteful reports whether at least half of a large file is free.
func wasteful(b *bolt.DB, above int64) bool {
	info, err := os.Stat(b.Path())
	if err != nil || info.Size() < above {
		return false
	}
	tx, err := b.Begin(true) // its end counts the free pages
	if err != nil {
		return false
	}
	_ = tx.Rollback()
	s := b.Stats()
	return int64(s.FreePageN+s.PendingPageN)*int64(b.Info().PageSize) >= info.Size()/2
}

// compacted writes the file that b has open anew, puts that in its place and
// opens it. b has the lock of the old one until then. Where the disk has no
// room for it, b goes on as it is.
func compacted(b *bolt.DB, path string, o Options) (*bolt.DB, error) {
	err := writeAnew(b, path, o)
	if err != nil && !errors.Is(err, ErrDamaged) {
		return b, nil //nolint:nilerr // a large file is no failure
	}
	if err = errors.Join(err, guard(b.Close)); err != nil {
		return nil, err
	}
	return openBolt(path, o)
}

func writeAnew(b *bolt.DB, path string, o Options) error {
	tmp := path + ".compact"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) { // a crash left it
		return err
	}
	defer os.Remove(tmp)
	dst, err := bolt.Open(tmp, 0o600, &bolt.Options{NoSync: true, MaxSize: o.maxSize})
	if err != nil {
		return err
	}
	err = guard(func() error { return bolt.Compact(dst, b, compactTx) })
	if err = errors.Join(err, dst.Sync(), dst.Close()); err != nil {
		return err
	}
	return errors.Join(os.Rename(tmp, path), syncDir(filepath.Dir(path)))
}
