// Command sandkeeper is the control plane with its dashboard: it reads the
// configuration, wires the packages together, serves until a signal, and has
// the few commands that look after an installation.
//
// Standard output is for what was asked for (the sign-in link, a token, what
// prune removed); the log and errors go to standard error. It exits with 0, with
// 1 where something failed, and with 2 where it was called or configured wrongly;
// attach exits as the command in the sandbox did, and with 255 where it failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first signal drains; with stop the second one ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program apart from the process: its result is the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exitError](err)
	if ok && exit.err == nil {
		return exit.code
	}
	fmt.Fprintln(stderr, "sandkeeper: "+err.Error())
	if ok {
		return exit.code
	}
	if isUsage(err) {
		return 2
	}
	return 1
}
