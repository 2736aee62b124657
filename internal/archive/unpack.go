package archive

import (
	"archive/tar"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxClosed is how many folders are remembered that are closed to their owner
// once all in them is there.
const maxClosed = 4096

// Unpack extracts a tar into a folder, and returns how many entries it has
// extracted, also where it fails. It reads r to its end. fresh says that the
// folder was made for it: then the mode of "./" is the folder's too.
// Errors: *EntryError; ErrCut; ErrFormat; those of r.
func Unpack(r io.Reader, dir *os.Root, fresh bool, do Do) (entries int64, err error) {
	in := &counted{r: r}
	u := &unpacker{do: do, dir: dir, fresh: fresh, tar: tar.NewReader(in), buf: make([]byte, chunk)}
	defer u.leave()
	for {
		in.n = 0
		h, err := u.tar.Next()
		switch {
		case err == io.EOF && in.n < 512: // it ended where the next entry, or the mark of the end, would begin
			return entries, ErrCut
		case err == io.EOF:
			if _, err := io.Copy(io.Discard, r); err != nil {
				return entries, err
			}
			return entries, u.finish()
		case err != nil:
			return entries, in.wrong(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := u.entry(h); err != nil {
			if in.err != nil && in.err != io.EOF {
				return entries, in.err
			}
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = ErrCut
			}
			return entries, &EntryError{h.Name, err}
		}
		entries++
	}
}

// counted counts what is read, and keeps its error.
type counted struct {
	r   io.Reader
	n   int64
	err error
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}

// wrong is what a failure to read the next entry means.
func (c *counted) wrong(err error) error {
	switch {
	case c.err != nil && c.err != io.EOF:
		return c.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return ErrCut
	}
	return fmt.Errorf("%w: %w", ErrFormat, err)
}

type unpacker struct {
	do     Do
	dir    *os.Root
	fresh  bool
	tar    *tar.Reader
	buf    []byte
	closed []closedFolder

	// The folder of the last entry.
	name   string
	parent *os.Root
}

// closedFolder is one whose mode would keep its own entries out.
type closedFolder struct {
	name string
	mode fs.FileMode
}

func (u *unpacker) leave() {
	if u.parent != nil {
		u.parent.Close()
		u.parent = nil
	}
}

// finish gives folders their modes, the inner ones first.
func (u *unpacker) finish() error {
	for len(u.closed) > 0 {
		last := len(u.closed) - 1
		c := u.closed[last]
		u.closed = u.closed[:last]
		if err := u.do(func() error { return u.dir.Chmod(c.name, c.mode) }); err != nil {
			return &EntryError{c.name, err}
		}
	}
	return nil
}

func (u *unpacker) entry(h *tar.Header) error {
	name, err := local(h.Name)
	if err != nil {
		return err
	}
	mode := h.FileInfo().Mode()
	switch h.Typeflag {
	case tar.TypeDir:
		return u.do(func() error { return u.folder(name, mode) })
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if name == "." {
			return unix.EISDIR
		}
		return u.file(name, h, mode)
	case tar.TypeSymlink:
		return u.do(func() error {
			return u.place(name, func(dir *os.Root, tmp string) error { return dir.Symlink(h.Linkname, tmp) })
		})
	case tar.TypeLink:
		first, err := local(h.Linkname)
		if err != nil {
			return err
		}
		return u.do(func() error {
			return u.place(name, func(_ *os.Root, tmp string) error { return u.dir.Link(first, path.Join(path.Dir(name), tmp)) })
		})
	}
	return ErrType
}

// local is a name below the folder, or "." for the folder itself.
func local(name string) (string, error) {
	if name == "" || !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return "", ErrName
	}
	// "a/../b" is in the folder, but not what it says where a is a link.
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", ErrName
		}
	}
	return path.Clean(name), nil
}

// folder makes a folder, or changes the mode of one that is there. It is a step.
func (u *unpacker) folder(name string, mode fs.FileMode) error {
	if name == "." {
		if !u.fresh {
			return nil
		}
	} else if err := u.dir.MkdirAll(name, 0o755); err != nil {
		return err
	}
	perm := mode & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky)
	if perm&0o300 != 0o300 && len(u.closed) < maxClosed {
		u.closed = append(u.closed, closedFolder{name, perm})
		return nil
	}
	return u.dir.Chmod(name, perm)
}

// within is the folder that a name is in, made where it is missing. It is a step.
func (u *unpacker) within(name string) (*os.Root, error) {
	dir := path.Dir(name)
	if u.parent != nil && u.name == dir {
		return u.parent, nil
	}
	if dir != "." {
		if err := u.dir.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	parent, err := u.dir.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	u.leave()
	u.name, u.parent = dir, parent
	return parent, nil
}

func temporary() string { return ".sandkeeper-" + rand.Text()[:16] }

// place makes something under a name that nobody else has, and gives it its
// own. It is a step.
func (u *unpacker) place(name string, fn func(dir *os.Root, tmp string) error) error {
	if name == "." {
		return unix.EISDIR
	}
	dir, err := u.within(name)
	if err != nil {
		return err
	}
	tmp := temporary()
	if err := fn(dir, tmp); err != nil {
		return err
	}
	err = dir.Rename(tmp, path.Base(name))
	dir.Remove(tmp) //nolint:errcheck // a renamed one is gone, but of two names of one file
	return err
}

// file writes a file beside its name, and gives it the name once it is whole.
func (u *unpacker) file(name string, h *tar.Header, mode fs.FileMode) error {
	var (
		dir *os.Root
		f   *os.File
	)
	tmp := temporary()
	err := u.do(func() (err error) {
		if dir, err = u.within(name); err == nil {
			f, err = dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = u.fill(f)
	return u.do(func() error {
		if err == nil {
			err = cmp.Or(f.Chmod(mode&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)), setTime(f, h.ModTime))
		}
		err = cmp.Or(err, f.Close())
		if err == nil {
			err = dir.Rename(tmp, path.Base(name))
		}
		if err != nil {
			dir.Remove(tmp) //nolint:errcheck // the failure before is told
		}
		return err
	})
}

// fill writes the entry's bytes.
func (u *unpacker) fill(f *os.File) error {
	for {
		n, err := io.ReadFull(u.tar, u.buf)
		if n > 0 {
			if err := u.do(func() error { _, err := f.Write(u.buf[:n]); return err }); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		case io.ErrUnexpectedEOF: // of the file, or before it
			if _, err := u.tar.Read(u.buf[:1]); err != io.EOF {
				return cmp.Or(err, io.ErrUnexpectedEOF)
			}
			return nil
		default:
			return err
		}
	}
}

func setTime(f *os.File, at time.Time) error {
	if at.IsZero() {
		return nil
	}
	return unix.Futimes(int(f.Fd()), []unix.Timeval{unix.NsecToTimeval(at.UnixNano()), unix.NsecToTimeval(at.UnixNano())})
}
