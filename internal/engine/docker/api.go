package docker

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
)

// api speaks to the engine in the newest version that both ends know. It is
// settled here, once the engine answers: the client's own way writes the
// version while other calls, and its stream of events, read it.
type api struct {
	host    Host
	first   *client.Client // in our newest version; it asks for the engine's
	settled atomic.Pointer[client.Client]
	asking  chan struct{} // one token: one call asks, the others wait
}

func newAPI(host Host) (*api, error) {
	first, err := newClient(host)
	if err != nil {
		return nil, err
	}
	return &api{host: host, first: first, asking: make(chan struct{}, 1)}, nil
}

// client returns the client for a call. While the engine does not answer, the
// call finds that out by itself.
func (a *api) client(ctx context.Context) *client.Client {
	if c := a.settled.Load(); c != nil {
		return c
	}
	select {
	case a.asking <- struct{}{}:
		defer func() { <-a.asking }()
	case <-ctx.Done():
		return a.first
	}
	if c := a.settled.Load(); c != nil {
		return c
	}
	ping, err := a.first.Ping(ctx)
	if err != nil {
		return a.first
	}
	c := a.first
	if v := ping.APIVersion; v != "" && versions.LessThan(v, c.ClientVersion()) {
		if c, err = newClient(a.host, client.WithVersion(v)); err != nil {
			return a.first
		}
	}
	a.settled.Store(c)
	return c
}

// Close lets go of the connections.
func (a *api) Close() error {
	err := a.first.Close()
	if c := a.settled.Load(); c != nil && c != a.first {
		err = errors.Join(err, c.Close())
	}
	return err
}

// newClient speaks to a host, in our newest version unless an option says otherwise.
func newClient(host Host, opts ...client.Opt) (*client.Client, error) {
	transport := &http.Transport{MaxIdleConns: 16, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute}
	if host.TLS != nil {
		config, err := host.TLS.config()
		if err != nil {
			return nil, err
		}
		transport.TLSClientConfig = config
	}
	return client.NewClientWithOpts(append([]client.Opt{
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(host.Address),
		client.WithVersionFromEnv(),
		client.WithUserAgent("sandkeeper"),
	}, opts...)...)
}
