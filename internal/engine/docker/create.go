package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"golang.org/x/sync/errgroup"

	"sandkeeper/internal/control"
)

// Labels of what we make. They hold only what never changes.
const (
	labelInstance = "sandkeeper.instance"
	labelEnv      = "sandkeeper.env"
	labelSpec     = "sandkeeper.spec" // JSON of what was asked; there are no secrets in it
	labelOwner    = "sandkeeper.owner"
	labelTask     = "sandkeeper.task"
	labelName     = "sandkeeper.name"
)

// Where things are inside a sandbox.
const (
	workspaceTarget = "/workspace"
	binTarget       = "/.sandkeeper/bin"
	guestPath       = binTarget + "/guest"
	linkTarget      = "/.sandkeeper/link"
	guestVariable   = "SANDKEEPER_GUEST"
)

// stopSeconds is how long a sandbox has between TERM and KILL.
const stopSeconds = 2

// smallMemoryMB is the memory limit below which a sandbox gets the small /dev/shm.
const smallMemoryMB = 2048

func workspaceOf(name string) string { return name + "-workspace" }

// asked is what the spec's label holds.
type asked struct {
	Image   string         `json:"image"`
	Network string         `json:"network"`
	Workdir string         `json:"workdir"`
	Limits  control.Limits `json:"limits"`
}

// labels are those of a sandbox's container and of its workspace.
func (e *Engine) labels(spec control.SandboxSpec) (map[string]string, error) {
	raw, err := json.Marshal(asked{spec.Image, spec.Network, spec.Workdir, spec.Limits})
	if err != nil {
		return nil, fmt.Errorf("spec label: %w", err)
	}
	return map[string]string{
		labelInstance: e.opts.Instance,
		labelEnv:      spec.Env,
		labelSpec:     string(raw),
		labelOwner:    spec.Owner,
		labelTask:     spec.Task,
		labelName:     spec.EnvName,
	}, nil
}

// guestConfig is what the guest is told, in guestVariable.
type guestConfig struct {
	User    string `json:"user"` // the image's; commands run as it
	Workdir string `json:"workdir"`
	Link    string `json:"link"` // the directory of the socket, if it is mounted
}

// Create makes a sandbox's container and, where it is not there, its workspace.
func (e *Engine) Create(ctx context.Context, spec control.SandboxSpec) (control.Created, error) {
	if !validName.MatchString(spec.Name) {
		return control.Created{}, fmt.Errorf("container create: %q is no name for a container", spec.Name)
	}
	var (
		image     imageFacts
		host      hostFacts
		workspace bool
	)
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) { image, err = e.image(gctx, spec.Image); return err })
	group.Go(func() (err error) { host, err = e.host(gctx); return err })
	group.Go(func() (err error) { workspace, err = e.ourVolume(gctx, workspaceOf(spec.Name)); return err })
	switch err := group.Wait(); {
	case errors.Is(err, control.ErrImageMissing):
		// A sandbox that is there needs its image's name no more.
		if created, found := e.existing(ctx, spec); found == nil {
			return created, nil
		}
		return control.Created{}, err
	case err != nil:
		return control.Created{}, err
	}

	// The guest's binary is needed at the start, so it may come meanwhile.
	created := control.Created{WorkspaceExisted: workspace, Image: image.id}
	group, gctx = errgroup.WithContext(ctx)
	group.Go(func() error { return e.install(gctx, image.id) })
	group.Go(func() error { return e.create(gctx, spec, image, host, &created) })
	if err := group.Wait(); err != nil {
		return control.Created{}, err
	}
	return created, nil
}

// create asks the engine for the container, with less each time that the host
// turns out to be unable to do something.
func (e *Engine) create(ctx context.Context, spec control.SandboxSpec, image imageFacts, host hostFacts, created *control.Created) error {
	for {
		dir, err := e.makeLinkDir(spec.Name)
		if err != nil {
			return err
		}
		config, hostConfig, err := e.plan(spec, image, host, dir)
		if err != nil {
			return err
		}
		made, err := e.api.client(ctx).ContainerCreate(ctx, config, hostConfig, nil, nil, spec.Name)
		switch {
		case err == nil:
			for _, w := range made.Warnings {
				e.log.Warn("container create", "container", spec.Name, "warning", w)
			}
			e.remember(spec.Name, &sandbox{id: made.ID, image: image.id, linked: dir != ""})
			created.Unenforced = host.unenforced(spec.Limits)
			return nil
		case dir != "" && missingSource(err, dir):
			if e.opts.Link == LinkSocket {
				return fmt.Errorf("link %q: the engine does not share this machine's files: %w", LinkSocket, err)
			}
			e.log.Info("the engine does not share this machine's files: guests are reached by attach", "err", err)
			e.goBare()
		case host.disk && spec.Limits.DiskMB > 0 && diskRefused(err):
			e.log.Info("the engine cannot bound disks", "err", err)
			host.disk = false
			e.facts.noDisk()
		case cerrdefs.IsConflict(err):
			existing, err := e.existing(ctx, spec)
			if errors.Is(err, control.ErrNoSandbox) && ctx.Err() == nil {
				continue // it was removed in between
			}
			*created = existing
			return err
		case absent(err) && strings.Contains(err.Error(), "image"):
			return fmt.Errorf("container create: %q: %w: %s", spec.Image, control.ErrImageMissing, words(err))
		default:
			return fault("container create", err)
		}
	}
}

// existing reports on the sandbox of that name that is there.
func (e *Engine) existing(ctx context.Context, spec control.SandboxSpec) (control.Created, error) {
	_, found, err := e.inspect(ctx, spec.Name)
	if err != nil {
		return control.Created{}, err
	}
	host, err := e.host(ctx)
	if err != nil {
		return control.Created{}, err
	}
	return control.Created{
		Existed:          true,
		WorkspaceExisted: true,
		Unenforced:       host.unenforced(spec.Limits),
		Image:            found.Image,
	}, nil
}

// plan is the whole of what a sandbox is and may do. dir is the link directory,
// "" for none.
func (e *Engine) plan(spec control.SandboxSpec, image imageFacts, host hostFacts, dir string) (*container.Config, *container.HostConfig, error) {
	labels, err := e.labels(spec)
	if err != nil {
		return nil, nil, err
	}
	told, err := json.Marshal(guestConfig{User: image.user, Workdir: spec.Workdir, Link: linkTarget})
	if err != nil {
		return nil, nil, fmt.Errorf("guest config: %w", err)
	}
	network, err := networkMode(spec.Network)
	if err != nil {
		return nil, nil, err
	}
	config := &container.Config{
		User:        "0:0", // PID 1 alone; it drops to the image's user for commands
		Image:       spec.Image,
		Env:         []string{guestVariable + "=" + string(told)},
		Entrypoint:  []string{guestPath, "init"},
		WorkingDir:  "/",
		Labels:      labels,
		OpenStdin:   true, // attach is a way to the guest
		StopSignal:  "SIGTERM",
		StopTimeout: new(stopSeconds),
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}

	workspace := &mount.VolumeOptions{Labels: labels}
	hostConfig := &container.HostConfig{
		NetworkMode:    network,
		IpcMode:        container.IPCModePrivate,
		RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
		LogConfig:      container.LogConfig{Type: "none"}, // attach would be logged whole
		Init:           new(false),                        // the guest is PID 1 and reaps
		CapDrop:        []string{"ALL"},
		CapAdd:         []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "KILL"},
		SecurityOpt:    []string{"no-new-privileges"}, // and the engine's default seccomp profile, by saying nothing
		ReadonlyRootfs: e.opts.ReadOnlyRoot,
		ShmSize:        shmBytes(spec.Limits),
		Tmpfs:          map[string]string{"/tmp": tmpOptions(spec.Limits)},
		Resources:      host.resources(spec.Limits),
		Mounts: []mount.Mount{
			{Type: mount.TypeVolume, Source: workspaceOf(spec.Name), Target: workspaceTarget, VolumeOptions: workspace},
			e.guestMount(true),
		},
	}
	if host.disk && spec.Limits.DiskMB > 0 {
		size := strconv.FormatInt(spec.Limits.DiskMB, 10) + "M"
		hostConfig.StorageOpt = map[string]string{"size": size}
		workspace.DriverConfig = &mount.Driver{Name: "local", Options: map[string]string{"size": size}}
	}
	if dir != "" {
		hostConfig.Mounts = append(hostConfig.Mounts,
			mount.Mount{Type: mount.TypeBind, Source: dir, Target: linkTarget, ReadOnly: true})
	}
	return config, hostConfig, nil
}

func networkMode(asked string) (container.NetworkMode, error) {
	switch asked {
	case "", "default":
		return "default", nil
	case "none":
		return "none", nil
	}
	return "", fmt.Errorf("container create: network %q: it is default or none", asked)
}

// shmBytes is the size of /dev/shm: what browsers and databases want, unless
// the sandbox is small.
func shmBytes(l control.Limits) int64 {
	if l.MemoryMB > 0 && l.MemoryMB < smallMemoryMB {
		return 64 << 20
	}
	return 1 << 30
}

// tmpOptions makes /tmp a place to build and run things in. It is in memory, so
// half of the limit bounds it: a full /tmp is told as such, not as death.
func tmpOptions(l control.Limits) string {
	options := "rw,exec,nosuid,nodev,mode=1777"
	if l.MemoryMB > 0 {
		options += ",size=" + strconv.FormatInt(max(l.MemoryMB/2, 1), 10) + "m"
	}
	return options
}

// imageFacts is what a create needs of an image.
type imageFacts struct {
	id   string
	user string // "" is root
}

// image asks the engine for an image. Errors: control.ErrImageMissing.
func (e *Engine) image(ctx context.Context, ref string) (imageFacts, error) {
	if ref == "" {
		return imageFacts{}, fmt.Errorf("container create: no image was named: %w", control.ErrImageUnavailable)
	}
	ctx, cancel := e.quick(ctx)
	defer cancel()
	found, err := e.api.client(ctx).ImageInspect(ctx, ref)
	switch {
	case err == nil:
	case absent(err):
		return imageFacts{}, fmt.Errorf("image %q: %w", ref, control.ErrImageMissing)
	case cerrdefs.IsInvalidArgument(err):
		return imageFacts{}, fmt.Errorf("image %q: %w: %s", ref, control.ErrImageUnavailable, words(err))
	default:
		return imageFacts{}, fault("image inspect", err)
	}
	facts := imageFacts{id: found.ID}
	if found.Config != nil {
		facts.user = found.Config.User
	}
	return facts, nil
}

// ourVolume says whether a volume is there. Errors: errForeign.
func (e *Engine) ourVolume(ctx context.Context, name string) (bool, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	v, err := e.api.client(ctx).VolumeInspect(ctx, name)
	switch {
	case absent(err):
		return false, nil
	case err != nil:
		return false, fault("volume inspect", err)
	case v.Labels[labelInstance] != e.opts.Instance:
		return false, fmt.Errorf("volume %s: %w", name, errForeign)
	}
	return true, nil
}
