package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"

	"sandkeeper/internal/control"
)

// Pull brings an image with the credentials of the user's docker configuration.
func (e *Engine) Pull(ctx context.Context, ref string) error {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return fmt.Errorf("image pull: %q: %w: %w", ref, control.ErrImageUnavailable, err)
	}
	auth, err := e.credentials(ctx, reference.Domain(named))
	if err != nil {
		// The image may be public, and the registry says so if it is not.
		e.log.Warn("registry credentials", "registry", reference.Domain(named), "err", err)
	}
	progress, err := e.api.client(ctx).ImagePull(ctx, ref, image.PullOptions{RegistryAuth: auth})
	if err == nil {
		err = drainProgress(progress)
		progress.Close()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded) && e.answers(ctx):
		return fmt.Errorf("image pull: %q did not come in time: %w: %w", ref, control.ErrImageUnavailable, err)
	case errors.Is(err, context.Canceled), unanswered(err):
		return fault("image pull", err)
	}
	return fmt.Errorf("image pull: %q: %w: %s", ref, control.ErrImageUnavailable, words(err))
}

// answers says whether the engine does, so that a slow registry can be told from it.
func (e *Engine) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pingTimeout)
	defer cancel()
	_, err := e.api.client(ctx).Ping(ctx)
	return err == nil
}

// pingTimeout is what an engine that is well never needs for a ping.
const pingTimeout = 2 * time.Second

// drainProgress reads a pull's progress to its end: failures come in it, after
// an answer that said success.
func drainProgress(r io.Reader) error {
	progress := json.NewDecoder(r)
	for {
		var line struct {
			Error       string `json:"error"`
			ErrorDetail struct {
				Message string `json:"message"`
			} `json:"errorDetail"`
		}
		switch err := progress.Decode(&line); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case line.ErrorDetail.Message != "":
			return errors.New(line.ErrorDetail.Message)
		case line.Error != "":
			return errors.New(line.Error)
		}
	}
}

// credentials returns what the engine is to show that registry, encoded; "" is nothing.
func (e *Engine) credentials(ctx context.Context, domain string) (string, error) {
	config, err := readConfig(e.opts.Surroundings)
	if err != nil {
		return "", err
	}
	auth, err := config.auth(ctx, domain)
	if err != nil || auth == (registry.AuthConfig{}) {
		return "", err
	}
	return registry.EncodeAuthConfig(auth)
}
