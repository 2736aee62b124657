package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Build is the life of a builder, from the clone to the guest. It returns where
// something failed, after it said so, with the exit code.
func Build() int {
	runtime.LockOSThread() // the rights that are given up are a thread's, and this one executes
	unix.CloseOnExec(statusFD)
	unix.CloseOnExec(goFD)
	err := build()
	if err == nil {
		return 0 // a probe
	}
	unix.Write(statusFD, []byte(err.Error()))
	return 1
}

func build() error {
	var p Plan
	if err := json.Unmarshal([]byte(os.Getenv(Variable)), &p); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("die with the launcher", err)
	}
	var b [1]byte
	if n, err := unix.Read(goFD, b[:]); n != 1 {
		return fmt.Errorf("the launcher is gone: %w", errors.Join(err))
	}
	unix.Umask(0)
	for _, step := range []struct {
		name string
		do   func(*Plan) error
	}{
		{"control groups", enterGroups},
		{"host name", func(p *Plan) error { return unix.Sethostname([]byte(p.Hostname)) }},
		{"network", bringUpLoopback},
		{"root file system", buildRoot},
		{"rights", dropRights},
	} {
		if err := step.do(&p); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	guest := BinTarget + "/" + GuestFile
	if p.Probe {
		return unix.Access(guest, unix.X_OK)
	}
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		p.Guest,
	}
	return fmt.Errorf("execute the guest: %w", unix.Exec(guest, []string{guest, "init"}, env))
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
	return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWCGROUP))
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
	// What is mounted here stays here.
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

func bindOn(source string, fd int, attributes uint64) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return os.NewSyscallError("open_tree", err)
	}
	defer unix.Close(tree)
	if attributes != 0 {
		attr := unix.MountAttr{Attr_set: attributes}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
			return os.NewSyscallError("mount_setattr", err)
		}
	}
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

// kept are the capabilities that root has in a sandbox, as with every engine.
var kept = []uint{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID}

// dropRights leaves this thread, and what it executes, the kept capabilities
// and no way to more.
func dropRights(*Plan) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("no_new_privs", err)
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(kept, uint(c)) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return os.NewSyscallError("bounding set", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return os.NewSyscallError("ambient set", err)
	}
	if err := filterCalls(); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for _, c := range kept {
		data[c/32].Effective |= 1 << (c % 32)
		data[c/32].Permitted |= 1 << (c % 32)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}
