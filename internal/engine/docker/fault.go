package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"

	"sandkeeper/internal/control"
)

// fault is the one place that an error of the engine's client passes on its way
// out: it names the call, and tells an engine that does not answer from one
// that answers no.
func fault(call string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, control.ErrEngineUnavailable):
		return err
	case unanswered(err):
		return fmt.Errorf("%s: %w: %w", call, control.ErrEngineUnavailable, err)
	}
	return fmt.Errorf("%s: %w", call, err)
}

// unanswered says whether the engine gave no answer: it is not there, hung up,
// or let the call's time pass. What became of the call is not known then. A
// caller who gave up is no fault of the engine's.
func unanswered(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	return client.IsErrConnectionFailed(err) ||
		errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		cerrdefs.IsUnavailable(err)
}

// words is what the engine itself said, without the client's preamble.
func words(err error) string {
	return strings.TrimPrefix(strings.TrimSpace(err.Error()), "Error response from daemon: ")
}

// absent says whether the engine answered that there is no such thing.
func absent(err error) bool { return cerrdefs.IsNotFound(err) }

// missingSource says whether a create was refused since that directory of ours
// is not on the engine's machine.
func missingSource(err error, dir string) bool {
	if err == nil || !strings.Contains(err.Error(), dir) {
		return false
	}
	return strings.Contains(err.Error(), "does not exist") || strings.Contains(err.Error(), "no such file or directory")
}
