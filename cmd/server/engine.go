package main

import (
	"context"
	"errors"
	"log/slog"

	"sandkeeper/internal/engine"
	"sandkeeper/internal/engine/docker"
	"sandkeeper/internal/engine/local"
	"sandkeeper/internal/guest/guestbin"
)

// openEngine settles which engine it is and opens it; what it keeps on this
// machine is in dir. Docker that does not answer is no error: it may come up
// later. A machine on which local cannot isolate is one: it will not change by itself.
func openEngine(ctx context.Context, c *config, in *installation, dir string, around docker.Surroundings, pruneOnly bool, log *slog.Logger) (engine.Engine, error) {
	if err := in.chooseEngine(c.engine, auto(around)); err != nil {
		return nil, err
	}
	if in.Engine == "local" {
		// There are no images, so that none can be the default.
		c.image = ""
		log.Info("engine", "engine", in.Engine)
		eng, err := local.New(ctx, local.Options{
			Instance: in.Instance, DataDir: dir, Binary: guestbin.Binary, Log: log, ReadOnlyRoot: c.readOnlyRoot, PruneOnly: pruneOnly,
		})
		if err != nil {
			return nil, err
		}
		return eng, nil
	}
	host, err := docker.Discover(around)
	if errors.Is(err, docker.ErrNotConfigured) {
		// Chosen all the same: an engine that is down has no socket.
		host, err = docker.Host{Address: "unix:///var/run/docker.sock", Why: "the default socket"}, nil
	}
	if err != nil {
		return nil, err
	}
	log.Info("engine", "engine", in.Engine, "address", host.Address, "because", host.Why)
	return docker.New(ctx, docker.Options{
		Instance: in.Instance, Host: host, Surroundings: around, DataDir: dir, Binary: guestbin.Binary,
		Link: c.link, Log: log, ReadOnlyRoot: c.readOnlyRoot,
	})
}

// auto takes docker wherever something points at it, answering or not.
func auto(around docker.Surroundings) func() string {
	return func() string {
		if ok, _ := docker.Configured(around); ok {
			return "docker"
		}
		return "local"
	}
}
