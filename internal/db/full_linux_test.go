package db

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestAFullDiskFailsTheTransactionAndNoMore(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("no file system of its own can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	writeFile(t, ballast, make([]byte, 1<<20))
	s := openAt(t, filepath.Join(dir, "db"), Options{})
	fillUp(t, s, syscall.ENOSPC, func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	})
}
