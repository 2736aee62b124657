package pid1

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// newStateFile makes the memory file that begins with what the shell is given;
// nil where the kernel has none. Every write goes to its end.
func newStateFile(given string) *os.File {
	fd, err := unix.MemfdCreate("shell-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "shell-state")
	if given != "" {
		if _, err := f.WriteAt([]byte(given), 0); err != nil {
			f.Close()
			return nil
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND|unix.O_RDWR); err != nil {
		f.Close()
		return nil
	}
	return f
}

// leftState is what a shell wrote of its state as it exited.
type leftState struct {
	exported  map[string]string
	cwd       string
	bash      bool
	functions string // and aliases; of bash alone
}

// readState reads what a shell wrote behind what it was given; nil where it did
// not get to write all.
func readState(f *os.File, given int) *leftState {
	info, err := f.Stat()
	if err != nil || info.Size() > maxShellState+int64(given) {
		return nil
	}
	b, err := io.ReadAll(io.NewSectionReader(f, int64(given), info.Size()-int64(given)))
	if err != nil {
		return nil
	}
	left, err := parseState(string(b))
	if err != nil {
		return nil
	}
	return left
}

// The lines between the parts of a state.
const (
	stateMark     = "#state\n"
	cwdMark       = "#cwd\n"
	functionsMark = "#functions\n"
	endMark       = "#end\n"
)

var errState = errors.New("malformed shell state")

// parseState reads a whole state: behind its mark exports, the working directory, with bash its
// functions and aliases as text, and the end mark as the last line.
func parseState(s string) (*leftState, error) {
	_, s, ok := strings.Cut(s, stateMark) // ahead of it is what the text may have written
	if !ok {
		return nil, errState
	}
	exported, rest, err := parseExports(s)
	if err != nil {
		return nil, err
	}
	if rest, ok = strings.CutSuffix(rest, endMark); !ok {
		return nil, errState
	}
	left := &leftState{exported: exported}
	rest, left.functions, left.bash = strings.Cut(rest, "\n"+functionsMark)
	if !left.bash {
		if rest, ok = strings.CutSuffix(rest, "\n"); !ok {
			return nil, errState
		}
	}
	left.cwd, left.functions = rest, strings.Replace(left.functions, statusFunction, "", 1)
	if !filepath.IsAbs(left.cwd) || strings.IndexByte(rest+left.functions, 0) >= 0 {
		return nil, errState
	}
	return left, nil
}

// parseExports reads the output of `export -p` of bash, dash or ash, up to the
// mark behind it: lines "export NAME='value'" or "declare -FLAGS NAME=\"value\"".
// A name without a value is not in the environment.
func parseExports(s string) (vars map[string]string, rest string, err error) {
	vars = make(map[string]string)
	for {
		if rest, ok := strings.CutPrefix(s, cwdMark); ok {
			return vars, rest, nil
		}
		word, rest, ok := strings.Cut(s, " ")
		if !ok || word != "export" && word != "declare" {
			return nil, "", errState
		}
		array := false
		if strings.HasPrefix(rest, "-") {
			var flags string
			if flags, rest, ok = strings.Cut(rest, " "); !ok {
				return nil, "", errState
			}
			array = strings.ContainsAny(flags, "aA")
		} else if word == "declare" {
			return nil, "", errState
		}
		i := strings.IndexAny(rest, "=\n")
		if i < 0 {
			return nil, "", errState
		}
		name := rest[:i]
		if rest[i] == '\n' {
			s = rest[i+1:]
			continue
		}
		value, after, err := parseWord(rest[i+1:])
		if err != nil {
			return nil, "", err
		}
		if strings.IndexByte(value, 0) >= 0 { // no variable can have it
			return nil, "", errState
		}
		if !array && identifier(name) {
			vars[name] = value
		}
		s = after
	}
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
				return "", "", errState
			}
			b.WriteString(s[i+1 : i+1+end])
			i += end + 2
		case c == '"':
			for i++; ; i++ {
				if i >= len(s) {
					return "", "", errState
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
	return "", "", errState
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
	return 0, errState
}
