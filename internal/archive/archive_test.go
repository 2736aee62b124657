package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

func plain(step func() error) error { return step() }

// entry is one of a tar.
type entry struct {
	name string
	kind byte
	body string // or the target of a link
	mode int64
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, ModTime: time.Unix(1_700_000_000, 0)}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		switch e.kind {
		case tar.TypeReg:
			h.Size = int64(len(e.body))
		case tar.TypeLink, tar.TypeSymlink:
			h.Linkname = e.body
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, e.body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unpack(t testing.TB, dir string, b []byte) (int64, error) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return Unpack(bytes.NewReader(b), root, false, plain)
}

func pack(t testing.TB, dir string) []byte {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var b bytes.Buffer
	if err := Pack(&b, root, plain); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tree describes all below a folder.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		line := fmt.Sprintf("%s %v", name, info.Mode())
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			line = name + " -> " + target
		case info.Mode().IsRegular():
			body, err := os.ReadFile(path)
			if err != nil && !errors.Is(err, fs.ErrPermission) {
				return err
			}
			_, several := inode(info)
			line += fmt.Sprintf(" %q at %d linked %t", body, info.ModTime().Unix(), several)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// project makes a folder with all that is kept.
func project(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, step := range []error{
		os.MkdirAll(filepath.Join(dir, "src/deep/er"), 0o755),
		os.Mkdir(filepath.Join(dir, "empty"), 0o700),
		os.WriteFile(filepath.Join(dir, "src/main.go"), []byte("package main\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "run"), []byte("#!/bin/sh\n"), 0o755),
		os.WriteFile(filepath.Join(dir, "secret"), nil, 0o400),
		os.WriteFile(filepath.Join(dir, "src/deep/er/big"), bytes.Repeat([]byte("0123456789"), 30_000), 0o640),
		os.WriteFile(filepath.Join(dir, strings.Repeat("n", 200)+" ü\n"), []byte("odd"), 0o644),
		os.Link(filepath.Join(dir, "run"), filepath.Join(dir, "src/also-run")),
		os.Symlink("src/main.go", filepath.Join(dir, "link")),
		os.Symlink("/etc/passwd", filepath.Join(dir, "absolute")),
		os.Symlink("../../..", filepath.Join(dir, "src/up")),
		os.Symlink("nowhere", filepath.Join(dir, "dangling")),
		os.Chtimes(filepath.Join(dir, "run"), time.Unix(1_600_000_000, 0), time.Unix(1_600_000_000, 0)),
		os.Mkdir(filepath.Join(dir, "closed"), 0o755),
		os.WriteFile(filepath.Join(dir, "closed/in"), []byte("in"), 0o644),
		os.Chmod(filepath.Join(dir, "closed"), 0o555),
		os.Chmod(filepath.Join(dir, "run"), 0o4755),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	return dir
}

func TestAFolderComesOutAsItWentIn(t *testing.T) {
	from, to := project(t), t.TempDir()
	b := pack(t, from)
	n, err := unpack(t, to, b)
	if err != nil {
		t.Fatal(err)
	}
	want := tree(t, from)
	if got := tree(t, to); !slices.Equal(got, want) || int(n) != len(want)+1 { // and the folder itself
		t.Errorf("%d entries:\n%s\nwant\n%s", n, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Over itself it changes nothing.
	if _, err := unpack(t, to, b); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, to); !slices.Equal(got, want) {
		t.Errorf("again:\n%s", strings.Join(got, "\n"))
	}
}

func TestWhatIsNoFileFolderOrLinkIsLeftOutOfATar(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "f"), nil, 0o644)
	r := tar.NewReader(bytes.NewReader(pack(t, dir)))
	var names []string
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"./", "f"}) {
		t.Errorf("%q", names)
	}
}

// The folder has a neighbour that nothing may reach, and links that lead to it.
func TestNothingLeavesTheFolder(t *testing.T) {
	const file, link, hard = tar.TypeReg, tar.TypeSymlink, tar.TypeLink
	for name, tc := range map[string]struct {
		entries []entry
		want    error // nil: any
	}{
		"through ..":                       {[]entry{{"../outside/f", file, "x", 0}}, ErrName},
		"through .. in the middle":         {[]entry{{"a/../../outside/f", file, "x", 0}}, ErrName},
		"through .. that would stay":       {[]entry{{"a/../f", file, "x", 0}}, ErrName},
		"an absolute name":                 {[]entry{{"/tmp/archive-test-outside", file, "x", 0}}, ErrName},
		"a folder through ..":              {[]entry{{"../outside/d/", tar.TypeDir, "", 0}}, ErrName},
		"the folder above":                 {[]entry{{"..", tar.TypeDir, "", 0o777}}, ErrName},
		"no name":                          {[]entry{{"", file, "x", 0}}, ErrName},
		"through a link that it brings":    {[]entry{{"l", link, "../outside", 0}, {"l/f", file, "x", 0}}, nil},
		"through an absolute link":         {[]entry{{"l", link, "OUTSIDE", 0}, {"l/f", file, "x", 0}}, nil},
		"through a link to a link":         {[]entry{{"m", link, "l", 0}, {"l", link, "../outside", 0}, {"m/f", file, "x", 0}}, nil},
		"a folder through a link":          {[]entry{{"l", link, "../outside", 0}, {"l/d/", tar.TypeDir, "", 0}}, nil},
		"a folder's mode through a link":   {[]entry{{"l", link, "../outside", 0}, {"l", tar.TypeDir, "", 0o777}}, nil},
		"a link through a link":            {[]entry{{"l", link, "../outside", 0}, {"l/m", link, "x", 0}}, nil},
		"a hard link to what is outside":   {[]entry{{"h", hard, "../outside/kept", 0}}, ErrName},
		"a hard link through a link":       {[]entry{{"l", link, "../outside", 0}, {"h", hard, "l/kept", 0}}, nil},
		"a hard link to an absolute name":  {[]entry{{"h", hard, "/etc/passwd", 0}}, ErrName},
		"a link that was there":            {[]entry{{"was/f", file, "x", 0}}, nil},
		"over the link itself and through": {[]entry{{"was", link, "../outside", 0}, {"was/f", file, "x", 0}}, nil},
		"a device":                         {[]entry{{"dev", tar.TypeBlock, "", 0}}, ErrType},
		"another device":                   {[]entry{{"dev", tar.TypeChar, "", 0}}, ErrType},
		"a pipe":                           {[]entry{{"pipe", tar.TypeFifo, "", 0}}, ErrType},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			in, outside := filepath.Join(base, "in"), filepath.Join(base, "outside")
			os.Mkdir(in, 0o755)
			os.Mkdir(outside, 0o700)
			os.WriteFile(filepath.Join(outside, "kept"), []byte("kept"), 0o600)
			os.Symlink(outside, filepath.Join(in, "was"))
			for i := range tc.entries {
				tc.entries[i].body = strings.Replace(tc.entries[i].body, "OUTSIDE", outside, 1)
			}
			before := tree(t, outside)
			n, err := unpack(t, in, tarOf(t, tc.entries...))
			e, ok := errors.AsType[*EntryError](err)
			if !ok || tc.want != nil && !errors.Is(err, tc.want) || e.Entry != tc.entries[len(tc.entries)-1].name || int(n) != len(tc.entries)-1 {
				t.Errorf("after %d: %v", n, err)
			}
			info, err := os.Stat(outside)
			if err != nil || info.Mode().Perm() != 0o700 || !slices.Equal(tree(t, outside), before) {
				t.Errorf("outside there are %q, %v", tree(t, outside), info.Mode())
			}
			for _, line := range tree(t, in) {
				if strings.HasPrefix(line, ".sandkeeper-") {
					t.Errorf("left: %s", line)
				}
			}
		})
	}
}

func TestLinksWithinTheFolderAreFollowedAndReplaced(t *testing.T) {
	dir := t.TempDir()
	n, err := unpack(t, dir, tarOf(t,
		entry{"d/", tar.TypeDir, "", 0},
		entry{"l", tar.TypeSymlink, "d", 0},
		entry{"l/f", tar.TypeReg, "through", 0o600},
		entry{"target", tar.TypeReg, "target", 0o600},
		entry{"s", tar.TypeSymlink, "target", 0},
		entry{"s", tar.TypeReg, "instead", 0o600},
		entry{"h", tar.TypeLink, "target", 0},
		entry{"h", tar.TypeLink, "target", 0},
		entry{"h", tar.TypeReg, "apart", 0o600},
	))
	if err != nil || n != 9 {
		t.Fatal(n, err)
	}
	want := []string{
		"d drwxr-xr-x", `d/f -rw------- "through" at 1700000000 linked false`, `h -rw------- "apart" at 1700000000 linked false`,
		"l -> d", `s -rw------- "instead" at 1700000000 linked false`, `target -rw------- "target" at 1700000000 linked false`,
	}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// An entry whose place is taken by another kind of thing says so, and changes nothing.
func TestAFolderIsNotReplacedByAFile(t *testing.T) {
	for _, e := range []entry{{"d", tar.TypeReg, "x", 0}, {"d", tar.TypeSymlink, "x", 0}, {"d", tar.TypeLink, "f", 0}, {"f", tar.TypeDir, "", 0}, {"f/x", tar.TypeReg, "x", 0}, {".", tar.TypeReg, "x", 0}} {
		dir := t.TempDir()
		os.MkdirAll(filepath.Join(dir, "d/in"), 0o755)
		os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o644)
		before := tree(t, dir)
		if n, err := unpack(t, dir, tarOf(t, e)); err == nil || n != 0 || !slices.Equal(tree(t, dir), before) {
			t.Errorf("%+v: %d, %v: %q", e, n, err, tree(t, dir))
		}
	}
}

// Cut anywhere, an archive fails, and what is there is whole.
func TestAnArchiveThatIsCutOffFails(t *testing.T) {
	whole := tarOf(t, entry{"a", tar.TypeReg, strings.Repeat("a", 700), 0}, entry{"d/", tar.TypeDir, "", 0}, entry{"d/b", tar.TypeReg, strings.Repeat("b", 1024), 0})
	end := len(whole) - 1024 // of the entries
	for cut := 0; cut <= end; cut += 64 {
		dir := t.TempDir()
		n, err := unpack(t, dir, whole[:cut])
		if !errors.Is(err, ErrCut) {
			t.Fatalf("cut at %d of %d: %d, %v", cut, end, n, err)
		}
		for _, line := range tree(t, dir) {
			if !strings.HasPrefix(line, "a -rwxr-xr-x \""+strings.Repeat("a", 700)+"\"") && line != "d drwxr-xr-x" && !strings.HasPrefix(line, "d/b -rwxr-xr-x \""+strings.Repeat("b", 1024)+"\"") {
				t.Fatalf("cut at %d there is %s", cut, line)
			}
		}
	}
	if n, err := unpack(t, t.TempDir(), whole[:end+512]); n != 3 || err != nil {
		t.Errorf("with one block of its end: %d, %v", n, err)
	}
	if n, err := unpack(t, t.TempDir(), append(bytes.Clone(whole), make([]byte, 9000)...)); n != 3 || err != nil {
		t.Errorf("with blocks behind its end: %d, %v", n, err)
	}
	if _, err := unpack(t, t.TempDir(), bytes.Repeat([]byte("no tar"), 1000)); !errors.Is(err, ErrFormat) {
		t.Errorf("what is no tar: %v", err)
	}
}

// The reader's own failure is the archive's.
func TestAReaderThatFailsIsTold(t *testing.T) {
	whole := tarOf(t, entry{"a", tar.TypeReg, strings.Repeat("a", 2000), 0})
	broken := errors.New("broken")
	for cut := 0; cut < len(whole); cut += 500 {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		_, err = Unpack(io.MultiReader(bytes.NewReader(whole[:cut]), iotest.ErrReader(broken)), root, false, plain)
		if !errors.Is(err, broken) {
			t.Errorf("broken at %d: %v", cut, err)
		}
	}
}

func TestTenThousandEntries(t *testing.T) {
	var entries []entry
	for i := range 10_000 {
		entries = append(entries, entry{fmt.Sprintf("d%02d/%d", i%100, i), tar.TypeSymlink, "x", 0})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	dir := t.TempDir()
	if n, err := unpack(t, dir, tarOf(t, entries...)); n != 10_000 || err != nil {
		t.Fatal(n, err)
	}
	r := tar.NewReader(bytes.NewReader(pack(t, dir)))
	n := 0
	for {
		if _, err := r.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 10_101 { // with the folders
		t.Errorf("%d entries came out", n)
	}
}

// A sparse file is written out: it takes the disk that it says it has, and no more.
func TestASparseFileIsWrittenOut(t *testing.T) {
	const size = 3 << 20
	// As GNU tar writes one whose only data is its last byte; the writer here makes none.
	body := fmt.Sprintf("1\n%d\n1\n", size-1)
	body += strings.Repeat("\x00", 512-len(body)) + "!"
	records := ""
	for _, kv := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=s", fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
		n := len(kv) + 3
		if len(fmt.Sprint(n+1)) > 1 {
			n++
		}
		records += fmt.Sprintf("%d %s\n", n, kv)
	}
	var made bytes.Buffer
	made.Write(rawHeader("PaxHeaders/s", 'x', int64(len(records))))
	made.WriteString(records + strings.Repeat("\x00", 512-len(records)))
	made.Write(rawHeader("GNUSparseFile.0/s", '0', int64(len(body))))
	made.WriteString(body + strings.Repeat("\x00", 1024-len(body)) + strings.Repeat("\x00", 1024))
	dir := t.TempDir()
	if n, err := unpack(t, dir, made.Bytes()); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "s"))
	if err != nil || len(got) != size || got[size-1] != '!' || len(bytes.Trim(got, "\x00")) != 1 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// rawHeader is a header block of the oldest form that is still read.
func rawHeader(name string, kind byte, size int64) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
	copy(b[148:], "        ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// Who changes the folder meanwhile leads nothing out of it.
func TestAFolderThatBecomesALinkMeanwhile(t *testing.T) {
	base := t.TempDir()
	in, outside := filepath.Join(base, "in"), filepath.Join(base, "outside")
	os.Mkdir(in, 0o755)
	os.Mkdir(outside, 0o755)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.Rename(filepath.Join(in, "d"), filepath.Join(in, "away"))
			os.Symlink(outside, filepath.Join(in, "d"))
			os.Remove(filepath.Join(in, "d"))
			os.Rename(filepath.Join(in, "away"), filepath.Join(in, "d"))
		}
	}()
	var entries []entry
	for i := range 50 {
		entries = append(entries, entry{fmt.Sprintf("d/e%d/f", i%3), tar.TypeReg, "x", 0}, entry{"d/g", tar.TypeReg, "x", 0}, entry{"d/h/", tar.TypeDir, "", 0})
	}
	b := tarOf(t, entries...)
	for range 4 {
		unpack(t, in, b) //nolint:errcheck // it may fail, and must not leave
		if root, err := os.OpenRoot(in); err == nil {
			Pack(io.Discard, root, plain) //nolint:errcheck // likewise
			root.Close()
		}
	}
	close(stop)
	<-stopped
	if got := tree(t, outside); len(got) > 0 {
		t.Errorf("outside there are %q", got)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, entry{"a/b", tar.TypeReg, "x", 0}, entry{"l", tar.TypeSymlink, "../outside", 0}, entry{"l/f", tar.TypeReg, "x", 0}))
	f.Add(tarOf(f, entry{"d/", tar.TypeDir, "", 0o500}, entry{"d/h", tar.TypeLink, "a", 0}))
	f.Add(tarOf(f, entry{strings.Repeat("long/", 60) + "f", tar.TypeReg, "x", 0}))
	f.Add(rawHeader("f", 'S', 10))
	f.Add(rawHeader("../f", '0', 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		base := t.TempDir()
		in, outside := filepath.Join(base, "in"), filepath.Join(base, "outside")
		os.Mkdir(in, 0o755)
		os.Mkdir(outside, 0o755)
		os.Symlink("../outside", filepath.Join(in, "was"))
		root, err := os.OpenRoot(in)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		left := int64(8 << 20) // a disk of that size: what is claimed may be more
		disk := errors.New("full")
		step := func(fn func() error) error {
			if left -= chunk; left < 0 {
				return disk
			}
			return fn()
		}
		Unpack(bytes.NewReader(b), root, true, step) //nolint:errcheck // it may fail, and must not leave
		if got := tree(t, outside); len(got) > 0 {
			t.Errorf("outside there are %q", got)
		}
		if names, err := os.ReadDir(base); err != nil || len(names) != 2 {
			t.Errorf("beside it there are %v, %v", names, err)
		}
	})
}
