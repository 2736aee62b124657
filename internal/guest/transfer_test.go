package guest_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"strings"
	"testing"

	"sandkeeper/internal/control"
)

// put writes a file as a transfer.
func (s *sandbox) put(t testing.TB, c control.FileCreate, r io.Reader) (control.FileWritten, error) {
	t.Helper()
	f, err := s.CreateFile(t.Context(), c)
	if err != nil {
		return control.FileWritten{}, err
	}
	defer f.Close()
	if _, err := io.Copy(f, r); err != nil {
		return control.FileWritten{}, err
	}
	return f.Finish()
}

// get reads a part of a file, or with a negative length a tar.
func (s *sandbox) get(t testing.TB, path string, offset, length int64) ([]byte, control.OpenFile, error) {
	t.Helper()
	f, err := s.OpenFile(t.Context(), path)
	if err != nil {
		return nil, control.OpenFile{}, err
	}
	defer f.Close()
	if length < 0 {
		err = f.SendTar()
	} else {
		err = f.Send(offset, length)
	}
	if err != nil {
		return nil, f.Info(), err
	}
	b, err := io.ReadAll(f)
	return b, f.Info(), err
}

// leftovers lists what an unfinished transfer has left.
func (s *sandbox) leftovers(t testing.TB) string {
	t.Helper()
	return string(s.sh(t, "find /workspace /tmp -name '.sandkeeper-*'").Stdout)
}

func users(t *testing.T, test func(t *testing.T, s *sandbox)) {
	for _, user := range []string{"", "agent"} {
		for _, over := range overLinks {
			t.Run(fmt.Sprintf("%s as %q", over, user), func(t *testing.T) { test(t, start(t, over, options{user: user})) })
		}
	}
}

func TestAFileGoesInAndOutAsAStream(t *testing.T) {
	users(t, func(t *testing.T, s *sandbox) {
		big := bytes.Repeat([]byte("0123456789abcdef"), 300_000)
		done, err := s.put(t, control.FileCreate{Path: "a/b/f"}, bytes.NewReader(big))
		if err != nil || done.Size != int64(len(big)) {
			t.Fatalf("put: %+v, %v", done, err)
		}
		got, info, err := s.get(t, "a/b/f", 0, int64(len(big)))
		if err != nil || !bytes.Equal(got, big) {
			t.Fatalf("get: %d bytes, %v", len(got), err)
		}
		if info.Type != "file" || info.Size != int64(len(big)) || info.Mode != 0o644 || info.Name != "f" || info.Tag == "" {
			t.Errorf("opened %+v", info)
		}
		if got, _, err := s.get(t, "/workspace/a/b/f", 16*1000+3, 5); err != nil || string(got) != "34567" {
			t.Errorf("a range: %q, %v", got, err)
		}
		if got, _, err := s.get(t, "a/b/f", int64(len(big))+10, 5); err != nil || len(got) > 0 {
			t.Errorf("behind the end: %q, %v", got, err)
		}
		if got, _, err := s.get(t, "/proc/self/status", 0, 1<<20); err != nil || !strings.Contains(string(got), "VmRSS") {
			t.Errorf("a file without a size: %d bytes, %v", len(got), err)
		}
		if _, err := s.put(t, control.FileCreate{Path: "empty"}, strings.NewReader("")); err != nil {
			t.Error(err)
		}
		if got, info, err := s.get(t, "empty", 0, 10); err != nil || len(got) > 0 || info.Size != 0 {
			t.Errorf("an empty one: %q, %+v, %v", got, info, err)
		}
		if left := s.leftovers(t); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

// One open may send several ranges, each from the same file, also once its name is another's.
func TestAnOpenFileStaysTheSame(t *testing.T) {
	s := start(t, "socket", options{})
	s.sh(t, "printf old > f")
	f, err := s.OpenFile(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := s.put(t, control.FileCreate{Path: "f"}, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := f.Send(0, 3); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(f); err != nil || string(b) != "old" {
			t.Errorf("%q, %v", b, err)
		}
	}
	if _, now, _ := s.get(t, "f", 0, 0); now.Tag == f.Info().Tag {
		t.Error("the new file has the tag of the old one")
	}
}

func TestAReplacedFileKeepsItsModeUnlessAnotherIsAskedFor(t *testing.T) {
	users(t, func(t *testing.T, s *sandbox) {
		s.sh(t, "echo old > f; chmod 0751 f; mkdir d; ln -s d/real link; echo old > d/real; chmod 0600 d/real; ln -s fresh dangling")
		for path, tc := range map[string]struct {
			mode *fs.FileMode
			want string
		}{
			"f":         {nil, "751 f"},
			"link":      {nil, "600 d/real"},
			"dangling":  {nil, "644 fresh"},
			"new":       {nil, "644 new"},
			"f/../none": {new(fs.FileMode(0o711)), ""}, // as the kernel has it: f is no folder
		} {
			_, err := s.put(t, control.FileCreate{Path: path, Mode: tc.mode}, strings.NewReader("data"))
			if tc.want == "" {
				if err == nil {
					t.Errorf("%s was written", path)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			mode, name, _ := strings.Cut(tc.want, " ")
			if got := string(s.sh(t, fmt.Sprintf("stat -c %%a %s; cat %s", name, name)).Stdout); got != mode+"\ndata" {
				t.Errorf("%s: %q, want mode %s", path, got, mode)
			}
		}
		if _, err := s.put(t, control.FileCreate{Path: "f", Mode: new(fs.FileMode(0o640))}, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
		if got := string(s.sh(t, "stat -c %a f; readlink link dangling").Stdout); got != "640\nd/real\nfresh\n" {
			t.Errorf("%q", got)
		}
	})
}

func TestWhatCannotBeTransferredSaysWhy(t *testing.T) {
	s := start(t, "socket", options{user: "agent"})
	s.sh(t, "mkdir d; mkfifo pipe; ln -s loop loop; echo x > mine; chmod 0400 mine")
	put := func(path string) func() error {
		return func() error { _, err := s.put(t, control.FileCreate{Path: path}, strings.NewReader("x")); return err }
	}
	get := func(path string) func() error {
		return func() error { _, _, err := s.get(t, path, 0, 1); return err }
	}
	for name, tc := range map[string]struct {
		call  func() error
		errno string
	}{
		"getting what is missing":        {get("none"), "ENOENT"},
		"getting a part of a folder":     {get("d"), "EISDIR"},
		"getting a pipe":                 {get("pipe"), "EINVAL"},
		"getting a loop":                 {get("loop"), "ELOOP"},
		"getting what is another's":      {get("/.sandkeeper/secret"), "EACCES"},
		"putting over a folder":          {put("d"), "EISDIR"},
		"putting a folder's name":        {put("new/"), "EISDIR"},
		"putting the folder itself":      {put("d/."), "EISDIR"},
		"putting over a pipe":            {put("pipe"), "ENXIO"},
		"putting over a device":          {put("/dev/null"), "EINVAL"},
		"putting where it may not":       {put("/etc/new"), "EACCES"},
		"putting over what is another's": {put("/etc/passwd"), "EACCES"},
		"putting over what may not be":   {put("mine"), "EACCES"},
		"putting through a file":         {put("mine/x"), "ENOTDIR"},
		"putting through a loop":         {put("loop"), "ELOOP"},
		"putting a long name":            {put(strings.Repeat("x", 300)), "ENAMETOOLONG"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.call()
			if e, ok := errors.AsType[*control.FileError](err); !ok || e.Errno != tc.errno {
				t.Errorf("%v, want %s", err, tc.errno)
			}
		})
	}
	if left := s.leftovers(t); left != "" {
		t.Errorf("left: %s", left)
	}
}

// Whatever ends an upload before its end, the old file stays and nothing else does.
func TestABrokenUploadLeavesNothing(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{user: "agent"})
		s.sh(t, "echo old > f")
		for name, end := range map[string]func(f control.FileWriter){
			"closed": func(f control.FileWriter) { f.Close() },
			"cut": func(f control.FileWriter) {
				s.cut()
				for { // a write that fails
					if _, err := f.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
			},
		} {
			f, err := s.CreateFile(t.Context(), control.FileCreate{Path: "f"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(make([]byte, 1<<20)); err != nil {
				t.Fatal(err)
			}
			end(f)
			if _, err := f.Finish(); err == nil {
				t.Errorf("%s: it could be finished", name)
			}
			f.Close()
			s.await(t, "what was written is gone", func() bool { return s.leftovers(t) == "" })
			if got := string(s.sh(t, "ls -A; cat f").Stdout); got != "f\nold\n" {
				t.Errorf("%s: %q", name, got)
			}
		}
	})
}

// A transfer that nobody reads holds nothing up, and its window of memory alone.
func TestATransferThatIsNotReadHoldsNothingUp(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		s.sh(t, "head -c 100000000 /dev/zero > f")
		before := residentKB(t, s.cmd.Process.Pid)
		for range 12 { // more than there are slots for file calls
			f, err := s.OpenFile(t.Context(), "f")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Send(0, 100_000_000); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.StatFile(t.Context(), "f"); err != nil {
			t.Error(err)
		}
		if end := s.sh(t, "echo on"); string(end.Stdout) != "on\n" {
			t.Errorf("%q", end.Stdout)
		}
		if after := residentKB(t, s.cmd.Process.Pid); after > before+24<<10 {
			t.Errorf("the guest has %d KiB, and had %d", after, before)
		}
	})
}

// numbered is n bytes that no part of is like another.
type numbered struct {
	n   int64
	sum hash.Hash
}

func (r *numbered) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), r.n))
	for i := range p[:n] {
		p[i] = byte((r.n - int64(i)) * 2654435761 >> 13)
	}
	r.n -= int64(n)
	r.sum.Write(p[:n])
	return n, nil
}

func TestALargeFileTakesNoMemoryInTheGuest(t *testing.T) {
	s := start(t, "socket", options{user: "agent"})
	const size = 200 << 20
	in := &numbered{size, sha256.New()}
	before := residentKB(t, s.cmd.Process.Pid)
	if _, err := s.put(t, control.FileCreate{Path: "big"}, in); err != nil {
		t.Fatal(err)
	}
	f, err := s.OpenFile(t.Context(), "big")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Send(0, size); err != nil {
		t.Fatal(err)
	}
	out := sha256.New()
	if n, err := io.Copy(out, f); err != nil || n != size || !bytes.Equal(out.Sum(nil), in.sum.Sum(nil)) {
		t.Errorf("%d bytes came out, %v", n, err)
	}
	if after := residentKB(t, s.cmd.Process.Pid); after > before+16<<10 {
		t.Errorf("the guest has %d KiB, and had %d", after, before)
	}
}

func TestAFullDiskIsToldAndLeavesTheOldFile(t *testing.T) {
	s := start(t, "socket", options{user: "agent"})
	s.sh(t, "echo old > f")
	_, err := s.put(t, control.FileCreate{Path: "f"}, &numbered{300 << 20, sha256.New()}) // of 256 MiB
	if e, ok := errors.AsType[*control.FileError](err); !ok || e.Errno != "ENOSPC" {
		t.Errorf("%v", err)
	}
	s.await(t, "what was written is gone", func() bool {
		free := string(s.sh(t, "cat f; stat -f -c %a/%b /workspace").Stdout)
		var a, b int
		_, err := fmt.Sscanf(free, "old\n%d/%d", &a, &b)
		return err == nil && a > b*9/10
	})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	w.WriteHeader(&tar.Header{Name: "small", Mode: 0o644, Size: 2})
	w.Write([]byte("ok"))
	w.WriteHeader(&tar.Header{Name: "huge", Mode: 0o644, Size: 300 << 20})
	w.Flush()
	_, err = s.put(t, control.FileCreate{Path: "d", Tar: true}, io.MultiReader(&b, &numbered{300 << 20, sha256.New()}))
	if e, ok := errors.AsType[*control.FileError](err); !ok || e.Errno != "ENOSPC" || !strings.Contains(e.Message, `entry "huge"`) || !strings.Contains(e.Message, "; 1 entries") {
		t.Errorf("%v", err)
	}
	s.await(t, "what was extracted stays, and no part", func() bool { return string(s.sh(t, "ls -A d").Stdout) == "small\n" })
}

// A folder of a project comes out as it went in, whoever the user is: modes,
// symbolic links as they are, hard links as such.
func TestAFolderGoesOutAndInAsATar(t *testing.T) {
	users(t, func(t *testing.T, s *sandbox) {
		s.sh(t, `mkdir -p p/src/deep p/closed p/empty; cd p; echo main > src/main.go; echo run > run; chmod 0750 run; ln run src/also
			ln -s src/main.go link; ln -s /etc/passwd absolute; ln -s ../../.. src/up; ln -s nowhere dangling; mkfifo pipe
			head -c 300000 /dev/zero > src/deep/big; echo in > closed/in; chmod 0555 closed; echo "$(printf 'odd\nname')" > "$(printf 'odd\nname')"`)
		b, info, err := s.get(t, "p", 0, -1)
		if err != nil || info.Type != "dir" {
			t.Fatal(info, err)
		}
		done, err := s.put(t, control.FileCreate{Path: "new/q", Tar: true}, bytes.NewReader(b))
		if err != nil || done.Entries != 15 {
			t.Fatalf("%+v, %v", done, err)
		}
		describe := func(dir string) string {
			return string(s.sh(t, "cd /workspace/"+dir+"; find . ! -name pipe -print0 | sort -z | xargs -0 stat -c '%A %h %N'; find . -type f -print0 | sort -z | xargs -0 cat | cksum").Stdout)
		}
		if got, want := describe("new/q"), describe("p"); got != want || !strings.Contains(got, "closed/in") {
			t.Errorf("%s\nwant %s", got, want)
		}
		one, _, err := s.get(t, "p/run", 0, -1)
		if h, herr := tar.NewReader(bytes.NewReader(one)).Next(); err != nil || herr != nil || h.Name != "run" || h.Mode != 0o750 {
			t.Errorf("a file as a tar: %+v, %v, %v", h, err, herr)
		}
		if left := s.leftovers(t); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

func TestAHostileTarIsRefusedByTheNameOfItsEntry(t *testing.T) {
	s := start(t, "socket", options{})
	for name, h := range map[string]*tar.Header{
		"..":       {Name: "../../etc/evil", Typeflag: tar.TypeReg},
		"absolute": {Name: "/etc/evil", Typeflag: tar.TypeReg},
		"a link":   {Name: "out/evil", Typeflag: tar.TypeReg},
		"hard":     {Name: "evil", Typeflag: tar.TypeLink, Linkname: "out/passwd"},
		"device":   {Name: "evil", Typeflag: tar.TypeBlock},
		"pipe":     {Name: "evil", Typeflag: tar.TypeFifo},
		"long":     {Name: strings.Repeat("evil", 80), Typeflag: tar.TypeReg},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		w.WriteHeader(&tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "/etc"})
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Close()
		_, err := s.put(t, control.FileCreate{Path: "d", Tar: true}, &b)
		if err == nil || !strings.Contains(err.Error(), h.Name) || !strings.Contains(err.Error(), "; 1 entries were extracted before") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := string(s.sh(t, "ls -A d; ls /etc | sort; find /workspace /etc /tmp -name '*evil*'").Stdout); got != "out\ngroup\npasswd\n" {
		t.Errorf("%q", got)
	}
}

// What cannot be read is not left out in silence.
func TestAFolderThatCannotBeReadWholeFails(t *testing.T) {
	s := start(t, "socket", options{user: "agent"})
	s.sh(t, "mkdir -p d/e; echo x > d/mine; chmod 0 d/mine")
	_, _, err := s.get(t, "d", 0, -1)
	if e, ok := errors.AsType[*control.FileError](err); !ok || e.Errno != "EACCES" || !strings.Contains(e.Message, `entry "mine"`) {
		t.Errorf("%v", err)
	}
}

// A tar that is cut off is told, and what was extracted stays.
func TestATarThatIsCutOffFails(t *testing.T) {
	s := start(t, "socket", options{})
	s.sh(t, "mkdir d; echo a > d/a; echo b > d/b")
	b, _, err := s.get(t, "d", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.put(t, control.FileCreate{Path: "e", Tar: true}, bytes.NewReader(b[:2*512+100]))
	if err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("%v", err)
	}
	_, err = s.put(t, control.FileCreate{Path: "e", Tar: true}, bytes.NewReader(b[:3*512]))
	if err == nil || !strings.Contains(err.Error(), "cut off; 2 entries") {
		t.Errorf("between two: %v", err)
	}
	if _, err := s.put(t, control.FileCreate{Path: "e", Tar: true}, strings.NewReader(strings.Repeat("no tar", 200))); err == nil || !strings.Contains(err.Error(), "no tar archive") {
		t.Errorf("what is no tar: %v", err)
	}
	if got := string(s.sh(t, "ls -A e").Stdout); got != "a\n" {
		t.Errorf("%q", got)
	}
}
