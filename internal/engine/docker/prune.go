package docker

import (
	"context"
	"errors"
	"os"
)

// Prune removes everything of the instance: containers, then volumes, the
// guest's too, then the sockets' directories. What cannot be removed is told in
// the error, and does not keep the rest.
func (e *Engine) Prune(ctx context.Context) (removed []string, err error) {
	containers, err := e.containers(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, c := range containers {
		name := statusOf(c).Name
		if err := e.removeContainer(ctx, c.ID); err != nil {
			errs = append(errs, fault("container "+name+" remove", err))
			continue
		}
		e.forget(name)
		e.unlisten(name)
		removed = append(removed, "container "+name)
	}
	volumes, err := e.volumes(ctx)
	if err != nil {
		return removed, errors.Join(append(errs, err)...)
	}
	for _, v := range volumes {
		if err := e.removeVolume(ctx, v.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, "volume "+v.Name)
	}
	if err := e.uninstalled(ctx); err != nil {
		errs = append(errs, err)
	}
	if e.links != "" && len(errs) == 0 {
		if err := os.RemoveAll(e.links); err != nil {
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}
