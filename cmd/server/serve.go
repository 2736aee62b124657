package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"sandkeeper/internal/agentapi"
	"sandkeeper/internal/control"
	"sandkeeper/internal/dashboard"
	"sandkeeper/internal/db"
	"sandkeeper/internal/engine"
	"sandkeeper/internal/engine/docker"
	"sandkeeper/internal/guest"
	"sandkeeper/internal/reaper"
)

// stopTimeout bounds a graceful stop. What was answered is on disk at any
// instant, so a stop that is cut short loses nothing that anybody was promised.
const stopTimeout = 10 * time.Second

func newServe() *cobra.Command {
	c := newConfig()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve agents and operators until a signal",
		Long: `Serve agents and operators until a signal.

It prints a link that signs an operator in, once, within 15 minutes. SIGTERM and
SIGINT end it gracefully, within 10 seconds; a second one ends it at once. Sandboxes
outlive it: the next start takes them over.

Each setting is a flag, a variable and a key of the file by one name; a flag goes
before a variable, a variable before the file. Tokens are set by variable or key
alone: SANDKEEPER_AGENT_TOKEN (of the owner "default"), SANDKEEPER_OPERATOR_TOKEN
and SANDKEEPER_VIEWER_TOKEN. Where they are not set, the first start makes an
agent's and an operator's, in the files agent.token and operator.token of the
data directory.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.load(cmd); err != nil {
				return err
			}
			if err := c.check(cmd.Context()); err != nil {
				return err
			}
			log := newLog(cmd.ErrOrStderr(), c.logFormat, c.logLevel)
			for _, name := range c.strangeVariables() {
				log.Warn("no setting has this variable; it is ignored", "variable", name)
			}
			return serve(cmd.Context(), c, cmd.OutOrStdout(), log)
		},
	}
	c.register(cmd)
	return cmd
}

// serve opens the data and the engine, and runs a server on them until ctx ends.
func serve(ctx context.Context, c *config, stdout io.Writer, log *slog.Logger) (err error) {
	in, err := openInstallation(c.dataDir, c.instance)
	if err != nil {
		return err
	}
	store, err := db.Open(filepath.Join(c.dataDir, databaseFile), db.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	if err := bootstrapTokens(ctx, store, c, log); err != nil {
		return err
	}
	var opened atomic.Pointer[engine.Engine]
	admin, err := startAdmin(c.dataDir, in.Instance, adminCalls{
		createToken: storeTokens(store),
		backup:      store.WriteTo,
		sandboxes: func(ctx context.Context) ([]control.SandboxStatus, error) {
			eng := opened.Load()
			if eng == nil {
				return nil, errors.New("the server is only starting; try again in a moment")
			}
			return (*eng).List(ctx)
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.stop()) }()

	eng, err := openEngine(ctx, c, &in, c.dataDir, docker.System(), false, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, eng.Close()) }()
	opened.Store(&eng)
	if err := in.keep(c.dataDir); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	defer listener.Close()

	s, err := newServer(ctx, c, in, store, eng, log)
	if err != nil {
		return err
	}
	base := "http://" + reachable(listener.Addr())
	admin.serving(base)
	return s.run(ctx, listener, base, stdout)
}

// server is what runs between the data and the network.
type server struct {
	log       *slog.Logger
	prepare   func(context.Context)
	reaper    *reaper.Reaper
	plane     *control.Plane
	fleet     *guest.Fleet
	agents    *agentapi.API
	operators *dashboard.Dashboard
	http      *http.Server
}

func newServer(ctx context.Context, c *config, in installation, store *db.Store, eng engine.Engine, log *slog.Logger) (*server, error) {
	s := &server{
		log:     log,
		prepare: func(ctx context.Context) { prepare(ctx, eng, c.image, log) },
		fleet:   guest.NewFleet(eng.Dial, log),
		reaper:  reaper.New(reaper.Options{Engine: eng, Log: log}),
	}
	info, engineErr := eng.Info(ctx)
	if engineErr != nil {
		log.Warn("the engine does not answer; it is asked again until it does", "engine", in.Engine, "err", engineErr)
		info = control.EngineInfo{Name: in.Engine, Isolation: "container"}
	}
	var err error
	s.plane, err = control.Open(ctx, control.Options{
		Instance: in.Instance, Store: store, Engine: eng, Guests: s.fleet, Alarms: s.reaper, Log: log,
		EngineInfo: info, Image: c.image, Limits: c.limits,
		Lifetime: c.lifetime, Retention: c.retention, DisconnectGrace: c.disconnectGrace, RestartGrace: c.restartGrace,
		MaxTurn: c.maxTurn, BackgroundMaxAge: c.backgroundMaxAge, FailedAfter: c.failedAfter,
		StartTimeout: c.startTimeout, PullTimeout: c.pullTimeout, TeardownTimeout: c.teardownTimeout,
		MaxExecsPerEnv: c.maxExecsPerEnv, MaxEnvsPerOwner: c.maxEnvsPerOwner,
		EventsKeep: c.eventsKeep, EventsMaxAge: c.eventsMaxAge,
	})
	if err != nil {
		return nil, err
	}
	if engineErr != nil { // before anybody is told otherwise
		s.plane.EngineSeen(ctx, control.EngineInfo{}, engineErr)
	}
	s.agents = agentapi.New(agentapi.Options{
		Plane: agentapi.On(s.plane), Auth: store, AllowedOrigins: c.allowedOrigins, Version: buildVersion(), Boot: rand.Text(), Log: log,
		MaxFrameBytes: c.maxFrameBytes, Heartbeat: c.heartbeat, MaxExecsPerEnv: c.maxExecsPerEnv,
	})
	s.operators, err = dashboard.New(dashboard.Options{
		Plane: dashboard.ForPlane(s.plane), Auth: store, Sessions: sessions{store}, AllowedOrigins: fullOrigins(c.allowedOrigins),
		Ready: func(context.Context) error {
			_, _, _, err := store.Events(math.MaxUint64, 1, control.EventFilter{})
			return err
		},
		Backup:  store.WriteTo,
		Version: buildVersion(), Log: log,
	})
	if err != nil {
		return nil, errors.Join(err, s.plane.Close(ctx))
	}
	e := newEcho(log)
	s.agents.Register(e)
	s.operators.Register(e)
	s.http = &http.Server{
		Handler: e, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// run serves until ctx ends or the listener fails, and stops then. base is
// where the listener is reached.
func (s *server) run(ctx context.Context, l net.Listener, base string, stdout io.Writer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { s.prepare(ctx) })
	s.reaper.Start(context.WithoutCancel(ctx), s.plane)
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(l) }()

	s.log.Info("serving", "url", base, "version", buildVersion())
	fmt.Fprintf(stdout, "Sign in: %s/sign-in?code=%s\n", base, s.operators.NewCode())

	var failed error
	select {
	case <-ctx.Done():
		s.log.Info("stopping", "within", stopTimeout)
	case failed = <-served:
		failed = fmt.Errorf("serve: %w", failed)
	}
	return errors.Join(failed, s.stop())
}

// stop ends everything from the outside in: no new work, then those who ask,
// then what acts by itself, then the plane. Commands in sandboxes go on.
func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	s.plane.Drain(ctx)
	var errs []error
	step := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", what, err))
		}
	}
	step("the agents' sockets", s.agents.Shutdown(ctx))
	step("the operators' streams", s.operators.Shutdown(ctx))
	s.reaper.Stop()
	step("http", errors.Join(s.http.Shutdown(ctx), s.http.Close()))
	step("the control plane", s.plane.Close(ctx))
	step("the guests' lines", s.fleet.Close())
	return errors.Join(errs...)
}

// prepare does ahead what the first create would wait for. What fails here is
// told by that create.
func prepare(ctx context.Context, eng engine.Engine, image string, log *slog.Logger) {
	p, ok := eng.(interface {
		Prepare(ctx context.Context, image string) error
	})
	if !ok {
		return
	}
	if err := p.Prepare(ctx, image); err != nil {
		log.Debug("the engine is not prepared ahead", "err", err)
	}
}

// reachable is an address that a browser on this machine can open.
func reachable(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	return net.JoinHostPort("localhost", fmt.Sprint(tcp.Port))
}

// sessions makes browsers' sign-ins of tokens.
type sessions struct{ *db.Store }

func (s sessions) CreateSession(ctx context.Context, role control.Role, name string, ttl time.Duration) (string, error) {
	return s.CreateToken(ctx, db.TokenSpec{Role: role, Name: name, TTL: ttl})
}
