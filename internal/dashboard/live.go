package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/a-h/templ"
	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

// A page's stream brings it up to date on every connect, whatever it has
// missed, and then carries what changes: fragments that say where they belong.
// The id of a message is the last event in it, so that the feed goes on where
// it was. Times are absolute in them; nothing is sent for a clock to tick.

// live is a page that a stream keeps up to date.
type live interface {
	// start says how the page is now.
	start(ctx context.Context) ([]templ.Component, error)
	// update says what of it changed.
	update(ctx context.Context, ch control.Changes) ([]templ.Component, error)
	// tells reports whether an event belongs into the page's feed.
	tells(ev control.Event) bool
}

// boardStream follows the table and the feed.
func (d *Dashboard) boardStream(c echo.Context) error {
	f, p := readFilter(c.Request().URL, "after", "seen")
	if p.err != nil {
		return p.err
	}
	l := &liveBoard{d: d, filter: f, begin: beginCommand(c.Request())}
	l.id, _ = who(c)
	if c.Request().Header.Get("Last-Event-ID") == "" {
		l.seen = p.text("seen")
	}
	return d.runLive(c, p, l)
}

// envStream follows the page of one environment.
func (d *Dashboard) envStream(c echo.Context) error {
	p := query(c.Request().URL, "after")
	if p.err != nil {
		return p.err
	}
	id, _ := who(c)
	return d.runLive(c, p, &liveEnv{d: d, env: c.Param("id"), id: id})
}

// beat is a sign of life: the server's clock, and what the page was made by.
type beat struct {
	Now     int64  `json:"now"` // Unix milliseconds
	Edition string `json:"edition"`
}

func (d *Dashboard) sendBeat(s *stream) error {
	b, err := json.Marshal(beat{d.plane.Now().UnixMilli(), d.edition})
	if err != nil {
		return err
	}
	return s.send(message{event: "sandkeeper:beat", data: b})
}

// runLive is one page's stream, from its connect to its end.
func (d *Dashboard) runLive(c echo.Context, p *params, page live) error {
	seq, given := lastEventID(c.Request(), p)
	if p.err != nil {
		return p.err
	}
	seq, reset, err := d.startAt(seq, given)
	if err != nil {
		return err
	}
	ctx, leave, err := d.enter(c.Request())
	if err != nil {
		return err
	}
	defer leave()
	ctx, stop := context.WithCancel(ctx)

	// The watch begins before the page is looked at: nothing falls between.
	changes := follow(ctx, d.plane.Watch(seq))
	defer func() { stop(); drain(changes) }()

	parts, err := page.start(ctx)
	if err != nil {
		return err
	}
	if reset {
		anew, last, err := d.feedAnew(page)
		if err != nil {
			return err
		}
		parts, seq = append(parts, anew), last
	}
	s, err := d.openStream(c)
	if err != nil || d.sendBeat(s) != nil || d.sendParts(ctx, s, seq, parts) != nil {
		return nil // the reader is gone
	}
	if err := d.carry(ctx, s, seq, page, changes); err != nil && ctx.Err() == nil {
		d.log.Debug("page stream ended", "err", err)
	}
	return nil
}

// carry sends what changes until the reader or the plane is gone.
func (d *Dashboard) carry(ctx context.Context, s *stream, seq uint64, page live, changes <-chan control.Changes) error {
	beats := time.NewTicker(d.opts.Heartbeat)
	defer beats.Stop()
	for {
		select {
		case <-beats.C:
			if err := d.sendBeat(s); err != nil {
				return err
			}
		case ch, ok := <-changes:
			if !ok {
				return nil
			}
			parts, err := page.update(ctx, ch)
			if err != nil {
				return err
			}
			fresh, last := newEvents(page, ch.Events, seq)
			switch {
			case ch.Reset || len(fresh) > 2*feedKept:
				anew, end, err := d.feedAnew(page)
				if err != nil {
					return err
				}
				parts, last = append(parts, anew), max(last, end)
			case len(fresh) > 0:
				parts = append(parts, templates.LiveFeed(entriesOf(fresh)))
			}
			seq = max(seq, last)
			if err := d.sendParts(ctx, s, seq, parts); err != nil {
				return err
			}
			// A burst is gathered by the watch meanwhile, and comes at once.
			select {
			case <-time.After(d.opts.FrameGap):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// newEvents are those for the page's feed that it has not had, and the last
// sequence number among all.
func newEvents(page live, events []control.Event, seq uint64) (fresh []control.Event, last uint64) {
	last = seq
	for _, ev := range events {
		if ev.Seq <= last {
			continue
		}
		last = ev.Seq
		if page.tells(ev) {
			fresh = append(fresh, ev)
		}
	}
	return fresh, last
}

// feedAnew replaces a feed that cannot be continued.
func (d *Dashboard) feedAnew(page live) (templ.Component, uint64, error) {
	var f control.EventFilter
	if p, ok := page.(*liveEnv); ok {
		f.Env = p.env
	}
	events, last, err := d.tail(feedKept, f)
	if err != nil {
		return nil, 0, err
	}
	return templates.LiveFeedAnew(entriesOf(events)), last, nil
}

// sendParts sends fragments as one message; the page takes them in at once.
func (d *Dashboard) sendParts(ctx context.Context, s *stream, seq uint64, parts []templ.Component) error {
	if len(parts) == 0 {
		return nil
	}
	var b bytes.Buffer
	for _, part := range parts {
		if err := part.Render(ctx, &b); err != nil {
			return err
		}
	}
	return s.send(message{id: strconv.FormatUint(seq, 10), data: b.Bytes()})
}

// liveBoard keeps the table.
type liveBoard struct {
	d      *Dashboard
	filter filter
	id     identity
	board  *board
	begin  string // the command that an empty table tells
	seen   string // the fingerprint of the rows as the page was made; "" where that is not known

	// as last sent
	summary templates.Summary
	engine  templates.Engine
	orphans []templates.Orphan
	empty   templates.Empty
}

func (l *liveBoard) tells(control.Event) bool { return true }

func (l *liveBoard) start(context.Context) ([]templ.Component, error) {
	b, err := l.d.load(l.filter)
	if err != nil {
		return nil, err
	}
	l.board = b
	l.summary, l.empty = b.summary(), b.empty()
	l.engine, l.orphans = engineOf(l.d.plane.Engine()), orphansOf(l.d.plane.Orphans(), l.id)
	var parts []templ.Component
	if l.seen == "" || l.seen != b.fingerprint() {
		parts = append(parts, templates.LiveRows(b.rows(l.d.plane.Now(), l.id)))
	}
	l.seen = ""
	return append(parts,
		templates.LiveSummary(l.summary), templates.LiveEmpty(l.empty, l.begin),
		templates.LiveEngine(l.engine), templates.LiveOrphans(l.orphans),
	), nil
}

func (l *liveBoard) update(ctx context.Context, ch control.Changes) ([]templ.Component, error) {
	var parts []templ.Component
	var arrived []templates.Row
	now := l.d.plane.Now()
	for _, id := range ch.Envs {
		v, tombstone, err := l.d.look(id)
		if err != nil {
			return nil, err
		}
		m, was, dropped := l.board.apply(id, v)
		switch m {
		case moveChange:
			parts = append(parts, templates.LiveRow(rowOf(v, now, l.id)))
		case moveLeave:
			parts = append(parts, templates.LiveLeave(id))
		case moveGone:
			parts = append(parts, templates.LiveRow(removedRow(rowOf(was, now, l.id), tombstone)))
		case moveArrive:
			arrived = append(arrived, rowOf(v, now, l.id))
			if dropped != "" {
				parts = append(parts, templates.LiveLeave(dropped))
			}
		}
	}
	if l.board.wanting() {
		return l.start(ctx)
	}
	if len(arrived) > 0 {
		parts = append(parts, templates.LiveArrivals(arrived))
	}
	return append(parts, l.around()...), nil
}

// around is what changed beside the rows.
func (l *liveBoard) around() []templ.Component {
	var parts []templ.Component
	if s := l.board.summary(); !reflect.DeepEqual(s, l.summary) {
		l.summary = s
		parts = append(parts, templates.LiveSummary(s))
	}
	if e := l.board.empty(); e != l.empty {
		l.empty = e
		parts = append(parts, templates.LiveEmpty(e, l.begin))
	}
	if e := engineOf(l.d.plane.Engine()); e != l.engine {
		l.engine = e
		parts = append(parts, templates.LiveEngine(e))
	}
	if o := orphansOf(l.d.plane.Orphans(), l.id); !reflect.DeepEqual(o, l.orphans) {
		l.orphans = o
		parts = append(parts, templates.LiveOrphans(o))
	}
	return parts
}

// look reads an environment: nil where it is removed, with how that came.
func (d *Dashboard) look(id string) (*control.View, *control.Tombstone, error) {
	v, err := d.plane.Env(id)
	if err == nil {
		return &v, nil, nil
	}
	f := describe(err)
	if f.status == http.StatusGone || f.status == http.StatusNotFound {
		return nil, f.tombstone, nil
	}
	return nil, nil, err
}

// liveEnv keeps the page of one environment.
type liveEnv struct {
	d   *Dashboard
	env string
	id  identity
}

func (l *liveEnv) tells(ev control.Event) bool { return ev.Env == l.env }

func (l *liveEnv) start(ctx context.Context) ([]templ.Component, error) {
	events, _, err := l.d.tail(1, control.EventFilter{Env: l.env})
	if err != nil {
		return nil, err
	}
	e, _, err := l.d.envModel(ctx, l.env, l.id, events)
	if err != nil {
		return nil, err
	}
	return []templ.Component{templates.LiveEnv(e)}, nil
}

func (l *liveEnv) update(ctx context.Context, ch control.Changes) ([]templ.Component, error) {
	if slices.Contains(ch.Envs, l.env) {
		return l.start(ctx)
	}
	return nil, nil
}
