package local

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine/local/launch"
)

func TestHierarchiesAreFound(t *testing.T) {
	for name, tc := range map[string]struct {
		mountinfo, self string
		want            []hierarchy
	}{
		"version 2": {
			"30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
			"0::/user.slice/user-1000.slice/x.scope\n",
			[]hierarchy{{dir: "/sys/fs/cgroup", own: "/user.slice/user-1000.slice/x.scope", two: true}},
		},
		"version 1, of which some is used": {
			"31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n32 24 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n33 24 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n",
			"4:cpu,cpuacct:/a\n3:cpuset:/b\n1:name=systemd:/system.slice/s.service\n",
			[]hierarchy{{dir: "/sys/fs/cgroup/cpu,cpuacct", own: "/a", controllers: []string{"cpu", "cpuacct"}}, {dir: "/sys/fs/cgroup/systemd", own: "/system.slice/s.service", controllers: []string{"name=systemd"}}},
		},
		"a part of a hierarchy, as in a container, is none": {
			"30 24 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "0::/\n", nil,
		},
		"a path with a space": {
			`30 24 0:26 / /mnt/a\040b rw - cgroup2 none rw` + "\n", "0::/\n",
			[]hierarchy{{dir: "/mnt/a b", own: "/", two: true}},
		},
		"nonsense": {"x\n- -\n", "y\n::\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hierarchies(tc.mountinfo, tc.self); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestWhereGroupsAreMade(t *testing.T) {
	h := hierarchy{own: "/user.slice/app.slice/x.scope"}
	if got := places(h, false); !slices.Equal(got, []string{"/user.slice/app.slice", h.own}) {
		t.Errorf("an ordinary user: %q", got)
	}
	if got := places(h, true); got[0] != "/" {
		t.Errorf("root: %q", got)
	}
}

func TestLimitsOfEachVersion(t *testing.T) {
	limits := control.Limits{CPUs: 1.5, MemoryMB: 64, Pids: 20, DiskMB: 5}
	for name, tc := range map[string]struct {
		g          groups
		want       []string
		unenforced []string
	}{
		"version 2": {groups{two: "/g", has: []string{"memory", "pids", "cpu"}},
			[]string{"memory.max=67108864", "memory.swap.max=0", "pids.max=20", "cpu.max=150000 100000"}, []string{"disk_mb"}},
		"version 2 without cpu, as users often have it": {groups{two: "/g", has: []string{"memory", "pids"}},
			[]string{"memory.max=67108864", "memory.swap.max=0", "pids.max=20"}, []string{"cpus", "disk_mb"}},
		"version 1": {groups{one: map[string]string{"memory": "/m", "pids": "/p", "cpu": "/c"}},
			[]string{"memory.limit_in_bytes=67108864", "memory.memsw.limit_in_bytes=67108864", "pids.max=20", "cpu.cfs_period_us=100000", "cpu.cfs_quota_us=150000"}, []string{"disk_mb"}},
		"none": {groups{}, nil, []string{"cpus", "memory_mb", "pids", "disk_mb"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range tc.g.settings(limits) {
				got = append(got, s.file+"="+s.value)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("set are %q", got)
			}
			if got := tc.g.unenforced(limits); !slices.Equal(got, tc.unenforced) {
				t.Errorf("unenforced are %q", got)
			}
			if got := tc.g.unenforced(control.Limits{}); len(got) != 0 {
				t.Errorf("nothing was asked for, and unenforced are %q", got)
			}
		})
	}
}

func TestLimitsAreWrittenWhereTheyBelong(t *testing.T) {
	base := t.TempDir()
	files := []string{"memory.max", "pids.max", "cpu.max"} // no account of swap
	if err := os.Mkdir(filepath.Join(base, "s"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(base, "s", f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g := groups{two: base, has: []string{"memory", "pids", "cpu"}}
	made, err := g.create("s", control.Limits{CPUs: 1, MemoryMB: 1, Pids: 3})
	if err != nil {
		t.Fatal(err)
	}
	if !made.Two || made.Memory != filepath.Join(base, "s") || len(made.Enter) != 1 || len(made.Stand) != 1 {
		t.Errorf("made %+v", made)
	}
	for f, want := range map[string]string{"memory.max": "1048576", "pids.max": "3", "cpu.max": "100000 100000"} {
		if b, err := os.ReadFile(filepath.Join(base, "s", f)); err != nil || string(b) != want {
			t.Errorf("%s is %q, %v", f, b, err)
		}
	}
}

// On a machine whose controllers are version 1's, version 2 bounds nothing, but
// holds what runs all the same.
func TestAGroupOfVersionTwoHoldsASandboxAndNotItsLauncher(t *testing.T) {
	l := newLab(t)
	two := l.e.can.groups.two
	if two == "" {
		t.Skip("no control groups of version 2 that can be written")
	}
	l.emptyStock()
	l.e.can.groups = groups{two: two, has: l.e.can.groups.has} // what removes the instance finds the others anew
	spec := l.spec("e1")
	l.start(t, spec)
	a := l.agent(t, spec.Name)
	a.sh("sleep 1000 > /dev/null 2>&1 &")
	run := l.run(t, spec.Name)
	for _, p := range []struct {
		pid   int
		group string
	}{{run.PID.ID, spec.Name}, {run.Launcher.ID, standing}} {
		if !inGroup(p.pid, "/"+filepath.Base(two)+"/"+p.group) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
			t.Errorf("process %d is not in %s: %s", p.pid, p.group, b)
		}
	}
	if got := a.sh("grep ^0: /proc/self/cgroup"); got != "0::/" {
		t.Errorf("from inside, its group is %q", got)
	}
	if got := l.e.can.groups.left(); !slices.Equal(got, []string{spec.Name}) {
		t.Errorf("groups %q", got)
	}
	// As where its data is gone: its group is how it is found.
	if err := l.e.can.groups.kill(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	for _, p := range []launch.Process{run.PID, run.Launcher} {
		if gone, err := awaitEnd(t.Context(), p); !gone || err != nil {
			t.Errorf("process %d: %v, %v", p.ID, gone, err)
		}
	}
	if got := l.e.can.groups.left(); len(got) > 0 {
		t.Errorf("groups are left: %q", got)
	}
}

func TestAnEngineThatCannotBeOpenedLeavesNoGroups(t *testing.T) {
	l := newLab(t)
	opts := l.opts
	opts.Instance += "x"
	opts.DataDir = t.TempDir()
	opts.Binary = func(string) ([]byte, error) { return []byte("no program"), nil }
	if e, err := New(t.Context(), opts); err == nil {
		e.Close()
		t.Fatal("it was opened")
	}
	for _, base := range l.e.can.groups.dirs() {
		if _, err := os.Stat(base + "x"); err == nil {
			t.Errorf("%s is left", base+"x")
		}
	}
}
