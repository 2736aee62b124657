package enginetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// Run holds the engines that made makes against every rule, one engine each.
func Run(t *testing.T, made func(t *testing.T) Harness) {
	for _, r := range rules {
		r.run(t, made)
	}
	RunDial(t, made)
}

// RunDial holds them against the rules of Dial alone, for an engine that has
// more than one way to a guest.
func RunDial(t *testing.T, made func(t *testing.T) Harness) {
	for _, r := range dialRules {
		r.run(t, made)
	}
}

type rule struct {
	name string
	test func(*suite)
}

func (r rule) run(t *testing.T, made func(t *testing.T) Harness) {
	t.Run(r.name, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		r.test(&suite{T: t, Harness: made(t), ctx: ctx, made: made})
	})
}

var rules = []rule{
	{"create twice by one name makes one", createTwice},
	{"two creates of one name at once make one", createAtOnce},
	{"create leaves what is there as it is, in whatever state", createExisting},
	{"create says whether the workspace was there", createOverWorkspace},
	{"an image that is not there is missing, and unavailable where it cannot be pulled", missingImage},
	{"start of a running one is success", startRunning},
	{"start of an absent one is no sandbox", startAbsent},
	{"stop keeps files and start brings them back", stopKeepsFiles},
	{"kill ends at once and keeps files", killKeepsFiles},
	{"stop and kill of a stopped one, a never started one and an absent one succeed", stopStopped},
	{"remove of what is absent succeeds", removeAbsent},
	{"remove takes one in any state", removeAnyState},
	{"remove keeps the workspace or takes it, as told", removeWorkspace},
	{"two removes at once succeed", removeAtOnce},
	{"list finds all states by label", listStates},
	{"list and prune see nothing of another instance", otherInstance},
	{"what is not ours is never touched", foreign},
	{"watch reports start, death and removal in order", watchOrder},
	{"watch reports a death behind our back with its exit code", watchDeath},
	{"watch tells what happened since a time", watchSince},
	{"a main process killed for memory is out of memory", oomOfMain},
	{"a child killed for memory is not, also when the sandbox is killed later", oomOfChild},
	{"nor where its main process is killed behind our back, a while later", oomOfChildBehind},
	{"an old run's want of memory does not cling to the next", oomOfOldRun},
	{"limits asked and not enforceable come back as such", unenforceable},
	{"network none has no way out", networkNone},
	{"stats read a running one", stats},
	{"a caller who gives up is not told that the engine is unavailable", givenUp},
	{"every call to an engine that does not answer says so", dead},
	{"prune removes everything of the instance", prune},
}

var dialRules = []rule{
	{"dial reaches the guest, also twice at once and after a restart of the server", dial},
	{"dial of one that does not run is no sandbox", dialStopped},
}

func createTwice(s *suite) {
	spec := s.spec()
	if first := s.create(spec); first.Existed || first.WorkspaceExisted {
		s.Errorf("first create: %+v, want nothing to have existed", first)
	}
	if second := s.create(spec); !second.Existed {
		s.Errorf("second create: %+v, want it to have existed", second)
	}
	listed, err := s.Engine.List(s.ctx)
	s.must(err)
	if len(listed) != 1 {
		s.Errorf("listed %d, want 1: %+v", len(listed), listed)
	}
}

func createAtOnce(s *suite) {
	spec := s.spec()
	const n = 4
	var made [n]control.Created
	var errs [n]error
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { made[i], errs[i] = s.Engine.Create(s.ctx, spec) })
	}
	wg.Wait()
	s.must(errors.Join(errs[:]...))
	fresh := 0
	for _, c := range made {
		if !c.Existed {
			fresh++
		}
	}
	if fresh != 1 {
		s.Errorf("%d of %d creates made it, want 1", fresh, n)
	}
	s.must(s.Engine.Start(s.ctx, spec.Name))
	s.wantState(spec.Name, control.SandboxRunning)
}

func createExisting(s *suite) {
	spec := s.running()
	if again := s.create(spec); !again.Existed || !again.WorkspaceExisted {
		s.Errorf("create of a running one: %+v", again)
	}
	s.wantState(spec.Name, control.SandboxRunning)
	s.must(s.Engine.Stop(s.ctx, spec.Name))
	if again := s.create(spec); !again.Existed {
		s.Errorf("create of a stopped one: %+v", again)
	}
	s.wantState(spec.Name, control.SandboxExited)
}

func createOverWorkspace(s *suite) {
	spec := s.running()
	s.inside(spec.Name, "sh", "-c", "echo kept > /workspace/file")
	if !s.ReadOnlyRoot {
		s.inside(spec.Name, "sh", "-c", "echo lost > /root-file")
	}
	s.must(s.Engine.Remove(s.ctx, spec.Name, control.KeepWorkspace))
	if again := s.create(spec); again.Existed || !again.WorkspaceExisted {
		s.Errorf("create over a workspace: %+v, want it alone to have existed", again)
	}
	s.must(s.Engine.Start(s.ctx, spec.Name))
	if got := s.inside(spec.Name, "cat", "/workspace/file"); got != "kept\n" {
		s.Errorf("the workspace's file has %q", got)
	}
	if _, code := s.Inside(s.T, spec.Name, "test", "-e", "/root-file"); code == 0 {
		s.Error("the root file system outlived the sandbox")
	}
}

func missingImage(s *suite) {
	if s.MissingImage == "" {
		s.Skip("the engine has no images")
	}
	spec := s.spec()
	spec.Image = s.MissingImage
	if _, err := s.Engine.Create(s.ctx, spec); !errors.Is(err, control.ErrImageMissing) {
		s.Errorf("create: %v, want it to be missing", err)
	}
	err := s.Engine.Pull(s.ctx, s.MissingImage)
	if !errors.Is(err, control.ErrImageUnavailable) {
		s.Fatalf("pull: %v, want it to be unavailable", err)
	}
	if !strings.Contains(err.Error(), s.MissingImage) || len(err.Error()) < len(s.MissingImage)+len(control.ErrImageUnavailable.Error())+10 {
		s.Errorf("pull: %q lacks the image's name or the engine's own words", err)
	}
	s.wantState(spec.Name, "")
}

func startRunning(s *suite) {
	spec := s.running()
	before := s.status(spec.Name)
	s.must(s.Engine.Start(s.ctx, spec.Name))
	if after := s.status(spec.Name); !after.StartedAt.Equal(before.StartedAt) {
		s.Errorf("started anew at %v, was %v", after.StartedAt, before.StartedAt)
	}
}

func startAbsent(s *suite) {
	if err := s.Engine.Start(s.ctx, s.spec().Name); !errors.Is(err, control.ErrNoSandbox) {
		s.Errorf("start: %v, want no sandbox", err)
	}
	// One that is remembered and was removed since is absent too.
	spec := s.running()
	s.must(s.Engine.Remove(s.ctx, spec.Name, control.RemoveAll))
	if err := s.Engine.Start(s.ctx, spec.Name); !errors.Is(err, control.ErrNoSandbox) {
		s.Errorf("start after remove: %v, want no sandbox", err)
	}
}

// leaveFiles writes what must be kept and what must not.
func (s *suite) leaveFiles(name string) {
	s.inside(name, "sh", "-c", "echo w > /workspace/w; echo t > /tmp/t")
	if !s.ReadOnlyRoot {
		s.inside(name, "sh", "-c", "echo r > /etc/r")
	}
}

func (s *suite) wantFiles(name string) {
	s.Helper()
	if got := s.inside(name, "cat", "/workspace/w"); got != "w\n" {
		s.Errorf("the workspace's file has %q", got)
	}
	if s.ReadOnlyRoot {
		if _, code := s.Inside(s.T, name, "touch", "/etc/r"); code == 0 {
			s.Error("the root file system can be written, and is said to be read-only")
		}
	} else if got := s.inside(name, "cat", "/etc/r"); got != "r\n" {
		s.Errorf("the root file system's file has %q", got)
	}
	if _, code := s.Inside(s.T, name, "test", "-e", "/tmp/t"); code == 0 {
		s.Error("/tmp outlived the run")
	}
}

func stopKeepsFiles(s *suite) {
	spec := s.running()
	s.leaveFiles(spec.Name)
	// TERM, 2 s, KILL, and no more: not the grace that engines give by themselves.
	for tries, quickest := 0, time.Hour; ; { // an engine may be slow once or twice
		began := time.Now()
		s.must(s.Engine.Stop(s.ctx, spec.Name))
		quickest = min(quickest, time.Since(began))
		s.wantState(spec.Name, control.SandboxExited)
		s.must(s.Engine.Start(s.ctx, spec.Name))
		s.wantState(spec.Name, control.SandboxRunning)
		if quickest < 8*time.Second {
			break
		}
		if tries++; tries == 3 {
			s.Fatalf("the quickest stop took %v", quickest)
		}
	}
	s.wantFiles(spec.Name)
}

func killKeepsFiles(s *suite) {
	spec := s.running()
	s.leaveFiles(spec.Name)
	s.must(s.Engine.Kill(s.ctx, spec.Name))
	st := s.status(spec.Name)
	if st.State != control.SandboxExited || st.ExitCode != 137 || st.OOM {
		s.Errorf("after kill: %+v, want exited with 137, not out of memory", st)
	}
	if st.StartedAt.IsZero() || st.FinishedAt.Before(st.StartedAt) {
		s.Errorf("ran from %v to %v", st.StartedAt, st.FinishedAt)
	}
	s.must(s.Engine.Start(s.ctx, spec.Name))
	s.wantFiles(spec.Name)
}

func stopStopped(s *suite) {
	created, running := s.created(), s.running()
	s.must(s.Engine.Stop(s.ctx, running.Name))
	for _, name := range []string{created.Name, running.Name, s.spec().Name} {
		if err := s.Engine.Stop(s.ctx, name); err != nil {
			s.Errorf("stop: %v", err)
		}
		if err := s.Engine.Kill(s.ctx, name); err != nil {
			s.Errorf("kill: %v", err)
		}
	}
	s.wantState(created.Name, control.SandboxCreated)
}

func removeAbsent(s *suite) {
	s.must(s.Engine.Remove(s.ctx, s.spec().Name, control.RemoveAll))
	spec := s.created()
	for range 2 {
		s.must(s.Engine.Remove(s.ctx, spec.Name, control.RemoveAll))
	}
	s.wantState(spec.Name, "")
}

func removeAnyState(s *suite) {
	created, running, stopped := s.created(), s.running(), s.running()
	s.must(s.Engine.Stop(s.ctx, stopped.Name))
	for _, spec := range []control.SandboxSpec{created, running, stopped} {
		s.must(s.Engine.Remove(s.ctx, spec.Name, control.RemoveAll))
		s.wantState(spec.Name, "")
	}
}

func removeWorkspace(s *suite) {
	spec := s.running()
	s.must(s.Engine.Remove(s.ctx, spec.Name, control.KeepWorkspace))
	s.wantState(spec.Name, control.SandboxFiles)
	s.must(s.Engine.Remove(s.ctx, spec.Name, control.RemoveAll))
	s.wantState(spec.Name, "")
}

func removeAtOnce(s *suite) {
	spec := s.running()
	var errs [4]error
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = s.Engine.Remove(s.ctx, spec.Name, control.RemoveAll) })
	}
	wg.Wait()
	s.must(errors.Join(errs[:]...))
	s.wantState(spec.Name, "")
}

func listStates(s *suite) {
	created, running, exited, files := s.created(), s.running(), s.running(), s.created()
	s.must(s.Engine.Stop(s.ctx, exited.Name))
	s.must(s.Engine.Remove(s.ctx, files.Name, control.KeepWorkspace))
	want := map[string]struct {
		spec  control.SandboxSpec
		state control.SandboxState
	}{
		created.Name: {created, control.SandboxCreated},
		running.Name: {running, control.SandboxRunning},
		exited.Name:  {exited, control.SandboxExited},
		files.Name:   {files, control.SandboxFiles},
	}
	for _, after := range []string{"at first", "again", "after a restart of the server"} {
		if strings.HasPrefix(after, "after") {
			s.Engine = s.Reopen(s.T)
		}
		listed, err := s.Engine.List(s.ctx)
		s.must(err)
		if len(listed) != len(want) {
			s.Errorf("%s: listed %d, want %d: %+v", after, len(listed), len(want), listed)
		}
		for _, st := range listed {
			w := want[st.Name]
			if st.State != w.state {
				s.Errorf("%s: %s is %q, want %q", after, st.Name, st.State, w.state)
			}
			if st.Env != w.spec.Env || st.Owner != w.spec.Owner || st.Task != w.spec.Task || st.EnvName != w.spec.EnvName || st.Image != w.spec.Image {
				s.Errorf("%s: %+v, want what was asked: %+v", after, st, w.spec)
			}
			if age := time.Since(st.CreatedAt); age < -patience || age > patience {
				s.Errorf("%s: %s was created at %v", after, st.Name, st.CreatedAt)
			}
			if ran := st.State == control.SandboxRunning || st.State == control.SandboxExited; ran == st.StartedAt.IsZero() {
				s.Errorf("%s: %s is %q and was started at %v", after, st.Name, st.State, st.StartedAt)
			}
			if ended := st.State == control.SandboxExited; ended == st.FinishedAt.IsZero() {
				s.Errorf("%s: %s is %q and ended at %v", after, st.Name, st.State, st.FinishedAt)
			}
		}
	}
}

func otherInstance(s *suite) {
	spec := s.running()
	other := s.made(s.T)
	listed, err := other.Engine.List(s.ctx)
	s.must(err)
	if len(listed) != 0 {
		s.Errorf("another instance lists %+v", listed)
	}
	if _, err := other.Engine.Prune(s.ctx); err != nil {
		s.Errorf("prune: %v", err)
	}
	s.wantState(spec.Name, control.SandboxRunning)
	for what, err := range map[string]error{
		"start":  other.Engine.Start(s.ctx, spec.Name),
		"stop":   other.Engine.Stop(s.ctx, spec.Name),
		"kill":   other.Engine.Kill(s.ctx, spec.Name),
		"remove": other.Engine.Remove(s.ctx, spec.Name, control.RemoveAll),
	} {
		if err == nil {
			s.Errorf("another instance may %s it", what)
		}
	}
	s.wantState(spec.Name, control.SandboxRunning)
}

func foreign(s *suite) {
	if s.Foreign == nil {
		s.Skip("nothing on this engine can be foreign")
	}
	spec := s.spec()
	alive := s.Foreign(s.T, spec.Name)
	if _, err := s.Engine.Create(s.ctx, spec); err == nil {
		s.Error("create took over what is not ours")
	}
	if err := s.Engine.Start(s.ctx, spec.Name); err == nil {
		s.Error("start took what is not ours")
	}
	if err := s.Engine.Stop(s.ctx, spec.Name); err == nil {
		s.Error("stop took what is not ours")
	}
	if err := s.Engine.Kill(s.ctx, spec.Name); err == nil {
		s.Error("kill took what is not ours")
	}
	if err := s.Engine.Remove(s.ctx, spec.Name, control.RemoveAll); err == nil {
		s.Error("remove took what is not ours")
	}
	if _, err := s.Engine.Prune(s.ctx); err != nil {
		s.Error(err)
	}
	s.wantState(spec.Name, "")
	if !alive() {
		s.Error("it is not as it was")
	}
}

func watchOrder(s *suite) {
	events := s.watch(time.Time{})
	spec := s.running()
	s.must(s.Engine.Stop(s.ctx, spec.Name))
	code := s.status(spec.Name).ExitCode
	s.must(s.Engine.Remove(s.ctx, spec.Name, control.RemoveAll))
	var last time.Time
	for _, want := range []control.EngineEventKind{control.SandboxStarted, control.SandboxDied, control.SandboxRemoved} {
		select {
		case ev := <-events:
			if ev.Kind != want || ev.Name != spec.Name || ev.Env != spec.Env {
				s.Fatalf("event %+v, want %q of %s", ev, want, spec.Name)
			}
			if ev.At.Before(last) {
				s.Errorf("%q at %v, before its predecessor at %v", ev.Kind, ev.At, last)
			}
			last = ev.At
			if ev.Kind == control.SandboxDied && (ev.ExitCode != code || ev.OOM) {
				s.Errorf("death %+v, want exit code %d and no want of memory", ev, code)
			}
		case <-s.ctx.Done():
			s.Fatalf("no event %q", want)
		}
	}
}

func watchDeath(s *suite) {
	events := s.watch(time.Time{})
	spec := s.running()
	s.KillMain(s.T, spec.Name)
	if ev := s.await(events, control.SandboxDied, spec.Name); ev.ExitCode != 137 || ev.OOM {
		s.Errorf("death %+v, want exit code 137 and no want of memory", ev)
	}
	if st := s.status(spec.Name); st.State != control.SandboxExited || st.ExitCode != 137 || st.OOM {
		s.Errorf("listed as %+v", st)
	}
}

func watchSince(s *suite) {
	before, after := s.running(), s.created()
	events := s.watch(time.Time{})
	s.must(s.Engine.Stop(s.ctx, before.Name))
	since := s.await(events, control.SandboxDied, before.Name).At.Add(1)
	s.must(s.Engine.Start(s.ctx, after.Name))
	s.await(events, control.SandboxStarted, after.Name)

	events = s.watch(since)
	select {
	case ev := <-events:
		if ev.Name != after.Name || ev.Kind != control.SandboxStarted {
			s.Errorf("first event since is %+v, want the start of %s", ev, after.Name)
		}
	case <-s.ctx.Done():
		s.Fatal("what happened since is not told")
	}
}

// hog takes more memory than the sandbox may have.
var hog = []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=200M", "count=1"}

// wantMainOOM has the kernel kill the main process for want of memory.
func (s *suite) wantMainOOM(events <-chan control.EngineEvent, name string) {
	s.Helper()
	s.inside(name, "sh", "-c", "echo 1000 > /proc/1/oom_score_adj")
	s.Inside(s.T, name, hog...)
	if ev := s.await(events, control.SandboxDied, name); ev.ExitCode != 137 || !ev.OOM {
		s.Errorf("death %+v, want exit code 137 for want of memory", ev)
	}
	if st := s.status(name); st.State != control.SandboxExited || st.ExitCode != 137 || !st.OOM {
		s.Errorf("listed as %+v, want exited with 137 for want of memory", st)
	}
}

func (s *suite) needMemory() {
	if !s.Memory {
		s.Skip("memory limits are not enforced here")
	}
}

func oomOfMain(s *suite) {
	s.needMemory()
	events := s.watch(time.Time{})
	s.wantMainOOM(events, s.running().Name)
}

func oomOfChild(s *suite) {
	s.needMemory()
	events := s.watch(time.Time{})
	spec := s.running()
	s.inside(spec.Name, "sh", "-c", "echo 1000 > /proc/self/oom_score_adj; ! "+strings.Join(hog, " "))
	s.wantState(spec.Name, control.SandboxRunning)
	s.must(s.Engine.Kill(s.ctx, spec.Name))
	if ev := s.await(events, control.SandboxDied, spec.Name); ev.ExitCode != 137 || ev.OOM {
		s.Errorf("death %+v, want exit code 137 and no want of memory", ev)
	}
	if st := s.status(spec.Name); st.OOM {
		s.Errorf("listed as %+v, want no want of memory", st)
	}
}

func oomOfChildBehind(s *suite) {
	s.needMemory()
	events := s.watch(time.Time{})
	spec := s.running()
	s.inside(spec.Name, "sh", "-c", "echo 1000 > /proc/self/oom_score_adj; ! "+strings.Join(hog, " "))
	s.inside(spec.Name, "sleep", "3") // nobody can tell it from what follows at once
	s.KillMain(s.T, spec.Name)
	if ev := s.await(events, control.SandboxDied, spec.Name); ev.ExitCode != 137 || ev.OOM {
		s.Errorf("death %+v, want exit code 137 and no want of memory", ev)
	}
}

func oomOfOldRun(s *suite) {
	s.needMemory()
	events := s.watch(time.Time{})
	spec := s.running()
	s.wantMainOOM(events, spec.Name)
	s.must(s.Engine.Start(s.ctx, spec.Name))
	if st := s.status(spec.Name); st.State != control.SandboxRunning || st.OOM {
		s.Errorf("started again: %+v", st)
	}
	s.KillMain(s.T, spec.Name)
	if ev := s.await(events, control.SandboxDied, spec.Name); ev.ExitCode != 137 || ev.OOM {
		s.Errorf("death %+v, want exit code 137 and no want of memory", ev)
	}
	if st := s.status(spec.Name); st.OOM {
		s.Errorf("listed as %+v, want no want of memory", st)
	}
}

func unenforceable(s *suite) {
	info, err := s.Engine.Info(s.ctx)
	s.must(err)
	spec := s.spec()
	spec.Limits = control.Limits{CPUs: 1, MemoryMB: 64, Pids: 64, DiskMB: 512}
	created := s.create(spec)
	var all []string
	for _, l := range []string{"cpus", "memory_mb", "pids", "disk_mb"} {
		if slices.Contains(info.Enforces, l) == slices.Contains(created.Unenforced, l) {
			s.Errorf("%s: the engine enforces %q, and the sandbox lacks %q", l, info.Enforces, created.Unenforced)
		}
		all = append(all, l)
	}
	for _, l := range created.Unenforced {
		if !slices.Contains(all, l) {
			s.Errorf("%q is no limit", l)
		}
	}
	if s.Unenforceable.DiskMB > 0 && !slices.Contains(created.Unenforced, "disk_mb") {
		s.Errorf("unenforced are %q, want disk_mb among them", created.Unenforced)
	}
	if again := s.create(spec); !slices.Equal(again.Unenforced, created.Unenforced) {
		s.Errorf("unenforced are %q, and of what existed %q", created.Unenforced, again.Unenforced)
	}
	unlimited := s.spec()
	unlimited.Limits = control.Limits{}
	if created := s.create(unlimited); len(created.Unenforced) != 0 {
		s.Errorf("nothing was asked for, and %q are unenforced", created.Unenforced)
	}
}

func networkNone(s *suite) {
	spec := s.running()
	if got := strings.Fields(s.inside(spec.Name, "ls", "/sys/class/net")); slices.ContainsFunc(got, func(n string) bool { return strings.HasPrefix(n, "eth") }) {
		s.Errorf("network interfaces are %q", got)
	}
	if routes := strings.TrimSpace(s.inside(spec.Name, "sh", "-c", "tail -n +2 /proc/net/route")); routes != "" {
		s.Errorf("there are routes: %s", routes)
	}
}

func stats(s *suite) {
	spec := s.running()
	got, err := s.Engine.Stats(s.ctx, spec.Name)
	s.must(err)
	if got.Memory <= 0 || got.Memory > 64<<20 || got.Pids < 1 || got.CPU <= 0 {
		s.Errorf("stats %+v", got)
	}
	s.must(s.Engine.Stop(s.ctx, spec.Name))
	for _, name := range []string{spec.Name, s.spec().Name} {
		if _, err := s.Engine.Stats(s.ctx, name); !errors.Is(err, control.ErrNoSandbox) {
			s.Errorf("stats of one that does not run: %v, want no sandbox", err)
		}
	}
}

func dial(s *suite) {
	spec := s.running()
	talk := func() {
		conn, err := s.Engine.Dial(s.ctx, spec.Name)
		if err != nil {
			s.Errorf("dial: %v", err)
			return
		}
		defer conn.Close()
		s.Talk(s.T, conn)
	}
	talk()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(talk)
	}
	wg.Wait()
	s.Engine = s.Reopen(s.T)
	talk()
	s.must(s.Engine.Stop(s.ctx, spec.Name))
	s.must(s.Engine.Start(s.ctx, spec.Name))
	talk()
}

func dialStopped(s *suite) {
	created, stopped := s.created(), s.running()
	s.must(s.Engine.Stop(s.ctx, stopped.Name))
	for _, name := range []string{created.Name, stopped.Name, s.spec().Name} {
		if _, err := s.Engine.Dial(s.ctx, name); !errors.Is(err, control.ErrNoSandbox) {
			s.Errorf("dial: %v, want no sandbox", err)
		}
	}
}

func givenUp(s *suite) {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, err := s.Engine.List(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, control.ErrEngineUnavailable) {
		s.Errorf("list: %v, want the caller's own end", err)
	}
}

func dead(s *suite) {
	if s.Dead == nil {
		s.Skip("this engine always answers")
	}
	spec := s.spec()
	_, create := s.Dead.Create(s.ctx, spec)
	_, info := s.Dead.Info(s.ctx)
	_, list := s.Dead.List(s.ctx)
	_, stats := s.Dead.Stats(s.ctx, spec.Name)
	_, dial := s.Dead.Dial(s.ctx, spec.Name)
	_, prune := s.Dead.Prune(s.ctx)
	for what, err := range map[string]error{
		"create": create,
		"pull":   s.Dead.Pull(s.ctx, "some/image:1"),
		"start":  s.Dead.Start(s.ctx, spec.Name),
		"stop":   s.Dead.Stop(s.ctx, spec.Name),
		"kill":   s.Dead.Kill(s.ctx, spec.Name),
		"remove": s.Dead.Remove(s.ctx, spec.Name, control.RemoveAll),
		"info":   info,
		"list":   list,
		"watch":  s.Dead.Watch(s.ctx, time.Time{}, func() { s.Error("watch says that it stands") }, func(control.EngineEvent) {}),
		"stats":  stats,
		"dial":   dial,
		"prune":  prune,
	} {
		if !errors.Is(err, control.ErrEngineUnavailable) {
			s.Errorf("%s: %v, want the engine to be unavailable", what, err)
		}
		if errors.Is(err, control.ErrNoSandbox) || errors.Is(err, control.ErrImageUnavailable) || errors.Is(err, control.ErrImageMissing) {
			s.Errorf("%s: %v claims to know more", what, err)
		}
	}
}

func prune(s *suite) {
	s.created()
	stopped, files := s.running(), s.created()
	s.running()
	s.must(s.Engine.Stop(s.ctx, stopped.Name))
	s.must(s.Engine.Remove(s.ctx, files.Name, control.KeepWorkspace))
	removed, err := s.Engine.Prune(s.ctx)
	s.must(err)
	for _, name := range []string{stopped.Name, files.Name} {
		if !slices.ContainsFunc(removed, func(line string) bool { return strings.Contains(line, name) }) {
			s.Errorf("%s is not among what was removed: %q", name, removed)
		}
	}
	listed, err := s.Engine.List(s.ctx)
	s.must(err)
	if len(listed) != 0 {
		s.Errorf("left: %+v", listed)
	}
	if removed, err = s.Engine.Prune(s.ctx); err != nil || len(removed) != 0 {
		s.Errorf("pruned again: %q, %v", removed, err)
	}
	// The instance goes on.
	s.wantState(s.running().Name, control.SandboxRunning)
}
