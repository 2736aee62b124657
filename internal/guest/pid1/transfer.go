package pid1

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandkeeper/internal/archive"
	"sandkeeper/internal/guest/wire"
)

// A transfer holds a slot of the file calls, and the rights of the user, for one
// step on the file system at a time, and neither while it waits for the control
// plane. What one holds in memory is a buffer or two.

var errNoFrame = errors.New("unexpected frame")

// step runs one step of a transfer with the rights of the user.
func (f *files) step(fn func() error) error {
	f.slots <- struct{}{}
	defer func() { <-f.slots }()
	return f.user.do(fn)
}

// transfer answers an open or a create. It reports whether the stream has more
// calls: where it was refused.
func (g *Guest) transfer(ctx context.Context, in *caller, s *wire.Stream, req *wire.Request) (more bool) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "sandkeeper: call %s: %v\n%s", req.Method, p, debug.Stack())
		}
	}()
	var (
		t   transfer
		err error
	)
	resp := new(wire.Response)
	if req.Method == wire.MethodOpen {
		t, resp.Opened, err = g.files.open(req.Path)
	} else {
		t, err = g.files.create(req)
	}
	if err != nil {
		return wire.Write(s, failure(err)) == nil
	}
	defer t.close()
	if wire.Write(s, resp) != nil {
		return false
	}
	over := make(chan struct{})
	watched := make(chan struct{})
	go func() { // what waits to be written is not waited for once nobody reads it
		defer close(watched)
		select {
		case <-s.PeerClosed:
			s.SetWriteDeadline(time.Unix(1, 0)) //nolint:errcheck // it is over
		case <-ctx.Done():
			s.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // it is over
		case <-over:
		}
	}()
	t.run(in.Reader, s)
	close(over)
	<-watched
	return false
}

// transfer is one file or folder on its way.
type transfer interface {
	run(in *bufio.Reader, out io.Writer)
	close()
}

// reading is a file or folder that is read.
type reading struct {
	f     *files
	asked string
	name  string
	file  *os.File
	dir   *os.Root // of a folder
}

// open opens a file or a folder to read it, through symbolic links.
func (f *files) open(asked string) (t transfer, told *wire.Opened, err error) {
	r := &reading{f: f, asked: asked}
	err = f.do(asked, func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		r.file = os.NewFile(uintptr(fd), path)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		info, err := r.file.Stat()
		switch {
		case err != nil:
			return err
		case info.IsDir():
			if r.dir, err = os.OpenRoot(path); err != nil {
				return err
			}
		case !info.Mode().IsRegular():
			return unix.EINVAL
		}
		r.name = info.Name()
		told = &wire.Opened{File: describe(info), Tag: tag(&st)}
		return nil
	})
	if err != nil {
		r.close()
		return nil, nil, err
	}
	return r, told, nil
}

// tag is another one for other content: each write moves the time of change,
// which nobody can set.
func tag(st *unix.Stat_t) string {
	n := func(v int64) string { return strconv.FormatInt(v, 36) }
	return n(int64(st.Dev)) + "." + n(int64(st.Ino)) + "." + n(st.Size) + "." + n(st.Ctim.Nano()) + "." + n(st.Mtim.Nano())
}

func (r *reading) close() {
	if r.file != nil {
		r.file.Close()
	}
	if r.dir != nil {
		r.dir.Close()
	}
}

// run sends what is asked for, until the stream ends.
func (r *reading) run(in *bufio.Reader, out io.Writer) {
	for {
		var ask wire.Send
		if err := readJSON(in, wire.FrameSend, &ask); err != nil {
			return
		}
		var err error
		w := frameWriter{out}
		switch {
		case !ask.Tar:
			err = r.send(out, ask)
		case r.dir != nil:
			err = archive.Pack(w, r.dir, r.f.step)
		default:
			err = archive.PackFile(w, r.file, r.name, r.f.step)
		}
		if writeDone(out, &wire.Done{Error: told(r.asked, err)}) != nil {
			return
		}
	}
}

// send sends a part of a file. One without a size, as in /proc, is sent up to its end.
func (r *reading) send(out io.Writer, ask wire.Send) error {
	if r.dir != nil {
		return unix.EISDIR
	}
	if ask.Offset < 0 || ask.Length < 0 || ask.Offset > math.MaxInt64-ask.Length {
		return unix.EINVAL
	}
	buf := buffers.Get().(*[drainBuffer]byte)
	defer buffers.Put(buf)
	at, left := ask.Offset, ask.Length
	for left > 0 {
		var n int
		err := r.f.step(func() (err error) {
			n, err = r.file.ReadAt(buf[wire.FrameHeader:][:min(left, drainBuffer-wire.FrameHeader)], at)
			return err
		})
		at, left = at+int64(n), left-int64(n)
		if n > 0 {
			wire.PutFrame(buf[:], wire.FrameData, n)
			if _, err := out.Write(buf[:wire.FrameHeader+n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil // who asked knows how many bytes there were to come
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// frameWriter writes frames of data.
type frameWriter struct{ out io.Writer }

func (w frameWriter) Write(p []byte) (n int, err error) {
	buf := buffers.Get().(*[drainBuffer]byte)
	defer buffers.Put(buf)
	for len(p) > 0 {
		m := copy(buf[wire.FrameHeader:], p)
		wire.PutFrame(buf[:], wire.FrameData, m)
		if _, err := w.out.Write(buf[:wire.FrameHeader+m]); err != nil {
			return n, err
		}
		n, p = n+m, p[m:]
	}
	return n, nil
}

// frameReader reads frames of data, up to the one that says that all was sent.
type frameReader struct {
	in   *bufio.Reader
	left int
	done bool
}

func (r *frameReader) Read(p []byte) (int, error) {
	for r.left == 0 {
		if r.done {
			return 0, io.EOF
		}
		kind, n, err := wire.ReadFrame(r.in)
		switch {
		case err == io.EOF:
			return 0, errOver // broken off: an end is told
		case err != nil:
			return 0, err
		case kind == wire.FrameDone && n == 0:
			r.done = true
		case kind == wire.FrameData:
			r.left = n
		default:
			return 0, errNoFrame
		}
	}
	n, err := r.in.Read(p[:min(len(p), r.left)])
	r.left -= n
	if err == io.EOF {
		err = errOver
	}
	return n, err
}

const maxAsk = 4096 // bytes of a FrameSend

func readJSON(in *bufio.Reader, want byte, v any) error {
	kind, n, err := wire.ReadFrame(in)
	if err != nil {
		return err
	}
	if kind != want || n > maxAsk {
		return errNoFrame
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(in, b); err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

func writeDone(out io.Writer, d *wire.Done) error {
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(make([]byte, wire.FrameHeader))
	b.Write(text)
	wire.PutFrame(b.Bytes(), wire.FrameDone, len(text))
	_, err = out.Write(b.Bytes())
	return err
}

// told makes an error one of the wire, which names the path as it was asked for.
func told(asked string, err error) *wire.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	errno := unix.Errno(0)
	errors.As(err, &errno)
	entry, inEntry := errors.AsType[*archive.EntryError](err)
	switch {
	case inEntry && errno != 0:
		asked += ": " + (&archive.EntryError{Entry: entry.Entry, Err: errno}).Error()
	case errno != 0:
		asked += ": " + errno.Error()
	default:
		return &wire.Error{Code: wire.CodeInvalid, Message: asked + ": " + err.Error()}
	}
	name := unix.ErrnoName(errno)
	if name == "" {
		name = "EIO"
	}
	return &wire.Error{Code: wire.CodeErrno, Errno: name, Message: asked}
}
