package pid1

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Shell state is what carries over between shell commands, as in a terminal:
// the working directory and exported variables. A shell is given a memory file,
// apart from its output, in which its exit trap writes what it exports.
//
// A command that replaces that trap and then calls exit, or that replaces the
// shell by exec, leaves the state as it was.

// shell is what runs shell text.
type shell struct {
	path string
	fd   int    // of the memory file: bash alone can write to numbers beyond 9
	trap string // put before the text, on its first line, so that line numbers stay right
}

// The traps first silence themselves: `set -x` must not show them. PWD is
// exported so that it is among what is written.
const (
	endMark  = "#end\n"
	bashTrap = `trap '{ set +x; export PWD; builtin export -p >&19; builtin echo "#end" >&19; } 2>/dev/null' EXIT; `
	shTrap   = `trap '{ set +x; export PWD; export -p >&8; echo "#end" >&8; } 2>/dev/null' EXIT; `
)

// A bash with an exit trap catches what would end it, to run the trap first, and
// then misses a signal that comes between a fork and the wait for it: neither
// the shell nor what it runs would end. Trapping these signals before the exit
// trap and letting go after it leaves them as in a bash without one. A text with
// traps of its own keeps bash's way, since its exit trap may count on it.
const (
	bashFatal     = "HUP INT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU XFSZ VTALRM PROF SYS"
	bashPlainTrap = "trap : " + bashFatal + "; " + bashTrap + "trap - " + bashFatal + "; "
)

// with puts the shell's trap before a text.
func (s shell) with(text string) string {
	if s.trap == bashTrap && !strings.Contains(text, "trap") {
		return bashPlainTrap + text
	}
	return s.trap + text
}

// findShell finds bash, or else sh, in the usual places and then in a PATH.
func findShell(path string) (shell, bool) {
	for _, s := range []shell{{"bash", 19, bashTrap}, {"sh", 8, shTrap}} {
		for _, dir := range append([]string{"/bin", "/usr/bin", "/usr/local/bin"}, filepath.SplitList(path)...) {
			p := filepath.Join(dir, s.path)
			if filepath.IsAbs(p) && executable(p) {
				return shell{p, s.fd, s.trap}, true
			}
		}
	}
	return shell{}, false
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// shellState is a committed state; it is never changed in place.
type shellState struct {
	cwd  string // "": the workdir
	vars map[string]carried
}

// carried is one variable that commands changed.
type carried struct {
	value string
	unset bool
}

const maxShellState = 1 << 20 // bytes

// shellStates has the last committed state.
type shellStates struct {
	mu   sync.Mutex
	last *shellState
}

func (s *shellStates) get() *shellState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = &shellState{}
	}
	return s.last
}

func (s *shellStates) commit(st *shellState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = st
}

// apply lays a state over an environment; a call's own variables come after it.
func (s *shellState) apply(env map[string]string) {
	for name, c := range s.vars {
		if c.unset {
			delete(env, name)
		} else {
			env[name] = c.value
		}
	}
}

// next returns the state that a shell leaves which started from s in dir with
// env and ended with exported. What a call was given and left as it was counts
// for that call alone.
func (s *shellState) next(dir string, env, exported map[string]string) *shellState {
	n := &shellState{cwd: s.cwd, vars: maps.Clone(s.vars)}
	if n.vars == nil {
		n.vars = make(map[string]carried)
	}
	for name, v := range exported {
		if was, had := env[name]; !shellsOwn(name) && (!had || was != v) {
			n.vars[name] = carried{value: v}
		}
	}
	for name := range env {
		if _, has := exported[name]; !has && !shellsOwn(name) && identifier(name) {
			n.vars[name] = carried{unset: true}
		}
	}
	if pwd := exported["PWD"]; filepath.IsAbs(pwd) && pwd != dir {
		n.cwd = pwd
	}
	size := len(n.cwd)
	for name, c := range n.vars {
		size += len(name) + len(c.value)
	}
	if size > maxShellState {
		return s
	}
	return n
}

// shellsOwn are variables that each shell sets for itself.
func shellsOwn(name string) bool {
	switch name {
	case "_", "SHLVL", "PWD":
		return true
	}
	return false
}

func identifier(s string) bool {
	for i, c := range []byte(s) {
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// newStateFile makes the memory file, nil where the kernel has none.
func newStateFile() *os.File {
	fd, err := unix.MemfdCreate("shell-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "shell-state")
}

// readState reads what a shell exported; ok is false where it did not get to write all.
func readState(f *os.File) (exported map[string]string, ok bool) {
	info, err := f.Stat()
	if err != nil || info.Size() > maxShellState {
		return nil, false
	}
	b := make([]byte, info.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, false
	}
	exported, err = parseExports(string(b))
	return exported, err == nil
}

var errExports = errors.New("malformed export -p")

// parseExports reads the output of `export -p` of bash, dash or ash: lines
// "export NAME='value'" or "declare -FLAGS NAME=\"value\"", and the end mark.
// A name without a value is not in the environment.
func parseExports(s string) (map[string]string, error) {
	vars := make(map[string]string)
	for s != endMark {
		word, rest, ok := strings.Cut(s, " ")
		if !ok {
			return nil, errExports
		}
		array := false
		switch word {
		case "export":
		case "declare":
			var flags string
			if flags, rest, ok = strings.Cut(rest, " "); !ok || !strings.HasPrefix(flags, "-") {
				return nil, errExports
			}
			array = strings.ContainsAny(flags, "aA")
		default:
			return nil, errExports
		}
		i := strings.IndexAny(rest, "=\n")
		if i < 0 {
			return nil, errExports
		}
		name := rest[:i]
		if rest[i] == '\n' {
			s = rest[i+1:]
			continue
		}
		value, after, err := parseWord(rest[i+1:])
		if err != nil {
			return nil, err
		}
		if !array && identifier(name) {
			vars[name] = value
		}
		s = after
	}
	return vars, nil
}

// parseWord reads a shell word as shells quote values, up to the end of its line.
func parseWord(s string) (word, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); {
		switch c := s[i]; {
		case c == '\n':
			return b.String(), s[i+1:], nil
		case c == '\'':
			end := strings.IndexByte(s[i+1:], '\'')
			if end < 0 {
				return "", "", errExports
			}
			b.WriteString(s[i+1 : i+1+end])
			i += end + 2
		case c == '"':
			for i++; ; i++ {
				if i >= len(s) {
					return "", "", errExports
				}
				if s[i] == '"' {
					i++
					break
				}
				if s[i] == '\\' && i+1 < len(s) && strings.IndexByte("$`\"\\\n", s[i+1]) >= 0 {
					i++
				}
				b.WriteByte(s[i])
			}
		case c == '$' && strings.HasPrefix(s[i:], "$'"):
			n, err := parseANSI(&b, s[i+2:])
			if err != nil {
				return "", "", err
			}
			i += 2 + n
		case c == '\\' && i+1 < len(s):
			b.WriteByte(s[i+1])
			i += 2
		default:
			b.WriteByte(c)
			i++
		}
	}
	return "", "", errExports
}

// parseANSI reads the rest of a $'…', and returns its length.
func parseANSI(b *strings.Builder, s string) (int, error) {
	const escapes, means = `abefnrtvE\'"?`, "\a\b\x1b\f\n\r\t\v\x1b\\'\"?"
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' {
			return i + 1, nil
		}
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		if i++; i == len(s) {
			break
		}
		if at := strings.IndexByte(escapes, s[i]); at >= 0 {
			b.WriteByte(means[at])
			continue
		}
		if s[i] < '0' || s[i] > '7' {
			b.WriteByte('\\')
			b.WriteByte(s[i])
			continue
		}
		v, j := 0, i
		for ; j < len(s) && j < i+3 && s[j] >= '0' && s[j] <= '7'; j++ {
			v = v<<3 | int(s[j]-'0')
		}
		b.WriteByte(byte(v))
		i = j - 1
	}
	return 0, errExports
}

// isDir asks as a user whether a directory is there to be entered.
func isDir(u *User, path string) error {
	return u.do(func() error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return &fs.PathError{Op: "chdir", Path: path, Err: unix.ENOTDIR}
		}
		_, err = os.Stat(path + "/.") // needs the right to enter
		return err
	})
}
