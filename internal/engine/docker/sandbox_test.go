package docker

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"

	"sandkeeper/internal/control"
)

// sandboxSpec asks for what an environment gets that asks for nothing but to be
// left alone by the network.
func sandboxSpec(opts Options, image string) control.SandboxSpec {
	return control.SandboxSpec{
		Name: "sandkeeper-" + opts.Instance + "-e1", Env: "e1", Owner: "o", Task: "t", EnvName: "main",
		Image: image, Network: "none", Workdir: "/workspace",
		Limits: control.Limits{CPUs: 1, MemoryMB: 5120, Pids: 256},
	}
}

// box is one running sandbox to look into.
type box struct {
	t    *testing.T
	lab  *lab
	e    *Engine
	spec control.SandboxSpec
}

func startBox(t *testing.T, l *lab, opts Options, spec control.SandboxSpec) *box {
	t.Helper()
	e := open(t, opts)
	if _, err := e.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	return &box{t, l, e, spec}
}

func (b *box) run(argv ...string) (string, int) {
	b.t.Helper()
	return b.lab.inside(b.t, b.spec.Name, "0:0", argv...)
}

// sh runs a line of shell that must succeed, and returns its output without the newline.
func (b *box) sh(line string) string {
	b.t.Helper()
	out, code := b.run("sh", "-c", line)
	if code != 0 {
		b.t.Fatalf("%s: exit code %d: %s", line, code, out)
	}
	return strings.TrimSuffix(out, "\n")
}

// fails says that a line of shell must not succeed.
func (b *box) fails(line string) {
	b.t.Helper()
	if out, code := b.run("sh", "-c", line); code == 0 {
		b.t.Errorf("%s succeeded: %s", line, out)
	}
}

// cgroup reads a limit by its names under cgroup v2 and v1.
func (b *box) cgroup(v2, v1 string) string {
	b.t.Helper()
	return b.sh("cd /sys/fs/cgroup; cat " + v2 + " 2>/dev/null || cat " + v1)
}

func TestSandboxDefaultsFromInside(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	opts.Binary = func(string) ([]byte, error) { return l.guest, nil }
	b := startBox(t, l, opts, sandboxSpec(opts, testImage))
	host, err := b.e.host(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	t.Run("PID 1 has six capabilities and can gain none", func(t *testing.T) {
		// CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, KILL 5, SETGID 6, SETUID 7.
		const want = 1<<0 | 1<<1 | 1<<3 | 1<<5 | 1<<6 | 1<<7
		status := b.status()
		for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
			if got, err := strconv.ParseUint(status[set], 16, 64); err != nil || got != want {
				t.Errorf("%s is %s, want %016x", set, status[set], want)
			}
		}
		if status["CapAmb"] != "0000000000000000" {
			t.Errorf("CapAmb is %s", status["CapAmb"])
		}
		if status["NoNewPrivs"] != "1" {
			t.Errorf("NoNewPrivs is %s", status["NoNewPrivs"])
		}
	})
	t.Run("system calls are filtered", func(t *testing.T) {
		if !host.seccomp {
			t.Skip("the engine has no seccomp")
		}
		if got := b.status()["Seccomp"]; got != "2" {
			t.Errorf("Seccomp is %s, want 2", got)
		}
	})
	t.Run("processes are bounded", func(t *testing.T) {
		if got := b.cgroup("pids.max", "pids/pids.max"); host.pids && got != "256" {
			t.Errorf("pids.max is %s", got)
		}
	})
	t.Run("memory is bounded, and there is no swap beyond it", func(t *testing.T) {
		if !host.memory {
			t.Skip("the engine cannot bound memory and swap")
		}
		if got := b.cgroup("memory.max", "memory/memory.limit_in_bytes"); got != "5368709120" {
			t.Errorf("memory limit is %s", got)
		}
		if got := b.cgroup("memory.swap.max", "memory/memory.memsw.limit_in_bytes"); got != "0" && got != "5368709120" {
			t.Errorf("swap limit is %s", got)
		}
	})
	t.Run("CPU time is bounded", func(t *testing.T) {
		if got := b.cgroup("cpu.max", "cpu/cpu.cfs_quota_us"); host.cpus && strings.Fields(got)[0] != "100000" {
			t.Errorf("CPU quota is %s", got)
		}
	})
	t.Run("what is in /tmp can be executed", func(t *testing.T) {
		if got := b.sh("cp /bin/busybox /tmp/busybox && /tmp/busybox echo ran"); got != "ran" {
			t.Errorf("it says %q", got)
		}
		if got := b.mount("/tmp"); !strings.HasPrefix(got, "tmpfs") || !strings.Contains(got, "nosuid") || strings.Contains(got, "noexec") {
			t.Errorf("/tmp is %s", got)
		}
		if got := b.sh("stat -c %a /tmp"); got != "1777" {
			t.Errorf("/tmp has mode %s", got)
		}
	})
	t.Run("shared memory is as browsers need it", func(t *testing.T) {
		if got := b.sh("df -P -k /dev/shm | tail -1 | awk '{print $2}'"); got != "1048576" {
			t.Errorf("/dev/shm has %s KiB", got)
		}
	})
	t.Run("the engine's socket is not there, and nothing of the host is but our link", func(t *testing.T) {
		b.fails("test -e /var/run/docker.sock -o -e /run/docker.sock")
		var targets []string
		for line := range strings.Lines(b.sh("cat /proc/1/mountinfo")) {
			target := strings.Fields(line)[4]
			for _, own := range []string{"/proc", "/sys", "/dev"} {
				if target == own || strings.HasPrefix(target, own+"/") {
					target = own
				}
			}
			if !slices.Contains(targets, target) {
				targets = append(targets, target)
			}
		}
		slices.Sort(targets)
		want := []string{"/", "/.sandkeeper/bin", "/.sandkeeper/link", "/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/sys", "/tmp", "/workspace"}
		if b.e.links == "" {
			want = slices.DeleteFunc(want, func(s string) bool { return s == linkTarget })
		}
		if !slices.Equal(targets, want) {
			t.Errorf("mounted are %q, want %q", targets, want)
		}
	})
	t.Run("the guest's binary and its link cannot be written", func(t *testing.T) {
		b.fails("echo x > /.sandkeeper/bin/guest")
		b.fails("rm -f /.sandkeeper/bin/guest")
		b.fails("echo x > /.sandkeeper/bin/other")
		b.fails("touch /.sandkeeper/link/x")
		b.fails("rm /.sandkeeper/link/guest.sock")
		b.fails("ln -s /bin/busybox /.sandkeeper/link/y")
		b.fails("mount -o remount,rw /.sandkeeper/link")
		b.fails("umount /.sandkeeper/link")
	})
	t.Run("there are no devices to open and no kernel to change", func(t *testing.T) {
		b.fails("mknod /tmp/disk b 8 0")
		b.fails("echo 1 > /proc/sys/kernel/sysrq")
		b.fails("hostname other")
	})
	t.Run("output is not logged by the engine", func(t *testing.T) {
		_, found, err := b.e.inspect(t.Context(), b.spec.Name)
		if err != nil {
			t.Fatal(err)
		}
		if found.HostConfig.LogConfig.Type != "none" || found.HostConfig.Privileged || found.HostConfig.NetworkMode == "host" {
			t.Errorf("log %q, privileged %v, network %q", found.HostConfig.LogConfig.Type, found.HostConfig.Privileged, found.HostConfig.NetworkMode)
		}
	})
}

// status is /proc/1/status.
func (b *box) status() map[string]string {
	b.t.Helper()
	status := make(map[string]string)
	for line := range strings.Lines(b.sh("cat /proc/1/status")) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.TrimSpace(value)
	}
	return status
}

// mount is the kind and the options of what is mounted there.
func (b *box) mount(target string) string {
	b.t.Helper()
	return b.sh("awk '$2 == \"" + target + "\" {print $3, $4}' /proc/mounts")
}

func TestSmallSandboxHasSmallSharedMemory(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	spec := sandboxSpec(opts, testImage)
	spec.Limits.MemoryMB = 256
	b := startBox(t, l, opts, spec)
	if got := b.sh("df -P -k /dev/shm | tail -1 | awk '{print $2}'"); got != "65536" {
		t.Errorf("/dev/shm has %s KiB", got)
	}
	if got := b.sh("df -P -k /tmp | tail -1 | awk '{print $2}'"); got != "131072" {
		t.Errorf("/tmp has %s KiB", got)
	}
}

func TestMoreCPUsThanThereAreIsAllOfThem(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	spec := sandboxSpec(opts, testImage)
	spec.Limits.CPUs = 4096
	b := startBox(t, l, opts, spec)
	host, err := b.e.host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := b.cgroup("cpu.max", "cpu/cpu.cfs_quota_us"); host.cpus && strings.Fields(got)[0] != fmt.Sprint(100_000*host.cpuN) {
		t.Errorf("CPU quota is %s", got)
	}
}

func TestReadOnlyRootLeavesWorkspaceAndTmp(t *testing.T) {
	l := needLab(t)
	opts := l.options(t)
	opts.ReadOnlyRoot = true
	opts.Binary = func(string) ([]byte, error) { return l.guest, nil }
	b := startBox(t, l, opts, sandboxSpec(opts, testImage))
	b.fails("touch /file")
	b.sh("touch /workspace/file /tmp/file")
}

func TestImageHasNoSayInWhatRuns(t *testing.T) {
	l := needLab(t)
	const ref = "sandkeeper-engine-test:opinionated"
	if err := l.importImage(t.Context(), ref,
		"USER user", `ENTRYPOINT ["/bin/false"]`, `CMD ["-x"]`, "WORKDIR /root",
		"VOLUME /data", "ENV FLAVOUR=plain", "HEALTHCHECK CMD /bin/false"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.removeImage(ref) })
	opts := l.options(t)
	spec := sandboxSpec(opts, ref)
	spec.Workdir = "/workspace/deep"
	b := startBox(t, l, opts, spec)

	if got := b.sh("tr '\\0' ' ' < /proc/1/cmdline"); got != "/.sandkeeper/bin/guest init " {
		t.Errorf("PID 1 is %q", got)
	}
	if got := b.status()["Uid"]; !strings.HasPrefix(got, "0\t") {
		t.Errorf("PID 1 has uid %q", got)
	}
	env := strings.Split(b.sh("tr '\\0' '\\n' < /proc/1/environ"), "\n")
	if !slices.Contains(env, "FLAVOUR=plain") {
		t.Errorf("the image's variables are lost: %q", env)
	}
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, guestVariable+"=") })
	if i < 0 {
		t.Fatalf("the guest is told nothing: %q", env)
	}
	var told guestConfig
	if err := json.Unmarshal([]byte(strings.TrimPrefix(env[i], guestVariable+"=")), &told); err != nil {
		t.Fatal(err)
	}
	if want := (guestConfig{User: "user", Workdir: "/workspace/deep", Link: "/.sandkeeper/link"}); told != want {
		t.Errorf("the guest is told %+v, want %+v", told, want)
	}

	_, found, err := b.e.inspect(t.Context(), spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	if found.State.Health != nil {
		t.Errorf("the image's health check runs: %+v", found.State.Health)
	}
	if err := b.e.Stop(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	_, found, err = b.e.inspect(t.Context(), spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	if found.State.ExitCode != 7 {
		t.Errorf("stopped with exit code %d: the guest did not get TERM", found.State.ExitCode)
	}

	before := l.volumesOf(t)
	if err := b.e.Remove(t.Context(), spec.Name, control.KeepWorkspace); err != nil {
		t.Fatal(err)
	}
	after := l.volumesOf(t)
	for _, m := range found.Mounts {
		if m.Destination != "/data" {
			continue
		}
		if !slices.Contains(before, m.Name) || slices.Contains(after, m.Name) {
			t.Errorf("the volume that the image asked for is left")
		}
	}
	if !slices.Contains(after, workspaceOf(spec.Name)) {
		t.Errorf("the workspace went with the sandbox")
	}
}

func (l *lab) volumesOf(t *testing.T) (names []string) {
	t.Helper()
	list, err := l.cli.VolumeList(t.Context(), volume.ListOptions{Filters: filters.NewArgs()})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list.Volumes {
		names = append(names, v.Name)
	}
	return names
}
