package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/internal/db"
)

// recorded makes a data directory with one environment, whose store is closed.
func recorded(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if _, err := openInstallation(dir, ""); err != nil {
		t.Fatal(err)
	}
	record(t, dir, "a")
	return dir
}

// record writes one environment of a dead engine's.
func record(t *testing.T, dir, id string) {
	t.Helper()
	store, err := db.Open(filepath.Join(dir, databaseFile), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	e := &control.Env{ID: id, Owner: "o", Task: id, Name: "main", State: control.Ready, Generation: 1}
	if err := store.Commit(t.Context(), &control.Batch{Envs: []*control.Env{e}}); err != nil {
		t.Fatal(err)
	}
}

func TestABackupRestores(t *testing.T) {
	dir := recorded(t)
	file := filepath.Join(t.TempDir(), "backup.db")
	code, out, errs := sandkeeper(t, "backup", "--data-dir", dir, file)
	if code != 0 || !strings.HasPrefix(out, file+": ") || !strings.Contains(out, "1 environments") {
		t.Fatalf("exit %d, printed %q, %q", code, out, errs)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	record(t, dir, "b")
	code, out, errs = sandkeeper(t, "restore", "--data-dir", dir, file)
	if code != 0 || !strings.Contains(out, "the database that was there is ") {
		t.Fatalf("exit %d, printed %q, %q", code, out, errs)
	}
	r, err := openStore(t, dir).Load(t.Context())
	if err != nil || len(r.Envs) != 1 {
		t.Errorf("%d environments, %v", len(r.Envs), err)
	}
}

func TestABackupNeverReplacesAFile(t *testing.T) {
	dir := recorded(t)
	file := filepath.Join(t.TempDir(), "backup.db")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := sandkeeper(t, "backup", "--data-dir", dir, file)
	if code != 1 || !strings.Contains(errs, "never replaces a file") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("it is %q", b)
	}
}

func TestWhatCannotBeBackedUpOrRestoredIsSaid(t *testing.T) {
	dir := recorded(t)
	letter := filepath.Join(t.TempDir(), "letter")
	if err := os.WriteFile(letter, []byte("dear all"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no database":         {[]string{"backup", "--data-dir", t.TempDir(), letter + "2"}, 1, "there is no database in"},
		"no directory for it": {[]string{"backup", "--data-dir", dir, "/nowhere/b.db"}, 1, "no such file or directory"},
		"no file named":       {[]string{"backup", "--data-dir", dir}, 2, "needs one file"},
		"two files named":     {[]string{"restore", "--data-dir", dir, "a", "b"}, 2, "needs one file"},
		"no such backup":      {[]string{"restore", "--data-dir", dir, letter + "2"}, 1, "no such file or directory"},
		"no backup at all":    {[]string{"restore", "--data-dir", dir, letter}, 1, "is damaged or belongs to another program"},
		"a letter to check":   {[]string{"check", "--data-dir", dir, letter}, 1, "is damaged or belongs to another program"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, _, errs := sandkeeper(t, tc.args...); code != tc.code || !strings.Contains(errs, tc.says) {
				t.Errorf("exit %d: %s", code, errs)
			}
		})
	}
	if code, out, errs := sandkeeper(t, "check", "--data-dir", dir, "--no-engine"); code != 0 || !strings.HasPrefix(out, "whole: ") {
		t.Errorf("afterwards: exit %d, %q, %q", code, out, errs)
	}
}

func TestARunningServerMakesTheBackupAndAllowsNoRestore(t *testing.T) {
	dir := recorded(t)
	store := openStore(t, dir)
	a, err := startAdmin(dir, "x", adminCalls{backup: store.WriteTo})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	file := filepath.Join(t.TempDir(), "backup.db")
	if code, out, errs := sandkeeper(t, "backup", "--data-dir", dir, file); code != 0 || !strings.Contains(out, "1 environments") {
		t.Errorf("exit %d, printed %q, %q", code, out, errs)
	}
	if code, _, errs := sandkeeper(t, "restore", "--data-dir", dir, file); code != 1 || !strings.Contains(errs, "stop it first") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if code, out, errs := sandkeeper(t, "check", "--data-dir", dir, "--no-engine"); code != 0 || !strings.HasPrefix(out, "whole: ") {
		t.Errorf("exit %d, printed %q, %q", code, out, errs)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".check-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestACopyThatBreaksOffIsNoBackup(t *testing.T) {
	dir := recorded(t)
	store := openStore(t, dir)
	a, err := startAdmin(dir, "x", adminCalls{backup: func(w io.Writer) (int64, error) {
		n, err := w.Write(make([]byte, 1<<20))
		return int64(n), errors.Join(err, errors.New("disk"))
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	_ = store // as a server has it open
	file := filepath.Join(t.TempDir(), "backup.db")
	if code, _, errs := sandkeeper(t, "backup", "--data-dir", dir, file); code != 1 || errs == "" {
		t.Errorf("exit %d: %s", code, errs)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}
