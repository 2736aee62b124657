package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// fakePlane is a plane in memory: environments as they are put there, and a log.
type fakePlane struct {
	mu      sync.Mutex
	now     func() time.Time
	envs    map[string]control.View
	stones  map[string]*control.Tombstone
	execs   map[string][]control.ExecView
	events  []control.Event
	first   uint64 // events before it were pruned
	engine  control.EngineStatus
	orphans []control.Orphan
	watches map[*fakeWatch]bool
	calls   []string
	fail    error // what every operation answers, if set
	files   fakeFiles
}

func newFakePlane() *fakePlane {
	return &fakePlane{
		now: time.Now, envs: map[string]control.View{}, stones: map[string]*control.Tombstone{}, execs: map[string][]control.ExecView{}, first: 1,
		engine: control.EngineStatus{Reachable: true, Since: time.Now(), EngineInfo: control.EngineInfo{
			Name: "docker", Version: "20.10.24", Isolation: "container", Enforces: []string{"cpus", "memory_mb", "pids"},
		}},
		watches: map[*fakeWatch]bool{}, files: fakeFiles{files: map[string][]byte{}},
	}
}

func (p *fakePlane) Now() time.Time { return p.now() }

// put sets an environment as it is, and tells those who watch.
func (p *fakePlane) put(v control.View, evs ...control.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v.Now = control.At(p.now())
	p.envs[v.ID] = v
	p.tell([]string{v.ID}, p.log(evs...))
}

// remove removes one.
func (p *fakePlane) remove(id string, t control.Tombstone, evs ...control.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.envs, id)
	p.stones[id] = &t
	p.tell([]string{id}, p.log(evs...))
}

// happen writes events.
func (p *fakePlane) happen(evs ...control.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tell(nil, p.log(evs...))
}

func (p *fakePlane) log(evs ...control.Event) []control.Event {
	for i := range evs {
		evs[i].Seq = p.last() + 1
		if evs[i].Time.IsZero() {
			evs[i].Time = control.At(p.now())
		}
		p.events = append(p.events, evs[i])
	}
	return evs
}

func (p *fakePlane) last() uint64 { return p.first - 1 + uint64(len(p.events)) }

// prune forgets events before seq.
func (p *fakePlane) prune(seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = p.events[seq-p.first:]
	p.first = seq
}

func (p *fakePlane) tell(ids []string, evs []control.Event) {
	for w := range p.watches {
		w.pending.Envs = append(w.pending.Envs, ids...)
		w.pending.Events = append(w.pending.Events, evs...)
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

func (p *fakePlane) Envs(f control.EnvFilter) ([]control.View, string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return nil, "", p.fail
	}
	var out []control.View
	for _, v := range p.envs {
		if (f.State == "" || v.State == f.State) && (f.Task == "" || v.Task == f.Task) && v.ID > f.After {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b control.View) int { return compare(a.ID, b.ID) })
	if f.Limit > 0 && len(out) > f.Limit {
		out = out[:f.Limit]
		return out, out[len(out)-1].ID, nil
	}
	return out, "", nil
}

func compare(a, b string) int {
	if a < b {
		return -1
	} else if a > b {
		return 1
	}
	return 0
}

func (p *fakePlane) Env(id string) (control.View, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.env(id)
}

func (p *fakePlane) env(id string) (control.View, error) {
	if v, ok := p.envs[id]; ok {
		v.Now = control.At(p.now())
		return v, nil
	}
	if t, ok := p.stones[id]; ok {
		return control.View{}, &control.Error{Kind: control.KindGenerationGone, Message: "it was removed", Tombstone: t}
	}
	return control.View{}, control.Errorf(control.KindNotFound, "no environment %q", id)
}

func (p *fakePlane) EnvExecs(_ context.Context, id string) ([]control.ExecView, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.execs[id], nil
}

// change is how the fake does what operators ask.
func (p *fakePlane) change(call, id string, fn func(v *control.View), ev control.Event) (control.View, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
	if p.fail != nil {
		return control.View{}, p.fail
	}
	v, err := p.env(id)
	if err != nil {
		return v, err
	}
	fn(&v)
	p.envs[id] = v
	ev.Env, ev.Owner, ev.Task, ev.Name = v.ID, v.Owner, v.Task, v.Name
	p.tell([]string{id}, p.log(ev))
	return v, nil
}

func (p *fakePlane) Pin(_ context.Context, actor, id, reason string, until time.Time) (control.View, error) {
	return p.change(fmt.Sprintf("pin %s %s %q until=%v", actor, id, reason, !until.IsZero()), id, func(v *control.View) {
		v.Pinned, v.Pin = true, &control.PinView{By: actor, Reason: reason, Since: control.At(p.now()), Until: control.AtPtr(until)}
		v.Deadline = nil
	}, control.Event{Kind: control.EnvPinned, Actor: actor, Reason: reason})
}

func (p *fakePlane) Unpin(_ context.Context, actor, id string) (control.View, error) {
	return p.change(fmt.Sprintf("unpin %s %s", actor, id), id, func(v *control.View) {
		v.Pinned, v.Pin = false, nil
		if v.State == control.Ready {
			v.Deadline = control.AtPtr(p.now().Add(time.Duration(v.LifetimeS) * time.Second))
		}
	}, control.Event{Kind: control.EnvUnpinned, Actor: actor})
}

func (p *fakePlane) TouchEnv(_ context.Context, actor, id string) (control.View, error) {
	return p.change(fmt.Sprintf("touch %s %s", actor, id), id, func(*control.View) {}, control.Event{Kind: control.EnvTouched, Actor: actor})
}

func (p *fakePlane) Stop(_ context.Context, actor, id string) (control.View, error) {
	return p.change(fmt.Sprintf("stop %s %s", actor, id), id, func(v *control.View) { v.State = control.Dormant }, control.Event{Kind: control.EnvDormant, Actor: actor})
}

func (p *fakePlane) Kill(_ context.Context, actor, id string, purge bool) (control.View, error) {
	v, err := p.change(fmt.Sprintf("kill %s %s purge=%v", actor, id, purge), id, func(v *control.View) { v.State = control.Stopping }, control.Event{Kind: control.EnvStopping, Actor: actor})
	if err != nil {
		return v, err
	}
	if v.Persistent && !purge {
		v.State = control.Dormant
		p.put(v, control.Event{Kind: control.EnvDormant, Env: id, Task: v.Task, Name: v.Name, Actor: actor})
		return v, nil
	}
	p.remove(id, control.Tombstone{Reason: "killed", Actor: actor, At: control.At(p.now()), Generation: v.Generation},
		control.Event{Kind: control.EnvRemoved, Env: id, Task: v.Task, Name: v.Name, Actor: actor, Reason: "killed"})
	v.State = control.Removed
	return v, nil
}

func (p *fakePlane) Forecast(within time.Duration) []control.Forecast {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []control.Forecast
	for _, v := range p.envs {
		if v.Deadline != nil && v.NextAction != nil && (within == 0 || v.Deadline.Sub(p.now()) <= within) {
			out = append(out, control.Forecast{Env: v.ID, Task: v.Task, Action: *v.NextAction, At: *v.Deadline, Rule: v.Rule})
		}
	}
	slices.SortFunc(out, func(a, b control.Forecast) int { return a.At.Compare(b.At.Time) })
	return out
}

func (p *fakePlane) Orphans() []control.Orphan {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.orphans)
}

// settle ends an orphan, as adoption and purge do.
func (p *fakePlane) settle(call, actor, sandbox string) (o control.Orphan, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call+" "+actor+" "+sandbox)
	if p.fail != nil {
		return o, p.fail
	}
	i := slices.IndexFunc(p.orphans, func(o control.Orphan) bool { return o.Name == sandbox })
	if i < 0 {
		return o, control.Errorf(control.KindNotFound, "no orphan has the name %q", sandbox)
	}
	o = p.orphans[i]
	p.orphans = slices.Delete(p.orphans, i, i+1)
	return o, nil
}

func (p *fakePlane) AdoptOrphan(_ context.Context, actor, sandbox string) (control.View, error) {
	o, err := p.settle("adopt", actor, sandbox)
	if err != nil {
		return control.View{}, err
	}
	v := readyEnv(o.Env, o.Task)
	v.State, v.Owner = control.Dormant, o.Owner
	p.put(v, control.Event{Kind: control.OrphanAdopted, Actor: actor, Env: o.Env, Task: o.Task})
	return p.Env(o.Env)
}

func (p *fakePlane) PurgeOrphan(_ context.Context, actor, sandbox string) error {
	o, err := p.settle("purge", actor, sandbox)
	if err == nil {
		p.happen(control.Event{Kind: control.OrphanRemoved, Actor: actor, Env: o.Env, Task: o.Task})
	}
	return err
}

func (p *fakePlane) Engine() control.EngineStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engine
}

func (p *fakePlane) Events(after uint64, limit int, f control.EventFilter) ([]control.Event, uint64, uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []control.Event
	for _, ev := range p.events {
		if ev.Seq > after && matchesEvent(ev, f) && len(out) < limit {
			out = append(out, ev)
		}
	}
	if len(p.events) == 0 {
		return nil, 0, p.last(), nil
	}
	return out, p.first, p.last(), nil
}

func (p *fakePlane) Record(_ context.Context, ev control.Event) error {
	p.happen(ev)
	return nil
}

func (p *fakePlane) Watch(after uint64) Watcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &fakeWatch{plane: p, wake: make(chan struct{}, 1)}
	if after+1 < p.first {
		w.pending.Reset = true
	}
	for _, ev := range p.events {
		if ev.Seq > after {
			w.pending.Events = append(w.pending.Events, ev)
		}
	}
	if w.pending.Reset || len(w.pending.Events) > 0 {
		w.wake <- struct{}{}
	}
	p.watches[w] = true
	return w
}

func (p *fakePlane) watching() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.watches)
}

type fakeWatch struct {
	plane   *fakePlane
	wake    chan struct{}
	pending control.Changes
}

func (w *fakeWatch) Next(ctx context.Context) (control.Changes, error) {
	select {
	case <-w.wake:
	case <-ctx.Done():
		return control.Changes{}, ctx.Err()
	}
	w.plane.mu.Lock()
	defer w.plane.mu.Unlock()
	ch := w.pending
	w.pending = control.Changes{}
	return ch, nil
}

func (w *fakeWatch) Close() {
	w.plane.mu.Lock()
	defer w.plane.mu.Unlock()
	delete(w.plane.watches, w)
}

// fakeTokens knows tokens by their text.
type fakeTokens struct {
	mu sync.Mutex
	n  int
	by map[string]control.Principal
}

func newFakeTokens() *fakeTokens {
	return &fakeTokens{by: map[string]control.Principal{
		"op":        {Token: "t1", Name: "ann", Role: control.RoleOperator},
		"look":      {Token: "t2", Name: "vic", Role: control.RoleViewer},
		"tok-agent": {Token: "t3", Name: "hermes", Role: control.RoleAgent, Owner: "default"},
	}}
}

func (t *fakeTokens) Authenticate(token string) (control.Principal, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, ok := t.by[token]
	return p, ok
}

func (t *fakeTokens) CreateSession(_ context.Context, role control.Role, name string, _ time.Duration) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	token := fmt.Sprintf("session-%d", t.n)
	t.by[token] = control.Principal{Token: "s" + token, Name: name, Role: role}
	return token, nil
}

func (t *fakeTokens) DeleteToken(_ context.Context, id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for token, p := range t.by {
		if p.Token == id {
			delete(t.by, token)
		}
	}
	return nil
}

func ptr[T any](v T) *T { return &v }

// readyEnv is an environment that counts down.
func readyEnv(id, task string) control.View {
	now := time.Now()
	return control.View{
		ID: id, Owner: "default", Task: task, Name: "main", State: control.Ready, Generation: 1, Persistent: true,
		Engine: "docker", Isolation: "container", Image: ptr("debian:bookworm-slim"), LifetimeS: 300,
		CreatedAt: control.At(now.Add(-10 * time.Minute)), LastActivity: control.ActivityView{At: control.At(now), Kind: "exec", Actor: "agent:hermes"},
		Deadline: control.AtPtr(now.Add(5 * time.Minute)), NextAction: ptr("stop"), Rule: "Idle for 300 s: the reaper stops it and keeps its files.",
		Holds: []control.Hold{}, Workdir: "/workspace", Unenforced: []string{}, Drift: []string{}, Labels: map[string]string{},
	}
}

// house is a dashboard over fakes, served.
type house struct {
	*Dashboard
	plane  *fakePlane
	tokens *fakeTokens
}

func newHouse(t testing.TB, change func(o *Options)) *house {
	t.Helper()
	h := &house{plane: newFakePlane(), tokens: newFakeTokens()}
	o := Options{Plane: h.plane, Auth: h.tokens, Sessions: h.tokens, Version: "test", FrameGap: time.Millisecond}
	if change != nil {
		change(&o)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	h.Dashboard = d
	return h
}

// fakeFile is a file on its way.
type fakeFile struct {
	*fakeFiles
	create control.FileCreate
	info   control.OpenFile
	rest   []byte
	data   []byte
}

// fakeFiles is all files of all environments, by path.
type fakeFiles struct {
	mu    sync.Mutex
	files map[string][]byte
	moves []string
	fail  error // after the first bytes
	open  int
}

func (p *fakePlane) OpenFile(_ context.Context, m control.Mover, env, path string) (control.FileReader, error) {
	return p.files.begin(p, m, env, "get", control.FileCreate{Path: path})
}

func (p *fakePlane) CreateFile(_ context.Context, m control.Mover, env string, c control.FileCreate) (control.FileWriter, error) {
	what := "put"
	if c.Tar {
		what = "untar"
	}
	return p.files.begin(p, m, env, what, c)
}

func (f *fakeFiles) begin(p *fakePlane, m control.Mover, env, what string, c control.FileCreate) (*fakeFile, error) {
	p.mu.Lock()
	v, ok := p.envs[env]
	p.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moves = append(f.moves, fmt.Sprintf("%s %s by %s for %q", what, c.Path, m.Actor, m.Owner))
	if !ok || m.Owner != "" && v.Owner != m.Owner {
		return nil, control.Errorf(control.KindNotFound, "no environment has the id %q", env)
	}
	data, ok := f.files[c.Path]
	if !ok && what == "get" {
		return nil, &control.Error{Kind: control.KindNotFound, Message: c.Path + ": no such file or directory", Errno: "ENOENT"}
	}
	if what != "get" {
		data = nil
	}
	f.open++
	info := control.OpenFile{Tag: "tag", FileInfo: control.FileInfo{Name: "a name.txt", Type: "file", Size: int64(len(data)), Mode: 0o640, MTime: time.Now().Add(-time.Hour)}}
	if c.Path == "dir" {
		info.Type, info.Name = "dir", "dir"
	}
	return &fakeFile{fakeFiles: f, create: c, info: info, data: data}, nil
}

func (f *fakeFile) Info() control.OpenFile { return f.info }

func (f *fakeFile) Send(offset, length int64) error {
	f.rest = f.data[min(offset, int64(len(f.data))):]
	f.rest = f.rest[:min(length, int64(len(f.rest)))]
	return nil
}

func (f *fakeFile) SendTar() error { return f.Send(0, int64(len(f.data))) }

func (f *fakeFile) Read(p []byte) (int, error) {
	if len(f.rest) == 0 || f.fail != nil && len(f.rest) < len(f.data) {
		return 0, cmp.Or(f.fail, io.EOF)
	}
	n := copy(p, f.rest[:min(len(f.rest), 100)])
	f.rest = f.rest[n:]
	return n, nil
}

func (f *fakeFile) Write(p []byte) (int, error) {
	if f.fail != nil {
		return 0, f.fail
	}
	f.data = append(f.data, p...)
	return len(p), nil
}

func (f *fakeFile) Finish() (control.FileWritten, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[f.create.Path] = f.data
	return control.FileWritten{Size: int64(len(f.data)), Entries: 3}, nil
}

func (f *fakeFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	return nil
}
