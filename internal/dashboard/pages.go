package dashboard

import (
	"context"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/a-h/templ"
	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

const (
	feedKept    = 100             // events on the page when it is made
	execTimeout = 2 * time.Second // a sandbox that does not answer must not hold up the page
)

// registerPages adds the pages, their streams and their forms.
func (d *Dashboard) registerPages(add router) {
	add("GET", "/", d.boardPage)
	add("GET", "/stream", d.boardStream)
	add("GET", "/envs/:id", d.envPage)
	add("GET", "/envs/:id/stream", d.envStream)
	add("GET", "/envs/:id/kill", d.killPage)
	add("POST", "/envs/:id/pin", d.pinForm)
	add("POST", "/envs/:id/unpin", d.form(func(ctx context.Context, actor, id string) (control.View, error) {
		return d.plane.Unpin(ctx, actor, id)
	}))
	add("POST", "/envs/:id/stop", d.form(func(ctx context.Context, actor, id string) (control.View, error) { return d.plane.Stop(ctx, actor, id) }))
	add("POST", "/envs/:id/kill", d.killForm)
	add("POST", "/orphans/:sandbox/adopt", d.adoptForm)
	add("POST", "/orphans/:sandbox/purge", d.purgeForm)
}

// contentPolicy lets a page load what this server serves, and nothing else.
const contentPolicy = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; object-src 'none'"

// pageHeaders are on every page.
func pageHeaders(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		setPageHeaders(c)
		return next(c)
	}
}

func setPageHeaders(c echo.Context) {
	h := c.Response().Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// render draws a component as the answer.
func render(c echo.Context, status int, page templ.Component) error {
	c.Response().Header().Set(echo.HeaderContentType, echo.MIMETextHTMLCharsetUTF8)
	c.Response().WriteHeader(status)
	return page.Render(c.Request().Context(), c.Response())
}

// frame is what a page has around it for who asks.
func (d *Dashboard) frame(c echo.Context, title string) templates.Frame {
	f := templates.Frame{Title: title, Assets: d.assets, Version: d.opts.Version, Edition: d.edition, NowMS: d.plane.Now().UnixMilli()}
	if id, ok := who(c); ok {
		f.User, f.Role, f.CSRF, f.SignOut = id.Name, string(id.Role), id.formToken(), id.cookie
	}
	return f
}

// load lists what a page with this filter is made of.
func (d *Dashboard) load(f filter) (*board, error) {
	views, _, err := d.plane.Envs(control.EnvFilter{})
	if err != nil {
		return nil, err
	}
	if f.state == control.Removed {
		removed, _, err := d.plane.Envs(control.EnvFilter{State: control.Removed})
		if err != nil {
			return nil, err
		}
		views = append(views, removed...)
	}
	return newBoard(f, d.opts.PageRows, views), nil
}

// boardPage is every environment.
func (d *Dashboard) boardPage(c echo.Context) error {
	f, p := readFilter(c.Request().URL)
	if p.err != nil {
		return p.err
	}
	events, last, err := d.tail(feedKept, control.EventFilter{})
	if err != nil {
		return err
	}
	// The log's end is read before the environments: what happens between the
	// two comes again by the stream, and nothing is missed.
	b, err := d.load(f)
	if err != nil {
		return err
	}
	id, _ := who(c)
	now := d.plane.Now()
	page := templates.Board{
		Frame: d.frame(c, "Environments"), Filter: f.model(), Summary: b.summary(),
		Engine: engineOf(d.plane.Engine()), Orphans: orphansOf(d.plane.Orphans(), id),
		Rows: b.rows(now, id), Empty: b.empty(), Begin: beginCommand(c.Request()), Feed: entriesOf(events),
	}
	page.Frame.Stream = f.address("/stream", f.before, "after", strconv.FormatUint(last, 10), "seen", b.fingerprint())
	if f.before != "" {
		page.Newer = f.address("/", "")
	}
	if older := b.older(); older != "" {
		page.Older = f.address("/", older)
	}
	return render(c, http.StatusOK, templates.BoardPage(page))
}

// beginCommand starts the example agent against this server.
func beginCommand(r *http.Request) string {
	command := "SANDKEEPER_AGENT_TOKEN=$(cat data/agent.token) go run ./examples/agent"
	if r.Host != "127.0.0.1:7333" && hostShape.MatchString(r.Host) {
		command += " --url http://" + r.Host
	}
	return command
}

// hostShape keeps anything but an address out of a command that people copy.
var hostShape = regexp.MustCompile(`^[A-Za-z0-9.\-\[\]:]+$`)

// rows draws a board's page.
func (b *board) rows(now time.Time, id identity) []templates.Row {
	views := b.views()
	out := make([]templates.Row, len(views))
	for i, v := range views {
		out[i] = rowOf(v, now, id)
	}
	return out
}

// tail reads the last events that a filter lets through, oldest first, and the
// log's end. It looks further back step by step, so that a log of one kind
// costs one short reading.
func (d *Dashboard) tail(n int, f control.EventFilter) (events []control.Event, last uint64, err error) {
	_, first, last, err := d.plane.Events(0, 1, control.EventFilter{})
	if err != nil || last == 0 {
		return nil, last, err
	}
	for window := uint64(n); ; window *= 8 {
		after := uint64(0)
		if last > window {
			after = last - window
		}
		if events, err = d.between(after, last, f); err != nil {
			return nil, last, err
		}
		if len(events) >= n || after < first {
			break
		}
	}
	return events[max(0, len(events)-n):], last, nil
}

// between reads the events after one sequence number, up to another.
func (d *Dashboard) between(after, upTo uint64, f control.EventFilter) ([]control.Event, error) {
	var out []control.Event
	for {
		events, _, _, err := d.plane.Events(after, maxLimit, f)
		if err != nil {
			return nil, err
		}
		for _, ev := range events {
			if ev.Seq > upTo {
				return out, nil
			}
			out = append(out, ev)
			after = ev.Seq
		}
		if len(events) < maxLimit {
			return out, nil
		}
	}
}

// envPage is one environment. One that was removed is shown with how it ended,
// for as long as that is known.
func (d *Dashboard) envPage(c echo.Context) error {
	if err := query(c.Request().URL).err; err != nil {
		return err
	}
	id := c.Param("id")
	events, last, err := d.tail(feedKept, control.EventFilter{Env: id})
	if err != nil {
		return err
	}
	asker, _ := who(c)
	page, status, err := d.envModel(c.Request().Context(), id, asker, events)
	if err != nil {
		return err
	}
	page.Frame = d.frame(c, isolate(page.Row.Task))
	page.Feed = entriesOf(events)
	if status == http.StatusOK {
		page.Frame.Stream = envHref(id) + "/stream?after=" + strconv.FormatUint(last, 10)
	}
	return render(c, status, templates.EnvPage(page))
}

// envModel is what the page of one environment shows, apart from its frame and
// feed; of a removed one, events tell its names.
func (d *Dashboard) envModel(ctx context.Context, id string, asker identity, events []control.Event) (templates.Env, int, error) {
	now := d.plane.Now()
	v, err := d.plane.Env(id)
	if err != nil {
		f := describe(err)
		if f.tombstone == nil {
			return templates.Env{}, 0, err
		}
		e := templates.Env{Row: templates.Row{ID: id, Href: envHref(id), Task: id, State: string(control.Removed), Gone: true}, Tombstone: tombstoneOf(f.tombstone, now)}
		e.Facts = []templates.Fact{{Name: "Id", Value: id}}
		for _, ev := range events {
			if ev.Task == "" {
				continue
			}
			e.Row.Task, e.Row.Owner = ev.Task, ev.Owner
			e.Facts = append(e.Facts, templates.Fact{Name: "Owner", Value: ev.Owner}, templates.Fact{Name: "Task", Value: ev.Task}, templates.Fact{Name: "Name", Value: ev.Name})
			break
		}
		return e, http.StatusGone, nil
	}
	e := templates.Env{Row: rowOf(&v, now, asker), Holds: holdsOf(&v, now), Facts: factsOf(&v, now)}
	e.Execs, e.ExecsWhy = d.execs(ctx, &v, now)
	if asker.operates() && e.Row.Acts != nil && e.Row.Acts.CanPin {
		e.PinForm = &templates.PinForm{CSRF: asker.formToken()}
		if v.Pin != nil {
			e.PinForm.Reason = v.Pin.Reason
		}
	}
	return e, http.StatusOK, nil
}

// execs lists an environment's commands, or says why they are not known.
func (d *Dashboard) execs(ctx context.Context, v *control.View, now time.Time) (list []templates.Exec, why string) {
	if v.State != control.Ready {
		return nil, "None: nothing runs in it now."
	}
	ctx, cancel := context.WithTimeout(ctx, execTimeout)
	defer cancel()
	execs, err := d.plane.EnvExecs(ctx, v.ID)
	if err != nil {
		d.log.Info("commands not listed", "env", v.ID, "err", err)
		return nil, "Not known: the sandbox does not answer."
	}
	for _, x := range execs {
		list = append(list, execOf(x, now))
	}
	return list, ""
}

// form is a button's POST. A browser without scripts goes back to where it
// was; with them the change comes by the stream, which alone changes rows.
func (d *Dashboard) form(do func(ctx context.Context, actor, id string) (control.View, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		id, _ := who(c)
		if _, err := do(c.Request().Context(), id.actor(), c.Param("id")); err != nil {
			return err
		}
		return done(c)
	}
}

func done(c echo.Context) error { return back(c, "/#env-"+c.Param("id")) }

func back(c echo.Context, to string) error {
	if c.Request().Header.Get("HX-Request") != "" {
		return c.NoContent(http.StatusNoContent)
	}
	return c.Redirect(http.StatusSeeOther, to)
}

// pinForm pins: the row's button without more, the page's form with a reason
// and an end.
func (d *Dashboard) pinForm(c echo.Context) error {
	req := pinRequest{Reason: c.FormValue("reason")}
	if s := c.FormValue("hours"); s != "" {
		hours, err := strconv.Atoi(s)
		if err != nil || hours < 1 || hours > 24*365 {
			return invalid("field %q must be whole hours, 1 to %d", "hours", 24*365)
		}
		at := d.plane.Now().Add(time.Duration(hours) * time.Hour)
		req.Until = &at
	}
	if _, err := d.pin(c, req); err != nil {
		return err
	}
	return done(c)
}

// killPage is the second step of a kill, at an address of its own.
func (d *Dashboard) killPage(c echo.Context) error {
	if id, _ := who(c); !id.operates() {
		return forged("a viewer may look at everything and change nothing: this needs an operator's token")
	}
	k, err := d.killModel(c)
	if err != nil {
		return err
	}
	return render(c, http.StatusOK, templates.KillPage(k))
}

// killForm asks back first, and kills once that is confirmed.
func (d *Dashboard) killForm(c echo.Context) error {
	if c.FormValue("confirm") != "yes" {
		k, err := d.killModel(c)
		if err != nil {
			return err
		}
		if c.Request().Header.Get("HX-Request") != "" {
			return render(c, http.StatusOK, templates.LiveKill(k))
		}
		return render(c, http.StatusOK, templates.KillPage(k))
	}
	purge := c.FormValue("purge") == "yes"
	return d.form(func(ctx context.Context, actor, id string) (control.View, error) {
		return d.plane.Kill(ctx, actor, id, purge)
	})(c)
}

// killModel says what a kill would lose.
func (d *Dashboard) killModel(c echo.Context) (templates.Kill, error) {
	v, err := d.plane.Env(c.Param("id"))
	if err != nil {
		return templates.Kill{}, err
	}
	id, _ := who(c)
	now := d.plane.Now()
	k := templates.Kill{Frame: d.frame(c, "Kill "+isolate(v.Task)), Row: rowOf(&v, now, id), CSRF: id.formToken(), Purge: v.Persistent}
	execs, why := d.execs(c.Request().Context(), &v, now)
	for _, x := range execs {
		if x.Runs {
			k.Running = append(k.Running, x)
		}
	}
	k.Lost = lostByKill(&v, len(k.Running), why != "" && v.State == control.Ready)
	if v.Persistent {
		k.Kept = "Its files are kept, and the next acquire brings it back."
	}
	return k, nil
}

// lostByKill names what goes.
func lostByKill(v *control.View, running int, unknown bool) []string {
	var lost []string
	if v.Pinned {
		lost = append(lost, "It is pinned by "+isolate(personOf(v.Pin.By))+".")
	}
	if v.Turn != nil && v.Turn.Open {
		lost = append(lost, "Its agent is in the middle of turn "+strconv.FormatInt(v.Turn.Number, 10)+".")
	}
	if !v.Persistent {
		lost = append(lost, "It is ephemeral: all its files go with it.")
	}
	switch {
	case v.State != control.Ready:
		lost = append(lost, "Nothing runs in it now.")
	case unknown:
		lost = append(lost, "Whatever runs in it ends at once; the sandbox does not say what that is.")
	case running > 0:
		lost = append(lost, counted(running, "One command ends at once, without its result:", "%d commands end at once, without their results:"))
	default:
		lost = append(lost, "No command runs in it; what its memory and /tmp hold is lost.")
	}
	return lost
}
