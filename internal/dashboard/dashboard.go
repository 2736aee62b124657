// Package dashboard is the operators' side: the pages, their live stream, and
// the JSON API under /api/v1.
//
// Policy. Every answer is computed from the plane when it is asked for; the
// dashboard keeps no state of its own but one-time sign-in codes. Looking never
// counts as activity. Who is not known sees the sign-in page, or a 401; a
// viewer may look at everything and do nothing; an agent's token is told where
// it belongs. What names people gave to things is shown as isolated text.
//
// On failure. An error of the plane is answered with its kind and its public
// message, and its cause goes to the log. A stream that cannot follow is told
// so ("reset") rather than left with a gap; a reader that takes nothing for
// the write deadline is dropped, and resumes where it was. A page whose stream
// is lost says so after three seconds and catches up by itself.
package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
	"sandkeeper/web"
	"sandkeeper/web/templates"
)

// Auth says who a token stands for.
type Auth interface {
	Authenticate(token string) (control.Principal, bool)
}

// Sessions makes and ends the tokens that browsers are signed in with. They
// are kept where all tokens are, so that a sign-in outlives a restart.
type Sessions interface {
	// CreateSession makes a token of that role and name which ends after ttl.
	CreateSession(ctx context.Context, role control.Role, name string, ttl time.Duration) (token string, err error)
	// DeleteToken ends a token by its id, control.Principal.Token.
	DeleteToken(ctx context.Context, id string) error
}

// Options configures a Dashboard. Plane, Auth and Sessions are required.
type Options struct {
	Plane    Plane // ForPlane makes one of a *control.Plane
	Auth     Auth
	Sessions Sessions

	AllowedOrigins []string                         // scheme://host[:port], beside the server's own
	Ready          func(ctx context.Context) error  // whether the database answers; nil: it does
	Backup         func(w io.Writer) (int64, error) // writes a copy of the database; nil: there is none to be had
	Version        string                           // shown at the foot of the page
	Log            *slog.Logger

	SessionTTL   time.Duration // 7 days
	CodeTTL      time.Duration // 15 minutes
	Heartbeat    time.Duration // 10 s: silence on a stream ends with a sign of life
	WriteTimeout time.Duration // 10 s: a stream's reader that takes nothing for so long is dropped
	FileTimeout  time.Duration // 60 s: who takes or sends nothing of a file for so long is dropped
	PageRows     int           // 200: environments on one page
	FrameGap     time.Duration // 100 ms: the page's updates are gathered for so long
}

// Dashboard serves operators.
type Dashboard struct {
	plane    Plane
	auth     Auth
	sessions Sessions
	log      *slog.Logger
	opts     Options
	codes    *codes
	origins  *http.CrossOriginProtection
	static   fs.FS
	assets   templates.Assets
	edition  string // a page of another edition has to be loaded again

	ctx     context.Context // ends with Shutdown: it ends every stream
	end     context.CancelFunc
	mu      sync.Mutex // guards ended, so that no stream begins after Shutdown
	ended   bool
	streams sync.WaitGroup
}

// New makes a Dashboard. It fails on an allowed origin that is none.
func New(o Options) (*Dashboard, error) {
	if o.Plane == nil || o.Auth == nil || o.Sessions == nil {
		return nil, errors.New("dashboard: Plane, Auth and Sessions are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	defaultTo(&o.SessionTTL, 7*24*time.Hour)
	defaultTo(&o.CodeTTL, 15*time.Minute)
	defaultTo(&o.Heartbeat, 10*time.Second)
	defaultTo(&o.WriteTimeout, 10*time.Second)
	defaultTo(&o.FileTimeout, time.Minute)
	defaultTo(&o.FrameGap, 100*time.Millisecond)
	if o.PageRows <= 0 {
		o.PageRows = 200
	}

	origins := http.NewCrossOriginProtection()
	for _, origin := range o.AllowedOrigins {
		if err := origins.AddTrustedOrigin(origin); err != nil {
			return nil, err
		}
	}
	files := web.Static()
	versions, err := web.Versions(files)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	return &Dashboard{
		plane: o.Plane, auth: o.Auth, sessions: o.Sessions, log: o.Log, opts: o,
		codes:   newCodes(o.CodeTTL),
		origins: origins,
		static:  files,
		assets:  templates.Assets{Style: versions["app.css"], Script: versions["app.js"], Icon: versions["icon.svg"], Htmx: versions["third_party/htmx.min.js"], SSE: versions["third_party/hx-sse.min.js"]},
		edition: edition(o.Version, versions),
		ctx:     ctx, end: end,
	}, nil
}

// edition changes with the version and with any static file.
func edition(version string, files map[string]string) string {
	h := sha256.New()
	io.WriteString(h, version)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		io.WriteString(h, "\x00"+files[path])
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

func defaultTo(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// NewCode makes a code for /sign-in?code=…: it signs an operator in, once.
func (d *Dashboard) NewCode() string { return d.codes.make(time.Now()) }

// Register adds every route. It also takes over the error handler: /api/v1
// answers errors as JSON, everything else as a page.
func (d *Dashboard) Register(e *echo.Echo) {
	e.HTTPErrorHandler = d.handleError

	e.GET("/healthz", d.health)
	e.GET("/readyz", d.ready)
	e.GET("/static/*", d.serveStatic)

	// The middleware goes with each route, not with a group: a group's would
	// also answer for addresses and methods that there are none of.
	with := func(mw ...echo.MiddlewareFunc) router {
		return func(method, path string, h echo.HandlerFunc) { e.Add(method, path, h, mw...) }
	}
	d.registerAPI(with(d.identify, d.admit))
	d.registerFiles(with(d.identifyAny, d.admitMover))
	d.registerPages(with(pageHeaders, d.identify, d.admit))
	d.registerSignIn(with(pageHeaders, d.identify, d.slowDown()))
}

// router adds one route.
type router func(method, path string, h echo.HandlerFunc)

// Shutdown ends every stream and waits for their handlers, until ctx ends.
func (d *Dashboard) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	d.ended = true
	d.mu.Unlock()
	d.end()

	gone := make(chan struct{})
	go func() {
		d.streams.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enter registers a stream; the function returned ends that. The context ends
// with the request or with Shutdown, whichever is first.
func (d *Dashboard) enter(r *http.Request) (context.Context, func(), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return nil, nil, control.Errorf(control.KindDraining, "the server is going down")
	}
	d.streams.Add(1)
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(d.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		d.streams.Done()
	}, nil
}

// health says that the process runs.
func (d *Dashboard) health(c echo.Context) error {
	return c.String(http.StatusOK, "ok\n")
}

// ready says whether the database and the engine answer.
func (d *Dashboard) ready(c echo.Context) error {
	if d.opts.Ready != nil {
		if err := d.opts.Ready(c.Request().Context()); err != nil {
			d.log.Warn("not ready", "err", err)
			return c.JSON(http.StatusServiceUnavailable, apiError("database_unavailable", "the database does not answer", nil))
		}
	}
	if s := d.plane.Engine(); !s.Reachable {
		return c.JSON(http.StatusServiceUnavailable, apiError(string(control.KindEngineUnavailable), engineReason(s), nil))
	}
	return c.JSON(http.StatusOK, map[string]bool{"ready": true})
}

func engineReason(s control.EngineStatus) string {
	if s.Error == "" {
		return "the engine does not answer"
	}
	return "the engine does not answer: " + s.Error
}

// serveStatic serves the embedded files. An address with the mark of its
// content may be kept for ever, any other must be asked for again.
func (d *Dashboard) serveStatic(c echo.Context) error {
	h := c.Response().Header()
	if c.QueryParam("v") != "" {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		h.Set("Cache-Control", "no-cache")
	}
	h.Set("X-Content-Type-Options", "nosniff")
	name := c.Param("*")
	if f, err := d.static.Open(name); err != nil {
		return echo.ErrNotFound
	} else if s, err := f.Stat(); f.Close() != nil || err != nil || s.IsDir() {
		return echo.ErrNotFound
	}
	http.ServeFileFS(c.Response(), c.Request(), d.static, name)
	return nil
}
