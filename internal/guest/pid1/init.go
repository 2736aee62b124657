package pid1

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/keeper"
	"sandkeeper/internal/guest/link"
)

// Variable holds the Config in the environment of PID 1. No command sees it.
const Variable = "SANDKEEPER_GUEST"

// Config is what the engine tells the guest.
type Config struct {
	User    string `json:"user"`    // the image's USER; "" is root
	Workdir string `json:"workdir"` // from which relative paths count
	Link    string `json:"link"`    // the directory of the socket; it may be missing
}

const (
	workspace = "/workspace"
	maxProcs  = 4 // it moves bytes; more would be threads of the sandbox's limit
	// A little less than the engine waits before it kills, so that the end is ours.
	stopGrace = 1900 * time.Millisecond
	exitTERM  = 128 + int(unix.SIGTERM)
)

// Main is the life of PID 1; it returns the exit code after a SIGTERM.
func Main() int {
	cfg, env, err := readEnvironment(os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper: "+err.Error())
		return 2
	}
	return Prepare().run(cfg, env)
}

// Prepared is a process that is ready to be PID 1.
type Prepared struct {
	term    <-chan os.Signal
	keepers *keepers
	keeper  *keeper.Handle // one of them that runs already, and rests; nil: there is none
}

// Adopt takes a keeper that was started before PID 1 was one.
func (p *Prepared) Adopt(h *keeper.Handle) {
	p.keepers.attend(h)
	p.keeper = h
}

// Prepare readies this process: it swallows signals, reaps, and has its threads.
func Prepare() *Prepared {
	// Small: what it keeps is bounded, and a sandbox may have little memory.
	debug.SetGCPercent(30)
	if runtime.NumCPU() > maxProcs {
		runtime.GOMAXPROCS(maxProcs)
	}
	unix.Umask(0o022)
	term := handleSignals()
	stockThreads()
	return &Prepared{term: term, keepers: newKeepers(spawnKeeper)}
}

// Run is the life of PID 1 from there on, with a Config as JSON and the
// environment that commands get. It returns the exit code after a SIGTERM.
func (p *Prepared) Run(config []byte, environ []string) int {
	_, env, err := readEnvironment(environ)
	var cfg Config
	if err == nil {
		err = json.Unmarshal(config, &cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sandkeeper: "+err.Error())
		return 2
	}
	return p.run(cfg, env)
}

func (p *Prepared) run(cfg Config, env map[string]string) int {
	if !filepath.IsAbs(cfg.Workdir) {
		cfg.Workdir = workspace
	}
	g := newGuest(cfg, env, p.keepers)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	serve := func(c io.ReadWriteCloser) { g.Serve(ctx, c) }
	if cfg.Link != "" {
		wg.Go(func() { link.DialIn(ctx, cfg.Link, serve) })
	}
	wg.Go(func() {
		if err := link.ServeAttached(ctx, os.Stdin, os.Stdout, serve); err != nil {
			fmt.Fprintln(os.Stderr, "sandkeeper: attach: "+err.Error())
		}
	})
	if p.keeper != nil {
		p.keepers.put(p.keeper)
	} else {
		p.keepers.prepare()
	}

	<-p.term
	g.runner.stop(stopGrace)
	return exitTERM
}

// spareThreads is what the guest may need at once: calls that wait in the file
// system (maxFileCalls), the start of a keeper, and a few of the runtime's own.
const spareThreads = maxFileCalls + 6

// stockThreads makes the threads that will be needed, which the runtime keeps.
// It would end the process where it cannot make one, as in a sandbox whose
// commands have used up its limit of processes.
func stockThreads() {
	var all, there sync.WaitGroup
	there.Add(spareThreads)
	for range spareThreads {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			there.Done()
			there.Wait() // all at once, so that each has its own
		})
	}
	all.Wait()
}

// readEnvironment takes the guest's own variable out of an environment.
func readEnvironment(environ []string) (cfg Config, env map[string]string, err error) {
	env = make(map[string]string, len(environ))
	for _, kv := range environ {
		if name, v, ok := strings.Cut(kv, "="); ok && name != "" {
			env[name] = v
		}
	}
	if v := env[Variable]; v != "" {
		if err := json.Unmarshal([]byte(v), &cfg); err != nil {
			return cfg, nil, fmt.Errorf("%s: %w", Variable, err)
		}
	}
	delete(env, Variable)
	return cfg, env, nil
}

// handleSignals swallows what would end the guest, reaps, and returns what gets
// the first SIGTERM. Channels of one are enough: a signal that finds its channel
// full is one that is still to be seen to.
func handleSignals() (term <-chan os.Signal) {
	child, stop, swallowed := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	for s := unix.Signal(1); s < 65; s++ {
		switch s {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGURG, unix.SIGPROF: // not to be caught; Go's own
		case unix.SIGCHLD:
			signal.Notify(child, s)
		case unix.SIGTERM:
			signal.Notify(stop, s)
		default:
			signal.Notify(swallowed, s)
		}
	}
	go func() {
		for range child {
			reap()
		}
	}()
	return stop
}

// reap takes the end of every dead child: keepers, and what came to PID 1 by
// losing its parents.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}

func spawnKeeper() (*keeper.Handle, error) {
	return keeper.Spawn("/proc/self/exe", []string{"GOMAXPROCS=1", "GODEBUG=madvdontneed=1"})
}

func newGuest(cfg Config, env map[string]string, k *keepers) *Guest {
	passwd, _ := os.ReadFile("/etc/passwd")
	group, _ := os.ReadFile("/etc/group")
	user, err := LookupUser(cfg.User, string(passwd), string(group))
	if err != nil {
		// Nothing runs as somebody else instead: commands say what is wrong.
		user = User{UID: 65534, GID: 65534, Home: "/"}
	}
	setIdentity(env, &user)
	if err == nil {
		for _, dir := range []string{workspace, cfg.Workdir} {
			giveFresh(dir, &user)
		}
	}
	r := newRunner(&user, cfg.Workdir, env, k)
	r.userErr, r.oom = err, openOOMCounter()
	return &Guest{run: rand.Text(), runner: r, files: newFiles(&user, cfg.Workdir)}
}

// setIdentity sets HOME and USER. The engine starts the guest as root, and gives
// it root's HOME where the image says none: that one is no choice of the image's.
func setIdentity(env map[string]string, u *User) {
	if home, ok := env["HOME"]; !ok || u.UID != 0 && (home == "/root" || home == "/") {
		env["HOME"] = u.Home
	}
	if _, ok := env["USER"]; !ok && u.Name != "" {
		env["USER"] = u.Name
	}
}

// giveFresh makes a directory where it is missing, and gives it to the user if
// it is root's and holds nothing: then the engine has just made it. Where it
// cannot, commands find out.
func giveFresh(dir string, u *User) {
	if _, err := os.Lstat(dir); os.IsNotExist(err) {
		if os.MkdirAll(dir, 0o755) != nil {
			return
		}
	}
	if u.UID == 0 {
		return
	}
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != 0 {
		return
	}
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	if names, err := d.Readdirnames(1); err == io.EOF && len(names) == 0 {
		d.Chown(int(u.UID), int(u.GID))
	}
}
