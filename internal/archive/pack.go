package archive

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	chunk      = 64 << 10
	batch      = 4096     // names of a folder that are read at once
	maxLinks   = 16 << 10 // files of several names that are remembered; further ones are files of their own
	maxDepth   = 512      // of folders, each of which is open
	openToRead = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
)

// Pack writes a folder to w, itself as "./". Errors: *EntryError; those of w.
func Pack(w io.Writer, dir *os.Root, do Do) error {
	p := newPacker(w, do)
	err := p.folder(dir, ".", 0)
	return p.close(err)
}

// PackFile writes one file that is open, under its name.
func PackFile(w io.Writer, f *os.File, name string, do Do) error {
	p := newPacker(w, do)
	info, err := f.Stat()
	if err == nil {
		err = p.file(f, info, name)
	}
	return p.close(err)
}

type packer struct {
	do    Do
	out   *bufio.Writer
	tar   *tar.Writer
	links map[[2]uint64]string // by device and inode: the first name
	buf   []byte
}

func newPacker(w io.Writer, do Do) *packer {
	out := bufio.NewWriterSize(w, chunk)
	return &packer{do: do, out: out, tar: tar.NewWriter(out), links: map[[2]uint64]string{}, buf: make([]byte, chunk)}
}

// close ends the archive. A broken one gets no end.
func (p *packer) close(err error) error {
	if err != nil {
		return err
	}
	if err := p.tar.Close(); err != nil {
		return err
	}
	return p.out.Flush()
}

// folder writes a folder and all in it. What goes meanwhile is left out.
func (p *packer) folder(dir *os.Root, name string, depth int) error {
	if depth > maxDepth {
		return &EntryError{name, ErrDeep}
	}
	var self *os.File
	var info fs.FileInfo
	err := p.do(func() (err error) {
		if self, err = dir.Open("."); err == nil {
			info, err = self.Stat()
		}
		return err
	})
	if self != nil {
		defer self.Close()
	}
	if err != nil {
		return &EntryError{name, err}
	}
	if err := p.header(info, name+"/", ""); err != nil {
		return err
	}
	for {
		var names []string
		err := p.do(func() (err error) {
			names, err = self.Readdirnames(batch)
			return err
		})
		if err != nil && err != io.EOF {
			return &EntryError{name, err}
		}
		slices.Sort(names)
		for _, base := range names {
			if err := p.entry(dir, base, path.Join(name, base), depth); err != nil {
				return err
			}
		}
		if err == io.EOF || len(names) == 0 {
			return nil
		}
	}
}

// entry writes what a folder has under one name.
func (p *packer) entry(dir *os.Root, base, name string, depth int) error {
	var (
		info   fs.FileInfo
		target string
		file   *os.File
		sub    *os.Root
	)
	err := p.do(func() (err error) {
		if info, err = dir.Lstat(base); err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err = dir.Readlink(base)
		case info.IsDir():
			sub, err = dir.OpenRoot(base)
		case info.Mode().IsRegular():
			file, err = openSame(dir, base, info)
		}
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return &EntryError{name, err}
	case sub != nil:
		defer sub.Close()
		return p.folder(sub, name, depth+1)
	case file != nil:
		defer file.Close()
		return p.file(file, info, name)
	case info.Mode()&fs.ModeSymlink != 0:
		return p.header(info, name, target)
	}
	return nil
}

// openSame opens the file that info tells of, and nothing that took its place.
func openSame(dir *os.Root, base string, info fs.FileInfo) (*os.File, error) {
	f, err := dir.OpenFile(base, openToRead, 0)
	if err != nil {
		return nil, err
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(info, now) {
		f.Close()
		return nil, fs.ErrNotExist
	}
	return f, nil
}

func (p *packer) header(info fs.FileInfo, name, target string) error {
	h, err := headerOf(info, name, target)
	if err != nil {
		return &EntryError{name, err}
	}
	return p.write(h)
}

func headerOf(info fs.FileInfo, name, target string) (*tar.Header, error) {
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return nil, err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	h.ModTime = h.ModTime.Truncate(time.Second) // it would be rounded, into the future too
	return h, nil
}

func (p *packer) write(h *tar.Header) error {
	if err := p.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

// file writes an open file, or a link to it where it was written under another name.
func (p *packer) file(f *os.File, info fs.FileInfo, name string) error {
	h, err := headerOf(info, name, "")
	if err != nil {
		return &EntryError{name, err}
	}
	if id, several := inode(info); several {
		if first, ok := p.links[id]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
			return p.write(h)
		}
		if len(p.links) < maxLinks {
			p.links[id] = name
		}
	}
	if err := p.write(h); err != nil {
		return err
	}
	for left := h.Size; left > 0; {
		var n int
		err := p.do(func() (err error) {
			n, err = f.Read(p.buf[:min(left, chunk)])
			return err
		})
		if err == io.EOF {
			err = ErrChanged
		}
		if err != nil {
			return &EntryError{name, err}
		}
		if _, err := p.tar.Write(p.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}
