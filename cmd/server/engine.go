package main

import (
	"context"
	"errors"
	"log/slog"

	"sandkeeper/internal/engine"
	"sandkeeper/internal/engine/docker"
	"sandkeeper/internal/guest/guestbin"
)

// openEngine settles which engine it is and opens it; what it keeps on this
// machine is in dir. An engine that does not answer is no error: it may come up later.
func openEngine(ctx context.Context, c *config, in *installation, dir string, around docker.Surroundings, log *slog.Logger) (engine.Engine, error) {
	err := in.chooseEngine(c.engine, func() string {
		if ok, _ := docker.Configured(around); ok {
			return "docker"
		}
		return "local"
	})
	if err != nil {
		return nil, err
	}
	switch {
	case in.Engine == "docker":
	case c.engine == "auto":
		return nil, usagef(`no docker engine is configured here (by DOCKER_HOST, a docker context or the default socket), and the engine "local" is not in this version: install Docker, or point DOCKER_HOST at an engine`)
	default:
		return nil, usagef(`the engine "local" is not in this version: use --engine docker`)
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
