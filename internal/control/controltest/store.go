package controltest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

// ErrRefused is the error of a batch that would break a rule that a store guards.
var ErrRefused = errors.New("refused")

// MemoryStore is a control.Store in maps. Records go through their JSON, as
// they do on disk, so that what is not written is not read either, and nobody
// shares memory with the store. It is the model that the real store is held against.
type MemoryStore struct {
	order   sync.Mutex // held over a Commit, Applied and publishing included
	publish func([]control.Event)
	fail    func(*control.Batch) error

	mu   sync.Mutex // guards data
	data data
}

// data is what would be on disk. Values are JSON.
type data struct {
	envs, removed map[string]record[control.Env]
	holders       map[string]control.Key // by id, of those that have their key
	tasks         map[control.TaskKey]record[control.TaskRecord]
	sessions      map[string]record[control.SessionRecord]
	execs         map[string]record[control.ExecRecord]
	running       map[string][2]string // by exec, env and id of those that run and have an id
	execIDs       map[[2]string]string // env and id → exec
	orphans       map[string]record[control.Orphan]
	ran           time.Duration
	events        []record[control.Event]
	last          uint64
}

// record is a value in its JSON.
type record[T any] []byte

func newRecord[T any](v T) (record[T], error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return b, nil
}

func (r record[T]) value() T {
	var v T
	if err := json.Unmarshal(r, &v); err != nil {
		panic(err) // it was made by Marshal
	}
	return v
}

var _ control.Store = (*MemoryStore)(nil)

// NewMemoryStore makes an empty store.
func NewMemoryStore() *MemoryStore {
	return &MemoryStore{
		publish: func([]control.Event) {},
		data: data{
			envs: map[string]record[control.Env]{}, removed: map[string]record[control.Env]{},
			tasks:    map[control.TaskKey]record[control.TaskRecord]{},
			sessions: map[string]record[control.SessionRecord]{}, execs: map[string]record[control.ExecRecord]{},
			holders: map[string]control.Key{}, running: map[string][2]string{},
			execIDs: map[[2]string]string{}, orphans: map[string]record[control.Orphan]{},
		},
	}
}

// Reopen returns a store with what this one would have on disk now, as after a
// crash: whoever holds this one notices nothing, and its later writes are lost to the new one.
func (s *MemoryStore) Reopen() *MemoryStore {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := NewMemoryStore()
	n.data = s.data.clone()
	return n
}

// OnCommit sets what is asked before each batch is written: an error of fn fails the batch. nil: none.
func (s *MemoryStore) OnCommit(fn func(*control.Batch) error) {
	s.order.Lock()
	defer s.order.Unlock()
	s.fail = fn
}

// Publish sets who is told of committed events.
func (s *MemoryStore) Publish(fn func([]control.Event)) { s.publish = fn }

// Commit writes the batch; errors wrap ErrRefused, or are OnCommit's.
func (s *MemoryStore) Commit(ctx context.Context, b *control.Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.order.Lock()
	defer s.order.Unlock()
	if s.fail != nil {
		if err := s.fail(b); err != nil {
			return err
		}
	}
	if err := s.write(b); err != nil {
		return err
	}
	if b.Applied != nil {
		b.Applied()
	}
	if len(b.Events) > 0 {
		s.publish(b.Events)
	}
	return nil
}

// write makes the change on a copy, so that a refused batch leaves no trace.
func (s *MemoryStore) write(b *control.Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.data.clone()
	if err := d.apply(b); err != nil {
		return err
	}
	first := s.data.last + 1
	s.data = d
	for i := range b.Events {
		b.Events[i].Seq = first + uint64(i)
	}
	return nil
}

func (d *data) clone() data {
	c := *d
	c.envs, c.removed, c.tasks = maps.Clone(d.envs), maps.Clone(d.removed), maps.Clone(d.tasks)
	c.sessions, c.execs, c.execIDs = maps.Clone(d.sessions), maps.Clone(d.execs), maps.Clone(d.execIDs)
	c.holders, c.running, c.orphans = maps.Clone(d.holders), maps.Clone(d.running), maps.Clone(d.orphans)
	c.events = slices.Clip(d.events)
	return c
}

func (d *data) apply(b *control.Batch) error {
	var err error
	last := make(map[string]*control.Env, len(b.Envs)) // of two records of one env the later counts
	for _, e := range b.Envs {
		last[e.ID] = e
	}
	for _, e := range last {
		err = errors.Join(err, d.putEnv(e))
	}
	for i := range b.Execs {
		err = errors.Join(err, d.putExec(b.Execs[i]))
	}
	for _, t := range b.Tasks {
		err = errors.Join(err, named(t.Owner, t.Task), put(d.tasks, t.Key(), t))
	}
	for _, x := range b.Sessions {
		err = errors.Join(err, named(x.ID), put(d.sessions, x.ID, x))
	}
	for _, id := range b.DeleteSessions {
		delete(d.sessions, id)
	}
	for _, o := range b.Orphans {
		err = errors.Join(err, named(o.Name), put(d.orphans, o.Name, o))
	}
	for _, name := range b.DeleteOrphans {
		delete(d.orphans, name)
	}
	if b.Ran != 0 {
		d.ran = b.Ran
	}
	for _, e := range b.Events {
		d.last++
		e.Seq = d.last
		r, cause := newRecord(e)
		d.events = append(d.events, r)
		err = errors.Join(err, cause)
	}
	return errors.Join(err, d.check())
}

func put[K comparable, T any](m map[K]record[T], k K, v T) (err error) {
	m[k], err = newRecord(v)
	return err
}

// named wants names that a key can be made of.
func named(names ...string) error {
	for i, n := range names {
		if n == "" || i < len(names)-1 && strings.Contains(n, "\x00") {
			return fmt.Errorf("%w: %q is no name", ErrRefused, names)
		}
	}
	return nil
}

func (d *data) putEnv(e *control.Env) error {
	if err := errors.Join(named(e.ID), named(e.Owner, e.Task, e.Name)); err != nil {
		return err
	}
	delete(d.envs, e.ID)
	delete(d.holders, e.ID)
	if e.Holder() {
		d.holders[e.ID] = e.Key()
	}
	if e.State != control.Removed {
		return put(d.envs, e.ID, *e)
	}
	if e.Tombstone == nil {
		return fmt.Errorf("%w: environment %s was removed without a tombstone", ErrRefused, e.ID)
	}
	return put(d.removed, e.ID, *e)
}

// putExec puts an exec. One that has ended leaves an id that a later one has taken.
func (d *data) putExec(x control.ExecRecord) error {
	if err := named(x.Exec); err != nil {
		return err
	}
	delete(d.running, x.Exec)
	if x.ID != "" {
		if err := named(x.Env, x.ID); err != nil {
			return err
		}
		k := [2]string{x.Env, x.ID}
		if x.EndedAt.IsZero() {
			d.running[x.Exec] = k
		}
		if _, taken := d.execIDs[k]; x.EndedAt.IsZero() || !taken {
			d.execIDs[k] = x.Exec
		}
	}
	return put(d.execs, x.Exec, x)
}

// check wants the rules that hold between records.
func (d *data) check() error {
	for id := range d.envs {
		if _, ok := d.removed[id]; ok {
			return fmt.Errorf("%w: environment %s was removed", ErrRefused, id)
		}
	}
	if k, ok := repeated(d.holders); ok {
		return fmt.Errorf("%w: two environments have the key %q", ErrRefused, k)
	}
	if k, ok := repeated(d.running); ok {
		return fmt.Errorf("%w: two execs run by the id %q", ErrRefused, k)
	}
	return nil
}

// repeated finds a value that two keys have.
func repeated[V comparable](m map[string]V) (v V, ok bool) {
	seen := make(map[V]bool, len(m))
	for _, v := range m {
		if seen[v] {
			return v, true
		}
		seen[v] = true
	}
	return v, false
}

// Load reads what the plane keeps in memory.
func (s *MemoryStore) Load(ctx context.Context) (*control.Records, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &control.Records{Sessions: values(s.data.sessions), Orphans: values(s.data.orphans), Ran: s.data.ran}
	tasks := map[control.TaskKey]bool{}
	for _, e := range values(s.data.envs) {
		r.Envs = append(r.Envs, &e)
		tasks[control.TaskKey{Owner: e.Owner, Task: e.Task}] = true
	}
	for k, rec := range s.data.tasks {
		if t := rec.value(); t.Open || tasks[k] {
			r.Tasks = append(r.Tasks, t)
		}
	}
	for _, x := range values(s.data.execs) {
		if x.EndedAt.IsZero() {
			r.Execs = append(r.Execs, x)
		}
	}
	return r, nil
}

// values lists the values in the order of their keys.
func values[T any](m map[string]record[T]) (list []T) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[k].value())
	}
	return list
}

func get[K comparable, T any](m map[K]record[T], k K) (v T, ok bool, err error) { //nolint:unparam // as its callers return it
	r, ok := m[k]
	if !ok {
		return v, false, nil
	}
	return r.value(), true, nil
}

// Task reads one task's record.
func (s *MemoryStore) Task(k control.TaskKey) (control.TaskRecord, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return get(s.data.tasks, k)
}

// Exec finds an exec by the id that its caller gave it.
func (s *MemoryStore) Exec(env, id string) (control.ExecRecord, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return get(s.data.execs, s.data.execIDs[[2]string{env, id}])
}

// ExecByName finds an exec by the plane's own name for it.
func (s *MemoryStore) ExecByName(exec string) (control.ExecRecord, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return get(s.data.execs, exec)
}

// RemovedEnvs lists the removed environments whose tombstones are kept, the latest removed last.
func (s *MemoryStore) RemovedEnvs() ([]*control.Env, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var envs []*control.Env
	for _, e := range values(s.data.removed) {
		envs = append(envs, &e)
	}
	slices.SortStableFunc(envs, func(a, b *control.Env) int { return a.Tombstone.At.Compare(b.Tombstone.At.Time) })
	return envs, nil
}

// RemovedEnv finds a removed environment by its id.
func (s *MemoryStore) RemovedEnv(id string) (*control.Env, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok, err := get(s.data.removed, id)
	if !ok {
		return nil, false, err
	}
	return &e, true, nil
}

// Events reads up to limit events with Seq > after that match the filter, and the log's bounds.
func (s *MemoryStore) Events(after uint64, limit int, f control.EventFilter) (ev []control.Event, first, last uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last = s.data.last
	if n := len(s.data.events); n > 0 {
		first = last - uint64(n) + 1
	}
	for _, r := range s.data.events {
		if len(ev) >= limit {
			break
		}
		e := r.value()
		if e.Seq > after && (f.Env == "" || f.Env == e.Env) && (f.Owner == "" || f.Owner == e.Owner) && (f.Kind == "" || f.Kind == e.Kind) {
			ev = append(ev, e)
		}
	}
	return ev, first, last, nil
}

// Prune drops what is past its time.
func (s *MemoryStore) Prune(ctx context.Context, p control.PruneLimits) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.data.clone()
	maps.DeleteFunc(d.removed, func(_ string, r record[control.Env]) bool {
		e := r.value()
		return e.Tombstone.At.Before(p.TombstonesBefore)
	})
	maps.DeleteFunc(d.execs, func(_ string, r record[control.ExecRecord]) bool {
		x := r.value()
		return !x.EndedAt.IsZero() && x.EndedAt.Before(p.ExecsEndedBefore)
	})
	maps.DeleteFunc(d.execIDs, func(_ [2]string, exec string) bool { _, kept := d.execs[exec]; return !kept })
	for len(d.events) > 0 {
		if e := d.events[0].value(); !e.Time.Before(p.EventsBefore) && (p.EventsKeep <= 0 || len(d.events) <= p.EventsKeep) {
			break
		}
		d.events = d.events[1:]
	}
	s.data = d
	return nil
}
