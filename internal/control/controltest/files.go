package controltest

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sandkeeper/internal/control"
)

// tree is a sandbox's file system: it outlives its runs, and what is below
// /workspace outlives a removal that keeps the workspace.
type tree struct {
	nodes map[string]*node // by absolute path
}

type node struct {
	data  []byte
	mode  fs.FileMode
	mtime time.Time
}

func (n *node) info(name string) control.FileInfo {
	kind := "file"
	if n.mode.IsDir() {
		kind = "dir"
	}
	return control.FileInfo{Name: path.Base(name), Type: kind, Size: int64(len(n.data)), Mode: n.mode.Perm(), MTime: n.mtime}
}

func newTree() *tree {
	t := &tree{nodes: map[string]*node{}}
	t.mkdirs("/tmp")
	t.mkdirs("/workspace")
	return t
}

func (t *tree) dropRoot() {
	maps.DeleteFunc(t.nodes, func(p string, _ *node) bool { return !below("/workspace", p) })
	t.mkdirs("/tmp")
}

func below(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

func (t *tree) mkdirs(p string) {
	for ; t.nodes[p] == nil; p = path.Dir(p) {
		t.nodes[p] = &node{mode: fs.ModeDir | 0o755, mtime: time.Now()}
	}
}

func refuse(errno, p, why string) error {
	return &control.FileError{Errno: errno, Message: p + ": " + why}
}

func (t *tree) find(p string) (*node, error) {
	if n := t.nodes[p]; n != nil {
		return n, nil
	}
	return nil, refuse("ENOENT", p, "no such file or directory")
}

func (t *tree) read(p string, offset int64, length int) (c control.FileChunk, err error) {
	n, err := t.find(p)
	if err != nil {
		return c, err
	}
	if n.mode.IsDir() {
		return c, refuse("EISDIR", p, "is a directory")
	}
	from := min(max(offset, 0), int64(len(n.data)))
	to := min(from+int64(length), int64(len(n.data)))
	return control.FileChunk{
		Data: slices.Clone(n.data[from:to]), Size: int64(len(n.data)), Mode: n.mode, MTime: n.mtime, EOF: to == int64(len(n.data)),
	}, nil
}

func (t *tree) write(p string, w control.FileWrite) (int64, error) {
	if w.Mkdirs {
		t.mkdirs(path.Dir(p))
	}
	if err := t.inDir(p); err != nil {
		return 0, err
	}
	n := t.nodes[p]
	if n == nil {
		n = &node{mode: 0o644}
		t.nodes[p] = n
	}
	if n.mode.IsDir() {
		return 0, refuse("EISDIR", p, "is a directory")
	}
	if !w.Append {
		n.data = nil
	}
	n.data = append(n.data, w.Data...)
	n.mtime = time.Now()
	if w.Mode != nil {
		n.mode = *w.Mode
	}
	return int64(len(n.data)), nil
}

// inDir wants the parent of a path to be a directory.
func (t *tree) inDir(p string) error {
	dir, err := t.find(path.Dir(p))
	if err != nil {
		return err
	}
	if !dir.mode.IsDir() {
		return refuse("ENOTDIR", p, "not a directory")
	}
	return nil
}

func (t *tree) list(p string) (infos []control.FileInfo, err error) {
	n, err := t.find(p)
	if err != nil {
		return nil, err
	}
	if !n.mode.IsDir() {
		return nil, refuse("ENOTDIR", p, "not a directory")
	}
	for _, child := range slices.Sorted(maps.Keys(t.nodes)) {
		if child != p && path.Dir(child) == p {
			infos = append(infos, t.nodes[child].info(child))
		}
	}
	return infos, nil
}

func (t *tree) remove(p string, recursive bool) error {
	if _, err := t.find(p); err != nil {
		return err
	}
	inside := func(q string) bool { return q != p && below(p, q) }
	if !recursive {
		for q := range t.nodes {
			if inside(q) {
				return refuse("ENOTEMPTY", p, "directory not empty")
			}
		}
	}
	maps.DeleteFunc(t.nodes, func(q string, _ *node) bool { return q == p || inside(q) })
	return nil
}

func (t *tree) mkdir(p string, recursive bool) error {
	if recursive {
		t.mkdirs(p)
		return nil
	}
	if t.nodes[p] != nil {
		return refuse("EEXIST", p, "file exists")
	}
	if err := t.inDir(p); err != nil {
		return err
	}
	t.mkdirs(p)
	return nil
}
