package pid1

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/wire"
)

const (
	maxChunk   = 1 << 20
	maxEntries = 16 << 10 // of a listing; more would not fit an answer

	maxFileCalls = 8 // at once: each may hold a thread
)

// files serves the file calls with the rights of a user.
type files struct {
	user    *User
	workdir string
	slots   chan struct{}
}

func newFiles(u *User, workdir string) *files {
	return &files{user: u, workdir: workdir, slots: make(chan struct{}, maxFileCalls)}
}

func (f *files) path(p string) (string, error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", unix.EINVAL
	}
	if p == "" {
		return "", unix.ENOENT
	}
	if !filepath.IsAbs(p) {
		p = f.workdir + "/" + p // not joined: "a/.." means what the kernel makes of it
	}
	return p, nil
}

// do calls fn with the rights of the user, and makes a refusal an answer that
// has the path as it was asked for.
func (f *files) do(asked string, fn func(path string) error) error {
	f.slots <- struct{}{}
	defer func() { <-f.slots }()
	path, err := f.path(asked)
	if err == nil {
		err = f.user.do(func() error { return fn(path) })
	}
	return refusal(asked, err)
}

// refusal makes an error of the file system one of the wire.
func refusal(asked string, err error) error {
	if err == nil {
		return nil
	}
	errno := unix.EIO
	errors.As(err, &errno)
	name := unix.ErrnoName(errno)
	if name == "" {
		name = "EIO"
	}
	return &wire.Error{Code: wire.CodeErrno, Errno: name, Message: fmt.Sprintf("%s: %s", asked, errno.Error())}
}

func (f *files) read(asked string, offset int64, length int) (c *wire.Chunk, data []byte, err error) {
	err = f.do(asked, func(path string) error {
		if offset < 0 || length < 0 {
			return unix.EINVAL
		}
		file, info, err := openRegular(path, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		// One byte more tells whether this is the end, also of files in /proc that show no size.
		length = min(length, maxChunk)
		data = make([]byte, chunkSize(info.Size()-offset, length)+1)
		n, err := file.ReadAt(data, offset)
		for n == len(data) && n <= length { // larger than it said
			data = append(data, make([]byte, min(n, length+1-n))...)
			var m int
			m, err = file.ReadAt(data[n:], offset+int64(n))
			n += m
		}
		if err != nil && err != io.EOF {
			return err
		}
		data = data[:min(n, length)]
		c = &wire.Chunk{
			Size: info.Size(), Mode: uint32(info.Mode()), MTime: info.ModTime().UnixNano(), EOF: n <= length,
		}
		return nil
	})
	return c, data, err
}

func chunkSize(left int64, length int) int {
	return int(max(0, min(left, int64(length))))
}

// openRegular opens a file without waiting, as opening a pipe would.
func openRegular(path string, flags int, mode uint32) (*os.File, fs.FileInfo, error) {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = unix.EISDIR
	case !info.Mode().IsRegular():
		err = unix.EINVAL
	default:
		return file, info, nil
	}
	file.Close()
	return nil, nil, err
}

func (f *files) write(r *wire.Request, data []byte) (size int64, err error) {
	err = f.do(r.Path, func(path string) error {
		if strings.HasSuffix(path, "/") {
			return unix.EISDIR
		}
		if r.Mkdirs {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
		}
		flags := unix.O_WRONLY | unix.O_CREAT
		if r.Append {
			flags |= unix.O_APPEND
		}
		file, info, err := openRegular(path, flags, 0o644)
		if err != nil {
			return err
		}
		defer file.Close()
		if r.Mode != nil {
			if err := file.Chmod(fs.FileMode(*r.Mode)); err != nil {
				return err
			}
		}
		if !r.Append && info.Size() > 0 {
			if err := file.Truncate(0); err != nil {
				return err
			}
		}
		if _, err := file.Write(data); err != nil {
			return err
		}
		if info, err = file.Stat(); err != nil {
			return err
		}
		size = info.Size()
		return nil
	})
	return size, err
}

func (f *files) list(asked string) (all []wire.File, err error) {
	err = f.do(asked, func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		dir := os.NewFile(uintptr(fd), path)
		defer dir.Close()
		names, err := dir.Readdirnames(maxEntries + 1)
		if err != nil && err != io.EOF {
			return err
		}
		if len(names) > maxEntries {
			return unix.EOVERFLOW
		}
		all = make([]wire.File, 0, len(names))
		for _, name := range names {
			info, err := os.Lstat(path + "/" + name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // gone meanwhile
			}
			if err != nil {
				return err
			}
			all = append(all, describe(info))
		}
		return nil
	})
	return all, err
}

func (f *files) stat(asked string) (w wire.File, err error) {
	err = f.do(asked, func(path string) error {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		w = describe(info)
		w.Name = filepath.Base(asked)
		return nil
	})
	return w, err
}

func describe(info fs.FileInfo) wire.File {
	w := wire.File{
		Name: info.Name(), Type: "other", Size: info.Size(),
		Mode: uint32(info.Mode()), MTime: info.ModTime().UnixNano(),
	}
	switch {
	case info.Mode().IsRegular():
		w.Type = "file"
	case info.IsDir():
		w.Type = "dir"
	case info.Mode()&fs.ModeSymlink != 0:
		w.Type = "symlink"
	}
	return w
}

func (f *files) remove(asked string, recursive bool) error {
	return f.do(asked, func(path string) error {
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		switch {
		case recursive && filepath.Clean(path) == "/":
			return unix.EBUSY
		case recursive:
			return os.RemoveAll(path)
		case info.IsDir():
			return unix.Rmdir(path)
		}
		return unix.Unlink(path)
	})
}

func (f *files) mkdir(asked string, recursive bool) error {
	return f.do(asked, func(path string) error {
		if recursive {
			return os.MkdirAll(path, 0o755)
		}
		return os.Mkdir(path, 0o755)
	})
}
