package pid1

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/keeper"
	"sandkeeper/internal/guest/wire"
)

const (
	outputKeptFor = 10 * time.Minute
	maxRecords    = 10_000 // of ended commands; the oldest ended goes first
	maxListed     = 200    // ended commands in a list
	maxDisplay    = 512    // bytes of a command as shown
	defaultPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

var (
	errNoExec   = &wire.Error{Code: wire.CodeNoExec, Message: "no such exec"}
	errStopping = &wire.Error{Code: wire.CodeFailed, Message: "the sandbox is going down"}
)

// runner runs the commands of a sandbox and remembers them.
type runner struct {
	user    *User
	userErr error // why commands cannot be given their user
	env     map[string]string
	workdir string
	oom     oomCounter
	keepers *keepers
	budget  *budget
	spills  *spills
	shells  shellStates
	now     func() time.Time
	wg      sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	stopping bool
	execs    map[string]*execution
	ended    []string // names, oldest ended first
}

func newRunner(user *User, workdir string, env map[string]string, k *keepers) *runner {
	return &runner{user: user, workdir: workdir, env: env, keepers: k, budget: newBudget(), spills: newSpills(user), now: time.Now, execs: make(map[string]*execution)}
}

// start starts a command, unless one of that name was started before.
func (r *runner) start(ctx context.Context, s *wire.Start, stdin []byte) (*wire.Started, error) {
	if s.Exec == "" || (s.Shell == "") == (len(s.Argv) == 0) {
		return nil, &wire.Error{Code: wire.CodeInvalid, Message: "exec, and either sh or argv, are needed"}
	}
	e, existed, err := r.claim(s)
	if err != nil {
		return nil, err
	}
	if !existed {
		if err := r.launch(e, s, stdin); err != nil {
			r.refuse(e, err)
			return nil, err
		}
	}
	select {
	case <-e.started:
		if e.refused != nil {
			return nil, e.refused
		}
		return &wire.Started{PID: e.pid, Existed: existed}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// claim finds the execution of that name, or makes it.
func (r *runner) claim(s *wire.Start) (e *execution, existed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e = r.execs[s.Exec]; e != nil {
		return e, true, nil
	}
	if r.stopping {
		return nil, false, errStopping
	}
	program := ""
	if len(s.Argv) > 0 {
		program = s.Argv[0]
	}
	e = &execution{
		name: s.Exec, command: displayed(s), program: program, background: s.Background, tty: s.TTY != nil,
		timeout: time.Duration(max(s.Timeout, 0)), startedAt: r.now(),
		run: r, output: newOutput(r.budget),
		events: make(chan keeper.Reply, 4), eof: make(chan struct{}),
		started: make(chan struct{}), ended: make(chan struct{}), gone: make(chan struct{}),
	}
	if s.Spill > 0 {
		e.output.out.spill, e.output.err.spill = r.spills.of(s.Exec, s.Spill)
	}
	if s.Join {
		e.expectJoin()
	}
	r.execs[s.Exec] = e
	return e, false, nil
}

// refuse forgets an execution; who waits for it meanwhile is told why.
func (r *runner) refuse(e *execution, err error) {
	r.mu.Lock()
	delete(r.execs, e.name)
	r.mu.Unlock()
	e.refused = err
	close(e.started)
	close(e.ended)
	close(e.gone)
}

// launch starts the command. Its only errors are refusals of the directory.
func (r *runner) launch(e *execution, s *wire.Start, stdin []byte) error {
	var from *shellState
	if s.Shell != "" {
		from = r.shells.get()
	} else {
		from = &shellState{}
	}
	if err := r.chooseDir(e, s, from); err != nil {
		return err
	}
	env := maps.Clone(r.env)
	maps.Copy(env, s.Env)
	from.apply(env)
	maps.Copy(env, s.Variables)
	env["PWD"] = e.dir
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}

	if s.TTY != nil && env["TERM"] == "" {
		env["TERM"] = terminalType
	}

	c := &keeper.Command{Dir: e.dir, Argv: s.Argv, TTY: s.TTY != nil}
	if !r.user.root() {
		c.Switch, c.UID, c.GID, c.Groups = true, r.user.UID, r.user.GID, r.user.Groups
	}
	fail := func(status int, message string) {
		e.output.err.Write([]byte(message + "\n"))
		e.drop(status)
	}
	r.wg.Add(1)
	if r.userErr != nil {
		fail(exitNoExec, "sandkeeper: "+r.userErr.Error())
		return nil //nolint:nilerr // it is the command's own stderr that says so
	}
	if s.Shell != "" {
		sh, ok := findShell(env["PATH"])
		if !ok {
			fail(exitMissing, "sandkeeper: this image has no shell (bash or sh); give a program and its arguments (argv) instead")
			return nil
		}
		e.program = sh.path
		c.Path, c.Argv = sh.path, e.shellArgs(sh, s, from, env)
		if e.shell != nil {
			c.Extra = stateFD
		}
	} else {
		path, errno := lookProgram(s.Argv[0], env["PATH"], e.dir)
		if errno != 0 {
			e.drop(e.explain(errno))
			return nil
		}
		c.Path = path
	}
	c.Env = make([]string, 0, len(env))
	for name, v := range env {
		c.Env = append(c.Env, name+"="+v)
	}
	spawn := e.spawn
	if s.TTY != nil {
		spawn = e.spawnTTY
	}
	if err := spawn(c, s, stdin); err != nil {
		fail(exitNoExec, "sandkeeper: cannot start: "+err.Error())
	}
	return nil
}

// shellArgs are the arguments of the shell that runs a text. Where it loads
// functions or saves its state, it gets a file for that.
func (e *execution) shellArgs(sh shell, s *wire.Start, from *shellState, env map[string]string) []string {
	save, load, functions := !s.Background && s.TTY == nil, "", ""
	if _, posix := env["POSIXLY_CORRECT"]; sh.bash && !posix && from.functions != "" {
		functions = from.functions
		load = loader(functions, env, save)
	}
	if !save && load == "" {
		return sh.plainArgs(s.Shell)
	}
	file := newStateFile(load)
	if file == nil {
		return sh.plainArgs(s.Shell)
	}
	e.shell = &shellRun{from: from, env: maps.Clone(env), file: file, given: len(load), save: save}
	if load != "" {
		env[bashEnv] = stateFile
	}
	if !save {
		return sh.plainArgs(s.Shell)
	}
	return sh.args(s.Shell, functions)
}

// chooseDir decides where the command runs.
func (r *runner) chooseDir(e *execution, s *wire.Start, from *shellState) error {
	workdir := s.Workdir
	if workdir == "" {
		workdir = r.workdir
	}
	if s.Cwd != "" {
		dir := s.Cwd
		if !filepath.IsAbs(dir) {
			base := workdir
			if from.cwd != "" {
				base = from.cwd
			}
			dir = filepath.Join(base, dir)
		}
		e.dir = dir
		return refusal(s.Cwd, isDir(r.user, dir))
	}
	for _, dir := range []string{from.cwd, workdir} {
		if dir == "" {
			continue
		}
		if isDir(r.user, dir) == nil {
			e.dir = dir
			return nil
		}
		if e.cwdLost == "" {
			e.cwdLost = dir
		}
	}
	e.dir = "/"
	return nil
}

// lookProgram finds a program as a shell does.
func lookProgram(name, path, dir string) (string, unix.Errno) {
	if strings.Contains(name, "/") {
		return name, 0 // the kernel says what is wrong with it
	}
	if name == "" {
		return "", unix.ENOENT
	}
	found := unix.ENOENT
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		p := filepath.Join(d, name)
		if executable(p) {
			return p, 0
		}
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			found = unix.EACCES
		}
	}
	return "", found
}

// drop ends an execution that was not started.
func (e *execution) drop(status int) {
	if e.shell != nil {
		e.shell.file.Close()
		e.shell = nil
	}
	close(e.eof)
	close(e.gone)
	go e.supervise(status)
}

// spawn hands the command to a keeper, with pipes.
func (e *execution) spawn(c *keeper.Command, s *wire.Start, stdin []byte) error {
	p, err := openPipes()
	if err != nil {
		return err
	}
	defer p.closeTheirs()
	files := []int{p.in[0], p.out[1], p.err[1]}
	if e.shell != nil {
		files = append(files, int(e.shell.file.Fd()))
	}
	if err := e.handOver(c, files); err != nil {
		p.closeOurs()
		return err
	}
	e.open.Store(2)
	e.output.out.fd, e.output.err.fd = p.out[0], p.err[0]
	go e.drain(os.NewFile(uintptr(p.out[0]), "pipe"), &e.output.out)
	go e.drain(os.NewFile(uintptr(p.err[0]), "pipe"), &e.output.err)
	if s.StdinOpen {
		e.input = newInput(os.NewFile(uintptr(p.in[1]), "stdin"), stdin, false)
	} else {
		feed(p.in[1], stdin)
	}
	go e.supervise(-1)
	return nil
}

// spawnTTY hands the command to a keeper, with a terminal. All that it writes is
// stdout.
func (e *execution) spawnTTY(c *keeper.Command, s *wire.Start, stdin []byte) error {
	t, err := openTerminal(s.TTY, e.run.user)
	if err != nil {
		return err
	}
	defer unix.Close(t.slave)
	typed, err := unix.FcntlInt(uintptr(t.master), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		files := []int{t.slave, t.slave, t.slave}
		if e.shell != nil {
			files = append(files, int(e.shell.file.Fd()))
		}
		if err = e.handOver(c, files); err != nil {
			unix.Close(typed)
		}
	}
	if err != nil {
		unix.Close(t.master)
		return err
	}
	e.open.Store(1)
	e.output.out.fd = t.master
	go e.drain(os.NewFile(uintptr(t.master), "terminal"), &e.output.out)
	e.input = newInput(os.NewFile(uintptr(typed), "terminal"), stdin, true)
	if !s.StdinOpen {
		e.input.finish()
	}
	go e.supervise(-1)
	return nil
}

// handOver gives the command to a keeper.
func (e *execution) handOver(c *keeper.Command, files []int) (err error) {
	e.oomBase, _ = e.run.oom.read()
	// Held until the keeper is known, so that no signal misses it.
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keeper, err = e.run.keepers.start(c, files, func(r keeper.Reply) { e.events <- r })
	return err
}

// find returns the execution of that name.
func (r *runner) find(name string) (*execution, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.execs[name]; e != nil {
		return e, nil
	}
	return nil, errNoExec
}

// wait waits for the end of an execution; out and err are at most limit bytes each.
func (r *runner) wait(ctx context.Context, name string, limit int) (end *wire.End, out, errs []byte, err error) {
	e, err := r.find(name)
	if err != nil {
		return nil, nil, nil, err
	}
	select {
	case <-e.ended:
	case <-ctx.Done():
		return nil, nil, nil, ctx.Err()
	}
	if e.refused != nil {
		return nil, nil, nil, errNoExec
	}
	v := e.end
	limit = min(max(limit, 0), wire.MaxPayload/2)
	out, v.OmittedOut = e.output.out.join(limit)
	errs, v.OmittedErr = e.output.err.join(limit)
	v.Stdout, v.Stderr = len(out), len(errs)
	v.OutputLost = e.output.lost()
	v.FileOut, v.FileErr = e.output.out.spill.file(), e.output.err.spill.file()
	return &v, out, errs, nil
}

// gone waits until nothing of an execution lives.
func (r *runner) gone(ctx context.Context, name string) error {
	e, err := r.find(name)
	if err != nil {
		return err
	}
	select {
	case <-e.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signal sends a signal and returns how many processes of the execution live:
// none after a KILL of its tree, else as counted after 100 ms.
func (r *runner) signal(ctx context.Context, name, sigName string, tree bool) (survivors int, err error) {
	e, err := r.find(name)
	if err != nil {
		return 0, err
	}
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(sigName), "SIG"))
	if sig == 0 {
		return 0, &wire.Error{Code: wire.CodeInvalid, Message: "no such signal"}
	}
	select {
	case <-e.started:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if sig == unix.SIGKILL && tree {
		return 0, e.kill(ctx)
	}
	e.signal(sig, tree)
	t := time.NewTimer(afterSignal)
	defer t.Stop()
	select {
	case <-e.gone:
	case <-t.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return e.count(), nil
}

// list lists what runs, what ended commands left, and what ended lately.
func (r *runner) list() []wire.Exec {
	r.mu.Lock()
	live := make([]*execution, 0, len(r.execs)-len(r.ended))
	for _, e := range r.execs {
		if !e.over {
			live = append(live, e)
		}
	}
	since := r.now().Add(-outputKeptFor)
	for _, name := range slices.Backward(r.ended[max(0, len(r.ended)-maxListed):]) {
		if e := r.execs[name]; e.endedAt.After(since) {
			live = append(live, e)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(live, func(a, b *execution) int { return a.startedAt.Compare(b.startedAt) })
	all := make([]wire.Exec, len(live))
	for i, e := range live {
		all[i] = e.describe()
	}
	return all
}

func (e *execution) describe() wire.Exec {
	w := wire.Exec{
		Exec: e.name, Command: e.command, StartedAt: e.startedAt.UnixNano(),
		Background: e.background, TTY: e.tty, Timeout: int64(e.timeout),
	}
	if done(e.started) {
		w.PID = e.pid
	}
	if !done(e.ended) {
		w.Running = true
		return w
	}
	w.EndedAt, w.ExitCode, w.Left = e.endedAt.UnixNano(), e.end.ExitCode, !done(e.gone)
	return w
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// retire keeps the record of an execution of which nothing is left to happen.
func (r *runner) retire(e *execution) {
	r.budget.end(e.output)
	r.spills.end(e.output.out.spill, e.output.err.spill)
	time.AfterFunc(outputKeptFor, func() { r.budget.drop(e.output) })
	r.mu.Lock()
	defer r.mu.Unlock()
	e.over = true
	r.ended = append(r.ended, e.name)
	if len(r.ended) > maxRecords {
		delete(r.execs, r.ended[0])
		r.ended = r.ended[1:]
	}
}

// alone reports whether no other command ran while e did.
func (r *runner) alone(e *execution) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.execs {
		if o != e && !o.over {
			return false
		}
	}
	if n := len(r.ended); n > 0 {
		if last := r.execs[r.ended[n-1]]; last.endedAt.After(e.startedAt) {
			return false
		}
	}
	return true
}

// stop ends all commands: TERM, up to grace, KILL. Nothing is started any more.
func (r *runner) stop(grace time.Duration) {
	r.mu.Lock()
	r.stopping = true
	var live []*execution
	for _, e := range r.execs {
		if !done(e.gone) {
			live = append(live, e)
		}
	}
	r.mu.Unlock()
	for _, e := range live {
		e.signal(unix.SIGTERM, true)
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	for _, e := range live {
		select {
		case <-e.gone:
		case <-t.C:
			return // the kernel kills what is left with PID 1
		}
	}
}

// displayed is a command as shown to people.
func displayed(s *wire.Start) string {
	text := s.Shell
	if text == "" {
		words := make([]string, len(s.Argv))
		for i, w := range s.Argv {
			words[i] = quoted(w)
		}
		text = strings.Join(words, " ")
	}
	if len(text) <= maxDisplay {
		return text
	}
	n := maxDisplay
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…"
}

func quoted(w string) string {
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-./:=,+@%", c)
	}
	if w != "" && strings.IndexFunc(w, func(c rune) bool { return !plain(c) }) < 0 {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}
