package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/engine"
	"sandkeeper/internal/engine/local/launch"
)

// Stats reads what a running sandbox uses now: from its control groups, and
// what these do not tell from its processes.
func (e *Engine) Stats(ctx context.Context, name string) (engine.Stats, error) {
	if err := ctx.Err(); err != nil {
		return engine.Stats{}, err
	}
	e.mu.Lock()
	var r *run
	group := name
	if b := e.boxes[name]; b != nil {
		r, group = b.run, b.group()
	}
	e.mu.Unlock()
	if r == nil {
		return engine.Stats{}, fmt.Errorf("sandbox %s does not run: %w", name, control.ErrNoSandbox)
	}
	s, err := statsOfTree(r.pid)
	if err != nil {
		return engine.Stats{}, fmt.Errorf("sandbox %s: %w", name, errors.Join(control.ErrNoSandbox, err))
	}
	g := e.can.groups
	if cpu, ok := g.cpuTime(group); ok {
		s.CPU = cpu
	}
	if memory, ok := g.memoryUsed(group); ok {
		s.Memory = memory
	}
	return s, nil
}

// tick is what /proc counts CPU time in, on every machine that Go runs on.
const tick = 10 * time.Millisecond

// statsOfTree adds up a process and all below it. An orphan's parent is PID 1,
// so that nobody in a sandbox is elsewhere.
func statsOfTree(root launch.Process) (s engine.Stats, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return s, err
	}
	all := make(map[int]launch.Stat)
	children := make(map[int][]int)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		st, err := launch.ReadStat(pid)
		if err != nil {
			continue // gone meanwhile
		}
		all[pid] = st
		children[st.Parent] = append(children[st.Parent], pid)
	}
	if st, ok := all[root.ID]; !ok || st.Start != root.Start || st.State == 'Z' {
		return s, errors.New("its first process is gone")
	}
	for next := []int{root.ID}; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		s.Pids++
		s.CPU += time.Duration(all[pid].Ticks) * tick
		// The kernel's count lags behind a young process, which has a page for sure.
		s.Memory += max(all[pid].Pages, 1) * int64(os.Getpagesize())
	}
	s.CPU = max(s.CPU, runTime(root.ID))
	return s, nil
}

// runTime is the CPU time of one process to the nanosecond: a young one has no tick yet.
func runTime(pid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/schedstat")
	if err != nil {
		return 0
	}
	ns, _, _ := bytes.Cut(b, []byte(" "))
	v, err := strconv.ParseInt(string(ns), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(v)
}

// cpuTime is what a sandbox's processes have used since its start.
func (g groups) cpuTime(name string) (time.Duration, bool) {
	if dir := g.one["cpuacct"]; dir != "" {
		v, ok := readNumber(filepath.Join(dir, name, "cpuacct.usage"))
		return time.Duration(v), ok
	}
	if g.two == "" {
		return 0, false
	}
	v, ok := readKey(filepath.Join(g.two, name, "cpu.stat"), "usage_usec")
	return time.Duration(v) * time.Microsecond, ok
}

// memoryUsed is a sandbox's memory without the page cache that goes first when memory is short.
func (g groups) memoryUsed(name string) (int64, bool) {
	dir, two := g.memory(name)
	if dir == "" {
		return 0, false
	}
	usage, cache := "memory.usage_in_bytes", "total_inactive_file"
	if two {
		usage, cache = "memory.current", "inactive_file"
	}
	v, ok := readNumber(filepath.Join(dir, usage))
	if !ok {
		return 0, false
	}
	if c, ok := readKey(filepath.Join(dir, "memory.stat"), cache); ok {
		v -= min(c, v)
	}
	return v, true
}

func readNumber(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return v, err == nil
}

// readKey reads a value of a file of "key value" lines.
func readKey(path, key string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 2 && slices.Equal(f[0], []byte(key)) {
			v, err := strconv.ParseInt(string(f[1]), 10, 64)
			return v, err == nil
		}
	}
	return 0, false
}
