package control

import (
	"context"
	"io"
	"io/fs"
	"time"
)

const (
	maxTransfers = 16             // at once, of one environment: each has buffers
	transferHold = 24 * time.Hour // a transfer holds no longer
)

// Mover is who moves files in or out beside the agents' sockets.
type Mover struct {
	Actor string // "agent:NAME", "operator:NAME"
	Owner string // whose environments it may reach; "": everybody's
}

// OpenFile opens a file or a folder of an environment to read it. It counts as
// activity, at its begin and at its end; it resumes a dormant environment, and
// holds it until Close. Where the environment goes meanwhile, Read fails with
// KindGenerationGone. ctx bounds the transfer. Errors: *Error.
func (p *Plane) OpenFile(ctx context.Context, m Mover, env, path string) (FileReader, error) {
	t, g, err := p.beginTransfer(ctx, m, env, func() error { return checkPath("path", path) })
	if err != nil {
		return nil, err
	}
	f, err := g.OpenFile(ctx, path)
	if err != nil {
		t.end()
		return nil, t.failure(err)
	}
	r := &planeReader{FileReader: f, t: t}
	r.stop = context.AfterFunc(ctx, func() { f.Close() })
	return r, nil
}

// CreateFile begins to write a file of an environment, or to fill a folder. All
// else is as of OpenFile; without a Finish nothing was written.
func (p *Plane) CreateFile(ctx context.Context, m Mover, env string, c FileCreate) (FileWriter, error) {
	t, g, err := p.beginTransfer(ctx, m, env, func() error {
		switch {
		case c.Mode != nil && c.Tar:
			return Errorf(KindInvalid, "mode goes with a file, not with an archive")
		case c.Mode != nil && *c.Mode&^fs.ModePerm != 0:
			return Errorf(KindInvalid, "mode is %o; it takes 0 to 777", *c.Mode)
		}
		return checkPath("path", c.Path)
	})
	if err != nil {
		return nil, err
	}
	f, err := g.CreateFile(ctx, c)
	if err != nil {
		t.end()
		return nil, t.failure(err)
	}
	w := &planeWriter{FileWriter: f, t: t}
	w.stop = context.AfterFunc(ctx, func() { f.Close() })
	return w, nil
}

// transfer is one file or folder on its way. Its fields do not change.
type transfer struct {
	e          *env
	actor      string
	generation int64
	since      time.Time
}

// beginTransfer brings an environment to ready and holds it.
func (p *Plane) beginTransfer(ctx context.Context, m Mover, id string, check func() error) (*transfer, Guest, error) {
	e := p.lockEnv(id)
	switch {
	case e == nil:
		return nil, nil, p.goneOrUnknown(id, m.Owner)
	case m.Owner != "" && e.t.key.Owner != m.Owner:
		e.t.mu.Unlock()
		return nil, nil, Errorf(KindNotFound, "no environment has the id %q", clip(id, 32))
	}
	defer e.t.mu.Unlock()
	if err := p.checkDraining(); err != nil {
		return nil, nil, err
	}
	if err := e.forFiles(ctx, m.Actor, check, func(*tx) {}); err != nil {
		return nil, nil, err
	}
	if len(e.moving) >= maxTransfers {
		return nil, nil, Errorf(KindQuota, "%d files of the environment are on their way; at most %d may be at once", len(e.moving), maxTransfers)
	}
	t := &transfer{e: e, actor: m.Actor, generation: e.rec.Load().Generation, since: p.Now()}
	e.moving[t] = struct{}{}
	e.t.settle(t.since)
	return t, p.o.Guests.Guest(e.sandbox()), nil
}

// end lets go of the environment; it counts as activity where that is still the same.
func (t *transfer) end() {
	e := t.e
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	delete(e.moving, t)
	x := e.t.begin()
	if r := e.rec.Load(); r.State == Ready && r.Generation == t.generation {
		x.activity(e, "file", t.actor)
	}
	x.finish(e.t.p.ctx) //nolint:errcheck // written behind
}

// hold tells whether the transfer keeps the countdown from running.
func (t *transfer) hold(r *Env, now time.Time) (Hold, bool) {
	until := t.since.Add(transferHold)
	if r.State != Ready || r.Generation != t.generation || !now.Before(until) {
		return Hold{}, false
	}
	return Hold{Kind: HoldFile, Since: At(t.since), Until: AtPtr(ceilMillis(until))}, true
}

func (t *transfer) failure(err error) error { return t.e.fileFailure(err, t.generation) }

// planeReader is a FileReader that holds its environment.
type planeReader struct {
	FileReader
	t    *transfer
	stop func() bool
}

func (r *planeReader) Send(offset, length int64) error {
	return r.t.failure(r.FileReader.Send(offset, length))
}

func (r *planeReader) SendTar() error { return r.t.failure(r.FileReader.SendTar()) }

func (r *planeReader) Read(p []byte) (int, error) {
	n, err := r.FileReader.Read(p)
	if err == io.EOF {
		return n, err
	}
	return n, r.t.failure(err)
}

func (r *planeReader) Close() error {
	r.stop()
	err := r.FileReader.Close()
	r.t.end()
	return err
}

// planeWriter is a FileWriter that holds its environment.
type planeWriter struct {
	FileWriter
	t    *transfer
	stop func() bool
}

func (w *planeWriter) Write(p []byte) (int, error) {
	n, err := w.FileWriter.Write(p)
	return n, w.t.failure(err)
}

func (w *planeWriter) Finish() (FileWritten, error) {
	done, err := w.FileWriter.Finish()
	return done, w.t.failure(err)
}

func (w *planeWriter) Close() error {
	w.stop()
	err := w.FileWriter.Close()
	w.t.end()
	return err
}
