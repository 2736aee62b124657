package local

import (
	"context"
	"errors"
	"os"
	"slices"

	"sandkeeper/internal/control"
)

// Prune removes everything of the instance: processes, files, control groups,
// the guest's binary. What cannot be removed is told in the error, and does not
// keep the rest.
func (e *Engine) Prune(ctx context.Context) (removed []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e.mu.Lock()
	var names []string
	for name := range e.boxes {
		names = append(names, name)
	}
	e.mu.Unlock()
	slices.Sort(names)
	var errs []error
	for _, name := range names {
		was, err := e.pruneOne(ctx, name)
		if err != nil {
			errs = append(errs, err)
		} else if was != "" {
			removed = append(removed, was)
		}
	}
	if len(errs) > 0 {
		return removed, errors.Join(errs...)
	}
	if !e.opts.PruneOnly {
		return removed, nil
	}
	// What runs although its data is elsewhere, or gone, is found by its groups.
	for _, name := range e.can.groups.left() {
		if err := e.can.groups.kill(ctx, name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, "processes of "+name)
	}
	errs = append(errs, e.can.groups.removeAll(ctx), os.RemoveAll(e.dir))
	return removed, errors.Join(errs...)
}

func (e *Engine) pruneOne(ctx context.Context, name string) (was string, err error) {
	b, err := e.take(ctx, name)
	if err != nil {
		return "", err
	}
	defer e.give(b)
	if b.kept == nil {
		return "", nil
	}
	was = "sandbox " + name
	if b.kept.FilesOnly {
		was = "workspace " + name
	}
	return was, e.remove(ctx, b, control.RemoveAll)
}
