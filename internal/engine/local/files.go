package local

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"sandkeeper/internal/engine/local/launch"
)

// removeRest removes what is not kept with a workspace.
func removeRest(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if slices.Contains([]string{launch.WorkspaceDir, specFile}, entry.Name()) {
			continue
		}
		errs = append(errs, removeTree(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(errs...)
}

// removeTree removes a directory that a sandbox had its way with: one that its
// own user may not enter is opened first. Links are never followed.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || os.Geteuid() == 0 {
		return err
	}
	root, openErr := os.OpenRoot(dir)
	if openErr != nil {
		if os.Chmod(dir, 0o700) != nil {
			return err
		}
		if root, openErr = os.OpenRoot(dir); openErr != nil {
			return err
		}
	}
	defer root.Close()
	unlock(root, ".")
	return os.RemoveAll(dir)
}

// unlock lets us into every directory of a tree, as far as we may say so; what
// we may not shows when it is removed.
func unlock(root *os.Root, dir string) {
	_ = root.Chmod(dir, 0o700)
	d, err := root.Open(dir)
	if err != nil {
		return
	}
	entries, _ := d.ReadDir(-1)
	d.Close()
	for _, entry := range entries {
		if entry.IsDir() {
			unlock(root, filepath.Join(dir, entry.Name()))
		}
	}
}
