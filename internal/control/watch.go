package control

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// hub tells watches that something changed. It keeps the latest events; a
// watch that falls behind those reads them from the store, at its own pace, so
// that a slow one slows nobody and nobody's memory grows.
type hub struct {
	store Store

	mu      sync.Mutex
	recent  []Event // the latest, ascending, without a gap
	watches map[*Watch]struct{}
}

const hubKeeps = 1024

func newHub(s Store) *hub { return &hub{store: s, watches: map[*Watch]struct{}{}} }

// publish takes committed events, in order.
func (h *hub) publish(ev []Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recent = append(h.recent, ev...)
	if n := len(h.recent) - hubKeeps; n > hubKeeps {
		h.recent = slices.Clone(h.recent[n:])
	}
	for w := range h.watches {
		w.wake()
	}
}

// changed says that an environment's view is another.
func (h *hub) changed(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		w.envs[id] = struct{}{}
		w.wake()
	}
}

// Watch follows the event log and environments' changes.
type Watch struct {
	h     *hub
	after uint64              // only Next touches it
	envs  map[string]struct{} // guarded by h.mu
	c     chan struct{}       // one token: something changed
}

// Watch follows events after that sequence number, and environments' changes from now on.
func (p *Plane) Watch(after uint64) *Watch {
	w := &Watch{h: p.hub, after: after, envs: map[string]struct{}{}, c: make(chan struct{}, 1)}
	w.wake()
	p.hub.mu.Lock()
	defer p.hub.mu.Unlock()
	p.hub.watches[w] = struct{}{}
	return w
}

func (w *Watch) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Next waits until there is something to tell. A reader that is slow gets more
// at once, and slows nobody. Events come in chunks of at most 1,000.
func (w *Watch) Next(ctx context.Context) (Changes, error) {
	for {
		select {
		case <-w.c:
		case <-ctx.Done():
			return Changes{}, ctx.Err()
		}
		var c Changes
		w.h.mu.Lock()
		if len(w.envs) > 0 {
			c.Envs = slices.Sorted(maps.Keys(w.envs))
			clear(w.envs)
		}
		recent := w.h.recent
		w.h.mu.Unlock()
		if err := w.events(recent, &c); err != nil {
			return Changes{}, err
		}
		if len(c.Events) > 0 || c.Reset || len(c.Envs) > 0 {
			return c, nil
		}
	}
}

// events fills in what comes after w.after. A watch that the log no longer
// reaches, or that stood in another log, is told so once and goes on with what there is.
func (w *Watch) events(recent []Event, c *Changes) error {
	if n := len(recent); n > 0 && recent[0].Seq <= w.after+1 && w.after <= recent[n-1].Seq {
		c.Events = slices.Clone(recent[w.after+1-recent[0].Seq:])
	} else {
		ev, first, last, err := w.h.store.Events(w.after, 1000, EventFilter{})
		if err != nil {
			return err
		}
		if w.after > last { // a log that was restored, or another's
			c.Reset, w.after = true, max(first, 1)-1
			w.wake()
			return nil
		}
		c.Reset = first > w.after+1 && last > w.after
		c.Events = ev
		if len(ev) == 1000 {
			w.wake()
		}
	}
	if n := len(c.Events); n > 0 {
		w.after = c.Events[n-1].Seq
	}
	return nil
}

// Close ends the watch.
func (w *Watch) Close() {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	delete(w.h.watches, w)
}

// Events reads the log: up to limit events with Seq > after, ascending, and its bounds.
func (p *Plane) Events(after uint64, limit int, f EventFilter) (ev []Event, first, last uint64, err error) {
	return p.o.Store.Events(after, limit, f)
}

// Forecast lists what the reaper will do within a time, in order. 0 is without bound.
func (p *Plane) Forecast(within time.Duration) []Forecast {
	now := p.Now()
	p.mu.RLock()
	all := slices.Collect(maps.Values(p.envs))
	p.mu.RUnlock()
	fs := []Forecast{}
	for _, e := range all {
		r := e.rec.Load()
		if r.Deadline.IsZero() || within > 0 && r.Deadline.After(now.Add(within)) {
			continue
		}
		a := action(r)
		if a == "" {
			continue
		}
		// What has a deadline is judged by the rule that gave it.
		held := r.State == Ready && r.IdleSince.IsZero()
		fs = append(fs, Forecast{Env: r.ID, Task: r.Task, Action: a, At: At(r.Deadline), Rule: p.judge(r, held, now, p.ranAt(now)).rule})
	}
	slices.SortFunc(fs, func(a, b Forecast) int {
		if c := a.At.Compare(b.At.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Env, b.Env)
	})
	return fs
}
