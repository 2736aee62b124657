package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// TestServe serves the pages with made-up environments, to look at them:
//
//	SANDKEEPER_LOOK=127.0.0.1:7334 go test -run TestServe -timeout 0 ./internal/dashboard
//
// and then http://127.0.0.1:7334/sign-in with the token "op".
func TestServe(t *testing.T) {
	addr := os.Getenv("SANDKEEPER_LOOK")
	if addr == "" {
		t.Skip("SANDKEEPER_LOOK is not set: this test is for looking at the pages by hand")
	}
	h := newHouse(t, func(o *Options) { o.FrameGap = 0; o.Version = "dev" })
	furnish(h.plane, os.Getenv("SANDKEEPER_LOOK_ROWS"))
	if err := (&http.Server{Addr: addr, Handler: h.handler(), ReadHeaderTimeout: time.Second}).ListenAndServe(); err != nil {
		t.Fatal(err)
	}
}

// furnish fills a plane with what a busy day looks like.
func furnish(p *fakePlane, extra string) {
	if extra == "none" {
		return
	}
	now := time.Now()
	at := func(d time.Duration) control.Time { return control.At(now.Add(d)) }
	n := 0
	add := func(task, owner string, age time.Duration, change func(v *control.View)) control.View {
		n++
		v := readyEnv(fmt.Sprintf("k3v9x2m7%02d", n), task)
		v.Owner, v.CreatedAt = owner, at(-age)
		v.LastActivity.At = at(-time.Minute)
		v.Deadline = control.AtPtr(now.Add(4 * time.Minute))
		change(&v)
		p.put(v)
		return v
	}
	v := add("fix-login-redirect", "hermes", 3*time.Minute, func(v *control.View) {
		v.Deadline, v.NextAction = nil, nil
		v.Turn = &control.TurnView{Number: 3, Open: true, Since: at(-40 * time.Second)}
		v.Holds = []control.Hold{{Kind: control.HoldTurn, Since: at(-40 * time.Second)}, {Kind: control.HoldExec, Ref: "x81", Since: at(-12 * time.Second), Until: control.AtPtr(now.Add(time.Hour))}}
		v.LastActivity = control.ActivityView{At: at(-12 * time.Second), Kind: "exec", Actor: "agent:hermes"}
		v.Unenforced = []string{"disk_mb"}
		v.Rule = "Held while turn 3 is open and a command runs."
		v.Limits = control.LimitsView{CPUs: ptr(1.0), MemoryMB: ptr(int64(5120)), Pids: ptr(int64(256)), DiskMB: ptr(int64(2048))}
	})
	p.execs[v.ID] = []control.ExecView{
		{Exec: "x81", Command: "go test ./... -race -count=1", StartedAt: at(-12 * time.Second), State: "running"},
		{Exec: "x77", Command: "python -m http.server 8080 &", StartedAt: at(-2 * time.Minute), State: "exited", Left: true, ExitCode: ptr(0)},
		{Exec: "x70", Command: "git clone https://example.com/shop.git", StartedAt: at(-3 * time.Minute), State: "exited", ExitCode: ptr(0)},
	}
	add("nightly-report", "athena", 26*time.Hour, func(v *control.View) {
		v.Deadline = control.AtPtr(now.Add(17 * time.Second))
		v.LastActivity = control.ActivityView{At: at(-283 * time.Second), Kind: "turn", Actor: "agent:athena"}
		v.Generation = 4
	})
	add("data-import", "athena", 2*time.Hour, func(v *control.View) {
		v.Pinned, v.Deadline, v.NextAction = true, nil, nil
		v.Pin = &control.PinView{By: "operator:ann", Reason: "looking into the stuck import", Since: at(-time.Hour), Until: control.AtPtr(now.Add(7 * time.Hour))}
		v.Holds = []control.Hold{{Kind: control.HoldPin, Since: at(-time.Hour), Until: control.AtPtr(now.Add(7 * time.Hour))}}
		v.Image = ptr("python:3.13-slim")
	})
	add("try-a-thing", "default", 35*time.Second, func(v *control.View) {
		v.Persistent = false
		v.Deadline = control.AtPtr(now.Add(258 * time.Second))
		v.NextAction = ptr("remove")
		v.LastActivity.At = at(-42 * time.Second)
	})
	add("refactor-billing", "hermes", 3*24*time.Hour, func(v *control.View) {
		v.State, v.Generation = control.Dormant, 2
		v.Deadline, v.NextAction = control.AtPtr(now.Add(5*24*time.Hour+3*time.Hour)), ptr("purge")
		v.LastActivity = control.ActivityView{At: at(-45 * time.Hour), Kind: "turn", Actor: "agent:hermes"}
	})
	add("translate-docs", "iris", 4*time.Second, func(v *control.View) {
		v.State, v.Deadline, v.NextAction = control.Starting, nil, nil
		v.LastActivity = control.ActivityView{At: at(-4 * time.Second), Kind: "acquire", Actor: "agent:iris"}
		v.Turn = &control.TurnView{Number: 1, Open: true, Since: at(-4 * time.Second)}
	})
	add("crunch-numbers", "iris", 41*time.Minute, func(v *control.View) {
		v.State, v.Deadline, v.NextAction, v.Persistent = control.Stopping, nil, nil, false
		v.Teardown = &control.TeardownView{Reason: "turn ended", Attempts: 2, NextAt: control.AtPtr(now.Add(8 * time.Second)), Error: "container stop: context deadline exceeded"}
	})
	add("old-kernel", "default", 9*time.Minute, func(v *control.View) {
		v.State, v.Error = control.Failed, ptr("no such image: debian:nope, and the registry does not answer")
		v.Image, v.NextAction = ptr("debian:nope"), ptr("remove")
		v.Deadline = control.AtPtr(now.Add(61 * time.Second))
	})
	add("مهمة <script>alert(1)</script> \u202eevil", "default", 55*time.Minute, func(v *control.View) {
		v.Isolation, v.Image, v.Name = "none", nil, "second"
		v.Unenforced = []string{"cpus", "memory_mb"}
		v.Holds = []control.Hold{{Kind: control.HoldProcess, Ref: "x5", Since: at(-20 * time.Minute), Until: control.AtPtr(now.Add(23 * time.Hour))}}
		v.Deadline, v.NextAction = nil, nil
	})
	log := func(ago time.Duration, kind control.EventKind, actor, env, task, reason string, data map[string]any) {
		p.happen(control.Event{Kind: kind, Time: at(-ago), Actor: actor, Env: env, Task: task, Name: "main", Reason: reason, Data: data})
	}
	log(50*time.Minute, control.ServerStarted, "server", "", "", "", nil)
	log(49*time.Minute, control.OperatorLogin, "operator:ann", "", "", "signed in by code", nil)
	log(40*time.Minute, control.EnvPinned, "operator:ann", "k3v9x2m703", "data-import", "looking into the stuck import", nil)
	log(12*time.Minute, control.AgentConnected, "agent:hermes", "", "", "", nil)
	log(11*time.Minute, control.EnvStarting, "agent:hermes", "k3v9x2m701", "fix-login-redirect", "", nil)
	log(11*time.Minute, control.EnvReady, "agent:hermes", "k3v9x2m701", "fix-login-redirect", "", nil)
	log(9*time.Minute, control.EnvFailed, "agent:default", "k3v9x2m708", "old-kernel", "no such image: debian:nope", nil)
	log(6*time.Minute, control.ReaperStopped, "reaper", "k3v9x2m705", "refactor-billing", "idle 300 s", nil)
	log(6*time.Minute, control.EnvDormant, "reaper", "k3v9x2m705", "refactor-billing", "idle 300 s", nil)
	log(5*time.Minute, control.TurnEnded, "agent:iris", "", "crunch-numbers", "", map[string]any{"turn": 1, "outcome": "done", "decisions": []any{map[string]any{"decision": "removed"}}})
	log(4*time.Minute, control.ReaperRetry, "reaper", "k3v9x2m707", "crunch-numbers", "container stop: context deadline exceeded", nil)
	log(3*time.Minute, control.ReaperRemoved, "reaper", "gone000001", "one-off-shell", "idle 300 s", nil)
	log(2*time.Minute, control.EnvLost, "reconciler", "k3v9x2m702", "nightly-report", "", map[string]any{"exit_code": 137, "oom": true})
	log(90*time.Second, control.EnvResumed, "agent:athena", "k3v9x2m702", "nightly-report", "", nil)
	log(40*time.Second, control.TurnBegan, "agent:hermes", "", "fix-login-redirect", "", map[string]any{"turn": 3})
	log(4*time.Second, control.EnvStarting, "agent:iris", "k3v9x2m706", "translate-docs", "", nil)
	p.orphans = []control.Orphan{{Name: "sandkeeper-demo-q7", Task: "lost-task", Image: "debian:bookworm-slim", Stopped: true}}

	var rows int
	fmt.Sscan(extra, &rows)
	for i := range rows {
		add(fmt.Sprintf("batch-%05d", i), "load", time.Duration(i+60)*time.Second, func(*control.View) {})
	}
	if os.Getenv("SANDKEEPER_LOOK_MOVE") != "" {
		go moveAbout(p, now)
	}
}

// moveAbout makes things happen, every second one.
func moveAbout(p *fakePlane, now time.Time) {
	for i := 0; ; i++ {
		time.Sleep(time.Second)
		id := fmt.Sprintf("live%d", i%7)
		v := readyEnv(id, fmt.Sprintf("live-task-%d", i%7))
		v.CreatedAt = control.At(now.Add(time.Duration(i%7) * time.Second))
		switch i / 7 % 3 {
		case 0:
			p.put(v, control.Event{Kind: control.EnvReady, Env: id, Task: v.Task, Actor: "agent:hermes"})
		case 1:
			_, _ = p.Stop(context.Background(), "operator:ann", id)
		case 2:
			p.remove(id, control.Tombstone{Reason: "retention", Actor: "reaper"}, control.Event{Kind: control.ReaperPurged, Env: id, Task: v.Task, Actor: "reaper", Reason: "retention"})
		}
	}
}
