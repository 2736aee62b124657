package link

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = time.Second
)

// DialIn is the guest's end of the socket: it keeps one connection that waits
// to be claimed, has serve called with each that was, and waits for these. It
// dials again when the control plane is gone, ever slower up to once a second,
// until ctx ends. serve closes what it is given.
func DialIn(ctx context.Context, dir string, serve func(io.ReadWriteCloser)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	backoff := firstBackoff
	for ctx.Err() == nil {
		c, err := dialIn(ctx, dir)
		if err != nil {
			pause(ctx, backoff)
			backoff = min(2*backoff, maxBackoff)
			continue
		}
		backoff = firstBackoff
		wg.Go(func() { serve(c) })
	}
}

// dialIn returns a connection once it was claimed.
func dialIn(ctx context.Context, dir string) (net.Conn, error) {
	nonce, err := os.ReadFile(filepath.Join(dir, nonceName))
	if err != nil {
		return nil, err
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, socketName))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if _, err = io.WriteString(c, greeting+string(nonce)+"\n"); err == nil {
		if err = expect(c, claimed); err == nil {
			_, err = c.Write([]byte{ready})
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
