package pid1

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testSpills(t *testing.T, bases ...string) *spills {
	a := newSpills(&User{})
	a.bases = bases
	return a
}

// command is an exec whose stdout is written to a file beyond limit bytes.
func command(a *spills, name string, limit int) (*stream, func()) {
	o := newOutput(newBudget())
	o.out.spill, o.err.spill = a.of(name, limit)
	return &o.out, func() { a.end(o.out.spill, o.err.spill) }
}

func contents(t *testing.T, s *stream) string {
	t.Helper()
	b, err := os.ReadFile(s.spill.file())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWhatIsMoreThanItsAnswerIsInAFile(t *testing.T) {
	a := testSpills(t, t.TempDir())
	s, end := command(a, "x1", 10)
	for _, part := range []string{"0123", "456789"} {
		s.Write([]byte(part))
		if f := s.spill.file(); f != "" {
			t.Fatalf("a file %s for %d bytes", f, s.total)
		}
	}
	s.Write([]byte("a"))
	s.Write([]byte("bc"))
	if got := contents(t, s); got != "0123456789abc" {
		t.Errorf("it has %q", got)
	}
	end()
	if got := contents(t, s); got != "0123456789abc" {
		t.Errorf("after the end it has %q", got)
	}
}

func TestAFileIsBounded(t *testing.T) {
	a := testSpills(t, t.TempDir())
	s, end := command(a, "x1", 10)
	part := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	for range spillFileMax/len(part) + 3 {
		s.Write(part)
	}
	end()
	got := contents(t, s)
	if len(got) != spillFileMax || strings.Trim(got[len(got)-16:], "0123456789abcdef") != "" {
		t.Errorf("it has %d bytes, want %d", len(got), spillFileMax)
	}
	if b, _ := s.join(32); len(b) != 32 || s.total <= spillFileMax {
		t.Errorf("the answer has %d bytes of %d", len(b), s.total)
	}
}

func TestTheOldestEndedFileGoesFirst(t *testing.T) {
	a := testSpills(t, t.TempDir())
	a.total = 100
	running, endRunning := command(a, "running", 1)
	running.Write(make([]byte, 40))
	first, end := command(a, "first", 1)
	first.Write(make([]byte, 20))
	end()
	second, end := command(a, "second", 1)
	second.Write(make([]byte, 30))
	end()
	path := first.spill.file()
	third, end := command(a, "third", 1)
	third.Write(make([]byte, 25))
	end()
	if _, err := os.Lstat(path); !os.IsNotExist(err) || first.spill.file() != "" {
		t.Errorf("the oldest is still there: %v, %q", err, first.spill.file())
	}
	for _, s := range []*stream{running, second, third} {
		if int64(len(contents(t, s))) != s.total {
			t.Errorf("%s is not whole", s.spill.name)
		}
	}
	big, end := command(a, "big", 1)
	big.Write(make([]byte, 90)) // what runs stays: there is room for 60
	end()
	if n := len(contents(t, big)); n != 60 || len(contents(t, running)) != 40 {
		t.Errorf("it has %d bytes, want 60", n)
	}
	endRunning()
	if files, _ := os.ReadDir(a.dir); len(files) != 2 || a.used != 100 {
		t.Errorf("%d files, %d bytes", len(files), a.used)
	}
}

func TestAFileThatCannotBeWrittenFailsNothing(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "file")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, bases := range map[string][]string{
		"there is no such place": {filepath.Join(dir, "missing")},
		"it is no folder":        {taken},
		"there is none":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			s, end := command(testSpills(t, bases...), "x1", 1)
			s.Write([]byte("hello"))
			end()
			if b, n := s.join(10); string(b) != "hello" || n != 0 || s.spill.file() != "" {
				t.Errorf("%q, a file %q", b, s.spill.file())
			}
		})
	}
	t.Run("the disk is full", func(t *testing.T) {
		s, end := command(testSpills(t, t.TempDir()), "x1", 1)
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err)
		}
		if !s.spill.open() {
			t.Fatal("no file")
		}
		path := s.spill.path
		s.spill.f.Close()
		s.spill.f = full
		s.Write([]byte("hello"))
		s.Write([]byte("hello"))
		end()
		if _, err := os.Lstat(path); s.spill.file() != "" || s.spill.all.used != 0 || !os.IsNotExist(err) {
			t.Errorf("a file %q, %d bytes, %v", s.spill.file(), s.spill.all.used, err)
		}
	})
}

func TestTheFolderIsMadeAnewAndThroughNoLink(t *testing.T) {
	base, other := t.TempDir(), t.TempDir()
	kept := filepath.Join(other, "kept")
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(base, spillFolder)); err != nil {
		t.Fatal(err)
	}
	s, end := command(testSpills(t, base), "x1", 1)
	s.Write([]byte("hello"))
	end()
	if got := contents(t, s); got != "hello" {
		t.Errorf("it has %q", got)
	}
	if files, _ := os.ReadDir(other); len(files) != 1 {
		t.Errorf("behind the link are %v", files)
	}
	s, end = command(testSpills(t, base), "../x2", 1)
	s.Write([]byte("hello"))
	end()
	if s.spill.file() != "" {
		t.Errorf("a file %q", s.spill.file())
	}
}
