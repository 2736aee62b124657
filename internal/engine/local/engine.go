package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
	"sandkeeper/internal/engine/local/launch"
)

// Options configures an Engine.
type Options struct {
	Instance     string // names the installation; sandboxes' names begin with it
	DataDir      string // all of the engine is in DataDir/local
	Binary       func(goarch string) ([]byte, error)
	Log          *slog.Logger
	ReadOnlyRoot bool // sandboxes may write to /workspace, /root and /tmp alone
	PruneOnly    bool // nothing will be started, so it need not be possible

	StopGrace time.Duration // between TERM and KILL: 2 s
	LinkWait  time.Duration // for a guest to dial in: 10 s
}

// The directories in DataDir/local.
const (
	sandboxesDir = "sandboxes"
	masksDir     = "masks"
	binDir       = "bin"
	stageDir     = "stage" // empty; builders mount on it, each in its own mount namespace
)

// Engine is this machine, for one instance.
type Engine struct {
	opts   Options
	dir    string // DataDir/local
	log    *slog.Logger
	can    abilities
	view   *view
	bin    binary
	events journal
	stock  *stock

	once    sync.Once
	closing chan struct{}  // closed by Close, first of all
	filling sync.WaitGroup // who fills the stock

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // those who wait for ends of runs

	mu    sync.Mutex // guards the field below
	boxes map[string]*box
}

var _ engine.Engine = (*Engine)(nil)

// abilities are what this machine lets us do, as tried.
type abilities struct {
	root     bool // we are; else sandboxes are in user namespaces of their own
	writable bool // changes to the root file system are kept
	network  bool // a network of its own can be had
	groups   groups
}

var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,199}$`)

// New opens the engine: it finds what this machine can do by doing it once, and
// takes over the sandboxes that are there. Where namespaces cannot be had it
// fails, and says what to do.
func New(ctx context.Context, opts Options) (*Engine, error) {
	if !validName.MatchString(opts.Instance) {
		return nil, fmt.Errorf("instance %q: letters, digits, dots, dashes and underscores only", opts.Instance)
	}
	opts.StopGrace = cmp.Or(opts.StopGrace, 2*time.Second)
	opts.LinkWait = cmp.Or(opts.LinkWait, 10*time.Second)
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(opts.DataDir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	e := &Engine{opts: opts, dir: filepath.Join(dir, "local"), log: opts.Log, boxes: make(map[string]*box), stock: newStock(), closing: make(chan struct{})}
	e.can.root = os.Geteuid() == 0
	e.ctx, e.cancel = context.WithCancel(context.Background())
	for _, d := range []string{e.dir, e.path(sandboxesDir), e.path(masksDir), e.path(binDir), e.path(stageDir)} {
		// Nobody but us gets past it: what sandboxes leave there may be set-user-ID.
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		if err := os.Chmod(d, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	e.bin.dir = e.path(binDir)
	e.view = newView(e.path(masksDir), e.can.root, e.log)
	e.can.groups = findGroups(opts.Instance, e.can.root)
	if found := e.can.groups; !opts.PruneOnly {
		if err := e.try(ctx); err != nil {
			e.Close()
			// What a half built sandbox left in the groups may never go.
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return nil, errors.Join(err, found.removeAll(ctx))
		}
	}
	if err := e.load(ctx); err != nil {
		e.Close()
		return nil, err
	}
	if !opts.PruneOnly {
		e.stock.expect(e.kind("default"))
		e.filling.Go(e.keepStock)
	}
	return e, nil
}

func (e *Engine) path(names ...string) string {
	return filepath.Join(append([]string{e.dir}, names...)...)
}

// ErrNoIsolation is New's where this machine has no namespaces for sandboxes to be in.
var ErrNoIsolation = errors.New("the engine \"local\" cannot isolate sandboxes on this machine, and runs none without")

// probeAgain is how often a probe that failed is made again.
const probeAgain = 2

// try finds what this machine can do, the strongest first.
func (e *Engine) try(ctx context.Context) error {
	if err := e.bin.install(e.opts.Binary); err != nil {
		return err
	}
	var first error
	found := e.can.groups
	for _, g := range []groups{found, {}} {
		for _, writable := range []bool{true, false} {
			if writable && (!e.can.root || e.opts.ReadOnlyRoot) {
				continue
			}
			for _, network := range []bool{true, false} {
				e.can.groups, e.can.writable, e.can.network = g, writable, network
				// What is decided here stays, so that it is not for one failure of a busy machine.
				err := e.probe(ctx)
				for range probeAgain {
					if err == nil || ctx.Err() != nil {
						break
					}
					e.log.Debug("probe", "writable_root", writable, "network_none", network, "limits", g.enforces(), "err", err)
					err = e.probe(ctx)
				}
				if err == nil {
					if first != nil {
						e.log.Warn("this machine cannot do all that sandboxes are to have", "writable_root", writable, "network_none", network, "limits", g.enforces(), "err", first)
					}
					if len(g.dirs()) == 0 {
						return found.removeAll(ctx)
					}
					return nil
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
				first = cmp.Or(first, err)
			}
		}
	}
	return fmt.Errorf("%w: %w; %s", ErrNoIsolation, first, e.remedy())
}

// remedy says what to do where namespaces cannot be had.
func (e *Engine) remedy() string {
	var u unix.Utsname
	release := ""
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	if e.can.root {
		return fmt.Sprintf("it needs Linux 5.12 or later (this is %s) and all of root's rights, such as that to mount (CAP_SYS_ADMIN), which containers and some services lack: run the server on the machine itself, or use --engine docker", release)
	}
	return fmt.Sprintf("as an ordinary user it needs Linux 5.12 or later (this is %s) with user namespaces allowed (sysctl kernel.unprivileged_userns_clone=1, "+
		"user.max_user_namespaces above 0, kernel.apparmor_restrict_unprivileged_userns=0): allow them, run the server as root, or use --engine docker", release)
}

// probe builds a sandbox that ends where its guest would begin.
func (e *Engine) probe(ctx context.Context) error {
	name := "sandkeeper-" + e.opts.Instance + "-probe"
	dir, err := os.MkdirTemp(e.path(sandboxesDir), ".probe-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := makeFiles(dir); err != nil {
		return err
	}
	network := "default"
	if e.can.network {
		network = "none"
	}
	spec := control.SandboxSpec{Name: name, Env: "probe", Network: network, Workdir: "/workspace", Limits: control.Limits{CPUs: 1, MemoryMB: 512, Pids: 64}}
	plan, release, err := e.plan(spec, dir, name)
	if err != nil {
		return err
	}
	defer release()
	plan.Probe = true
	s, err := e.newShell(plan.Kind)
	var r *run
	if err == nil {
		r, err = e.launch(ctx, s, plan)
	}
	if err == nil {
		<-r.ended
		var run *launch.Run
		if run, err = launch.ReadRun(dir); err == nil && (run == nil || run.ExitCode != 0) {
			err = errors.New("its first process failed")
		}
	}
	return errors.Join(err, e.can.groups.remove(ctx, name))
}

// Info says how the engine is.
func (e *Engine) Info(ctx context.Context) (control.EngineInfo, error) {
	if err := ctx.Err(); err != nil {
		return control.EngineInfo{}, err
	}
	var u unix.Utsname
	version := runtime.GOOS
	if unix.Uname(&u) == nil {
		version = unix.ByteSliceToString(u.Release[:])
	}
	return control.EngineInfo{Name: "local", Version: version, Isolation: "namespaces", Enforces: e.can.groups.enforces()}, nil
}

// Pull brings no image: there are none.
func (e *Engine) Pull(_ context.Context, image string) error { return noImages(image) }

func noImages(image string) error {
	return fmt.Errorf(`image %q: %w: the engine "local" has no images, sandboxes run on this machine's own programs; ask for none, or use the engine "docker"`, image, control.ErrImageUnavailable)
}

// Close lets go of the sandboxes, which go on.
func (e *Engine) Close() error {
	e.once.Do(func() { close(e.closing) })
	e.filling.Wait()
	e.clearStock()
	e.view.close()
	e.cancel()
	e.wg.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	running := false
	for _, b := range e.boxes {
		errs = append(errs, b.unlisten())
		running = running || b.run != nil
	}
	if !running {
		// The next server makes them anew. Who is still in one keeps it.
		ctx, cancel := context.WithTimeout(context.Background(), groupsWait)
		defer cancel()
		if err := e.can.groups.removeAll(ctx); err != nil {
			e.log.Debug("control groups stay", "err", err)
		}
	}
	return errors.Join(errs...)
}
