package controltest

import (
	"bytes"
	"context"
	"io"
	"path"
	"sync"
	"time"

	"sandkeeper/internal/control"
)

// OpenFile opens a file or a folder. There are no archives here: that of a folder
// is empty.
func (g *guest) OpenFile(ctx context.Context, p string) (f control.FileReader, err error) {
	err = g.file(ctx, "OpenFile", p, func(t *tree, p string) error {
		n, err := t.find(p)
		if err != nil {
			return err
		}
		f = &fileReader{transfer: g.transfer(), info: control.OpenFile{FileInfo: n.info(p), Tag: n.mtime.UTC().Format("20060102t150405.000000000")}, data: n.data}
		return nil
	})
	return f, err
}

// CreateFile begins to write a file. Of an archive, its bytes become the file's.
func (g *guest) CreateFile(ctx context.Context, c control.FileCreate) (f control.FileWriter, err error) {
	err = g.file(ctx, "CreateFile", c.Path, func(t *tree, p string) error {
		t.mkdirs(path.Dir(p))
		if err := t.inDir(p); err != nil {
			return err
		}
		if n := t.nodes[p]; n != nil && n.mode.IsDir() && !c.Tar {
			return refuse("EISDIR", p, "is a directory")
		}
		f = &fileWriter{transfer: g.transfer(), ctx: context.WithoutCancel(ctx), create: c}
		return nil
	})
	return f, err
}

// transfer makes a transfer with this run of the sandbox; the engine is locked.
func (g *guest) transfer() transfer {
	return transfer{g: g, run: g.engine.sandboxes[g.name].run, closed: make(chan struct{}), once: new(sync.Once)}
}

// transfer breaks with its run of the sandbox.
type transfer struct {
	g      *guest
	run    *run
	closed chan struct{}
	once   *sync.Once
}

func (t transfer) Close() error {
	t.once.Do(func() { close(t.closed) })
	return nil
}

func (t transfer) err() error {
	select {
	case <-t.closed:
		return t.g.unreachable()
	case <-t.run.ended:
		return t.g.unreachable()
	default:
		return nil
	}
}

type fileReader struct {
	transfer
	info control.OpenFile
	data []byte
	rest []byte
}

func (f *fileReader) Info() control.OpenFile { return f.info }

func (f *fileReader) Send(offset, length int64) error {
	from := min(offset, int64(len(f.data)))
	f.rest = f.data[from:min(from+length, int64(len(f.data)))]
	return f.err()
}

func (f *fileReader) SendTar() error { return f.err() }

func (f *fileReader) Read(p []byte) (int, error) {
	if err := f.err(); err != nil {
		return 0, err
	}
	if len(f.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

type fileWriter struct {
	transfer
	ctx    context.Context // of the call that Finish makes
	create control.FileCreate
	data   bytes.Buffer
}

func (f *fileWriter) Write(p []byte) (int, error) {
	if err := f.err(); err != nil {
		return 0, err
	}
	return f.data.Write(p)
}

func (f *fileWriter) Finish() (done control.FileWritten, err error) {
	if err := f.err(); err != nil {
		return done, err
	}
	err = f.g.file(f.ctx, "Finish", f.create.Path, func(t *tree, p string) error {
		t.nodes[p] = &node{data: f.data.Bytes(), mode: 0o644, mtime: time.Now()}
		if f.create.Mode != nil {
			t.nodes[p].mode = *f.create.Mode
		}
		done.Size = int64(f.data.Len())
		return nil
	})
	return done, err
}
