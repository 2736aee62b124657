package agentapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"nhooyr.io/websocket"

	"sandkeeper/internal/control"
)

// Path is where agents connect.
const Path = "/api/v1/agent"

const (
	subprotocol  = "sandkeeper.v1"
	ownerHeader  = "Sandkeeper-Owner"
	defaultOwner = "default"
)

// Auth knows tokens.
type Auth interface {
	Authenticate(token string) (control.Principal, bool)
}

// Options configures an API. Zero numbers and durations take the default named.
type Options struct {
	Plane          Plane // On makes one of the control plane
	Auth           Auth
	AllowedOrigins []string // hosts, or origins whose host counts, beside the server's own
	Version        string   // of the server, as told to agents
	Boot           string   // new at each start of the server
	Log            *slog.Logger

	MaxFrameBytes  int64         // 1 MiB
	Heartbeat      time.Duration // 20 s
	MaxExecsPerEnv int           // 64; told to agents, the plane enforces it
}

// API is the agents' websocket.
type API struct {
	plane      Plane
	auth       Auth
	origins    []string
	version    string
	boot       string
	log        *slog.Logger
	maxFrame   int64
	heartbeat  time.Duration
	maxExecs   int
	featureSet []string

	base    context.Context // of all sockets and calls
	cancel  context.CancelFunc
	serving sync.WaitGroup // sockets
	calls   sync.WaitGroup
	dropped atomic.Uint64

	mu      sync.Mutex // guards the fields below, and the closing of sockets
	sockets map[*socket]struct{}
	closed  bool
}

// New makes an API. Shutdown ends what it starts.
func New(o Options) *API {
	a := &API{
		plane:      o.Plane,
		auth:       o.Auth,
		version:    o.Version,
		boot:       o.Boot,
		log:        o.Log,
		maxFrame:   o.MaxFrameBytes,
		heartbeat:  o.Heartbeat,
		maxExecs:   o.MaxExecsPerEnv,
		featureSet: features(),
		sockets:    map[*socket]struct{}{},
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.maxFrame <= 0 {
		a.maxFrame = 1 << 20
	}
	if a.heartbeat <= 0 {
		a.heartbeat = 20 * time.Second
	}
	if a.maxExecs <= 0 {
		a.maxExecs = 64
	}
	for _, origin := range o.AllowedOrigins {
		if _, host, ok := strings.Cut(origin, "://"); ok {
			origin = host
		}
		a.origins = append(a.origins, strings.TrimSuffix(origin, "/"))
	}
	a.base, a.cancel = context.WithCancel(context.Background())
	return a
}

// Register adds the socket to an echo.
func (a *API) Register(e *echo.Echo) { e.GET(Path, a.upgrade) }

// Stats counts what goes on.
type Stats struct {
	Sockets       int
	DroppedFrames uint64 // binary frames that were too short, or for no open channel
}

// Stats returns the counts of now.
func (a *API) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Stats{Sockets: len(a.sockets), DroppedFrames: a.dropped.Load()}
}

// Shutdown tells every agent that the server goes down, closes the sockets with
// 1001, and waits for them and for their calls, at most until ctx ends. The
// commands that agents started are not its business: they go on.
func (a *API) Shutdown(ctx context.Context) error {
	a.mu.Lock()
	a.closed = true
	sockets := make([]*socket, 0, len(a.sockets))
	for s := range a.sockets {
		sockets = append(sockets, s)
	}
	a.mu.Unlock()

	var left time.Duration
	if end, ok := ctx.Deadline(); ok {
		left = max(0, time.Until(end))
	}
	for _, s := range sockets {
		s.out.note("draining", "server.draining", drainingParams{seconds(left)})
		s.shut(websocket.StatusGoingAway, "the server is going down")
	}
	err := wait(ctx, &a.serving)
	a.cancel()
	if err != nil {
		return err
	}
	return wait(ctx, &a.calls)
}

// wait waits for a group, at most until ctx ends.
func wait(ctx context.Context, g *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// upgrade lets an agent in and serves its socket until it ends.
func (a *API) upgrade(c echo.Context) error {
	owner, refused := a.admit(c.Request())
	if refused != nil {
		if refused.status == http.StatusUnauthorized {
			c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="sandkeeper"`)
		}
		return c.JSON(refused.status, map[string]any{"error": map[string]string{"kind": refused.kind, "message": refused.message}})
	}
	if a.isClosed() {
		return c.JSON(http.StatusServiceUnavailable, map[string]any{"error": map[string]string{
			"kind": string(control.KindDraining), "message": "the server is going down"}})
	}
	w := &linkWriter{ResponseWriter: c.Response()}
	conn, err := websocket.Accept(w, c.Request(), &websocket.AcceptOptions{
		Subprotocols:       []string{subprotocol},
		InsecureSkipVerify: true, // admit has looked at the origin
	})
	if err != nil {
		a.log.Debug("no websocket", "error", err) // Accept has answered
		return nil
	}
	conn.SetReadLimit(-1) // the socket bounds what it reads, and closes in a way that reaches the peer
	s := newSocket(a, owner, conn, w.link, a.log.With("owner", owner, "remote", c.RealIP()))
	if !a.add(s) {
		return conn.Close(websocket.StatusGoingAway, "the server is going down")
	}
	defer a.remove(s)
	s.serve()
	return nil
}

func (a *API) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

// add takes a socket in, unless the API is closed.
func (a *API) add(s *socket) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false
	}
	a.sockets[s] = struct{}{}
	a.serving.Add(1)
	return true
}

func (a *API) remove(s *socket) {
	a.mu.Lock()
	delete(a.sockets, s)
	a.mu.Unlock()
	a.serving.Done()
}

type refused struct {
	status        int
	kind, message string
}

// admit decides who is let in, and for which owner.
func (a *API) admit(r *http.Request) (owner string, no *refused) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	p, ok := control.Principal{}, false
	if token = strings.TrimSpace(token); strings.EqualFold(scheme, "bearer") && token != "" {
		p, ok = a.auth.Authenticate(token)
	}
	if !ok {
		return "", &refused{http.StatusUnauthorized, "unauthorized", "an agent's token is needed: Authorization: Bearer TOKEN"}
	}
	switch p.Role {
	case control.RoleAgent:
		owner = p.Owner
	case control.RoleOperator:
		owner = defaultOwner
		if given := r.Header.Get(ownerHeader); given != "" {
			if err := checkName(given); err != nil {
				return "", &refused{http.StatusBadRequest, "invalid", ownerHeader + " " + err.Error()}
			}
			owner = given
		}
	default:
		return "", &refused{http.StatusForbidden, string(control.KindForbidden), "this token may not act as an agent"}
	}
	for _, origin := range r.Header.Values("Origin") {
		if !a.allowed(origin, r.Host) {
			return "", &refused{http.StatusForbidden, string(control.KindForbidden), "pages of this origin may not connect; --allowed-origin lets them"}
		}
	}
	return owner, nil
}

// allowed reports whether pages of an origin may connect to a host.
func (a *API) allowed(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	if strings.EqualFold(u.Host, host) {
		return true
	}
	for _, o := range a.origins {
		if strings.EqualFold(u.Host, o) {
			return true
		}
	}
	return false
}

// greeting is what hello answers.
func (a *API) greeting(s Session, resumed bool) helloResult {
	return helloResult{
		Session:    s.ID(),
		Resumed:    resumed,
		Server:     serverInfo{"sandkeeper", a.version},
		Boot:       a.boot,
		Protocol:   1,
		Features:   a.featureSet,
		HeartbeatS: seconds(a.heartbeat),
		GraceS:     seconds(s.Grace()),
		Limits: helloLimits{
			MaxFrameBytes:   a.maxFrame,
			MaxExecsPerEnv:  a.maxExecs,
			StreamKeptBytes: 1 << 20,
			MaxCalls:        mostSlow,
			MaxChannels:     mostChannels,
			StdinWaiting:    mostStdin,
			FileReadBytes:   512 << 10,
			OutputBytes:     400_000,
		},
		Time: control.At(a.plane.Now()),
	}
}
