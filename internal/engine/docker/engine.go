package docker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-connections/tlsconfig"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
)

// The ways to a sandbox's guest.
const (
	LinkAuto   = "auto"   // the socket where it can be had, else attach
	LinkSocket = "socket" // the socket alone
	LinkAttach = "attach" // attach alone
)

// Options configures an Engine.
type Options struct {
	Instance     string       // names the installation; only what carries its label is seen
	Host         Host         // where the engine is
	Surroundings Surroundings // where the credentials of registries come from; the zero value is System()
	DataDir      string       // the directories of the guests' sockets are made in it
	Binary       func(goarch string) ([]byte, error)
	Link         string // LinkAuto unless given
	Log          *slog.Logger
	ReadOnlyRoot bool // sandboxes may write to /workspace and /tmp alone

	CallTimeout time.Duration // of a call that only reads: 15 s
	LinkWait    time.Duration // for a guest to dial in before attach is used: 2 s
}

// Engine is one docker engine, for one instance.
type Engine struct {
	api      *api
	opts     Options
	links    string // the directory of the link directories; "" where the engine is on another machine
	log      *slog.Logger
	guest    installer
	facts    facts
	listened listeners

	mu    sync.Mutex // guards the fields below
	known map[string]*sandbox
	runs  map[string]run // by container id, of those that do not run
	bare  bool           // our directories are not on the engine's machine
}

var _ engine.Engine = (*Engine)(nil)

// sandbox is what never changes of a container that was seen to be ours.
type sandbox struct {
	id     string
	image  string // its id
	linked bool   // the link directory is mounted
	seen   time.Time
}

// New makes an Engine. It does not ask the engine, which may come up later.
func New(_ context.Context, opts Options) (*Engine, error) {
	if !validName.MatchString(opts.Instance) {
		return nil, fmt.Errorf("instance %q: letters, digits, dots, dashes and underscores only", opts.Instance)
	}
	opts.Link = cmp.Or(opts.Link, LinkAuto)
	switch opts.Link {
	case LinkAuto, LinkSocket, LinkAttach:
	default:
		return nil, fmt.Errorf("link %q: it is auto, socket or attach", opts.Link)
	}
	opts.CallTimeout = cmp.Or(opts.CallTimeout, 15*time.Second)
	opts.LinkWait = cmp.Or(opts.LinkWait, 2*time.Second)
	if opts.Surroundings.Getenv == nil {
		opts.Surroundings = System()
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	api, err := newAPI(opts.Host)
	if err != nil {
		return nil, fmt.Errorf("docker engine of %s: %w", opts.Host.Why, err)
	}
	e := &Engine{
		api:   api,
		opts:  opts,
		log:   opts.Log,
		known: make(map[string]*sandbox),
		runs:  make(map[string]run),
		guest: newInstaller(),
	}
	if opts.Host.Socket() != "" && opts.Link != LinkAttach {
		dir, err := filepath.Abs(opts.DataDir)
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		e.links = filepath.Join(dir, "links")
	}
	if opts.Link == LinkSocket && e.links == "" {
		return nil, fmt.Errorf("link %q needs an engine on this machine, and %s points at %s", LinkSocket, opts.Host.Why, opts.Host.Address)
	}
	return e, nil
}

func (t *TLS) config() (*tls.Config, error) {
	return tlsconfig.Client(tlsconfig.Options{
		CAFile:             t.CA,
		CertFile:           t.Cert,
		KeyFile:            t.Key,
		InsecureSkipVerify: t.SkipVerify,
		ExclusiveRootPools: true,
	})
}

// Close lets go of the guests' sockets and of the engine's connections.
func (e *Engine) Close() error {
	return errors.Join(e.listened.closeAll(), e.api.Close())
}

// validName is what the engine takes as a name, and what may be a file's name here.
var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,199}$`)

// quick bounds a call that only reads.
func (e *Engine) quick(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.opts.CallTimeout)
}

// errForeign means that the name is taken by what is not ours.
var errForeign = errors.New("the name belongs to something without this instance's label, which is left alone")

// find returns the sandbox of that name, asking the engine only where it was
// not seen before. Errors: control.ErrNoSandbox; errForeign.
func (e *Engine) find(ctx context.Context, name string) (*sandbox, error) {
	e.mu.Lock()
	s := e.known[name]
	e.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, _, err := e.inspect(ctx, name)
	return s, err
}

// inspect asks the engine for the sandbox of that name, and remembers it.
func (e *Engine) inspect(ctx context.Context, name string) (*sandbox, container.InspectResponse, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	found, err := e.api.client(ctx).ContainerInspect(ctx, name)
	switch {
	case err == nil:
	case absent(err):
		e.forget(name)
		return nil, found, fmt.Errorf("container %s: %w", name, control.ErrNoSandbox)
	default:
		return nil, found, fault("container inspect", err)
	}
	if found.Name != "/"+name { // the engine also answers to ids and their beginnings
		return nil, found, fmt.Errorf("container %s: %w", name, control.ErrNoSandbox)
	}
	if found.Config == nil || found.Config.Labels[labelInstance] != e.opts.Instance {
		return nil, found, fmt.Errorf("container %s: %w", name, errForeign)
	}
	s := &sandbox{id: found.ID, image: found.Image, linked: hasLink(found.Mounts)}
	e.remember(name, s)
	return s, found, nil
}

func hasLink(mounts []container.MountPoint) bool {
	return slices.ContainsFunc(mounts, func(m container.MountPoint) bool { return m.Destination == linkTarget })
}

func (e *Engine) remember(name string, s *sandbox) {
	s.seen = time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[name] = s
}

// forget drops what is remembered of a sandbox that is gone.
func (e *Engine) forget(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.known[name]; s != nil {
		delete(e.runs, s.id)
		delete(e.known, name)
	}
}

// on calls the engine for the sandbox of that name. The id it uses may be of a
// container that was replaced, so "not found" is believed of the name alone.
func (e *Engine) on(ctx context.Context, name string, call func(s *sandbox) error) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("container %q: %w", name, control.ErrNoSandbox)
	}
	s, err := e.find(ctx, name)
	if err != nil {
		return err
	}
	err = call(s)
	if !absent(err) {
		return err
	}
	e.forget(name)
	s, _, again := e.inspect(ctx, name)
	if again != nil {
		return again
	}
	return call(s)
}
