package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest"
	"sandkeeper/internal/guest/link"
)

// The guest runs for real: its own static binary as PID 1 of namespaces of its
// own, in a root file system made for the test.

var guestBinary string

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "enter" {
		enter(os.Args[2])
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	guestBinary = filepath.Join(dir, "guest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", guestBinary, "sandkeeper/cmd/guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build of the guest: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// enter is the child that becomes PID 1: it mounts what the root needs, in a
// mount namespace of its own, and executes the guest in it.
func enter(root string) {
	check := func(what string, err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, what, err)
			os.Exit(97)
		}
	}
	check("private", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check("root", unix.Mount(root, root, "", unix.MS_BIND, ""))
	for _, dir := range []string{"usr", "dev", ".sandkeeper/link"} {
		if _, err := os.Stat(filepath.Join(root, dir)); err != nil {
			continue
		}
		if dir == "usr" && os.Getenv("TEST_OWN_USR") != "" {
			continue
		}
		from := "/" + dir
		if dir == ".sandkeeper/link" {
			from = os.Getenv("TEST_LINK")
		}
		check(dir, unix.Mount(from, filepath.Join(root, dir), "", unix.MS_BIND, ""))
		check(dir, unix.Mount("", filepath.Join(root, dir), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	check("proc", unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""))
	if pts := filepath.Join(root, "dev/pts"); os.Getenv("TEST_NO_PTS") == "" {
		if _, err := os.Stat(pts); err == nil {
			check("devpts", unix.Mount("devpts", pts, "devpts", 0, "newinstance,ptmxmode=0666,mode=0620"))
		}
	}
	for _, dir := range []string{"workspace", "tmp"} {
		check(dir, unix.Mount("tmpfs", filepath.Join(root, dir), "tmpfs", 0, "mode=0755,size=256m"))
	}
	check("tmp", os.Chmod(filepath.Join(root, "tmp"), 0o1777))
	if os.Getenv("TEST_HIDE_BASH") != "" {
		check("bash", unix.Mount("/dev/null", filepath.Join(root, "usr/bin/bash"), "", unix.MS_BIND, ""))
	}
	if os.Getenv("TEST_READONLY") != "" {
		check("read-only", unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	}
	check("chroot", unix.Chroot(root))
	check("chdir", unix.Chdir("/"))
	env := []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root", "FROM_IMAGE=yes",
		"SANDKEEPER_GUEST=" + os.Getenv("TEST_CONFIG"),
	}
	check("exec", unix.Exec("/.sandkeeper/bin/guest", []string{"guest", "init"}, env))
}

// options of a sandbox.
type options struct {
	user     string
	noShell  bool
	readonly bool
	onlySh   string // the one program: a static one on this machine that is all programs
	hideBash bool
	noPTS    bool
}

// sandbox is a running guest.
type sandbox struct {
	control.Guest
	fleet *guest.Fleet
	cmd   *exec.Cmd
	root  string
	dir   string // of the link
	ended chan struct{}

	mu    sync.Mutex // guards the fields below
	dials int
	conns []io.Closer
}

// cut breaks every connection to the guest.
func (s *sandbox) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

func (s *sandbox) dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dials
}

var overLinks = []string{"socket", "attach"}

func overEach(t *testing.T, test func(t *testing.T, over string)) {
	for _, over := range overLinks {
		t.Run(over, func(t *testing.T) { test(t, over) })
	}
}

const passwd = `root:x:0:0:root:/root:/bin/sh
agent:x:1000:1000::/home/agent:/bin/sh
`

const group = `root:x:0:
agent:x:1000:
tools:x:2000:agent,other
`

func start(t testing.TB, over string, o options) *sandbox {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes namespaces")
	}
	s := &sandbox{root: t.TempDir(), dir: t.TempDir(), ended: make(chan struct{})}
	s.makeRoot(t, o)

	linkDir := ""
	if over == "socket" {
		linkDir = "/.sandkeeper/link"
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(self, "enter", s.root)
	s.cmd.Env = append(os.Environ(),
		"TEST_LINK="+s.dir, fmt.Sprintf(`TEST_CONFIG={"user":%q,"workdir":"/workspace","link":%q}`, o.user, linkDir))
	if o.readonly {
		s.cmd.Env = append(s.cmd.Env, "TEST_READONLY=1")
	}
	if o.onlySh != "" {
		s.cmd.Env = append(s.cmd.Env, "TEST_OWN_USR=1")
	}
	if o.hideBash {
		s.cmd.Env = append(s.cmd.Env, "TEST_HIDE_BASH=1")
	}
	if o.noPTS {
		s.cmd.Env = append(s.cmd.Env, "TEST_NO_PTS=1")
	}
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}

	dial := s.overSocket
	if over == "attach" {
		dial = s.overAttach
	}
	dialIn := dial(t)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.cmd.Wait(); close(s.ended) }()
	s.fleet = guest.NewFleet(func(ctx context.Context, name string) (io.ReadWriteCloser, error) {
		c, err := dialIn(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dials++
		if err == nil {
			s.conns = append(s.conns, c)
		}
		return c, err
	}, slog.New(slog.DiscardHandler))
	s.Guest = s.fleet.Guest("box")
	t.Cleanup(func() {
		s.fleet.Close()
		s.cmd.Process.Kill() // PID 1: all in it go
		<-s.ended
	})
	if err := s.Ping(t.Context()); err != nil {
		t.Fatalf("ping: %v", err)
	}
	return s
}

func (s *sandbox) makeRoot(t testing.TB, o options) {
	t.Helper()
	os.Chmod(s.root, 0o755)
	dirs := []string{"proc", "workspace", "tmp", "etc", "root", "home/agent", ".sandkeeper/bin", ".sandkeeper/link", "bin"}
	if !o.noShell && o.onlySh == "" {
		dirs = append(dirs, "usr", "dev")
	}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(s.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	os.Chown(filepath.Join(s.root, "home/agent"), 1000, 1000)
	copyFile(t, guestBinary, filepath.Join(s.root, ".sandkeeper/bin/guest"))
	switch {
	case o.noShell:
		copyFile(t, "/usr/bin/busybox", filepath.Join(s.root, "bin/true"))
		os.MkdirAll(filepath.Join(s.root, "dev"), 0o755)
		os.WriteFile(filepath.Join(s.root, "dev/null"), nil, 0o666)
	case o.onlySh != "":
		copyFile(t, o.onlySh, filepath.Join(s.root, "bin/sh"))
		for _, name := range []string{"cat", "od", "tr", "sleep", "mkdir", "rmdir", "touch"} {
			os.Symlink("sh", filepath.Join(s.root, "bin", name))
		}
		for _, name := range []string{"usr", "home"} {
			os.MkdirAll(filepath.Join(s.root, name), 0o755)
		}
		os.MkdirAll(filepath.Join(s.root, "dev"), 0o755)
		os.WriteFile(filepath.Join(s.root, "dev/null"), nil, 0o666)
	default:
		os.Remove(filepath.Join(s.root, "bin"))
		for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
			os.Symlink("usr/"+d, filepath.Join(s.root, d))
		}
	}
	os.WriteFile(filepath.Join(s.root, ".sandkeeper/secret"), nil, 0o600)
	os.WriteFile(filepath.Join(s.root, "etc/passwd"), []byte(passwd), 0o644)
	os.WriteFile(filepath.Join(s.root, "etc/group"), []byte(group), 0o644)
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("%s is not here", from)
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

type dialFunc func(ctx context.Context) (io.ReadWriteCloser, error)

func (s *sandbox) overSocket(t testing.TB) dialFunc {
	l, err := link.Listen(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func(ctx context.Context) (io.ReadWriteCloser, error) {
		return l.Dial(ctx, func(pid int) error {
			if pid != s.cmd.Process.Pid {
				return fmt.Errorf("process %d is not the sandbox's init", pid)
			}
			return nil
		})
	}
}

// overAttach is an engine's attach: everybody writes to one stdin, and gets all
// of one stdout.
func (s *sandbox) overAttach(t testing.TB) dialFunc {
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdin, s.cmd.Stdout = inR, outW
	all := &attaches{stdin: inW, outs: make(map[*attach]*os.File)}
	go all.copy(outR)
	t.Cleanup(func() { inR.Close(); outW.Close(); inW.Close(); outR.Close() })
	return func(ctx context.Context) (io.ReadWriteCloser, error) {
		a, err := all.attach()
		if err != nil {
			return nil, err
		}
		return link.Attached(ctx, a)
	}
}

type attaches struct {
	stdin *os.File
	mu    sync.Mutex
	outs  map[*attach]*os.File
}

type attach struct {
	all *attaches
	r   *os.File
}

func (all *attaches) copy(r *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if err != nil {
			return
		}
		all.mu.Lock()
		for _, w := range all.outs {
			w.Write(buf[:n])
		}
		all.mu.Unlock()
	}
}

func (all *attaches) attach() (*attach, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	a := &attach{all, r}
	all.mu.Lock()
	defer all.mu.Unlock()
	all.outs[a] = w
	return a, nil
}

func (a *attach) Read(p []byte) (int, error)  { return a.r.Read(p) }
func (a *attach) Write(p []byte) (int, error) { return a.all.stdin.Write(p) }
func (a *attach) Close() error {
	err := a.r.Close()
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	if w := a.all.outs[a]; w != nil {
		w.Close()
		delete(a.all.outs, a)
	}
	return err
}

var execNumber struct {
	sync.Mutex
	n int
}

func newName() string {
	execNumber.Lock()
	defer execNumber.Unlock()
	execNumber.n++
	return "x" + strconv.Itoa(execNumber.n)
}

// do runs a command to its end.
func (s *sandbox) do(t testing.TB, c control.ExecStart) control.ExecEnd {
	t.Helper()
	if c.Exec == "" {
		c.Exec = newName()
	}
	if _, err := s.Start(t.Context(), c); err != nil {
		t.Fatalf("start %q %q: %v", c.Shell, c.Argv, err)
	}
	return s.end(t, c.Exec)
}

func (s *sandbox) end(t testing.TB, exec string) control.ExecEnd {
	t.Helper()
	end, err := s.Wait(t.Context(), exec, 400_000)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return end
}

func (s *sandbox) sh(t testing.TB, text string) control.ExecEnd {
	t.Helper()
	return s.do(t, control.ExecStart{Shell: text})
}

// alive lists the commands of all processes that live in the sandbox but the
// guest's own.
func (s *sandbox) alive(t testing.TB) []string {
	t.Helper()
	living, _ := s.processes(t)
	return living
}

// reaped waits until nobody is dead in the sandbox and still listed: PID 1 reaps
// soon, but need not have done so when it tells of an end.
func (s *sandbox) reaped(t testing.TB) {
	t.Helper()
	for ceiling := time.Now().Add(time.Minute); ; {
		_, dead := s.processes(t)
		if len(dead) == 0 {
			return
		}
		if time.Now().After(ceiling) {
			t.Fatalf("not reaped: %q", dead)
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// processes lists all in the sandbox but the guest's own. The kernel's flag says
// who is exiting, a little before it says who is a zombie.
func (s *sandbox) processes(t testing.TB) (living, dead []string) {
	t.Helper()
	ns := namespace(strconv.Itoa(s.cmd.Process.Pid))
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil || namespace(e.Name()) != ns {
			continue
		}
		cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // reaped meanwhile
		}
		text := strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		flags, _ := strconv.ParseUint(f[6], 10, 64)
		const exiting = 0x4
		switch {
		case f[0] == "Z" || f[0] == "X" || flags&exiting != 0:
			dead = append(dead, string(stat))
		case text != "guest init" && text != "sandkeeper keeper":
			living = append(living, text)
		}
	}
	return living, dead
}

func namespace(pid string) string {
	ns, _ := os.Readlink("/proc/" + pid + "/ns/pid")
	return ns
}

// keeperPIDs finds the sandbox's keepers, as this machine numbers them.
func (s *sandbox) keeperPIDs() (pids []int) {
	ns := namespace(strconv.Itoa(s.cmd.Process.Pid))
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if string(cmd) == "sandkeeper\x00keeper\x00" && namespace(e.Name()) == ns {
			pid, _ := strconv.Atoi(e.Name())
			pids = append(pids, pid)
		}
	}
	return pids
}
