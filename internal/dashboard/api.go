package dashboard

import (
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
)

const maxReason = 512 // code points

// registerAPI adds the operator API.
func (d *Dashboard) registerAPI(add router) {
	add("GET", "/api/v1/envs", d.listEnvs)
	add("GET", "/api/v1/envs/:id", d.getEnv)
	add("POST", "/api/v1/envs/:id/pin", d.pinEnv)
	add("POST", "/api/v1/envs/:id/unpin", d.unpinEnv)
	add("POST", "/api/v1/envs/:id/touch", d.touchEnv)
	add("POST", "/api/v1/envs/:id/stop", d.stopEnv)
	add("POST", "/api/v1/envs/:id/kill", d.killEnv)
	add("GET", "/api/v1/forecast", d.forecast)
	add("GET", "/api/v1/events", d.listEvents)
	add("GET", "/api/v1/events/stream", d.streamEvents)
	add("GET", "/api/v1/engine", d.engine)
	add("GET", "/api/v1/orphans", d.listOrphans)
	add("POST", "/api/v1/orphans/:sandbox/adopt", d.adoptOrphan)
	add("POST", "/api/v1/orphans/:sandbox/purge", d.purgeOrphan)
	add("POST", "/api/v1/backup", d.backup)
}

func (d *Dashboard) listEnvs(c echo.Context) error {
	p := query(c.Request().URL, "state", "task", "owner", "q", "limit", "after")
	f := control.EnvFilter{State: p.state(), Task: p.text("task"), Owner: p.text("owner"), Query: p.text("q"), Limit: p.limit(), After: p.text("after")}
	if p.err != nil {
		return p.err
	}
	views, next, err := d.plane.Envs(f)
	if err != nil {
		return err
	}
	body := struct {
		Envs []control.View `json:"envs"`
		Next *string        `json:"next"`
	}{Envs: views}
	if body.Envs == nil {
		body.Envs = []control.View{}
	}
	if next != "" {
		body.Next = &next
	}
	return c.JSON(http.StatusOK, body)
}

func (d *Dashboard) getEnv(c echo.Context) error {
	if err := query(c.Request().URL).err; err != nil {
		return err
	}
	v, err := d.plane.Env(c.Param("id"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, v)
}

// pinRequest is a pin's optional reason and end.
type pinRequest struct {
	Reason string     `json:"reason"`
	Until  *time.Time `json:"until"`
}

// check makes sure of what the plane takes on trust.
func (r *pinRequest) check(now time.Time) error {
	switch {
	case !utf8.ValidString(r.Reason) || strings.ContainsFunc(r.Reason, unicode.IsControl):
		return invalid("field %q must be text without control characters", "reason")
	case utf8.RuneCountInString(r.Reason) > maxReason:
		return invalid("field %q is longer than %d characters", "reason", maxReason)
	case r.Until != nil && !r.Until.After(now):
		return invalid("field %q must be a time in the future", "until")
	case r.Until != nil && r.Until.UTC().Year() > 9999:
		return invalid("field %q is too far in the future", "until")
	}
	return nil
}

func (d *Dashboard) pinEnv(c echo.Context) error {
	var body struct {
		Reason string  `json:"reason"`
		Until  *string `json:"until"`
	}
	if err := d.read(c, &body); err != nil {
		return err
	}
	req := pinRequest{Reason: body.Reason}
	if body.Until != nil {
		at, err := time.Parse(time.RFC3339, *body.Until)
		if err != nil {
			return invalid("field %q must be a time as RFC 3339 has it, such as 2026-01-31T18:00:00Z", "until")
		}
		req.Until = &at
	}
	v, err := d.pin(c, req)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, v)
}

// pin is what the API's call and the page's form share.
func (d *Dashboard) pin(c echo.Context, req pinRequest) (control.View, error) {
	if err := req.check(d.plane.Now()); err != nil {
		// The environment is looked up before what the fields mean is judged.
		if _, unknown := d.plane.Env(c.Param("id")); unknown != nil {
			return control.View{}, unknown
		}
		return control.View{}, err
	}
	var until time.Time
	if req.Until != nil {
		until = *req.Until
	}
	id, _ := who(c)
	return d.plane.Pin(c.Request().Context(), id.actor(), c.Param("id"), req.Reason, until)
}

func (d *Dashboard) unpinEnv(c echo.Context) error {
	return d.act(c, &struct{}{}, func(actor, id string) (control.View, error) {
		return d.plane.Unpin(c.Request().Context(), actor, id)
	})
}

func (d *Dashboard) touchEnv(c echo.Context) error {
	return d.act(c, &struct{}{}, func(actor, id string) (control.View, error) {
		return d.plane.TouchEnv(c.Request().Context(), actor, id)
	})
}

func (d *Dashboard) stopEnv(c echo.Context) error {
	return d.act(c, &struct{}{}, func(actor, id string) (control.View, error) {
		return d.plane.Stop(c.Request().Context(), actor, id)
	})
}

func (d *Dashboard) killEnv(c echo.Context) error {
	var body struct {
		Purge bool `json:"purge"`
	}
	return d.act(c, &body, func(actor, id string) (control.View, error) {
		return d.plane.Kill(c.Request().Context(), actor, id, body.Purge)
	})
}

// act reads the body, does it, and answers with the environment.
func (d *Dashboard) act(c echo.Context, body any, do func(actor, id string) (control.View, error)) error {
	if err := d.read(c, body); err != nil {
		return err
	}
	id, _ := who(c)
	v, err := do(id.actor(), c.Param("id"))
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, v)
}

// read takes a POST's parameters: none in the address, all in the body.
func (d *Dashboard) read(c echo.Context, body any) error {
	if err := query(c.Request().URL).err; err != nil {
		return err
	}
	return decode(c.Request().Body, body)
}

func (d *Dashboard) forecast(c echo.Context) error {
	p := query(c.Request().URL, "within")
	within := p.within()
	if p.err != nil {
		return p.err
	}
	f := d.plane.Forecast(within)
	if f == nil {
		f = []control.Forecast{}
	}
	return c.JSON(http.StatusOK, struct {
		Forecast []control.Forecast `json:"forecast"`
		Now      control.Time       `json:"now"`
	}{f, control.At(d.plane.Now())})
}

// kindShape is what a kind of event looks like; kinds may be added at any time.
var kindShape = regexp.MustCompile(`^[a-z]+\.[a-z_]+$`)

// eventFilter reads what narrows the log.
func eventFilter(p *params) control.EventFilter {
	f := control.EventFilter{Env: p.text("env"), Kind: control.EventKind(p.text("kind"))}
	if f.Kind != "" && !kindShape.MatchString(string(f.Kind)) {
		p.fail("parameter %q must be a kind of event such as reaper.stopped; got %q", "kind", printable(string(f.Kind)))
	}
	return f
}

func (d *Dashboard) listEvents(c echo.Context) error {
	p := query(c.Request().URL, "after", "limit", "env", "kind")
	after, limit, f := p.seq("after"), p.limit(), eventFilter(p)
	if p.err != nil {
		return p.err
	}
	events, first, last, err := d.plane.Events(after, limit, f)
	if err != nil {
		return err
	}
	views := make([]control.EventView, len(events))
	for i := range events {
		views[i] = events[i].View()
	}
	return c.JSON(http.StatusOK, struct {
		Events []control.EventView `json:"events"`
		First  uint64              `json:"first"`
		Last   uint64              `json:"last"`
	}{views, first, last})
}

func (d *Dashboard) engine(c echo.Context) error {
	if err := query(c.Request().URL).err; err != nil {
		return err
	}
	s := d.plane.Engine()
	enforces := s.Enforces
	if enforces == nil {
		enforces = []string{}
	}
	return c.JSON(http.StatusOK, struct {
		Name      string        `json:"name"`
		Version   string        `json:"version"`
		Reachable bool          `json:"reachable"`
		Since     *control.Time `json:"since"`
		Isolation string        `json:"isolation"`
		Enforces  []string      `json:"enforces"`
		Error     string        `json:"error,omitempty"`
	}{s.Name, s.Version, s.Reachable, control.AtPtr(s.Since), s.Isolation, enforces, s.Error})
}
