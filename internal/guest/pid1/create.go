package pid1

import (
	"bufio"
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/archive"
	"sandkeeper/internal/guest/wire"
)

// create begins to write a file, or to fill a folder from an archive.
func (f *files) create(r *wire.Request) (transfer, error) {
	if r.Tar {
		return f.createFolder(r.Path)
	}
	return f.createFile(r.Path, r.Mode)
}

// writing is a file that is written beside the one that it will replace. It has no
// name until it is whole, where the file system can do so.
type writing struct {
	f     *files
	asked string
	dir   int    // the folder that it will be in
	base  string // its name there
	file  *os.File
	tmp   string // its name until then; "" where it has none
	mode  fs.FileMode
}

const maxSymlinks = 40 // as the kernel has it

// createFile makes the file, with the folders above it. A name that is a symbolic
// link means what that points to, be it there or not.
func (f *files) createFile(asked string, mode *uint32) (transfer, error) {
	w := &writing{f: f, asked: asked, dir: -1, mode: 0o644}
	err := f.do(asked, func(path string) error {
		if err := w.find(path); err != nil {
			return err
		}
		old, err := w.replaced()
		if err != nil {
			return err
		}
		if err := w.begin(); err != nil {
			return err
		}
		if old != nil {
			w.mode = fs.FileMode(old.Mode & 0o777)
			if old.Mode&unix.S_ISUID != 0 {
				w.mode |= fs.ModeSetuid
			}
			if old.Mode&unix.S_ISGID != 0 {
				w.mode |= fs.ModeSetgid
			}
			w.file.Chown(int(old.Uid), int(old.Gid)) //nolint:errcheck // it stays ours where that may not be
		}
		if mode != nil {
			w.mode = fs.FileMode(*mode)
		}
		return nil
	})
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// find opens the folder that the file will be in.
func (w *writing) find(path string) error {
	for range maxSymlinks {
		if strings.HasSuffix(path, "/") {
			return unix.EISDIR
		}
		dir, base := filepath.Split(path) // not cleaned: "a/.." means what the kernel makes of it
		if base == "." || base == ".." {
			return unix.EISDIR
		}
		target, err := os.Readlink(path)
		if err == nil {
			if !filepath.IsAbs(target) {
				target = dir + target
			}
			path = target
			continue
		}
		if err := os.MkdirAll(cmp.Or(strings.TrimRight(dir, "/"), "/"), 0o755); err != nil {
			return err
		}
		w.base = base
		w.dir, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	}
	return unix.ELOOP
}

// replaced looks at what has the name now; nil where nothing has. What the user
// may not write to is not replaced either.
func (w *writing) replaced() (*unix.Stat_t, error) {
	fd, err := unix.Openat(w.dir, w.base, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	var st unix.Stat_t
	switch {
	case err == unix.ENOENT:
		return nil, nil
	case err == unix.ETXTBSY: // it runs, and may be replaced
		err = unix.Fstatat(w.dir, w.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	case err == nil:
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
	}
	return &st, err
}

// begin makes the file.
func (w *writing) begin() error {
	fd, err := unix.Openat(w.dir, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	switch err {
	case nil:
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL, unix.ENOENT: // as file systems and kernels without it say
		tmp := temporary()
		if fd, err = unix.Openat(w.dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600); err != nil {
			return err
		}
		w.tmp = tmp
	default:
		return err
	}
	w.file = os.NewFile(uintptr(fd), w.base)
	return nil
}

func temporary() string { return ".sandkeeper-" + rand.Text()[:16] }

func (w *writing) run(in *bufio.Reader, out io.Writer) {
	size, err := w.fill(in)
	if err == nil {
		err = w.f.step(w.commit)
	}
	if errors.Is(err, errOver) {
		return // nobody is there to be told
	}
	writeDone(out, &wire.Done{Error: told(w.asked, err), Size: size}) //nolint:errcheck // likewise
}

// fill takes the bytes of the file.
func (w *writing) fill(in *bufio.Reader) (size int64, err error) {
	buf := buffers.Get().(*[drainBuffer]byte)
	defer buffers.Put(buf)
	data := &frameReader{in: in}
	for {
		n, err := io.ReadFull(data, buf[:])
		if n > 0 {
			err := w.f.step(func() error { _, err := w.file.Write(buf[:n]); return err })
			if err != nil {
				return size, err
			}
			size += int64(n)
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF: // the end was told: a broken stream has another error
			return size, nil
		default:
			return size, err
		}
	}
}

// commit gives the file its name, in place of what has it. It is a step.
func (w *writing) commit() error {
	if err := w.file.Chmod(w.mode); err != nil {
		return err
	}
	if w.tmp == "" {
		tmp := temporary()
		if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", w.file.Fd()), w.dir, tmp, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
		w.tmp = tmp
	}
	if err := w.file.Close(); err != nil {
		return err
	}
	if err := unix.Renameat(w.dir, w.tmp, w.dir, w.base); err != nil {
		return err
	}
	w.tmp = ""
	return nil
}

// close takes away what did not get its name.
func (w *writing) close() {
	if w.file != nil {
		w.file.Close()
	}
	if w.tmp != "" {
		w.f.step(func() error { return unix.Unlinkat(w.dir, w.tmp, 0) }) //nolint:errcheck // there is no more to do
	}
	if w.dir >= 0 {
		unix.Close(w.dir)
	}
}

// filling is a folder that an archive is extracted into.
type filling struct {
	f     *files
	asked string
	dir   *os.Root
	fresh bool
}

// createFolder opens the folder, and makes it where it is missing.
func (f *files) createFolder(asked string) (transfer, error) {
	t := &filling{f: f, asked: asked}
	err := f.do(asked, func(path string) error {
		_, err := os.Stat(path)
		t.fresh = errors.Is(err, fs.ErrNotExist)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		t.dir, err = os.OpenRoot(path)
		return err
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (t *filling) close() { t.dir.Close() }

func (t *filling) run(in *bufio.Reader, out io.Writer) {
	n, err := archive.Unpack(&frameReader{in: in}, t.dir, t.fresh, t.f.step)
	if errors.Is(err, errOver) {
		return
	}
	e := told(t.asked, err)
	if e != nil {
		e.Message += fmt.Sprintf("; %d entries were extracted before", n)
	}
	writeDone(out, &wire.Done{Error: e, Entries: n}) //nolint:errcheck // nobody is there to be told
}
