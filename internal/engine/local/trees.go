package local

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/engine/local/launch"
)

// shown is what a sandbox sees of the host, and nothing else: programs, what
// configures them, and what package managers know of them.
var shown = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store", "/gnu/store",
	"/var/lib/dpkg", "/var/lib/apt", "/var/lib/rpm", "/var/lib/pacman",
}

// masked are the trees in which what others may not read is hidden from root.
// The rest is as packages made it, for all to read.
var masked = []string{"/etc", "/opt"}

// maxLook is how many entries of a tree are looked at. One that has more is not shown.
const maxLook = 100_000

// links are the host's shown directories that are symbolic links, by path.
func links() map[string]string {
	found := make(map[string]string)
	for _, path := range shown {
		if to, err := os.Readlink(path); err == nil {
			found[path] = to
		}
	}
	return found
}

// findTrees lists what there is to show, and, for root, makes the masks in a new
// directory dir. The paths of masks are relative to a sandbox's directory. watch
// is called with each directory before it is looked at.
func findTrees(v *view, dir string, watch func(dir string)) ([]launch.Tree, error) {
	var trees []launch.Tree
	for _, path := range v.shown {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() {
			continue
		}
		t := launch.Tree{Path: path}
		if v.root {
			mask := filepath.Join(dir, launch.Key(path))
			if err := os.MkdirAll(mask, 0o755); err != nil {
				return nil, err
			}
			if slices.Contains(v.masked, path) {
				m := masker{tree: path, mask: mask, watch: watch}
				err := m.look(path, 0)
				if errors.Is(err, errTooMuch) {
					continue
				}
				if err != nil {
					return nil, err
				}
			}
			t.Mask = filepath.Join("..", "..", masksDir, filepath.Base(dir), launch.Key(path))
		}
		trees = append(trees, t)
	}
	return trees, nil
}

var errTooMuch = errors.New("too much to look through")

// masker makes a layer of an overlay that hides what others may not read.
type masker struct {
	tree, mask string
	watch      func(dir string)
	looked     int
}

func (m *masker) look(dir string, depth int) error {
	m.watch(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if m.looked += len(entries); m.looked > maxLook || depth > 64 {
		return errTooMuch
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			continue // gone meanwhile
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
		case unix.S_IFDIR:
			if st.Mode&0o005 != 0o005 {
				err = m.hide(path)
			} else {
				err = m.look(path, depth+1)
			}
		default:
			if st.Mode&0o004 == 0 {
				err = m.hide(path)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hide makes a whiteout, by which an overlay takes a name out of the layers
// below, in a directory like the one that it is in. The password files are there, without
// passwords: tools that add users want them.
func (m *masker) hide(path string) error {
	rel := strings.TrimPrefix(path, m.tree)
	at := m.mask
	for name := range strings.SplitSeq(strings.Trim(filepath.Dir(rel), "/"), "/") {
		if name == "" || name == "." {
			break
		}
		at = filepath.Join(at, name)
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(m.tree, strings.TrimPrefix(at, m.mask)), &st); err != nil {
			return err
		}
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := errors.Join(os.Chown(at, int(st.Uid), int(st.Gid)), unix.Chmod(at, st.Mode&0o7777)); err != nil {
			return err
		}
	}
	to := filepath.Join(m.mask, rel)
	switch path {
	case "/etc/shadow":
		return os.WriteFile(to, locked("/etc/passwd", ":*:19000:0:99999:7:::"), 0o640)
	case "/etc/gshadow":
		return os.WriteFile(to, locked("/etc/group", ":*::"), 0o640)
	}
	return unix.Mknod(to, unix.S_IFCHR, 0)
}

// locked has a line for each entry of a file, that lets nobody in.
func locked(file, rest string) []byte {
	b, _ := os.ReadFile(file)
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if name, _, ok := strings.Cut(line, ":"); ok && name != "" {
			out.WriteString(name + rest + "\n")
		}
	}
	return []byte(out.String())
}

// resolver is the host's resolver configuration where /etc only points to it,
// into what sandboxes do not see.
func resolver() map[string]string {
	const conf = "/etc/resolv.conf"
	target, err := filepath.EvalSymlinks(conf)
	if err != nil || !strings.HasPrefix(target, "/run/") {
		return nil
	}
	b, err := os.ReadFile(target)
	if err != nil {
		return nil
	}
	// By the name that the link has, which may go through a link itself.
	if to, err := os.Readlink(conf); err == nil {
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(conf), to)
		}
		if to = filepath.Clean(strings.Replace(to, "/var/run/", "/run/", 1)); strings.HasPrefix(to, "/run/") {
			target = to
		}
	}
	return map[string]string{target: string(b)}
}

// makeRoot makes a sandbox's root directory: what is not a tree of the host's.
func makeRoot(dir string) error {
	for _, d := range []struct {
		path string
		mode uint32
	}{
		{"", 0o755}, {"dev", 0o755}, {"proc", 0o555}, {"sys", 0o555}, {"run", 0o755}, {"tmp", 0o1777}, {"root", 0o700}, {"home", 0o755},
		{"workspace", 0o755}, {"srv", 0o755}, {"mnt", 0o755}, {"var", 0o755}, {"var/cache", 0o755}, {"var/cache/apt", 0o755},
		{"var/cache/apt/archives", 0o755}, {"var/cache/apt/archives/partial", 0o755}, {"var/lib", 0o755}, {"var/lib/misc", 0o755}, {"var/local", 0o755},
		{"var/log", 0o755}, {"var/log/apt", 0o755}, {"var/mail", 0o755}, {"var/spool", 0o755}, {"var/tmp", 0o1777},
		{".sandkeeper", 0o755}, {".sandkeeper/bin", 0o755}, {".sandkeeper/link", 0o755},
	} {
		path := filepath.Join(dir, d.path)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := unix.Chmod(path, d.mode); err != nil {
			return err
		}
	}
	symlinks := map[string]string{"/var/run": "/run", "/var/lock": "/run/lock"}
	maps.Copy(symlinks, links())
	for path, to := range symlinks {
		at := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(to, at); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
