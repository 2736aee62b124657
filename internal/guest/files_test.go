package guest_test

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"sandkeeper/internal/control"
)

func TestFiles(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		ctx := t.Context()
		mode := fs.FileMode(0o750)
		big := bytes.Repeat([]byte("0123456789abcdef"), 60_000)
		if n, err := s.WriteFile(ctx, control.FileWrite{Path: "a/b/f", Data: big, Mkdirs: true, Mode: &mode}); err != nil || n != int64(len(big)) {
			t.Fatalf("write: %d, %v", n, err)
		}
		if n, err := s.WriteFile(ctx, control.FileWrite{Path: "/workspace/a/b/f", Data: []byte("tail"), Append: true}); err != nil || n != int64(len(big))+4 {
			t.Fatalf("append: %d, %v", n, err)
		}
		var got []byte
		for {
			c, err := s.ReadFile(ctx, "a/b/f", int64(len(got)), 500_000)
			if err != nil {
				t.Fatal(err)
			}
			if c.Size != int64(len(big))+4 || c.Mode != mode || c.MTime.IsZero() {
				t.Errorf("%d bytes, mode %v, mtime %v", c.Size, c.Mode, c.MTime)
			}
			got = append(got, c.Data...)
			if c.EOF {
				break
			}
		}
		if !bytes.Equal(got, append(bytes.Clone(big), "tail"...)) {
			t.Error("what was read is not what was written")
		}
		if _, err := s.WriteFile(ctx, control.FileWrite{Path: "a/b/f", Data: []byte("short")}); err != nil {
			t.Fatal(err)
		}
		if c, err := s.ReadFile(ctx, "a/b/f", 0, 100); err != nil || string(c.Data) != "short" || !c.EOF || c.Mode != mode {
			t.Errorf("after a shorter write: %q, %v, %v", c.Data, c.Mode, err)
		}
		if c, err := s.ReadFile(ctx, "a/b/f", 100, 100); err != nil || len(c.Data) != 0 || !c.EOF {
			t.Errorf("beyond the end: %q, %v", c.Data, err)
		}
		if c, err := s.ReadFile(ctx, "/proc/self/status", 0, 100_000); err != nil || !strings.Contains(string(c.Data), "VmRSS") || !c.EOF {
			t.Errorf("a file without a size: %d bytes, %v", len(c.Data), err)
		}

		s.sh(t, "cd a; ln -s b/f link; mkfifo pipe")
		all, err := s.ListFiles(ctx, "a")
		types := make(map[string]string)
		for _, f := range all {
			types[f.Name] = f.Type
		}
		if err != nil || len(types) != 3 || types["b"] != "dir" || types["link"] != "symlink" || types["pipe"] != "other" {
			t.Errorf("list: %v, %v", types, err)
		}
		if f, err := s.StatFile(ctx, "a/b/f"); err != nil || f.Name != "f" || f.Type != "file" || f.Size != 5 || f.Mode != mode {
			t.Errorf("stat: %+v, %v", f, err)
		}
		if err := s.Mkdir(ctx, "x/y/z", true); err != nil {
			t.Error(err)
		}
		if err := s.RemoveFile(ctx, "x", true); err != nil {
			t.Error(err)
		}
		if err := s.RemoveFile(ctx, "a/link", false); err != nil {
			t.Error(err)
		}
	})
}

func TestWhatTheFileSystemRefusesHasAnErrno(t *testing.T) {
	s := start(t, "socket", options{user: "agent"})
	s.sh(t, "mkdir d full; touch f full/x; mkfifo pipe; ln -s loop loop")
	read := func(path string) func() error {
		return func() error { _, err := s.ReadFile(t.Context(), path, 0, 10); return err }
	}
	write := func(path string) func() error {
		return func() error { _, err := s.WriteFile(t.Context(), control.FileWrite{Path: path}); return err }
	}
	for name, tc := range map[string]struct {
		call  func() error
		errno string
	}{
		"reading what is missing":      {read("none"), "ENOENT"},
		"reading a directory":          {read("d"), "EISDIR"},
		"reading a pipe":               {read("pipe"), "EINVAL"},
		"reading a loop":               {read("loop"), "ELOOP"},
		"reading what is another's":    {read("/.sandkeeper/secret"), "EACCES"},
		"reading no path":              {read(""), "ENOENT"},
		"a NUL byte":                   {read("a\x00b"), "EINVAL"},
		"a long name":                  {read(strings.Repeat("x", 300)), "ENAMETOOLONG"},
		"through a file":               {read("f/x"), "ENOTDIR"},
		"writing a directory":          {write("d"), "EISDIR"},
		"writing a directory's name":   {write("new/"), "EISDIR"},
		"writing a pipe":               {write("pipe"), "ENXIO"},
		"writing where it may not":     {write("/etc/passwd"), "EACCES"},
		"writing below what is no dir": {write("none/f"), "ENOENT"},
		"listing a file":               {func() error { _, err := s.ListFiles(t.Context(), "f"); return err }, "ENOTDIR"},
		"listing a pipe":               {func() error { _, err := s.ListFiles(t.Context(), "pipe"); return err }, "ENOTDIR"},
		"stat of what is missing":      {func() error { _, err := s.StatFile(t.Context(), "none"); return err }, "ENOENT"},
		"removing a full directory":    {func() error { return s.RemoveFile(t.Context(), "full", false) }, "ENOTEMPTY"},
		"removing what is missing":     {func() error { return s.RemoveFile(t.Context(), "none", true) }, "ENOENT"},
		"removing the root":            {func() error { return s.RemoveFile(t.Context(), "/", true) }, "EBUSY"},
		"mkdir of what is there":       {func() error { return s.Mkdir(t.Context(), "d", false) }, "EEXIST"},
		"mkdir where it may not":       {func() error { return s.Mkdir(t.Context(), "/etc/d", true) }, "EACCES"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.call()
			e, ok := errors.AsType[*control.FileError](err)
			if !ok || e.Errno != tc.errno {
				t.Errorf("%v, want %s", err, tc.errno)
			}
		})
	}
}

func TestAFullDiskSaysSo(t *testing.T) {
	s := start(t, "socket", options{})
	s.sh(t, "head -c 300000000 /dev/zero > fill")
	_, err := s.WriteFile(t.Context(), control.FileWrite{Path: "f", Data: make([]byte, 1<<20)})
	if e, ok := errors.AsType[*control.FileError](err); !ok || e.Errno != "ENOSPC" {
		t.Errorf("%v, want ENOSPC", err)
	}
}

func TestCommandsAndFilesAreTheUsers(t *testing.T) {
	for _, tc := range []struct{ user, id, home string }{
		{"", "uid=0 gid=0", "/root"},
		{"root", "uid=0 gid=0", "/root"},
		{"agent", "uid=1000 gid=1000 1000 2000", "/home/agent"},
		{"1000", "uid=1000 gid=1000 1000 2000", "/home/agent"},
		{"agent:tools", "uid=1000 gid=2000 2000", "/home/agent"},
		{"4242:4343", "uid=4242 gid=4343 4343", "/"},
		{"4242", "uid=4242 gid=0 0", "/"},
	} {
		t.Run(tc.user, func(t *testing.T) {
			s := start(t, "socket", options{user: tc.user})
			end := s.sh(t, `echo "uid=$(id -u) gid=$(id -g) $(id -G)"; echo $HOME; touch by-shell; umask`)
			lines := strings.Split(string(end.Stdout), "\n")
			if !strings.HasPrefix(lines[0], tc.id) || lines[1] != tc.home || lines[2] != "0022" {
				t.Errorf("%q %q; want %q, %q", end.Stdout, end.Stderr, tc.id, tc.home)
			}
			if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "n/by-call", Mkdirs: true}); err != nil {
				t.Fatal(err)
			}
			end = s.sh(t, `stat -c '%u:%g %a' by-shell n n/by-call`)
			f := strings.Fields(strings.NewReplacer("uid=", "", "gid=", "").Replace(tc.id))
			owner := f[0] + ":" + f[1]
			if want := owner + " 644\n" + owner + " 755\n" + owner + " 644\n"; string(end.Stdout) != want {
				t.Errorf("files are %q, want %q", end.Stdout, want)
			}
		})
	}
}

func TestAnUnknownUserRunsNothing(t *testing.T) {
	s := start(t, "socket", options{user: "nobody-here"})
	end := s.sh(t, "id")
	if end.ExitCode != 126 || len(end.Stdout) > 0 || !strings.Contains(string(end.Stderr), "nobody-here") {
		t.Errorf("ended %d: %q %q", end.ExitCode, end.Stdout, end.Stderr)
	}
}

func TestTheUserCannotReachTheGuest(t *testing.T) {
	s := start(t, "socket", options{user: "agent"})
	end := s.sh(t, "kill -9 1; kill -9 -1; echo alive")
	_ = end
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAReadOnlyRoot(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{readonly: true, user: "agent"})
		end := s.sh(t, "cd /tmp; export A=1; echo x > /workspace/f; touch /no 2>/dev/null || echo read-only")
		if string(end.Stdout) != "read-only\n" || end.ExitCode != 0 {
			t.Errorf("%d %q %q", end.ExitCode, end.Stdout, end.Stderr)
		}
		if end := s.sh(t, "echo $PWD $A; cat /workspace/f"); string(end.Stdout) != "/tmp 1\nx\n" {
			t.Errorf("%q %q", end.Stdout, end.Stderr)
		}
	})
}

func TestAWriteThatIsRepeatedIsDoneOnce(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		for range 30 {
			done := make(chan error, 1)
			go func() {
				_, err := s.WriteFile(t.Context(), control.FileWrite{Path: "log", Data: []byte("x"), Append: true})
				done <- err
			}()
			s.cut()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if f, err := s.StatFile(t.Context(), "log"); err != nil || f.Size != 30 {
			t.Errorf("%d bytes of 30 appends, %v", f.Size, err)
		}
	})
}
