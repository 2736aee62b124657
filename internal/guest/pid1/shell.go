package pid1

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Shell state is what carries over between shell commands, as in a terminal:
// the working directory and exported variables, with bash functions and aliases
// too. A shell writes it as it exits to a memory file, apart from its output
// (shelltext.go says how).
//
// A command that replaces the shell by exec or is killed leaves the state as it
// was, whole; so does one of sh that leaves by exit with an exit trap set by
// other means than the word trap, and one whose state is beyond maxShellState.

// shell is what runs shell text.
type shell struct {
	path string
	bash bool
}

// findShell finds bash, or else sh, in the usual places and then in a PATH.
func findShell(path string) (shell, bool) {
	for _, name := range []string{"bash", "sh"} {
		for _, dir := range append([]string{"/bin", "/usr/bin", "/usr/local/bin"}, filepath.SplitList(path)...) {
			p := filepath.Join(dir, name)
			if filepath.IsAbs(p) && executable(p) {
				return shell{path: p, bash: name == "bash"}, true
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
	cwd       string // "": the workdir
	vars      map[string]carried
	functions string // with aliases, as bash text
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
// env and ended as left. What a call was given and left as it was counts for
// that call alone.
func (s *shellState) next(dir string, env map[string]string, left *leftState) *shellState {
	n := &shellState{cwd: s.cwd, vars: maps.Clone(s.vars), functions: s.functions}
	if n.vars == nil {
		n.vars = make(map[string]carried)
	}
	for name, v := range left.exported {
		// What saves the state sets POSIXLY_CORRECT to nothing, which a set -a exports.
		if was, had := env[name]; !shellsOwn(name) && (name != "POSIXLY_CORRECT" || v != "") && (!had || was != v) {
			n.vars[name] = carried{value: v}
		}
	}
	for name := range env {
		if _, has := left.exported[name]; !has && !shellsOwn(name) && identifier(name) {
			n.vars[name] = carried{unset: true}
		}
	}
	if left.cwd != dir {
		n.cwd = left.cwd
	}
	if left.bash {
		n.functions = left.functions
	}
	size := len(n.cwd) + len(n.functions)
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
