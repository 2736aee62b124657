package db

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// WriteTo writes a copy of the database as it is at one instant, while the
// store goes on: a file that Open opens. A slow w costs disk, not writes: pages
// that the copy needs are not used again until it is done.
func (s *Store) WriteTo(w io.Writer) (n int64, err error) {
	err = s.read(func(tx *bolt.Tx) error {
		n, err = tx.WriteTo(w)
		return err
	})
	return n, err
}

// Restore puts a copy of a database in the place of the one at path, which may
// be missing or damaged and must not be open; that one is kept beside it, and
// kept is its path then ("" where there was none). The copy is verified first,
// and is left as it is. Where Restore fails, path is as it was.
func Restore(ctx context.Context, from, path string) (kept string, err error) {
	report, err := VerifyFile(ctx, from)
	if err != nil {
		return "", err
	}
	if len(report.Problems) > 0 {
		return "", &refusal{ErrDamaged, fmt.Sprintf("%s cannot be restored, it has %d faults; the first: %s", from, len(report.Problems), report.Problems[0])}
	}
	release, err := lockOld(path)
	if err != nil {
		return "", err
	}
	defer release()
	tmp, err := copyDurably(from, filepath.Dir(path))
	if err != nil {
		return "", fmt.Errorf("database restore: %w", err)
	}
	defer os.Remove(tmp) // gone already where all went well
	if kept, err = setAside(path); err != nil {
		return "", fmt.Errorf("database restore: %w", err)
	}
	if err := errors.Join(os.Rename(tmp, path), syncDir(filepath.Dir(path))); err != nil {
		return kept, fmt.Errorf("database restore: %w", err)
	}
	return kept, nil
}

// lockOld holds the lock of the database that is to be replaced, so that no
// server has it, or gets it meanwhile. A file that is none can have no server.
func lockOld(path string) (release func(), err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	b, err := openBolt(path, Options{LockTimeout: lockTimeout})
	switch {
	case err == nil:
		return func() { _ = guard(b.Close) }, nil
	case errors.Is(err, ErrDamaged):
		return func() {}, nil
	}
	return nil, refuse(path, err)
}

// setAside gives the file at path a name that nothing has, and returns it.
func setAside(path string) (string, error) {
	for i := 1; ; i++ {
		name := fmt.Sprintf("%s.replaced-%d", path, i)
		err := os.Link(path, name) // unlike a rename it never replaces
		switch {
		case err == nil:
			return name, nil
		case errors.Is(err, fs.ErrNotExist):
			return "", nil
		case !errors.Is(err, fs.ErrExist):
			return "", err
		}
	}
}

// copyDurably copies a file to a new one of mode 0600 in dir.
func copyDurably(from, dir string) (path string, err error) {
	in, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.CreateTemp(dir, ".restore-*")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return "", errors.Join(err, os.Remove(out.Name()))
	}
	return out.Name(), nil
}
