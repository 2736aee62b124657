package control

import (
	"context"
	"errors"
	"time"
)

// maxReadLength bounds one file.read, in bytes.
const maxReadLength = 512 << 10

// fileCallTimeout bounds one call to a guest that hangs.
const fileCallTimeout = 30 * time.Second

// onFiles runs one file call: it counts as activity and resumes a dormant environment.
func (s *Session) onFiles(ctx context.Context, r Ref, check func() error, f func(ctx context.Context, g Guest) error) error {
	e, _, err := s.resolve(r)
	if err != nil {
		return err
	}
	err = e.forFiles(ctx, s.actor(), check, func(x *tx) {
		x.join(s, false)
		x.uses(s, e)
	})
	generation := e.rec.Load().Generation
	if err == nil {
		s.met(e.rec.Load())
	}
	e.t.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fileCallTimeout)
	defer cancel()
	return e.fileFailure(f(ctx, s.p.o.Guests.Guest(e.sandbox())), generation)
}

// forFiles is what every use of an environment's files begins with: the params
// are judged, it counts as activity, and a dormant environment is resumed. The
// task is locked on entry and on return.
func (e *env) forFiles(ctx context.Context, actor string, check func() error, also func(x *tx)) error {
	if err := check(); err != nil {
		return err
	}
	x := e.t.begin()
	also(x)
	x.activity(e, "file", actor)
	if err := x.finish(ctx); err != nil {
		return err
	}
	if err := e.awaitReady(ctx, actor, "file"); err != nil {
		return err
	}
	x = e.t.begin() // the countdown starts anew once it is ready
	x.activity(e, "file", actor)
	return x.finish(ctx)
}

// fileFailure is what a client is told of a failure on files, of the generation
// that they were of.
func (e *env) fileFailure(err error, generation int64) error {
	if err == nil {
		return nil
	}
	if fe, ok := errors.AsType[*FileError](err); ok {
		return fileError(fe)
	}
	if now := e.rec.Load(); now.State != Ready || now.Generation != generation {
		e.t.mu.Lock()
		defer e.t.mu.Unlock()
		return gone(e.endOf(e.rec.Load(), generation))
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: KindEngineUnavailable, Message: "the sandbox does not answer; the call can be repeated", RetryAfter: time.Second, Err: err}
}

// fileError is what a client is told of a refusal of the file system.
func fileError(fe *FileError) *Error {
	e := &Error{Kind: KindInvalid, Message: fe.Message, Errno: fe.Errno, Err: fe}
	switch fe.Errno {
	case "ENOENT":
		e.Kind = KindNotFound
	case "ENOSPC", "EDQUOT":
		e.Kind = KindQuota
	}
	return e
}

// ReadFile reads a part of a file. length is at most 512 KiB, and that where it is nil.
func (s *Session) ReadFile(ctx context.Context, r Ref, path string, offset int64, length *int64) (c FileChunk, err error) {
	n := int64(maxReadLength)
	err = s.onFiles(ctx, r, func() error {
		if length != nil {
			n = *length
		}
		switch {
		case n < 0 || n > maxReadLength:
			return Errorf(KindInvalid, "length is %d; it takes 0 to %d", n, maxReadLength)
		case offset < 0:
			return Errorf(KindInvalid, "offset is negative")
		}
		return checkPath("path", path)
	}, func(ctx context.Context, g Guest) error {
		c, err = g.ReadFile(ctx, path, offset, int(n))
		return err
	})
	return c, err
}

// WriteFile writes a whole file, or appends to one.
func (s *Session) WriteFile(ctx context.Context, r Ref, w FileWrite) (size int64, err error) {
	err = s.onFiles(ctx, r, func() error { return checkPath("path", w.Path) }, func(ctx context.Context, g Guest) error {
		size, err = g.WriteFile(ctx, w)
		return err
	})
	return size, err
}

// ListFiles lists a folder.
func (s *Session) ListFiles(ctx context.Context, r Ref, path string) (l []FileInfo, err error) {
	err = s.onFiles(ctx, r, func() error { return checkPath("path", path) }, func(ctx context.Context, g Guest) error {
		l, err = g.ListFiles(ctx, path)
		return err
	})
	return l, err
}

// StatFile describes one file; of a symbolic link, the link.
func (s *Session) StatFile(ctx context.Context, r Ref, path string) (i FileInfo, err error) {
	err = s.onFiles(ctx, r, func() error { return checkPath("path", path) }, func(ctx context.Context, g Guest) error {
		i, err = g.StatFile(ctx, path)
		return err
	})
	return i, err
}

// RemoveFile removes a file, or with recursive a folder and all in it.
func (s *Session) RemoveFile(ctx context.Context, r Ref, path string, recursive bool) error {
	return s.onFiles(ctx, r, func() error { return checkPath("path", path) }, func(ctx context.Context, g Guest) error {
		return g.RemoveFile(ctx, path, recursive)
	})
}

// Mkdir makes a folder, with recursive also those above it.
func (s *Session) Mkdir(ctx context.Context, r Ref, path string, recursive bool) error {
	return s.onFiles(ctx, r, func() error { return checkPath("path", path) }, func(ctx context.Context, g Guest) error {
		return g.Mkdir(ctx, path, recursive)
	})
}
