package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

// groups is where this instance makes control groups: a directory in each
// hierarchy, with one more for each sandbox. The zero value makes none.
type groups struct {
	one map[string]string // version 1: by controller
	two string            // version 2: the one directory
	has []string          // its controllers
}

// The limits, as the protocol names them.
const (
	limitCPUs   = "cpus"
	limitMemory = "memory_mb"
	limitPids   = "pids"
	limitDisk   = "disk_mb"
)

// standing is the group of the launchers: not the server's, so that what ends
// the server with all of its group leaves them alone.
const standing = "launchers"

// hierarchy is a mounted one.
type hierarchy struct {
	dir         string   // where it is mounted
	own         string   // our group in it, "/a/b"
	controllers []string // version 1; also "name=systemd"
	two         bool
}

// wanted are the hierarchies of version 1 that we use: for limits, for what is
// used, and to be out of the server's unit.
var wanted = []string{"cpu", "cpuacct", "memory", "pids", "name=systemd"}

// hierarchies reads the texts of /proc/self/mountinfo and /proc/self/cgroup.
func hierarchies(mountinfo, self string) (list []hierarchy) {
	own := make(map[string]string) // by controller; "" is version 2
	for line := range strings.Lines(self) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			own[c] = f[2]
		}
	}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(kind) < 3 || f[3] != "/" {
			continue // a part of a hierarchy is no place to begin
		}
		h := hierarchy{dir: unescape(f[4])}
		switch kind[0] {
		case "cgroup2":
			h.two, h.own = true, own[""]
		case "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				if _, ok := own[option]; ok && slices.Contains(wanted, option) {
					h.controllers = append(h.controllers, option)
					h.own = own[option]
				}
			}
			if h.controllers == nil {
				continue
			}
		default:
			continue
		}
		if !slices.ContainsFunc(list, func(o hierarchy) bool { return o.two == h.two && slices.Equal(o.controllers, h.controllers) }) {
			list = append(list, h)
		}
	}
	return list
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// findGroups makes the instance's groups wherever that is allowed.
func findGroups(instance string, root bool) groups {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return groups{}
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return groups{}
	}
	return makeGroups(hierarchies(string(mountinfo), string(self)), "sandkeeper-"+instance, root)
}

func makeGroups(list []hierarchy, name string, root bool) groups {
	g := groups{one: make(map[string]string)}
	for _, h := range list {
		for _, at := range places(h, root) {
			dir := filepath.Join(h.dir, at, name)
			if h.two {
				has, ok := makeTwo(dir)
				if !ok {
					continue
				}
				g.two, g.has = dir, has
				break
			}
			if !makeOne(dir) {
				continue
			}
			for _, c := range h.controllers {
				g.one[c] = dir
			}
			break
		}
	}
	if g.two != "" && len(g.has) == 0 && len(g.one) == 0 {
		os.Remove(g.two)
		g.two = ""
	}
	return g
}

// places are where a group of ours may be made, the best first.
func places(h hierarchy, root bool) []string {
	if root {
		return []string{"/", h.own}
	}
	return []string{path.Dir(h.own), h.own}
}

// makeOne makes a group of version 1 that may have groups of its own.
func makeOne(dir string) bool {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return false
	}
	probe := filepath.Join(dir, "probe")
	if err := os.Mkdir(probe, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		os.Remove(dir)
		return false
	}
	return os.Remove(probe) == nil
}

// makeTwo makes a group of version 2 whose own groups have controllers.
func makeTwo(dir string) (has []string, ok bool) {
	for _, c := range []string{"memory", "pids", "cpu"} {
		// Refused where it is not ours to say; what holds is read below.
		_ = writeFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), "+"+c)
	}
	if !makeOne(dir) {
		return nil, false
	}
	for _, c := range []string{"memory", "pids", "cpu"} {
		_ = writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+c)
	}
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		os.Remove(dir)
		return nil, false
	}
	return strings.Fields(string(b)), true
}

func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// dirs are the instance's groups.
func (g groups) dirs() (dirs []string) {
	for _, d := range g.one {
		dirs = append(dirs, d)
	}
	if g.two != "" {
		dirs = append(dirs, g.two)
	}
	slices.Sort(dirs)
	return slices.Compact(dirs) // one hierarchy may have several controllers
}

func (g groups) controller(name string) bool {
	return g.one[name] != "" || slices.Contains(g.has, name)
}

// enforces names the limits that hold here.
func (g groups) enforces() []string {
	limits := []string{}
	for _, l := range []struct{ limit, controller string }{{limitCPUs, "cpu"}, {limitMemory, "memory"}, {limitPids, "pids"}} {
		if g.controller(l.controller) {
			limits = append(limits, l.limit)
		}
	}
	return limits
}

// unenforced names the limits asked for that do not hold here.
func (g groups) unenforced(l control.Limits) (names []string) {
	can := g.enforces()
	for _, limit := range []struct {
		name  string
		asked bool
	}{{limitCPUs, l.CPUs > 0}, {limitMemory, l.MemoryMB > 0}, {limitPids, l.Pids > 0}, {limitDisk, l.DiskMB > 0}} {
		if limit.asked && !slices.Contains(can, limit.name) {
			names = append(names, limit.name)
		}
	}
	return names
}

// memory is the group that bounds a sandbox's memory, "" for none.
func (g groups) memory(name string) (dir string, two bool) {
	switch {
	case g.one["memory"] != "":
		return filepath.Join(g.one["memory"], name), false
	case slices.Contains(g.has, "memory"):
		return filepath.Join(g.two, name), true
	}
	return "", false
}

// create makes a sandbox's groups, with its limits.
func (g groups) create(name string, l control.Limits) (launch.Groups, error) {
	made := launch.Groups{Name: name}
	for _, base := range g.dirs() {
		for _, n := range []string{name, standing} {
			if err := os.Mkdir(filepath.Join(base, n), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return made, fmt.Errorf("control group: %w", err)
			}
		}
		made.Enter = append(made.Enter, filepath.Join(base, name))
		made.Stand = append(made.Stand, filepath.Join(base, standing))
	}
	made.Memory, made.Two = g.memory(name)
	for _, s := range g.settings(l) {
		base := g.one[s.controller]
		if s.controller == "" || base == "" {
			base = g.two
		}
		err := writeFile(filepath.Join(base, name, s.file), s.value)
		if errors.Is(err, fs.ErrNotExist) && s.optional {
			continue
		}
		if err != nil {
			return made, fmt.Errorf("control group: %w", err)
		}
	}
	return made, nil
}

type setting struct {
	controller, file, value string
	optional                bool // the file may be missing
}

const cpuPeriod = 100_000 // µs

// settings are what bounds a group, in the order in which it is taken.
func (g groups) settings(l control.Limits) (list []setting) {
	add := func(controller string, one, two []setting) {
		set := one
		if g.one[controller] == "" {
			if !slices.Contains(g.has, controller) {
				return
			}
			set = two
		}
		for _, s := range set {
			s.controller = controller
			list = append(list, s)
		}
	}
	if l.MemoryMB > 0 {
		bytes := strconv.FormatInt(l.MemoryMB<<20, 10)
		// No swap beyond it; a kernel without an account of swap has no such file.
		add("memory",
			[]setting{{file: "memory.limit_in_bytes", value: bytes}, {file: "memory.memsw.limit_in_bytes", value: bytes, optional: true}},
			[]setting{{file: "memory.max", value: bytes}, {file: "memory.swap.max", value: "0", optional: true}})
	}
	if l.Pids > 0 {
		n := strconv.FormatInt(l.Pids, 10)
		add("pids", []setting{{file: "pids.max", value: n}}, []setting{{file: "pids.max", value: n}})
	}
	if l.CPUs > 0 {
		quota := strconv.FormatInt(max(int64(l.CPUs*cpuPeriod), 1000), 10)
		period := strconv.Itoa(cpuPeriod)
		add("cpu",
			[]setting{{file: "cpu.cfs_period_us", value: period}, {file: "cpu.cfs_quota_us", value: quota}},
			[]setting{{file: "cpu.max", value: quota + " " + period}})
	}
	return list
}

// group is the name of a sandbox's control groups: those of its last run, or else its
// own. The engine's mu is held, or the sandbox's turn.
func (b *box) group() string {
	if b.last != nil && b.last.Group != "" {
		return b.last.Group
	}
	return b.name
}

// removeGroups removes a sandbox's groups, of whichever run.
func (e *Engine) removeGroups(ctx context.Context, b *box) error {
	err := e.can.groups.remove(ctx, b.name)
	if group := b.group(); group != b.name {
		err = errors.Join(err, e.can.groups.remove(ctx, group))
	}
	return err
}

// remove removes groups of that name, which what ran in them leaves a little
// after its end. Absent ones are success.
func (g groups) remove(ctx context.Context, name string) error {
	var errs []error
	for _, base := range g.dirs() {
		errs = append(errs, removeGroup(ctx, filepath.Join(base, name)))
	}
	return errors.Join(errs...)
}

func removeGroup(ctx context.Context, dir string) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY || ctx.Err() != nil {
			return &os.PathError{Op: "rmdir", Path: dir, Err: err}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// kill ends every process in a sandbox's groups, and removes them. Its launcher
// goes with its PID 1.
func (g groups) kill(ctx context.Context, name string) error {
	for _, base := range g.dirs() {
		b, err := os.ReadFile(filepath.Join(base, name, "cgroup.procs"))
		if err != nil {
			continue
		}
		for id := range strings.FieldsSeq(string(b)) {
			pid, err := strconv.Atoi(id)
			if err != nil || pid <= 0 {
				continue
			}
			p, err := launch.ProcessOf(pid)
			if err != nil || !inGroup(pid, "/"+filepath.Base(base)+"/"+name) {
				continue // gone meanwhile
			}
			if err := signal(p, unix.SIGKILL); err != nil {
				return err
			}
		}
	}
	return g.remove(ctx, name)
}

// inGroup says whether a process is in a group whose path ends so.
func inGroup(pid int, group string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(b)+"\n", group+"\n")
}

// removeAll removes the instance's own groups, once there is nothing in them.
func (g groups) removeAll(ctx context.Context) error {
	var errs []error
	for _, base := range g.dirs() {
		errs = append(errs, removeGroup(ctx, filepath.Join(base, standing)), removeGroup(ctx, base))
	}
	return errors.Join(errs...)
}

// left lists the sandboxes that have groups.
func (g groups) left() (names []string) {
	for _, base := range g.dirs() {
		entries, _ := os.ReadDir(base)
		for _, e := range entries {
			if e.IsDir() && e.Name() != standing {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
