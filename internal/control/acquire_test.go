package control_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

func TestAcquire(t *testing.T) {
	rule(t, "makes one where there is none, with the defaults", func(f *fixture) {
		a := f.acquire("t")
		f.told("turn.began", "env.starting", "env.ready")
		e := a.Env
		f.equal("the outcome", a.Outcome, "created")
		f.equal("the name", e.Name, "main")
		f.equal("the state", e.State, control.Ready)
		f.equal("the generation", e.Generation, 1)
		f.equal("persistent", e.Persistent, false)
		f.equal("the lifetime", e.LifetimeS, 300)
		f.equal("the image", *e.Image, "debian")
		f.equal("the workdir", e.Workdir, "/workspace")
		f.equal("the engine", e.Engine+" "+e.Isolation, "docker container")
		f.equal("the actor", e.LastActivity.Actor, "agent:hermes")
		if a.Drift == nil || len(a.Drift) != 0 || e.Labels == nil || e.Unenforced == nil {
			f.Fatalf("null where a list is promised: %+v", a)
		}
		f.onEngine(e.ID, control.SandboxRunning)
	})
	rule(t, "gives what is there", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.mark()
		a := f.acquire("t")
		f.equal("the outcome", a.Outcome, "reused")
		f.equal("the id", a.Env.ID, id)
		f.told()
	})
	rule(t, "brings a dormant one back with its files, as the next generation", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		_, err := f.agent.WriteFile(f.Context(), control.Ref{Env: id}, control.FileWrite{Path: "f", Data: []byte("kept")})
		f.must(err)
		f.endTurn("t")
		f.advance(5 * time.Minute)
		f.mark()
		a := f.acquire("t")
		f.told("turn.began", "env.starting", "env.resumed")
		f.equal("the outcome", a.Outcome, "resumed")
		f.equal("the id", a.Env.ID, id)
		f.equal("the generation", a.Env.Generation, 2)
		c, err := f.agent.ReadFile(f.Context(), control.Ref{Env: id}, "f", 0, nil)
		f.must(err)
		f.equal("the file", string(c.Data), "kept")
	})
	rule(t, "recreates one that is gone although its files are there, and says so", func(f *fixture) {
		id := f.dormant("t")
		f.engine.Vanish("sandkeeper-test-"+id, false)
		f.mark()
		a := f.acquire("t")
		f.equal("the outcome", a.Outcome, "recreated")
		f.told("turn.began", "env.starting", "env.recreated")
	})
	rule(t, "tells of the image that it pulls", func(f *fixture) {
		f.engine.MissImage("alpine", nil)
		f.acquire("t", image("alpine"))
		f.told("turn.began", "env.starting", "image.pulling by server", "image.pulled by server", "env.ready")
	})
	rule(t, "names an image that is not to be had, in the engine's own words", func(f *fixture) {
		f.engine.MissImage("nope", errors.New("pull access denied"))
		_, err := f.tryAcquire("t", image("nope"))
		e := f.refused(err, control.KindImageUnavailable)
		if !strings.Contains(e.Message, "nope") || !strings.Contains(e.Message, "pull access denied") {
			f.Fatal(e.Message)
		}
		f.told("turn.began", "env.starting", "image.pulling by server", "env.failed by server")
	})
	rule(t, "gives a pull up after its time", func(f *fixture) {
		f.engine.MissImage("slow", nil)
		f.engine.Inject(controltest.Fault{Call: "Pull", Hang: make(chan struct{})})
		began := time.Now()
		_, err := f.tryAcquire("t", image("slow"))
		f.refused(err, control.KindImageUnavailable)
		f.equal("it took", time.Since(began), 10*time.Minute)
	})
	rule(t, "while the engine is down is engine_unavailable, and can be repeated", func(f *fixture) {
		up := f.engine.Down()
		_, err := f.tryAcquire("t")
		if f.refused(err, control.KindEngineUnavailable).RetryAfter <= 0 {
			f.Fatal("no retry_after")
		}
		f.told("turn.began", "env.starting", "engine.down by reconciler", "env.failed by server")
		up()
		f.equal("the outcome", f.acquire("t").Outcome, "created")
	})
	rule(t, "of what the engine will never make is told in its words", func(f *fixture) {
		f.engine.Inject(controltest.Fault{Call: "Create", Err: control.ErrSpecRefused})
		_, err := f.tryAcquire("t")
		f.refused(err, control.KindInvalid)
	})
	rule(t, "whose sandbox dies while it starts says so", func(f *fixture) {
		f.guests.Inject(controltest.Fault{Call: "Ping", Hang: make(chan struct{}), Times: 1})
		a := f.acquireLater("t", persistent)
		vs, err := f.agent.Envs(f.Context(), "t")
		f.must(err)
		f.advance(time.Second)
		f.die(vs[0].ID, 127, false)
		if !answered(a.done) {
			f.Fatal("it still waits")
		}
		f.refused(a.err, control.KindInternal)
		f.inState(vs[0].ID, control.Failed)
	})
	rule(t, "tells the limits that this host cannot enforce", func(f *fixture) {
		f.engine.SetInfo(f.o.EngineInfo, "disk_mb")
		a := f.acquire("t", func(r *control.AcquireRequest) { r.Limits = &control.LimitsView{DiskMB: ptr(int64(100))} })
		f.equal("unenforced", a.Env.Unenforced, []string{"disk_mb"})
		f.equal("the disk", *a.Env.Limits.DiskMB, 100)
		f.equal("the memory", *a.Env.Limits.MemoryMB, 512)
	})
}

func TestOneKeyHasOneSandbox(t *testing.T) {
	rule(t, "two acquires at once make one, and both get it", func(f *fixture) {
		f.engine.Inject(controltest.Fault{Call: "Create", Delay: time.Second})
		a, b := f.acquireLater("t"), f.acquireLater("t")
		<-a.done
		<-b.done
		f.must(errors.Join(a.err, b.err))
		f.equal("the other's id", b.Env.ID, a.Env.ID)
		f.equal("the sandboxes made", len(f.engine.Calls("Create")), 1)
		f.equal("the outcomes", a.Outcome+" "+b.Outcome, "created reused")
	})
	rule(t, "while an ephemeral one is torn down, a new one is made at once and goes on counting", func(f *fixture) {
		old := f.acquire("t").Env.ID
		f.engine.Inject(controltest.Fault{Call: "Remove", Hang: make(chan struct{}), Times: 1})
		f.endTurn("t")
		f.inState(old, control.Stopping)
		a := f.acquire("t")
		f.equal("the outcome", a.Outcome, "created")
		f.equal("the generation", a.Env.Generation, 2)
		if a.Env.ID == old {
			f.Fatal("it has the old id")
		}
		f.advance(time.Minute)
		f.inState(old, control.Removed)
		f.inState(a.Env.ID, control.Ready)
	})
	rule(t, "while a persistent one is stopped, it is waited for and resumed", func(f *fixture) {
		id := f.idle("t")
		hang := make(chan struct{})
		f.engine.Inject(controltest.Fault{Call: "Stop", Hang: hang, Times: 1})
		f.advance(5 * time.Minute)
		a := f.acquireLater("t")
		f.inState(id, control.Stopping)
		close(hang)
		<-a.done
		f.must(a.err)
		f.equal("the outcome", a.Outcome, "resumed")
		f.equal("the id", a.Env.ID, id)
	})
	rule(t, "while a persistent one is purged, a new one is made", func(f *fixture) {
		old := f.idle("t")
		f.engine.Inject(controltest.Fault{Call: "Remove", Hang: make(chan struct{}), Times: 1})
		_, err := f.plane.Kill(f.Context(), "operator:ada", old, true)
		f.must(err)
		a := f.acquire("t")
		f.equal("the outcome", a.Outcome, "created")
		f.equal("the generation", a.Env.Generation, 2)
	})
	rule(t, "generations go on over a removed one, also after a restart", func(f *fixture) {
		for want := int64(1); want <= 3; want++ {
			f.equal("the generation", f.acquire("t").Env.Generation, want)
			f.endTurn("t")
			f.plane.Housekeep(f.Context())
			f.crash(time.Hour)
			f.agent, _ = f.connect("hermes")
		}
	})
}

func TestWhatAnAcquireChanges(t *testing.T) {
	rule(t, "applies at once: lifetime, max age, labels, and to be persistent", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.mark()
		a := f.acquire("t", persistent, lifetime(time.Minute), maxAge(time.Hour), func(r *control.AcquireRequest) {
			r.Labels = map[string]string{"a": "b"}
		})
		ev := f.told("env.changed")
		f.equal("the fields told", len(ev[0].Data), 4)
		v := a.Env
		f.equal("what it has", []any{v.Persistent, v.LifetimeS, *v.MaxAgeS, v.Labels["a"], len(v.Drift)}, []any{true, 60, 3600, "b", 0})
		f.endTurn("t")
		f.inState(id, control.Ready)
	})
	rule(t, "omitted fields keep what it has", func(f *fixture) {
		f.acquire("t", persistent, lifetime(time.Minute), maxAge(time.Hour))
		f.mark()
		v := f.acquire("t").Env
		f.told()
		f.equal("what it has", []any{v.Persistent, v.LifetimeS, *v.MaxAgeS}, []any{true, 60, 3600})
	})
	rule(t, "the answer's drift is about what was asked, the environment's about all that was", func(f *fixture) {
		f.acquire("t")
		a := f.acquire("t", image("alpine"))
		f.equal("asked", [][]string{a.Drift, a.Env.Drift}, [][]string{{"image"}, {"image"}})
		a = f.acquire("t", onDrift("error"))
		f.equal("omitted", [][]string{a.Drift, a.Env.Drift}, [][]string{{}, {"image"}})
	})
	for _, row := range []struct {
		field string
		ask   ask
	}{
		{"image", image("alpine")},
		{"persistent", ephemeral},
		{"network", func(r *control.AcquireRequest) { r.Network = ptr("none") }},
		{"workdir", func(r *control.AcquireRequest) { r.Workdir = ptr("/srv") }},
		{"variables", func(r *control.AcquireRequest) { r.Variables = map[string]string{"A": "b"} }},
		{"limits", func(r *control.AcquireRequest) { r.Limits = &control.LimitsView{CPUs: ptr(2.0)} }},
	} {
		rule(t, "a difference in "+row.field+" is drift", func(f *fixture) {
			before := f.acquire("t", persistent).Env
			f.mark()
			a := f.acquire("t", row.ask)
			f.equal("the outcome", a.Outcome, "reused")
			f.equal("the drift", a.Drift, []string{row.field})
			f.equal("the drift on record", a.Env.Drift, []string{row.field})
			f.equal("persistent", a.Env.Persistent, true)
			f.equal("the image", *a.Env.Image, *before.Image)
			f.told()

			_, err := f.tryAcquire("t", row.ask, onDrift("error"))
			f.equal("the drift", f.refused(err, control.KindConflict).Drift, []string{row.field})

			a = f.acquire("t", row.ask, onDrift("recreate"))
			f.equal("the outcome", a.Outcome, "recreated")
			f.equal("the drift", a.Drift, []string{})
			f.equal("the id", a.Env.ID, before.ID)
			f.equal("the generation", a.Env.Generation, 2)
			want := []string{"env.stopping", "env.dormant", "env.starting", "env.recreated"}
			if row.field == "persistent" { // only now
				want = append([]string{"env.changed"}, want...)
			}
			f.told(want...)
		})
	}
	rule(t, "a drift is forgotten when what was made is asked for again", func(f *fixture) {
		f.acquire("t")
		f.acquire("t", image("alpine"))
		f.equal("the drift", f.acquire("t", image("debian")).Env.Drift, []string{})
	})
	rule(t, "recreate keeps the workspace alone", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		for _, p := range []string{"/workspace/f", "/etc/f"} {
			_, err := f.agent.WriteFile(f.Context(), control.Ref{Env: id}, control.FileWrite{Path: p, Mkdirs: true})
			f.must(err)
		}
		f.acquire("t", image("alpine"), onDrift("recreate"))
		_, err := f.agent.StatFile(f.Context(), control.Ref{Env: id}, "/workspace/f")
		f.must(err)
		_, err = f.agent.StatFile(f.Context(), control.Ref{Env: id}, "/etc/f")
		f.refused(err, control.KindNotFound)
		spec, _ := f.engine.Spec("sandkeeper-test-" + id)
		f.equal("the image", spec.Image, "alpine")
	})
	rule(t, "recreate of a dormant one starts it anew", func(f *fixture) {
		id := f.dormant("t")
		f.mark()
		a := f.acquire("t", image("alpine"), onDrift("recreate"))
		f.equal("the outcome", a.Outcome, "recreated")
		f.equal("the image", *a.Env.Image, "alpine")
		f.equal("the id", a.Env.ID, id)
		f.told("turn.began", "env.starting", "env.recreated")
	})
	rule(t, "recreate is a conflict while another session's command runs", func(f *fixture) {
		id := f.acquire("t").Env.ID
		other, _ := f.connect("iris")
		f.as(other).runLater("t", "make")
		_, err := f.tryAcquire("t", image("alpine"), onDrift("recreate"))
		f.refused(err, control.KindConflict)
		f.equal("the outcome of its own", f.as(other).acquire("t", image("alpine"), onDrift("recreate")).Env.ID, id)
	})
	rule(t, "recreate is a conflict while a pin stands, that names it", func(f *fixture) {
		id := f.acquire("t").Env.ID
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "under study", time.Time{})
		f.must(err)
		_, err = f.tryAcquire("t", image("alpine"), onDrift("recreate"))
		if e := f.refused(err, control.KindConflict); !strings.Contains(e.Message, "ada") || !strings.Contains(e.Message, "under study") {
			f.Fatal(e.Message)
		}
	})
}

func TestRelease(t *testing.T) {
	ref := control.Ref{Task: "t"}
	rule(t, "of an ephemeral one removes it now", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.mark()
		v, err := f.agent.Release(f.Context(), ref, false)
		f.must(err)
		f.equal("the state told", v.State, control.Stopping)
		synctest.Wait()
		f.told("env.stopping", "env.removed")
		f.onEngine(id, "")
	})
	rule(t, "of a persistent one keeps its files", func(f *fixture) {
		id := f.acquire("t", persistent).Env.ID
		f.mark()
		_, err := f.agent.Release(f.Context(), ref, false)
		f.must(err)
		synctest.Wait()
		f.told("env.stopping", "env.dormant")
		f.onEngine(id, control.SandboxExited)
	})
	rule(t, "with purge removes all of it", func(f *fixture) {
		id := f.dormant("t")
		f.mark()
		_, err := f.agent.Release(f.Context(), ref, true)
		f.must(err)
		synctest.Wait()
		f.told("env.stopping", "env.removed")
		f.onEngine(id, "")
	})
	rule(t, "of a pinned one is a conflict that names the pin", func(f *fixture) {
		id := f.acquire("t").Env.ID
		_, err := f.plane.Pin(f.Context(), "operator:ada", id, "under study", time.Time{})
		f.must(err)
		_, err = f.agent.Release(f.Context(), ref, true)
		if e := f.refused(err, control.KindConflict); !strings.Contains(e.Message, "ada") {
			f.Fatal(e.Message)
		}
	})
}

func TestOwnersAreApart(t *testing.T) {
	rule(t, "another's environment is answered as one that never was", func(f *fixture) {
		id := f.acquire("t").Env.ID
		s, _, err := f.plane.Hello(f.Context(), "stranger", control.Hello{Agent: "x"}, &sink{})
		f.must(err)
		g := f.as(s)
		_, theirs := s.Env(f.Context(), control.Ref{Env: id})
		_, unknown := s.Env(f.Context(), control.Ref{Env: "aaaaaaaaaa"})
		f.equal("the message", g.refused(theirs, control.KindNotFound).Message,
			strings.ReplaceAll(g.refused(unknown, control.KindNotFound).Message, "aaaaaaaaaa", id))
		_, err = g.tryRun("", "true", inEnv(id))
		f.refused(err, control.KindNotFound)
		_, err = g.tryRun("t", "true")
		f.refused(err, control.KindNotFound)
		vs, err := s.Envs(f.Context(), "")
		f.must(err)
		f.equal("what they see", len(vs), 0)
		f.endTurn("t")
		_, theirs = s.Env(f.Context(), control.Ref{Env: id})
		f.refused(theirs, control.KindNotFound)
	})
	rule(t, "another's result is not found by its id, also once its environment has gone", func(f *fixture) {
		id := f.acquire("t").Env.ID
		f.run("t", "make", withID("a"))
		s, _, err := f.plane.Hello(f.Context(), "stranger", control.Hello{Agent: "x"}, &sink{})
		f.must(err)
		for range 2 {
			_, err = f.as(s).tryRun("", "make", withID("a"), inEnv(id))
			f.refused(err, control.KindNotFound)
			f.endTurn("t")
			f.inState(id, control.Removed)
		}
	})
	rule(t, "a quota counts the owner's environments", func(f *fixture) {
		f.acquire("a")
		f.acquire("b")
		_, err := f.tryAcquire("c")
		f.refused(err, control.KindQuota)
		f.endTurn("a")
		f.acquire("c")
	}, func(o *control.Options) { o.MaxEnvsPerOwner = 2 })
}

func TestDraining(t *testing.T) {
	rule(t, "new work is refused, what goes on is not", func(f *fixture) {
		f.acquire("t")
		r := f.runLater("t", "make")
		f.mark()
		f.plane.Drain(f.Context())
		f.plane.Drain(f.Context())
		f.told("server.stopping by server")
		_, err := f.tryAcquire("u")
		f.refused(err, control.KindDraining)
		_, err = f.tryRun("t", "true")
		f.refused(err, control.KindDraining)
		_, _, err = f.plane.Hello(f.Context(), "default", control.Hello{Agent: "x"}, &sink{})
		f.refused(err, control.KindDraining)
		f.end(control.ExecEnd{})
		<-r.done
		f.must(r.err)
		f.endTurn("t")
	})
}

func TestListing(t *testing.T) {
	rule(t, "by pages, in the order of ids, filtered", func(f *fixture) {
		for _, task := range []string{"Alpha", "beta", "gamma"} {
			f.acquire(task)
		}
		f.acquire("beta", named("two"), image("alpine"))
		f.endTurn("gamma")
		list := func(filter control.EnvFilter) (ids []string, next string) {
			vs, next, err := f.plane.Envs(filter)
			f.must(err)
			for _, v := range vs {
				ids = append(ids, v.ID)
			}
			return ids, next
		}
		all, next := list(control.EnvFilter{})
		f.equal("all", len(all), 3)
		f.equal("next", next, "")
		if !slices.IsSorted(all) {
			f.Fatal(all)
		}
		first, next := list(control.EnvFilter{Limit: 2})
		rest, end := list(control.EnvFilter{Limit: 2, After: next})
		f.equal("the pages", append(first, rest...), all)
		f.equal("the end", end, "")
		for _, row := range []struct {
			filter control.EnvFilter
			want   int
		}{
			{control.EnvFilter{Task: "beta"}, 2}, {control.EnvFilter{State: control.Ready}, 3}, {control.EnvFilter{State: control.Dormant}, 0},
			{control.EnvFilter{Owner: "nobody"}, 0}, {control.EnvFilter{Query: "ALPHA"}, 1}, {control.EnvFilter{Query: "alpine"}, 1},
			{control.EnvFilter{State: control.Removed}, 1}, {control.EnvFilter{State: control.Removed, Task: "beta"}, 0},
		} {
			ids, _ := list(row.filter)
			if len(ids) != row.want {
				f.Errorf("%+v lists %d, want %d", row.filter, len(ids), row.want)
			}
		}
	})
}
