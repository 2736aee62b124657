package pid1

import (
	"context"
	"fmt"
	"net"
	"sync"

	"sandkeeper/internal/guest/wire"
)

// Rehearse answers two calls of nobody's: code that has run once need not be
// brought in when a control plane waits.
func (p Prepared) Rehearse() error {
	theirs, ours := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { new(Guest).Serve(context.Background(), theirs) })
	defer wg.Wait()
	mux, err := wire.Client(ours)
	if err != nil {
		ours.Close()
		return fmt.Errorf("rehearse: %w", err)
	}
	defer mux.Close()
	s, err := mux.OpenStream()
	if err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	defer s.Close()
	for _, method := range []string{wire.MethodHello, wire.MethodPing} {
		err := wire.Write(s, &wire.Request{Method: method, Version: wire.Version}, nil)
		if err == nil {
			_, err = wire.Read(s, new(wire.Response), 0)
		}
		if err != nil {
			return fmt.Errorf("rehearse: %w", err)
		}
	}
	return nil
}
