package docker

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/system"

	"sandkeeper/internal/control"
)

// hostFacts is what the engine said of its host.
type hostFacts struct {
	version string
	arch    string // as Go names it
	cpuN    int
	cpus    bool // each: the limit can be enforced
	memory  bool // RAM, and no swap beyond it
	pids    bool
	disk    bool // the root file system and the workspace; until a create was refused it is a promise
	seccomp bool
}

// facts remembers the last answer.
type facts struct {
	mu     sync.Mutex // guards the fields below
	known  bool
	host   hostFacts
	refuse bool // a create with a bounded disk was refused
}

// noDisk remembers that the engine refused to bound a disk, whatever it promised.
func (f *facts) noDisk() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = true
	f.host.disk = false
}

func (f *facts) put(h hostFacts) hostFacts {
	f.mu.Lock()
	defer f.mu.Unlock()
	h.disk = h.disk && !f.refuse
	f.host, f.known = h, true
	return h
}

func (f *facts) get() (hostFacts, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.host, f.known
}

// host returns the engine's host as last seen, and asks if it never was.
func (e *Engine) host(ctx context.Context) (hostFacts, error) {
	if h, ok := e.facts.get(); ok {
		return h, nil
	}
	return e.askHost(ctx)
}

func (e *Engine) askHost(ctx context.Context) (hostFacts, error) {
	ctx, cancel := e.quick(ctx)
	defer cancel()
	info, err := e.api.client(ctx).Info(ctx)
	if err != nil {
		return hostFacts{}, fault("engine info", err)
	}
	_, seen := e.facts.get()
	h := e.facts.put(factsOf(info))
	if !seen && !h.seccomp {
		e.log.Warn("the engine runs containers without a seccomp profile")
	}
	return h, nil
}

// Info asks the engine how it is.
func (e *Engine) Info(ctx context.Context) (control.EngineInfo, error) {
	h, err := e.askHost(ctx)
	if err != nil {
		return control.EngineInfo{}, err
	}
	return control.EngineInfo{
		Name:      "docker",
		Version:   h.version,
		Isolation: "container",
		Enforces:  h.enforces(),
	}, nil
}

func factsOf(info system.Info) hostFacts {
	return hostFacts{
		version: info.ServerVersion,
		arch:    goarch(info.Architecture),
		cpuN:    info.NCPU,
		cpus:    info.CPUCfsQuota && info.CPUCfsPeriod,
		memory:  info.MemoryLimit && info.SwapLimit,
		pids:    info.PidsLimit,
		disk:    mayBoundDisk(info),
		seccomp: slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.Contains(o, "seccomp") }),
	}
}

// mayBoundDisk says whether the engine may be able to bound both the root file
// system and a volume: overlay2 on xfs can, if it is mounted with pquota, which
// only a create tells. Other drivers bound the root at most.
func mayBoundDisk(info system.Info) bool {
	return info.Driver == "overlay2" && slices.ContainsFunc(info.DriverStatus, func(s [2]string) bool {
		return s[0] == "Backing Filesystem" && s[1] == "xfs"
	})
}

// diskRefused says whether a create was refused for its bounded disk.
func diskRefused(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "storage-opt") || strings.Contains(text, "pquota") || strings.Contains(text, "quota size")
}

func goarch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// The limits, as the protocol names them.
const (
	limitCPUs   = "cpus"
	limitMemory = "memory_mb"
	limitPids   = "pids"
	limitDisk   = "disk_mb"
)

func (h hostFacts) enforces() []string {
	limits := []string{}
	for _, l := range []struct {
		name string
		can  bool
	}{{limitCPUs, h.cpus}, {limitMemory, h.memory}, {limitPids, h.pids}, {limitDisk, h.disk}} {
		if l.can {
			limits = append(limits, l.name)
		}
	}
	return limits
}

// unenforced names the limits asked for that this host cannot enforce.
func (h hostFacts) unenforced(l control.Limits) []string {
	var names []string
	for _, limit := range []struct {
		name  string
		asked bool
		can   bool
	}{
		{limitCPUs, l.CPUs > 0, h.cpus},
		{limitMemory, l.MemoryMB > 0, h.memory},
		{limitPids, l.Pids > 0, h.pids},
		{limitDisk, l.DiskMB > 0, h.disk},
	} {
		if limit.asked && !limit.can {
			names = append(names, limit.name)
		}
	}
	return names
}

// resources are the limits as the engine takes them. What it cannot enforce it
// would refuse or drop with a warning, so that is left out, save for memory: a
// host that cannot bound the swap still bounds the rest.
func (h hostFacts) resources(l control.Limits) container.Resources {
	var r container.Resources
	if l.CPUs > 0 && h.cpus {
		// More than there are is refused, and means the same as all of them.
		r.NanoCPUs = int64(math.Round(min(l.CPUs, float64(h.cpuN)) * 1e9))
	}
	if l.MemoryMB > 0 {
		r.Memory = l.MemoryMB << 20
		r.MemorySwap = r.Memory
	}
	if l.Pids > 0 && h.pids {
		r.PidsLimit = new(l.Pids)
	}
	return r
}
