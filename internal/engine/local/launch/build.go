package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/guest/keeper"
)

// The files of the builder beside the usual ones, and what it says when it has
// done as a plan says.
const (
	builderStatus = 3
	builderPlan   = 4

	held  = "held\n"
	built = "built\n"
)

// Build is the beginning of a builder, in namespaces of its own. It sets the
// stage: it makes in an empty directory what every sandbox of its Kind (as JSON)
// has. Then it executes the guest's binary anew, from a mount of it that nobody can write to, since a
// sandbox reaches what its PID 1 is executed from. It returns where something failed,
// after it said so, with the exit code.
func Build(kind string) int {
	runtime.LockOSThread()
	return Refuse(beginBuild(kind))
}

func beginBuild(kind string) error {
	var k Kind
	if err := json.Unmarshal([]byte(kind), &k); err != nil {
		return fmt.Errorf("kind: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("die with the launcher", err)
	}
	unix.Umask(0)
	// What is mounted here stays here; what the host mounts meanwhile is seen.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return os.NewSyscallError("mounts of its own", err)
	}
	// What the server was started with, and did not know of, ends here.
	if err := unix.CloseRange(builderPlan+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	guest, err := cloneTree(k.Bin, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return err
	}
	if err := bringUpLoopback(&k); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if err := setStage(&k); err != nil {
		return fmt.Errorf("stage: %w", err)
	}
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
	}
	return os.NewSyscallError("execute the guest", unix.Exec(proc(guest)+"/"+GuestFile, []string{BinTarget + "/" + GuestFile, InsideArg}, env))
}

// Refuse says what failed; it returns the exit code.
func Refuse(err error) int {
	unix.Write(builderStatus, []byte(err.Error()))
	return 1
}

// Prepared is a builder that waits for its plan.
type Prepared struct {
	Keeper *keeper.Handle // a keeper of the sandbox to be; it waits too
	keeper *os.File       // to tell it
}

// Prepare gives up, in every thread, what the builder does not need, after it
// has started a keeper.
func Prepare() (*Prepared, error) {
	unix.CloseOnExec(builderStatus)
	unix.CloseOnExec(builderPlan)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "keeper"), pair[1]
	defer unix.Close(theirs)
	h, err := keeper.SpawnWith("/proc/self/exe", []string{keeper.Arg, KeeperConfined}, []string{"GOMAXPROCS=1", "GODEBUG=madvdontneed=1"}, uintptr(theirs))
	if err != nil {
		return nil, err
	}
	rehearse()
	return &Prepared{Keeper: h, keeper: ours}, giveUpGains()
}

// Become carries out the plan that comes: from then on this process is the PID 1
// of a sandbox, with no more rights than that has, and so is its keeper. It returns the guest's
// configuration, or nil and the exit code: after a probe, and where something
// failed, which it has said. While it is held, rehearse is called: by then the
// keeper is confined, and what it runs has the sandbox's rights and sees the sandbox.
func (b *Prepared) Become(rehearse func() error) (guest json.RawMessage, code int) {
	p, err := b.become(rehearse)
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

func (b *Prepared) become(rehearse func() error) (*Plan, error) {
	file := os.NewFile(builderPlan, "plan")
	defer file.Close()
	plans := bufio.NewReaderSize(file, 16<<10)
	p, err := nextPlan(plans)
	if err != nil {
		return nil, err
	}
	mask := unix.Umask(0)
	defer unix.Umask(mask)
	err = do(p, []step{
		{"log", openLog},
		{"control groups", b.enterGroups},
		{"keeper", b.tellKeeper},
		{"root file system", buildRoot},
		{"keeper", b.hearKeeper},
	})
	if err != nil {
		return nil, err
	}
	first := p
	if p.Hold {
		unix.Umask(mask)
		if err := rehearse(); err != nil {
			return nil, err
		}
		unix.Umask(0)
		unix.Write(builderStatus, []byte(held))
		if p, err = nextPlan(plans); err != nil {
			return nil, err
		}
		if p.Hold || !p.Suits(*first) {
			return nil, errUnsuited
		}
	}
	file.Close()
	return p, do(p, []step{
		{"host name", func(p *Plan) error { return unix.Sethostname([]byte(p.Hostname)) }},
		{"sizes", func(p *Plan) error { return resize(p, first) }},
		{"rights", func(*Plan) error { return dropRights() }},
		{"files", func(*Plan) error { return checkFiles(builderStatus, b.Keeper.Socket()) }},
	})
}

// step is one of what makes a process a sandbox.
type step struct {
	name string
	do   func(*Plan) error
}

func do(p *Plan, steps []step) error {
	for _, s := range steps {
		if err := s.do(p); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// nextPlan waits for the launcher's word.
func nextPlan(plans *bufio.Reader) (*Plan, error) {
	line, err := plans.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the launcher is gone: %w", err)
	}
	p := new(Plan)
	return p, p.read(line)
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

// enterGroups enters the control groups, with the keeper.
func (b *Prepared) enterGroups(p *Plan) error {
	for _, group := range p.Groups.Enter {
		if err := errors.Join(enter(group, 0), enter(group, b.Keeper.PID)); err != nil {
			return err
		}
	}
	if len(p.Groups.Enter) == 0 {
		return nil
	}
	return topGroups()
}

// topGroups has the groups that this process is in be the topmost, as seen from inside.
func topGroups() error {
	return everyThread("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0)
}

func bringUpLoopback(k *Kind) error {
	if !k.NoNetwork {
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

// staged are the directories of a root that are made on the stage, with all that is in them.
var staged = []string{"/dev", "/proc", "/run", "/sys"}

// setStage mounts what is the same for every plan, and goes there.
func setStage(k *Kind) error {
	if err := unix.Mount("tmpfs", k.Stage, "tmpfs", plain|unix.MS_NOEXEC, "mode=755,size=64k"); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := os.Chdir(k.Stage); err != nil {
		return err
	}
	r, err := openRoot(".")
	if err != nil {
		return err
	}
	defer unix.Close(r.fd)
	for _, m := range []struct {
		kind, target, options string
		flags                 uintptr
	}{
		{"tmpfs", "/run", sized("mode=755", 16<<20), plain},
		{"tmpfs", "/dev", sized("mode=755", 1<<20), plain},
		{"devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"proc", "/proc", "", plain | unix.MS_NOEXEC},
	} {
		if err := r.mount(m.kind, m.target, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := r.fillDev(); err != nil {
		return fmt.Errorf("/dev: %w", err)
	}
	if err := r.sys(k); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return r.protect()
}

// buildRoot makes the sandbox's root of what the plan names and what is on the
// stage, which is the current directory, and nothing else.
func buildRoot(p *Plan) error {
	stage, err := openRoot(".")
	if err != nil {
		return err
	}
	defer unix.Close(stage.fd)
	// What the host mounts from here on is not seen.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := os.Chdir(p.Dir); err != nil {
		return err
	}
	if err := unix.Mount(RootDir, RootDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	r, err := openRoot(RootDir)
	if err != nil {
		return err
	}
	defer unix.Close(r.fd)
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
	for _, path := range staged {
		if err := stage.move(path, r); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	for target, size := range p.sizes() {
		if err := r.mount("tmpfs", target, plain, sized("mode=1777", size)); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	for path, text := range p.Files {
		if err := r.write(path, text); err != nil {
			return err
		}
	}
	if err := r.groups(p); err != nil {
		return fmt.Errorf("mount control groups: %w", err)
	}
	// The host's files go out of sight for good.
	if err := unix.Fchdir(r.fd); err != nil {
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

// sizes are those of what is in memory, by where it is mounted.
func (p *Plan) sizes() map[string]int64 { return map[string]int64{"/tmp": p.Tmp, "/dev/shm": p.Shm} }

// resize gives what is in memory, and empty yet, the sizes that a later plan has.
func resize(p, first *Plan) error {
	was := first.sizes()
	for target, size := range p.sizes() {
		if size == was[target] {
			continue
		}
		if size == 0 {
			return fmt.Errorf("%s has a bound already", target)
		}
		if err := unix.Mount("", target, "", unix.MS_REMOUNT|plain, sized("mode=1777", size)); err != nil {
			return fmt.Errorf("%s: %w", target, os.NewSyscallError("remount", err))
		}
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

func openRoot(dir string) (root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return root{-1}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return root{fd}, nil
}

// move moves what is mounted at a path to the same path of another root.
func (r root) move(path string, to root) error {
	from, err := r.open(path)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	fd, err := to.dir(path)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return os.NewSyscallError("move_mount", unix.MoveMount(from, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH))
}

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
func (r root) sys(k *Kind) error {
	if k.UserNS && !k.NoNetwork {
		return r.mount("tmpfs", "/sys", plain|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=755,size=4k")
	}
	return r.mount("sysfs", "/sys", plain|unix.MS_NOEXEC|unix.MS_RDONLY, "")
}

// groups shows the control group that bounds memory, where there is a /sys.
func (r root) groups(p *Plan) error {
	if p.Groups.Memory == "" || p.UserNS && !p.NoNetwork {
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
