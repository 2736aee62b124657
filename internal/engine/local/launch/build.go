package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The files of the builder beside the usual ones, and what it says when it is done.
const (
	builderStatus = 3
	builderPlan   = 4

	built = "built"
)

// Build is the beginning of a builder, in namespaces of its own: it executes
// the guest's binary anew, from a mount of it that nobody can write to, since a
// sandbox reaches what its PID 1 is executed from. It returns where that failed,
// after it said so, with the exit code.
func Build(bin string) int {
	runtime.LockOSThread()
	err := func() error {
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return os.NewSyscallError("die with the launcher", err)
		}
		// What is mounted here stays here; what the host mounts meanwhile is seen.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return os.NewSyscallError("mounts of its own", err)
		}
		// What the server was started with, and did not know of, ends here.
		if err := unix.CloseRange(builderPlan+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
			return os.NewSyscallError("close_range", err)
		}
		tree, err := cloneTree(bin, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
		if err != nil {
			return err
		}
		env := []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"LANG=C.UTF-8",
		}
		return os.NewSyscallError("execute the guest", unix.Exec(proc(tree)+"/"+GuestFile, []string{BinTarget + "/" + GuestFile, InsideArg}, env))
	}()
	return Refuse(err)
}

// Refuse says what failed; it returns the exit code.
func Refuse(err error) int {
	unix.Write(builderStatus, []byte(err.Error()))
	return 1
}

// Prepare gives up, in every thread, what the builder does not need. It may be
// called long before Become.
func Prepare() error {
	unix.CloseOnExec(builderStatus)
	unix.CloseOnExec(builderPlan)
	return giveUpGains()
}

// Become carries out the plan that comes: from then on this process is the PID 1
// of a sandbox, with no more rights than that has. It returns the guest's
// configuration, or nil and the exit code: after a probe, and where something
// failed, which it has said.
func Become() (guest json.RawMessage, code int) {
	p, err := become()
	if err == nil && p.Probe {
		err = unix.Access(BinTarget+"/"+GuestFile, unix.X_OK)
	}
	if err != nil {
		return nil, Refuse(err)
	}
	unix.Write(builderStatus, []byte(built))
	unix.Close(builderStatus)
	if p.Probe {
		return nil, 0
	}
	return p.Guest, 0
}

func become() (*Plan, error) {
	plan := os.NewFile(builderPlan, "plan")
	raw, err := io.ReadAll(plan)
	plan.Close()
	if err != nil {
		return nil, err
	}
	var p Plan
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("the launcher is gone: %w", err)
	}
	mask := unix.Umask(0)
	defer unix.Umask(mask)
	for _, step := range []struct {
		name string
		do   func(*Plan) error
	}{
		{"log", openLog},
		{"control groups", enterGroups},
		{"host name", func(p *Plan) error { return unix.Sethostname([]byte(p.Hostname)) }},
		{"network", bringUpLoopback},
		{"root file system", buildRoot},
		{"rights", dropRights},
		{"files", checkFiles},
	} {
		if err := step.do(&p); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return &p, nil
}

// openLog has what PID 1 says go to the sandbox's log.
func openLog(p *Plan) error {
	fd, err := unix.Open(filepath.Join(p.Dir, LogFile), unix.O_WRONLY|unix.O_APPEND|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Dup3(fd, unix.Stderr, 0)
}

func enterGroups(p *Plan) error {
	if len(p.Groups.Enter) == 0 {
		return nil
	}
	for _, group := range p.Groups.Enter {
		if err := enter(group); err != nil {
			return err
		}
	}
	// Seen from inside, its groups are the topmost.
	return everyThread("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0)
}

func bringUpLoopback(p *Plan) error {
	if !p.NoNetwork {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// sysMask and the like are what of /proc and /sys tells about the host or
// changes it, for a user that the kernel takes for root.
var (
	hidden = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/kpagecount",
		"/proc/kpageflags", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo",
		"/sys/firmware", "/sys/kernel", "/sys/fs/bpf", "/sys/fs/fuse", "/sys/fs/pstore", "/sys/devices/virtual/powercap",
	}
	unwritable = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	devices    = []string{"null", "zero", "full", "random", "urandom", "tty"}
	deviceLink = map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	}
)

const plain = unix.MS_NOSUID | unix.MS_NODEV

// buildRoot makes the sandbox's root of what the plan names, and nothing else.
func buildRoot(p *Plan) error {
	// What the host mounts from here on is not seen.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := os.Chdir(p.Dir); err != nil {
		return err
	}
	host, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(host)
	if err := unix.Mount(RootDir, RootDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	fd, err := unix.Open(RootDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r := root{fd}
	defer unix.Close(fd)
	if err := r.attributes("/", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return err
	}
	for _, t := range p.Trees {
		if err := r.tree(p, t); err != nil {
			return fmt.Errorf("mount %s: %w", t.Path, err)
		}
	}
	own := []mounted{
		{WorkspaceDir, "/workspace", 0},
		{HomeDir, "/root", 0},
		{LinkDir, LinkTarget, unix.MOUNT_ATTR_RDONLY},
		{p.Bin, BinTarget, unix.MOUNT_ATTR_RDONLY},
	}
	for _, m := range own {
		if err := r.bind(m.source, m.target, m.attributes|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, m := range []struct{ kind, target, options string }{
		{"tmpfs", "/tmp", sized("mode=1777", p.Tmp)},
		{"tmpfs", "/run", sized("mode=755", 16<<20)},
		{"tmpfs", "/dev", sized("mode=755", 1<<20)},
		{"tmpfs", "/dev/shm", sized("mode=1777", p.Shm)},
		{"devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620"},
	} {
		flags := uintptr(plain)
		if m.kind == "devpts" {
			flags = unix.MS_NOSUID | unix.MS_NOEXEC
		}
		if err := r.mount(m.kind, m.target, flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := r.fillDev(); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	for path, text := range p.Files {
		if err := r.write(path, text); err != nil {
			return err
		}
	}
	if err := r.mount("proc", "/proc", plain|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := r.sys(p); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := r.protect(); err != nil {
		return err
	}
	// The host's files go out of sight for good.
	if err := unix.Fchdir(fd); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("unmount the host's root", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if !p.Writable {
		return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|plain, "")
	}
	return nil
}

type mounted struct {
	source, target string
	attributes     uint64
}

func sized(options string, size int64) string {
	if size > 0 {
		options += ",size=" + strconv.FormatInt(size, 10)
	}
	return options
}

// root is the sandbox's root directory while it is built. What is in it may be a
// former run's work, so no symbolic link in it is ever followed.
type root struct{ fd int }

// open opens what is at a path, as a place to mount on.
func (r root) open(path string) (int, error) {
	fd, err := unix.Openat2(r.fd, "."+path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// dir opens a directory, and makes it and those above it where they are missing.
func (r root) dir(path string) (int, error) {
	at, made := r.fd, ""
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name == "" {
			break
		}
		made += "/" + name
		if err := unix.Mkdirat(at, name, 0o755); err != nil && err != unix.EEXIST && err != unix.EROFS {
			return -1, &os.PathError{Op: "mkdir", Path: made, Err: err}
		}
		next, err := r.open(made)
		if at != r.fd {
			unix.Close(at)
		}
		if err != nil {
			return -1, err
		}
		at = next
	}
	if at == r.fd {
		return r.open("/")
	}
	return at, nil
}

// proc is a path by which the calls that take none but paths reach a file.
func proc(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// mount mounts a file system of its own.
func (r root) mount(kind, target string, flags uintptr, options string) error {
	fd, err := r.dir(target)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Mount(kind, proc(fd), kind, flags, options)
}

// bind mounts a directory or a file of the host's, with all that is mounted in it.
func (r root) bind(source, target string, attributes uint64) error {
	fd, err := r.dir(target)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return bindOn(source, fd, attributes)
}

// cloneTree returns a copy of a directory or a file, with all that is mounted in
// it, that is mounted nowhere yet.
func cloneTree(source string, attributes uint64) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, os.NewSyscallError("open_tree", err)
	}
	if attributes == 0 {
		return fd, nil
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attributes}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("mount_setattr", err)
	}
	return fd, nil
}

func bindOn(source string, fd int, attributes uint64) error {
	tree, err := cloneTree(source, attributes)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	return os.NewSyscallError("move_mount", unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

// attributes sets those of what is mounted at a path.
func (r root) attributes(path string, set uint64) error {
	fd, err := r.open(path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return os.NewSyscallError("mount_setattr", unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: set}))
}

// tree shows a directory of the host's. Root sees it through an overlay, which
// hides what others may not read, keeps changes apart, and makes dead files of
// the host's sockets. In a user namespace of its own, where the kernel refuses
// that, it is the directory itself, read-only.
func (r root) tree(p *Plan, t Tree) error {
	if p.UserNS {
		return r.bind(t.Path, t.Path, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	}
	// Relative paths keep every character of the data directory out of the options.
	lower := t.Path
	if t.Mask != "" {
		lower = t.Mask + ":" + lower
	}
	options := "lowerdir=" + lower
	flags := uintptr(plain)
	if p.Writable {
		key := Key(t.Path)
		upper, work := filepath.Join(UpperDir, key), filepath.Join(WorkDir, key)
		if err := copyDir(t.Path, upper); err != nil {
			return err
		}
		if err := os.MkdirAll(work, 0o700); err != nil {
			return err
		}
		options += ",upperdir=" + upper + ",workdir=" + work
	} else {
		flags |= unix.MS_RDONLY
	}
	return r.mount("overlay", t.Path, flags, options)
}

// copyDir makes an empty directory with the mode and the owner of another,
// which the overlay shows as the tree's own.
func copyDir(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return err
	}
	switch err := os.Mkdir(to, 0o755); {
	case os.IsExist(err):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(os.Chown(to, int(st.Uid), int(st.Gid)), unix.Chmod(to, st.Mode&0o7777))
}

// Key is the name of a tree's directories.
func Key(path string) string { return strings.ReplaceAll(strings.Trim(path, "/"), "/", "-") }

func (r root) fillDev() error {
	for _, name := range devices {
		if err := r.bindFile("/dev/"+name, "/dev/"+name, 0); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	dev, err := r.open("/dev")
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	for name, to := range deviceLink {
		if err := unix.Symlinkat(to, dev, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// bindFile mounts a file on a new empty one.
func (r root) bindFile(source, target string, attributes uint64) error {
	if err := r.write(target, ""); err != nil {
		return err
	}
	fd, err := r.open(target)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return bindOn(source, fd, attributes)
}

// write makes a file that is not there yet.
func (r root) write(path, text string) error {
	dir, err := r.dir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, filepath.Base(path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return &os.PathError{Op: "create", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// sys shows /sys where the kernel lets the sandbox have one that is not the
// host's own network's; else it stays empty.
func (r root) sys(p *Plan) error {
	if p.UserNS && !p.NoNetwork {
		return r.mount("tmpfs", "/sys", plain|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=755,size=4k")
	}
	if err := r.mount("sysfs", "/sys", plain|unix.MS_NOEXEC|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if p.Groups.Memory == "" {
		return nil
	}
	const groups = "/sys/fs/cgroup"
	const readOnly = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if p.Groups.Two {
		return r.bind(p.Groups.Memory, groups, readOnly)
	}
	if err := r.mount("tmpfs", groups, plain|unix.MS_NOEXEC, "mode=755,size=4k"); err != nil {
		return err
	}
	if err := r.bind(p.Groups.Memory, groups+"/memory", readOnly); err != nil {
		return err
	}
	return r.attributes(groups, readOnly)
}

// protect hides and seals what PID 1 could otherwise learn or change of the host.
func (r root) protect() error {
	for _, path := range slices.Concat(hidden, unwritable) {
		fd, err := r.open(path)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) {
			continue
		}
		if err != nil {
			return err
		}
		err = func() error {
			defer unix.Close(fd)
			if slices.Contains(unwritable, path) {
				return bindOn(proc(fd), fd, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
			}
			var st unix.Stat_t
			if err := unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH); err != nil {
				return err
			}
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				return unix.Mount("tmpfs", proc(fd), "tmpfs", plain|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=555,size=4k")
			}
			return bindOn("/dev/null", fd, unix.MOUNT_ATTR_RDONLY)
		}()
		if err != nil {
			return fmt.Errorf("protect %s: %w", path, err)
		}
	}
	return nil
}
