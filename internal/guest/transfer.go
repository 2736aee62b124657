package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest/wire"
)

// stalled is how long a guest may let a transfer stand: longer than any step on a
// file system that works.
const stalled = 5 * time.Minute

// OpenFile opens a file or a folder to read it.
func (r remote) OpenFile(ctx context.Context, path string) (control.FileReader, error) {
	req := &wire.Request{Method: wire.MethodOpen, Path: path}
	var f *fileReader
	err := r.transfer(ctx, req, func(t *transfer, resp *wire.Response) error {
		if resp.Opened == nil || !tagShape.MatchString(resp.Opened.Tag) {
			return errMalformed(req.Method)
		}
		f = &fileReader{transfer: t, told: control.OpenFile{FileInfo: fileInfo(resp.Opened.File), Tag: resp.Opened.Tag}}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

var tagShape = regexp.MustCompile(`^[a-z0-9.-]{1,128}$`)

// CreateFile begins to write a file, or to fill a folder from an archive.
func (r remote) CreateFile(ctx context.Context, c control.FileCreate) (control.FileWriter, error) {
	req := &wire.Request{Method: wire.MethodCreate, Path: c.Path, Tar: c.Tar}
	if c.Mode != nil {
		mode := uint32(*c.Mode)
		req.Mode = &mode
	}
	var f *fileWriter
	err := r.transfer(ctx, req, func(t *transfer, _ *wire.Response) error {
		f = &fileWriter{transfer: t, ended: make(chan struct{})}
		f.reading.Go(f.await)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// transfer opens a stream for a transfer. Until take has it nothing has moved, so
// that may be done again where the connection broke; what moved later may not.
func (r remote) transfer(ctx context.Context, req *wire.Request, take func(*transfer, *wire.Response) error) error {
	return r.over(ctx, req, func(l *line, c *conn) error {
		s, resp, err := c.attach(ctx, req)
		if err != nil {
			return err
		}
		t := &transfer{stream: s, own: r.own, in: bufio.NewReaderSize(s, 4096)}
		if err := take(t, resp); err != nil {
			s.Close()
			return err
		}
		l.begin() // the line stays open for as long as the stream is
		t.release = l.end
		return nil
	})
}

// transfer is a file or folder on its way, over a stream of its own.
type transfer struct {
	stream  *yamux.Stream
	in      *bufio.Reader
	own     func(error) error
	release func()
	closing sync.Once
	closed  atomic.Bool
}

// Close ends it. Calls that wait return.
func (t *transfer) Close() error {
	t.closing.Do(func() {
		t.closed.Store(true)
		t.stream.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // it has none
		t.stream.Close()
		t.release()
	})
	return nil
}

// broken is the error of a transfer that ended before it was done.
func (t *transfer) broken(err error) error {
	switch {
	case t.closed.Load():
		return net.ErrClosed
	case err == io.EOF:
		err = io.ErrUnexpectedEOF
	}
	return unreachable(err)
}

func (t *transfer) send(kind byte, payload []byte) error {
	b := make([]byte, wire.FrameHeader+len(payload))
	wire.PutFrame(b, kind, len(payload))
	copy(b[wire.FrameHeader:], payload)
	_, err := t.stream.Write(b)
	return err
}

// done reads how the transfer ended, from a frame of n bytes.
func (t *transfer) done(n int) (*wire.Done, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(t.in, b); err != nil {
		return nil, t.broken(err)
	}
	d := new(wire.Done)
	if err := json.Unmarshal(b, d); err != nil {
		return nil, errMalformed("a transfer")
	}
	if d.Error != nil {
		return nil, t.own(d.Error)
	}
	return d, nil
}

// fileReader reads an open file or folder. Its methods but Close are one caller's.
type fileReader struct {
	*transfer
	told control.OpenFile
	left int // bytes of the current frame
	end  error
}

func (f *fileReader) Info() control.OpenFile { return f.told }

func (f *fileReader) Send(offset, length int64) error {
	return f.ask(wire.Send{Offset: offset, Length: length})
}

func (f *fileReader) SendTar() error { return f.ask(wire.Send{Tar: true}) }

func (f *fileReader) ask(s wire.Send) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := f.send(wire.FrameSend, b); err != nil {
		return f.broken(err)
	}
	f.end = nil
	return nil
}

func (f *fileReader) Read(p []byte) (int, error) {
	if f.end != nil {
		return 0, f.end
	}
	n, err := f.read(p)
	if err != nil {
		f.end = err
	}
	return n, err
}

func (f *fileReader) read(p []byte) (int, error) {
	f.stream.SetReadDeadline(time.Now().Add(stalled)) //nolint:errcheck // a closed one tells so next
	if f.closed.Load() {
		return 0, net.ErrClosed
	}
	for f.left == 0 {
		kind, n, err := wire.ReadFrame(f.in)
		switch {
		case err != nil:
			return 0, f.broken(err)
		case kind == wire.FrameDone:
			if _, err := f.done(n); err != nil {
				return 0, err
			}
			return 0, io.EOF
		case kind != wire.FrameData:
			return 0, f.broken(fmt.Errorf("a frame of kind %d", kind))
		}
		f.left = n
	}
	n, err := f.in.Read(p[:min(len(p), f.left)])
	f.left -= n
	if err != nil {
		return n, f.broken(err)
	}
	return n, nil
}

// fileWriter writes a file or fills a folder. Its methods but Close are one caller's.
type fileWriter struct {
	*transfer
	reading sync.WaitGroup
	ended   chan struct{} // closed once the guest has said how it ended; the fields below are set before
	told    control.FileWritten
	err     error
}

// await takes the guest's word on the end, which comes early where it failed.
func (f *fileWriter) await() {
	kind, n, err := wire.ReadFrame(f.in)
	switch {
	case err != nil:
		err = f.broken(err)
	case kind != wire.FrameDone:
		err = f.broken(fmt.Errorf("a frame of kind %d", kind))
	default:
		var d *wire.Done
		if d, err = f.done(n); err == nil {
			f.told = control.FileWritten{Size: max(d.Size, 0), Entries: max(d.Entries, 0)}
		}
	}
	f.err = err
	close(f.ended)
	f.stream.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // who writes is to look
}

var errEarly = errors.New("the guest ended the transfer before its end")

// isEnded reports the guest's word, where it has come before the end.
func (f *fileWriter) isEnded() error {
	select {
	case <-f.ended:
		if f.err == nil {
			return f.broken(errEarly)
		}
		return f.err
	default:
		return nil
	}
}

func (f *fileWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), wire.MaxFrame)]
		if err := f.frame(wire.FrameData, part); err != nil {
			return n, err
		}
		n, p = n+len(part), p[len(part):]
	}
	return n, nil
}

func (f *fileWriter) frame(kind byte, payload []byte) error {
	f.stream.SetWriteDeadline(time.Now().Add(stalled)) //nolint:errcheck // a closed one tells so next
	if err := f.isEnded(); err != nil {
		return err
	}
	if f.closed.Load() {
		return net.ErrClosed
	}
	if err := f.send(kind, payload); err != nil {
		if err := f.isEnded(); err != nil {
			return err
		}
		return f.broken(err)
	}
	return nil
}

func (f *fileWriter) Finish() (control.FileWritten, error) {
	if err := f.frame(wire.FrameDone, nil); err != nil {
		return control.FileWritten{}, err
	}
	late := time.NewTimer(stalled)
	defer late.Stop()
	select {
	case <-f.ended:
		return f.told, f.err
	case <-late.C:
		return control.FileWritten{}, f.broken(errors.New("the guest does not say how the transfer ended"))
	}
}

func (f *fileWriter) Close() error {
	err := f.transfer.Close()
	f.reading.Wait()
	return err
}
