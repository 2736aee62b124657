package pid1

import (
	"regexp"
	"strings"
)

// A shell runs something of ours ahead of its text: an exit trap that saves the
// state. It gets the state file as number 9, and neither the text nor what it
// starts shall write to that by accident, or close it. A shell that closes a
// number for a group of commands keeps a close-on-exec copy meanwhile. In sh the
// text is such a group. In bash a copy of that copy is close-on-exec too, and
// stays under a number that nobody uses.
//
// What a text may have redefined must not matter: a word behind a backslash is no
// alias, and no function stands before a special builtin, in bash once it is
// strict about POSIX. So a function called builtin (in sh: command) is not carried.

const stateFD = 9

const (
	shSave = `\command echo "#state" >&9; \export -p >&9; \command echo "#cwd" >&9; \command pwd >&9; \command echo "#end" >&9`
	shTail = `{ eval "shift; $1"; } 9>&-`
)

const (
	bashSave = `\builtin echo "#state" >&77; \builtin export -p >&77; \builtin echo "#cwd" >&77; \builtin pwd >&77; \builtin echo "#functions" >&77; ` +
		`\builtin declare -f >&77; \builtin declare -Fx >&77; \builtin alias -p >&77; \builtin echo "#end" >&77`

	// A function that calls exit is still there as bash runs the trap. What is local
	// to functions is laid aside first, until each exported variable is the one
	// marked as global (-t).
	bashAside = `__sandkeeper() { \builtin local _v _i IFS=$'\n'; ` +
		`for _v in $(\builtin compgen -e); do \builtin declare -gt "$_v"; ` +
		`for ((_i = ${#FUNCNAME[@]}; _i > 0; _i--)); do [[ ${!_v@a} != *t* ]] || \builtin break; \builtin unset -v "$_v"; done; done; }; ` +
		`\__sandkeeper; \builtin unset -f __sandkeeper; `

	// statusFunction is what a bash with a trap of its own may list beside its own functions.
	statusFunction = "__sandkeeper () \n{ \n    return $1\n}\n"

	// As in a terminal, aliases count from the line after their definition on.
	bashAliases = "shopt -s expand_aliases; "
	bashKeepFD  = "exec 10>&-; { exec 77>&10; } 9>&-; exec 9>&-; " // 10 is the first number for a copy
)

// A bash with an exit trap catches what would end it, to run the trap first, and
// then misses a signal that comes between a fork and the wait for it: neither
// the shell nor what it runs would end. Trapping these signals before the exit
// trap and letting go after it leaves them as in a bash without one. A text with
// traps of its own keeps bash's way, since its exit trap may count on it.
const bashFatal = "HUP INT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM XCPU XFSZ VTALRM PROF SYS"

// The exit traps. What they say goes nowhere.
var (
	shExit   = "trap " + quote(`{ \set +e; \unset -f command; `+shSave+"; } >&- 2>&-") + " EXIT; "
	bashExit = `\builtin trap ` + quote(`{ POSIXLY_CORRECT=${POSIXLY_CORRECT-}; \unset -f builtin; \builtin set +eu; `+
		"[[ -z ${FUNCNAME-} ]] || { "+bashAside+"}; "+bashSave+"; } >&- 2>&-") + " EXIT; "
	bashPlain = `\builtin trap : ` + bashFatal + "; " + bashExit + `\builtin trap - ` + bashFatal + "; "
)

// An exit trap of the text's own replaces ours. Where the text may set one, the
// word trap is ours, and has the state saved before it. That trap shall find all
// as it was: $? too, which it gets from us, and what is local to functions.
var (
	bashOwnTrap = strings.NewReplacer(
		"BEFORE", quoteLine(`{ __sandkeeper=$?; \builtin unset -f trap; } 2>&-; if { if [[ ${FUNCNAME-} ]]; then (`+bashAside+bashSave+
			"); else "+bashSave+`; fi; \__sandkeeper $__sandkeeper; } >&- 2>&-; then`+"\n"),
		"BETWEEN", quoteLine("\nelse\n"), "AFTER", quoteLine("\nfi"), "RESET", strings.TrimSuffix(bashExit, "; "),
	).Replace(`__sandkeeper() { return $1; }; trap() { { local -; set +x; } 2>/dev/null; builtin trap "$@" || return; [[ $BASHPID = $$ ]] || return 0; ` +
		`local t; t=$(builtin trap -p EXIT); [[ $t != *'#functions'* ]] || return 0; eval "set -- ${t#trap}"; ` +
		`if [[ ${2-} ]]; then builtin trap BEFORE"$2"BETWEEN"$2"AFTER EXIT; else RESET; fi; }; `)

	shOwnTrap = strings.NewReplacer(
		"BEFORE", quote("{ __sandkeeper=$?; } 2>&-; if { "+shSave+"; _trap =status $__sandkeeper; } >&- 2>&-; then\n"),
		"BETWEEN", quote("\nelse\n"), "AFTER", quote("\nfi"), "RESET", "command "+strings.TrimSuffix(shExit, "; "),
	).Replace(`alias trap=_trap; _trap() { { local - _p _a; set +x; case "${1-}" in =status) return "$2";; esac; } 2>/dev/null; ` +
		`command trap "$@" || return; [ "${1-}" != -- ] || shift; [ $# -gt 1 ] || return 0; ` +
		`_a=$1; read -r _p _ </proc/self/stat; [ "$_p" = $$ ] || return 0; ` +
		`shift; for _p; do case $_p in 0 | EXIT | exit) case $_a in - | "") RESET;; ` +
		`*) command trap BEFORE"$_a"BETWEEN"$_a"AFTER EXIT;; esac;; esac; done; }; `)
)

var exitTrap = regexp.MustCompile(`(?is)\btrap\b.*\b(0|exit)\b`)

// mayTrapExit tells a text that may set an exit trap.
func mayTrapExit(text string) bool {
	return strings.Contains(text, "trap") && exitTrap.MatchString(text)
}

// args are the arguments that run a text and have its state saved at the end.
// functions are those that the shell has by then.
func (s shell) args(text, functions string) []string {
	if !s.bash {
		around := shExit
		if mayTrapExit(text) {
			around += shOwnTrap
		}
		return []string{"sh", "-c", around + shTail, "sh", text}
	}
	ahead := ""
	if functions == "" { // else done before they were there
		ahead = bashAliases + bashKeepFD
	}
	if strings.Contains(text, "trap") || strings.Contains(functions, "trap") {
		ahead += bashExit
	} else {
		ahead += bashPlain
	}
	if (mayTrapExit(text) || mayTrapExit(functions)) && !strings.Contains("\n"+functions, "\ntrap () ") {
		ahead += bashOwnTrap
	}
	return []string{"bash", "-c", ahead + text} // on its first line, so that line numbers stay right
}

// plainArgs are the arguments that run a text alone.
func (s shell) plainArgs(text string) []string {
	if s.bash {
		return []string{"bash", "-c", text}
	}
	return []string{"sh", "-c", text}
}

// A bash loads functions and aliases from the state file, as the file of its
// environment ($BASH_ENV), before it reads the first line of a text. It reads no
// such file where it is strict about POSIX from the start; then it has none.
const (
	bashEnv   = "BASH_ENV"
	stateFile = "/proc/self/fd/9"
)

// loader is the text that loads functions, and before them does what env's own
// file of the environment says. save: and keeps the state file.
func loader(functions string, env map[string]string, save bool) string {
	text := "unset BASH_ENV\n"
	if own, has := env[bashEnv]; has {
		text = "BASH_ENV=" + quote(own) + "\n[[ ! -r $BASH_ENV ]] || . \"$BASH_ENV\"\n"
	}
	if save {
		text = bashKeepFD + "\n" + text
	} else {
		text = "exec 9>&-\n" + text
	}
	return text + bashAliases + "\n" + functions
}

// quote makes one shell word of a text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// quoteLine makes one word of bash, on one line.
func quoteLine(s string) string {
	return "$'" + strings.NewReplacer(`\`, `\\`, "'", `\'`, "\n", `\n`).Replace(s) + "'"
}
