// Command pid1 is the least that the engine needs of a guest: it dials in,
// answers attaches, echoes what it is sent, and ends on TERM.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"sandkeeper/internal/guest/link"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	echo := func(conn io.ReadWriteCloser) {
		defer conn.Close()
		io.Copy(conn, conn)
	}
	if os.Getenv("SANDKEEPER_TEST_MUTE") == "" {
		go link.DialIn(ctx, "/.sandkeeper/link", echo)
	}
	go link.ServeAttached(ctx, os.Stdin, os.Stdout, echo)
	<-ctx.Done()
	os.Exit(7)
}
