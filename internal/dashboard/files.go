package dashboard

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
)

// Files and folders of environments, in and out, for agents and operators. A
// viewer may look at environments and not at what is in them.
//
// Bytes flow as both ends take them, through buffers of a bounded size. Who takes
// or sends nothing for FileTimeout is dropped. What cannot be finished is broken
// off, so that no part passes for the whole.

const (
	filesPath = "/api/v1/envs/:id/files"
	tarType   = "application/x-tar"
	copySize  = 64 << 10

	headerMode = "Sandkeeper-Mode" // "0644"
	headerType = "Sandkeeper-Type" // "file", "dir"

	ownerHeader = "Sandkeeper-Owner"
)

// moverKey is where a request's context keeps who moves files.
const moverKey = "sandkeeper.mover"

// IsUpload reports whether a request's body is to be read as it comes.
func IsUpload(c echo.Context) bool {
	return c.Path() == filesPath && c.Request().Method == http.MethodPut
}

func (d *Dashboard) registerFiles(add router) {
	add("GET", filesPath, d.download)
	add("HEAD", filesPath, d.download)
	add("PUT", filesPath, d.upload)
}

// admitMover lets agents through to their owner's environments, and operators to all.
func (d *Dashboard) admitMover(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id, ok := who(c)
		if !ok {
			return unauthorized("an agent's or an operator's token is needed here")
		}
		m := control.Mover{Actor: id.actor()}
		switch id.Role {
		case control.RoleAgent:
			m = control.Mover{Actor: "agent:" + id.Name, Owner: id.Owner}
		case control.RoleOperator:
			m.Owner = c.Request().Header.Get(ownerHeader)
		default:
			return &httpError{status: http.StatusForbidden, kind: string(control.KindForbidden),
				message: "a viewer may look at environments, and not at their files: this needs an agent's or an operator's token"}
		}
		if id.cookie && c.Request().Method == http.MethodPut {
			if err := d.checkForgery(c.Request(), id); err != nil {
				return err
			}
		}
		c.Set(moverKey, m)
		return next(c)
	}
}

func mover(c echo.Context) control.Mover { return c.Get(moverKey).(control.Mover) }

// download sends a file, or a folder as a tar.
func (d *Dashboard) download(c echo.Context) error {
	r := c.Request()
	p := query(r.URL, "path", "format")
	if f := p.text("format"); f != "" && f != "tar" {
		p.fail("parameter %q must be tar; got %q", "format", printable(f))
	}
	if p.err != nil {
		return p.err
	}
	ctx, leave, err := d.enter(r)
	if err != nil {
		return err
	}
	defer leave()
	f, err := d.plane.OpenFile(ctx, mover(c), c.Param("id"), p.text("path"))
	if err != nil {
		return err
	}
	defer f.Close()

	info := f.Info()
	asTar := info.Type == "dir" || p.text("format") == "tar"
	h := c.Response().Header()
	h.Set(headerMode, fmt.Sprintf("%04o", unixMode(info.Mode)))
	h.Set(headerType, info.Type)
	h.Set("Cache-Control", "private, no-cache")
	// What is in a sandbox is not to be a page of ours.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Content-Type", "application/octet-stream")
	name := path.Base(info.Name)
	if asTar {
		h.Set("Content-Type", tarType)
		name = strings.TrimLeft(name, "./") + ".tar"
	}
	h.Set("Content-Disposition", "attachment; filename*=UTF-8''"+url.PathEscape(name))
	w := &slowWriter{ResponseWriter: c.Response(), control: http.NewResponseController(c.Response()), timeout: d.opts.FileTimeout}
	defer w.reset()
	if asTar {
		err = sendTar(w, r, f, info)
	} else {
		err = sendFile(w, r, f, info, d.plane.Now())
	}
	if err != nil && c.Response().Committed {
		d.log.Info("download broken off", slog.String("env", c.Param("id")), slog.Any("err", err))
		panic(http.ErrAbortHandler) // so that nobody takes it for whole
	}
	if err != nil {
		for _, name := range []string{"Content-Disposition", "ETag", "Last-Modified"} {
			h.Del(name)
		}
	}
	return err
}

// unixMode is a mode as chmod takes it.
func unixMode(m fs.FileMode) uint32 {
	n := uint32(m.Perm())
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&flag != 0 {
			n |= bit
		}
	}
	return n
}

func sendTar(w *slowWriter, r *http.Request, f control.FileReader, info control.OpenFile) error {
	w.Header().Set("Last-Modified", info.MTime.UTC().Format(http.TimeFormat))
	w.Header().Set("Accept-Ranges", "none")
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if err := f.SendTar(); err != nil {
		return err
	}
	return copyAll(w, f)
}

// sendFile sends a file, or the range that is asked for.
func sendFile(w *slowWriter, r *http.Request, f control.FileReader, info control.OpenFile, now time.Time) error {
	tag := `"` + info.Tag + `"`
	if now.Sub(info.MTime) < 2*time.Second {
		tag = "W/" + tag // two writes within a tick of the clock would have the same
	}
	w.Header().Set("ETag", tag)
	if info.Size == 0 { // nothing, or a file whose size is not known, as in /proc
		w.Header().Set("Last-Modified", info.MTime.UTC().Format(http.TimeFormat))
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusOK)
			return nil
		}
		if err := f.Send(0, maxUnknown); err != nil {
			return err
		}
		return copyAll(w, f)
	}
	if strings.Contains(r.Header.Get("Range"), ",") { // of several ranges, all of it
		r.Header.Del("Range")
	}
	s := &seeker{file: f, size: info.Size}
	http.ServeContent(w, r, "", info.MTime, s)
	if w.err != nil {
		return w.err
	}
	return s.err
}

// maxUnknown bounds a file whose size is not known, in bytes.
const maxUnknown = 1 << 30

// copyAll writes what comes. An error before the first byte is one to be told.
func copyAll(w *slowWriter, f control.FileReader) error {
	buf := make([]byte, copySize)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF:
			if !w.began {
				w.WriteHeader(http.StatusOK)
			}
			return nil
		default:
			return err
		}
	}
}

// seeker reads a file from where it was sought, as http.ServeContent does: once.
type seeker struct {
	file control.FileReader
	size int64
	at   int64
	sent bool
	err  error
}

func (s *seeker) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += s.at
	case io.SeekEnd:
		offset += s.size
	}
	if s.sent || offset < 0 {
		return 0, errors.New("the file is on its way")
	}
	s.at = offset
	return offset, nil
}

func (s *seeker) Read(p []byte) (int, error) {
	if !s.sent {
		if err := s.file.Send(s.at, s.size-s.at); err != nil {
			s.err = err
			return 0, err
		}
		s.sent = true
	}
	n, err := s.file.Read(p)
	s.at += int64(n)
	if err == io.EOF && s.at < s.size {
		err = errShorter
	}
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

var errShorter = errors.New("the file became shorter while it was read")

// slowWriter writes a response whose reader may take its time, but not for ever.
type slowWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	began   bool
	err     error
}

func (w *slowWriter) WriteHeader(status int) {
	w.began = true
	w.ResponseWriter.WriteHeader(status)
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.began = true
	if err := w.control.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil && !isUnsupported(err) {
		w.err = err
		return 0, err
	}
	n, err := w.ResponseWriter.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// reset takes the deadline off the connection, whose next request has its own.
func (w *slowWriter) reset() {
	w.control.SetWriteDeadline(time.Time{}) //nolint:errcheck // where it cannot be set there is none
}

// slowReader reads a request whose sender may take its time, but not for ever.
type slowReader struct {
	io.Reader
	control *http.ResponseController
	timeout time.Duration
}

func (r *slowReader) Read(p []byte) (int, error) {
	if err := r.control.SetReadDeadline(time.Now().Add(r.timeout)); err != nil && !isUnsupported(err) {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (r *slowReader) reset() {
	r.control.SetReadDeadline(time.Time{}) //nolint:errcheck // where it cannot be set there is none
}

// written is the answer to an upload.
type written struct {
	Path    string `json:"path"`
	Size    *int64 `json:"size,omitempty"`    // of a file, in bytes
	Entries *int64 `json:"entries,omitempty"` // of an archive
}

// upload takes a file, or a tar to be extracted into a folder.
func (d *Dashboard) upload(c echo.Context) error {
	r := c.Request()
	create, err := uploadOf(r)
	if err != nil {
		return err
	}
	ctx, leave, err := d.enter(r)
	if err != nil {
		return err
	}
	defer leave()
	f, err := d.plane.CreateFile(ctx, mover(c), c.Param("id"), create)
	if err != nil {
		return err
	}
	defer f.Close()

	body := &slowReader{Reader: r.Body, control: http.NewResponseController(c.Response()), timeout: d.opts.FileTimeout}
	defer body.reset()
	buf := make([]byte, copySize)
	for {
		n, err := body.Read(buf)
		if _, err := f.Write(buf[:n]); err != nil {
			return d.brokenUpload(c, err)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return d.brokenUpload(c, &httpError{status: http.StatusBadRequest, kind: string(control.KindInvalid), message: "the body broke off"})
		}
	}
	body.reset()
	done, err := f.Finish()
	if err != nil {
		return d.brokenUpload(c, err)
	}
	answer := written{Path: create.Path, Size: &done.Size}
	if create.Tar {
		answer = written{Path: create.Path, Entries: &done.Entries}
	}
	return c.JSON(http.StatusOK, answer)
}

// brokenUpload answers a failure in the middle: what is still sent is not read.
func (d *Dashboard) brokenUpload(c echo.Context, err error) error {
	if d.ctx.Err() != nil {
		err = control.Errorf(control.KindDraining, "the server is going down")
	}
	c.Response().Header().Set("Connection", "close")
	return err
}

// uploadOf reads what is asked for.
func uploadOf(r *http.Request) (control.FileCreate, error) {
	p := query(r.URL, "path", "mode")
	create := control.FileCreate{Path: p.text("path")}
	if s := p.text("mode"); s != "" {
		n, err := strconv.ParseUint(s, 8, 12)
		if err != nil {
			p.fail("parameter %q must be a mode in octal, such as 0644; got %q", "mode", printable(s))
		}
		create.Mode = new(fs.FileMode(n))
	}
	if p.err != nil {
		return create, p.err
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	create.Tar = err == nil && kind == tarType
	if r.Header.Get("Content-Range") != "" {
		return create, invalid("a part of a file cannot be put: Content-Range is not taken")
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return create, &httpError{status: http.StatusUnsupportedMediaType, kind: string(control.KindInvalid), message: "the body must be as it is: Content-Encoding is not taken"}
	}
	return create, nil
}
