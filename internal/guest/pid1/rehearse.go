package pid1

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"sandkeeper/internal/guest/link"
	"sandkeeper/internal/guest/wire"
)

// Rehearse answers two calls of nobody's: code that has run once need not be
// brought in when a control plane waits.
func (p *Prepared) Rehearse() error {
	theirs, ours := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { new(Guest).Serve(context.Background(), theirs) })
	defer wg.Wait()
	return rehearse(ours, &wire.Request{Method: wire.MethodHello, Version: wire.Version}, &wire.Request{Method: wire.MethodPing})
}

// rehearsals is where the socket of a rehearsal is. It goes with it.
const rehearsals = "/run/.rehearsal"

// RehearseCommands dials in and runs two commands that do nothing, as a first
// call of a control plane would have it: so their programs and the file system that they come
// from are brought in too. Nothing is left of it but that. The keeper is as before.
func (p *Prepared) RehearseCommands() error {
	if err := p.rehearseCommands(); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	return nil
}

func (p *Prepared) rehearseCommands() (err error) {
	defer os.RemoveAll(rehearsals)
	listener, err := link.Listen(rehearsals)
	if err != nil {
		return err
	}
	defer listener.Close()
	if p.keeper != nil {
		p.keepers.put(p.keeper)
		defer func() { p.keeper = p.keepers.rested() }()
	}
	r := newRunner(&User{Name: "root", Home: "/"}, "/", map[string]string{"PATH": defaultPath}, p.keepers)
	defer r.wg.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		link.DialIn(ctx, rehearsals, func(c io.ReadWriteCloser) { (&Guest{runner: r}).Serve(ctx, c) })
	})
	defer wg.Wait()
	defer cancel()
	conn, err := listener.Dial(ctx, nil)
	if err != nil {
		return err
	}
	const program, text = "program", "text"
	return rehearse(conn,
		&wire.Request{Method: wire.MethodHello, Version: wire.Version},
		&wire.Request{Method: wire.MethodPing},
		&wire.Request{Method: wire.MethodStart, Start: &wire.Start{Exec: program, Argv: []string{"true"}, Workdir: "/"}},
		&wire.Request{Method: wire.MethodWait, Exec: program},
		&wire.Request{Method: wire.MethodStart, Start: &wire.Start{Exec: text, Shell: "true", Workdir: "/"}},
		&wire.Request{Method: wire.MethodWait, Exec: text},
	)
}

// rehearse makes calls on a connection, and closes it. An answer may be a failure.
func rehearse(conn io.ReadWriteCloser, calls ...*wire.Request) error {
	mux, err := wire.Client(conn)
	if err != nil {
		conn.Close()
		return fmt.Errorf("rehearse: %w", err)
	}
	defer mux.Close()
	s, err := mux.OpenStream()
	if err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	defer s.Close()
	for _, call := range calls {
		err := wire.Write(s, call, nil)
		if err == nil {
			_, err = wire.Read(s, new(wire.Response), wire.MaxPayload)
		}
		if err != nil {
			return fmt.Errorf("rehearse: %w", err)
		}
	}
	return nil
}
