package db

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"sandkeeper/internal/control"
)

func TestOpenCreatesAPrivateFile(t *testing.T) {
	s := open(t)
	info, err := os.Stat(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o, want 600", got)
	}
}

func TestOpenTakesAnOldFileFromOthers(t *testing.T) {
	s := open(t)
	shut(t, s)
	if err := os.Chmod(s.path, 0o644); err != nil {
		t.Fatal(err)
	}
	reopen(t, s)
	info, err := os.Stat(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o, want 600", got)
	}
}

func TestOpenRefusesALockedFile(t *testing.T) {
	s := open(t)
	_, err := Open(s.path, Options{LockTimeout: time.Millisecond})
	wantRefusal(t, err, ErrLocked, s.path, "another process", "stop that one")
}

func TestOpenRefusesANewerSchema(t *testing.T) {
	s := open(t)
	path := s.path
	err := s.bolt.Update(func(tx *bolt.Tx) error { return tx.Bucket(bucketMeta).Put(keySchema, []byte("7")) })
	if err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	before := contents(t, path)
	_, err = Open(path, Options{})
	wantRefusal(t, err, ErrNewer, path, "schema is 7", "knows up to 1", "start that version")
	if !bytes.Equal(before, contents(t, path)) {
		t.Error("the refused file was changed")
	}
}

func TestOpenRefusesWhatIsNoDatabaseOfOurs(t *testing.T) {
	whole := wholeFile(t)
	for name, data := range map[string][]byte{
		"text":                []byte("hello, I am a letter\n"),
		"long text":           bytes.Repeat([]byte("hello, I am a letter\n"), 5000),
		"zeros":               make([]byte, 64<<10),
		"first page only":     whole[:4096],
		"cut in half":         whole[:len(whole)/2],
		"one page cut":        whole[:len(whole)-4096],
		"both metas wiped":    append(make([]byte, 8192), whole[8192:]...),
		"all but metas wiped": append(bytes.Clone(whole[:8192]), make([]byte, len(whole)-8192)...),
		"all but metas noise": append(bytes.Clone(whole[:8192]), bytes.Repeat([]byte{0xa5}, len(whole)-8192)...),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			writeFile(t, path, data)
			for range 2 { // the second finds neither a lock nor a change of the first
				_, err := Open(path, Options{LockTimeout: time.Millisecond})
				wantRefusal(t, err, ErrDamaged, path, "left as it is", "backup")
			}
			if !bytes.Equal(data, contents(t, path)) {
				t.Error("the refused file was changed")
			}
		})
	}
}

func TestOpenRefusesAnotherProgramsDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	b, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("recipes"))
		return err
	})
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	before := contents(t, path)
	_, err = Open(path, Options{})
	wantRefusal(t, err, ErrDamaged, path, "another program", "recipes")
	if !bytes.Equal(before, contents(t, path)) {
		t.Error("the refused file was changed")
	}
}

func TestOpenTakesOneMetaPageForTheOther(t *testing.T) {
	whole := wholeFile(t)
	for name, page := range map[string]int{"first": 0, "second": 1} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "db")
			data := bytes.Clone(whole)
			clear(data[page*4096 : (page+1)*4096])
			writeFile(t, path, data)
			s := openAt(t, path, Options{})
			for range 2 { // each commit writes one of the two
				commit(t, s, &control.Batch{Events: []control.Event{event(control.EnvReady, "a")}})
			}
		})
	}
}

func TestOpenMigratesForward(t *testing.T) {
	s := open(t)
	commit(t, s, &control.Batch{Envs: []*control.Env{env("a", "t")}})
	shut(t, s)
	defer func(m []func(*bolt.Tx) error) { migrations = m }(migrations)
	migrations = append(migrations[:1:1], func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("snapshots"))
		return err
	})
	s = reopen(t, s)
	err := s.bolt.View(func(tx *bolt.Tx) error {
		if tx.Bucket([]byte("snapshots")) == nil {
			t.Error("the migration left no trace")
		}
		if got := string(tx.Bucket(bucketMeta).Get(keySchema)); got != "2" {
			t.Errorf("schema %q, want 2", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Load(t.Context())
	if err != nil || len(r.Envs) != 1 {
		t.Errorf("after the migration: %d environments, %v", len(r.Envs), err)
	}
}

func TestAMigrationThatFailsChangesNothing(t *testing.T) {
	s := open(t)
	shut(t, s)
	before := contents(t, s.path)
	defer func(m []func(*bolt.Tx) error) { migrations = m }(migrations)
	cause := errors.New("no")
	migrations = append(migrations[:1:1], func(tx *bolt.Tx) error {
		if _, err := tx.CreateBucket([]byte("snapshots")); err != nil {
			return err
		}
		return cause
	})
	if _, err := Open(s.path, Options{}); !errors.Is(err, cause) {
		t.Fatalf("Open: %v, want %v", err, cause)
	}
	if !bytes.Equal(before, contents(t, s.path)) {
		t.Error("the file was changed")
	}
}

func TestOpenNamesAMissingDirectory(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "none", "db"), Options{})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open: %v", err)
	}
}

// wantRefusal wants an error of a class that is one sentence with these words.
func wantRefusal(t *testing.T, err, class error, words ...string) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("got %v, want a %v", err, class)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than one line", err)
	}
}

// wholeFile is a database with some pages in use, without free space at its end.
func wholeFile(t *testing.T) []byte {
	t.Helper()
	s := open(t)
	var b control.Batch
	for i := range 100 {
		b.Events = append(b.Events, event(control.EnvReady, strings.Repeat("x", i)))
	}
	commit(t, s, &b)
	var size int64
	if err := s.bolt.View(func(tx *bolt.Tx) error { size = tx.Size(); return nil }); err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	return contents(t, s.path)[:size]
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
