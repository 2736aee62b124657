package local

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest"
)

// agent runs commands as agents do, through the guest.
type agent struct {
	t    testing.TB
	lab  *lab
	name string
	g    control.Guest
}

func (l *lab) agent(t testing.TB, name string) *agent {
	fleet := guest.NewFleet(func(ctx context.Context, name string) (io.ReadWriteCloser, error) { return l.e.Dial(ctx, name) }, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { fleet.Close() })
	return &agent{t, l, name, fleet.Guest(name)}
}

func (a *agent) run(line string) (string, int) {
	a.t.Helper()
	id := fmt.Sprintf("exec-%d", execs.Add(1))
	if _, err := a.g.Start(a.t.Context(), control.ExecStart{Exec: id, Argv: []string{"/bin/sh", "-c", line}, Workdir: "/workspace"}); err != nil {
		a.t.Fatal(err)
	}
	end, err := a.g.Wait(a.t.Context(), id, 100_000)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(end.Stdout) + string(end.Stderr), end.ExitCode
}

// sh runs a line that must succeed, and returns its output without the last newline.
func (a *agent) sh(line string) string {
	a.t.Helper()
	out, code := a.run(line)
	if code != 0 {
		a.t.Fatalf("%s: exit code %d: %s", line, code, out)
	}
	return strings.TrimSuffix(out, "\n")
}

// fails says that a line must not succeed.
func (a *agent) fails(line string) {
	a.t.Helper()
	if out, code := a.run(line); code == 0 {
		a.t.Errorf("%s succeeded: %s", line, out)
	}
}

// leaveOpen opens a directory of the host as a parent of the server might have.
func (l *lab) leaveOpen(t *testing.T) {
	l.open = t.TempDir()
	fd, err := unix.Open(l.open, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// inside are the rules that hold in each sandbox, whoever the server is.
func inside(t *testing.T) {
	l := newLab(t)
	l.leaveOpen(t)
	spec, other := l.spec("e1"), l.spec("e2")
	l.startHeld(t, spec)
	l.start(t, other)
	a := l.agent(t, spec.Name)
	l.agent(t, other.Name).sh("echo secret > /workspace/secret")

	t.Run("PID 1 has six capabilities and can gain none", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		for _, who := range []string{"1", "self"} {
			status := a.sh("cat /proc/" + who + "/status")
			for _, want := range []string{"CapPrm:\t00000000000000eb", "CapEff:\t00000000000000eb", "CapBnd:\t00000000000000eb", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
				if !strings.Contains(status, want+"\n") {
					t.Errorf("%s lacks %q: %s", who, want, status)
				}
			}
		}
	})
	t.Run("so has every thread of PID 1 and of its keepers", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		rights := strings.Fields(a.sh("cat /proc/[0-9]*/task/[0-9]*/status | grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' | sort -u"))
		const none, six = "0000000000000000", "00000000000000eb"
		if want := []string{"CapAmb:", none, "CapBnd:", six, "CapEff:", six, "CapInh:", none, "CapPrm:", six, "NoNewPrivs:", "1", "Seccomp:", "2"}; !slices.Equal(rights, want) {
			t.Errorf("rights are %q", rights)
		}
		if got := a.sh("cat /proc/[0-9]*/cgroup | cut -d: -f3 | sort -u"); len(l.e.can.groups.dirs()) > 0 && got != "/" {
			t.Errorf("it sees the groups %q", got)
		}
	})
	t.Run("what PID 1 and its keepers are executed from cannot be changed", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		ours := strings.Fields(a.sh("grep -lsE 'guest|sandkeeper' /proc/[0-9]*/cmdline"))
		if len(ours) < 2 {
			t.Fatalf("found %q alone", ours)
		}
		for _, cmdline := range ours {
			if cmdline == "/proc/1/cmdline" || a.sh("tr '\\0' ' ' < "+cmdline+" || true") == "sandkeeper keeper " {
				a.fails("chmod 0777 " + filepath.Dir(cmdline) + "/exe")
			}
		}
	})
	t.Run("what the server had open when it began reaches nobody inside", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		if got := a.sh("ls -l /proc/1/fd /proc/[0-9]*/fd 2>/dev/null"); strings.Contains(got, l.open) {
			t.Errorf("it has %s", got)
		}
	})
	t.Run("it sees its own processes alone", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		if got := a.sh("tr '\\0' ' ' < /proc/1/cmdline"); got != "/.sandkeeper/bin/guest inside " {
			t.Errorf("PID 1 is %q", got)
		}
		host := os.Getpid()
		if got, _ := a.run(fmt.Sprintf("tr '\\0' ' ' < /proc/%d/cmdline", host)); strings.Contains(got, "local.test") {
			t.Errorf("it sees the host's process %d: %s", host, got)
		}
		a.fails(fmt.Sprintf("kill -0 %d", host))
	})
	t.Run("the host's secrets are not there", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		for _, dir := range []string{"/home", "/run", "/srv", "/mnt", "/var/log", "/tmp"} {
			if got := a.sh("ls -A " + dir); got != "" && !strings.HasPrefix(got, "systemd") && got != "resolvconf" && got != "apt" {
				t.Errorf("%s has %q", dir, got)
			}
		}
		for _, path := range []string{l.opts.DataDir, "/boot", "/var/lib/docker", "/root/go", "/root/.ssh", "/run/docker.sock", "/var/run/docker.sock", "/etc/ssl/private"} {
			a.fails("ls " + path + "/")
			a.fails("cat " + path)
		}
		a.fails("grep -v '^[^:]*:[*!]' /etc/shadow")
		if got := a.sh("ls -A /root /workspace"); strings.Contains(got, "secret") {
			t.Errorf("another sandbox's files are there: %s", got)
		}
	})
	t.Run("the host's file of only one reader is hidden or cannot be read", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		var st unix.Stat_t
		for _, path := range []string{"/etc/shadow-", "/etc/gshadow-", "/etc/sudoers", "/etc/.pwd.lock"} {
			if unix.Stat(path, &st) == nil && st.Mode&0o004 == 0 {
				a.fails("cat " + path)
			}
		}
	})
	t.Run("it may write to its own files alone", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		a.sh("echo x > /workspace/x && echo x > /tmp/x && echo x > ~/x && echo x > /dev/shm/x && test $HOME = /root")
		for _, line := range []string{
			"echo x > /.sandkeeper/bin/guest", "rm -f /.sandkeeper/bin/guest", "echo x > /proc/1/exe", "touch /.sandkeeper/link/x", "rm /.sandkeeper/link/guest.sock",
			"echo 1 > /proc/sys/kernel/sysrq", "echo x > /proc/sys/kernel/core_pattern", "echo b > /proc/sysrq-trigger", "touch /sys/x", "touch /dev/../sys/fs/cgroup/x",
			"mknod /tmp/disk b 8 0", "mount -t tmpfs none /mnt", "umount /.sandkeeper/link", "umount /proc/sys", "unshare -U true", "unshare -m true", "hostname other", "chroot / true",
			"nsenter -t 1 -m true", "cat /proc/kcore", "cat /proc/keys | grep .",
		} {
			a.fails(line)
		}
		host, err := os.Stat("/etc/hostname")
		a.run("echo x > /etc/hostname; rm -f /usr/bin/env; touch /usr/bin/true2")
		if err == nil {
			if now, err := os.Stat("/etc/hostname"); err != nil || now.ModTime() != host.ModTime() {
				t.Error("it changed the host's /etc/hostname")
			}
		}
		for path, there := range map[string]bool{"/usr/bin/env": true, "/usr/bin/true2": false} {
			if _, err := os.Stat(path); (err == nil) != there {
				t.Errorf("the host's %s is there: %v", path, !there)
			}
		}
		_, code := a.run("touch /etc/x")
		if (code == 0) != l.e.can.writable {
			t.Errorf("the root file system can be written: %v, and is said to be: %v", code == 0, l.e.can.writable)
		}
	})
	t.Run("devices are the harmless ones", func(t *testing.T) {
		a := &agent{t, l, a.name, a.g}
		want := strings.Fields("fd full null ptmx pts random shm stderr stdin stdout tty urandom zero")
		if got := strings.Fields(a.sh("ls /dev")); !slices.Equal(got, want) {
			t.Errorf("/dev has %q", got)
		}
		a.sh("head -c 8 /dev/zero > /dev/null")
	})
	t.Run("network none reaches nobody, nor the host's sockets", func(t *testing.T) {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		a := &agent{t, l, a.name, a.g}
		port := listener.Addr().(*net.TCPAddr).Port
		bash := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d", port)
		if _, err := exec.LookPath("bash"); err != nil {
			t.Skip("no bash to try it with")
		}
		if out, err := exec.Command("bash", "-c", bash).CombinedOutput(); err != nil {
			t.Fatalf("from the host: %s, %v", out, err)
		}
		a.fails("bash -c '" + bash + "'")
		if got := a.sh("ls /sys/class/net"); strings.Contains(got, "eth") {
			t.Errorf("its interfaces are %s", got)
		}
		if got := a.sh("cat /proc/net/unix | grep -c @ || true"); got != "0" {
			t.Errorf("it sees %s of the host's abstract sockets", got)
		}
	})
	t.Run("limits hold, or are told", func(t *testing.T) {
		created, err := l.e.Create(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		a := &agent{t, l, a.name, a.g}
		told := slices.Contains(created.Unenforced, limitPids)
		out, _ := a.run("(for i in $(seq 100); do sleep 30 & done) >/dev/null 2>&1; set -- /proc/[0-9]*; echo $#")
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if held := n <= 64; err != nil || held == told {
			t.Errorf("%q processes with a limit of 64, and pids told as unenforced: %v", out, told)
		}
	})
	t.Run("isolation is namespaces", func(t *testing.T) {
		info, err := l.e.Info(t.Context())
		if err != nil || info.Isolation != "namespaces" {
			t.Errorf("%+v, %v", info, err)
		}
		pid := l.run(t, spec.Name).PID.ID
		for _, ns := range []string{"mnt", "pid", "ipc", "uts", "net"} {
			own, err := os.Readlink("/proc/self/ns/" + ns)
			if err != nil {
				t.Fatal(err)
			}
			if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns)); err != nil || its == own {
				t.Errorf("its %s namespace is %s, %v; ours is %s", ns, its, err, own)
			}
		}
	})
}

func TestInside(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Run("as root", inside)
		t.Run("as an ordinary user", func(t *testing.T) { asNobody(t, "^TestInside$|^TestConformance$|^TestASandboxThatWasHeld") })
		return
	}
	inside(t)
}

// nobody is a user that owns nothing on this machine.
const nobody = 64999

// asNobody runs tests of this package in a process of an ordinary user.
func asNobody(t *testing.T, tests string) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The user may enter neither the test's directory nor the caches of the toolchain.
	dir, err := os.MkdirTemp("/var/tmp", "sandkeeper-local-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	guest, err := builtGuest()
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"local.test": test, "guest": guest} {
		if err := os.WriteFile(filepath.Join(dir, name), body, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "local.test"), "-test.v", "-test.run", tests)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, guestVariable + "=" + filepath.Join(dir, "guest")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if strings.Contains(string(out), "local is missing") {
		// A machine may forbid it to ordinary users alone; it is asked by other means.
		bare := exec.CommandContext(ctx, "unshare", "--user", "--map-root-user", "--mount", "true")
		bare.Dir, bare.SysProcAttr = dir, cmd.SysProcAttr
		if said, err := bare.CombinedOutput(); err != nil {
			t.Skipf("ordinary users have no namespaces on this machine: %v: %s", err, said)
		}
		t.Fatalf("ordinary users have namespaces on this machine: %s", out)
	}
	if !strings.Contains(string(out), "--- PASS: TestInside") {
		t.Fatalf("nothing was tested: %s", out)
	}
}

func TestAnImageIsRefused(t *testing.T) {
	l := newLab(t)
	spec := l.spec("e1")
	spec.Image = "debian:bookworm"
	_, err := l.e.Create(t.Context(), spec)
	for what, err := range map[string]error{"create": err, "pull": l.e.Pull(t.Context(), spec.Image)} {
		if err == nil || !strings.Contains(err.Error(), control.ErrImageUnavailable.Error()) || !strings.Contains(err.Error(), "has no images") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestNetworkNoneIsRefusedWhereItCannotBeHad(t *testing.T) {
	l := newLab(t)
	l.e.can.network = false
	_, err := l.e.Create(t.Context(), l.spec("e1"))
	if err == nil || !strings.Contains(err.Error(), control.ErrSpecRefused.Error()) {
		t.Errorf("got %v", err)
	}
}
