package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"sandkeeper/internal/engine/local/launch"
)

// binary is the guest's, in a directory that every sandbox mounts read-only. It
// is replaced by rename: what runs keeps the old one, and what starts has the new one whole.
type binary struct {
	dir string

	mu   sync.Mutex // guards the field below
	done bool
}

func (b *binary) path() string { return filepath.Join(b.dir, launch.GuestFile) }

// install puts it there, once per process.
func (b *binary) install(get func(goarch string) ([]byte, error)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		if _, err := os.Stat(b.path()); err == nil {
			return nil
		}
	}
	want, err := get(runtime.GOARCH)
	if err != nil {
		return fmt.Errorf("guest install: %w", err)
	}
	if have, err := os.ReadFile(b.path()); err != nil || !bytes.Equal(have, want) {
		if err := b.replace(want); err != nil {
			return fmt.Errorf("guest install: %w", err)
		}
	}
	b.done = true
	return nil
}

func (b *binary) replace(want []byte) error {
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(b.dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(want)
	if err = errors.Join(err, f.Chmod(0o555), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), b.path())
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
