package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
)

// stream writes server-sent events to one reader. Each write must be taken
// within the write deadline. It is for one goroutine.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	buf     bytes.Buffer
}

// openStream begins the answer.
func (d *Dashboard) openStream(c echo.Context) (*stream, error) {
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy that buffers would hold everything back
	s := &stream{w: c.Response(), control: http.NewResponseController(c.Response()), timeout: d.opts.WriteTimeout}
	_ = s.control.SetReadDeadline(time.Time{}) // a stream lasts longer than any request's deadline
	c.Response().WriteHeader(http.StatusOK)
	return s, s.comment("sandkeeper")
}

// message is one server-sent event. Empty fields are left out.
type message struct {
	id    string
	event string
	data  []byte
}

// send writes a message and flushes it.
func (s *stream) send(m message) error {
	s.buf.Reset()
	if m.id != "" {
		s.buf.WriteString("id: " + m.id + "\n")
	}
	if m.event != "" {
		s.buf.WriteString("event: " + m.event + "\n")
	}
	writeData(&s.buf, m.data)
	s.buf.WriteByte('\n')
	return s.flush()
}

// comment writes a line that readers pass over: a sign of life.
func (s *stream) comment(text string) error {
	s.buf.Reset()
	s.buf.WriteString(": " + text + "\n\n")
	return s.flush()
}

func (s *stream) flush() error {
	if err := s.control.SetWriteDeadline(time.Now().Add(s.timeout)); err != nil && !isUnsupported(err) {
		return fmt.Errorf("write deadline: %w", err)
	}
	if _, err := s.w.Write(s.buf.Bytes()); err != nil {
		return fmt.Errorf("stream write: %w", err)
	}
	if err := s.control.Flush(); err != nil && !isUnsupported(err) {
		return fmt.Errorf("stream flush: %w", err)
	}
	return nil
}

// writeData writes data line by line. Every character that ends a line in this
// format is one here, so that no text can begin a field of its own.
func writeData(buf *bytes.Buffer, data []byte) {
	for len(data) > 0 {
		line, rest := data, []byte(nil)
		if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
			line, rest = data[:i], data[i+1:]
			if data[i] == '\r' && len(rest) > 0 && rest[0] == '\n' {
				rest = rest[1:]
			}
		}
		buf.WriteString("data: ")
		buf.Write(line)
		buf.WriteByte('\n')
		data = rest
	}
}

// follow runs a Watch. The channel closes when that ends, which it does with
// ctx at the latest; who called follow drains it to wait for that.
func follow(ctx context.Context, w Watcher) <-chan control.Changes {
	out := make(chan control.Changes)
	go func() {
		defer close(out)
		defer w.Close()
		for {
			ch, err := w.Next(ctx)
			if err != nil {
				return
			}
			select {
			case out <- ch:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// drain waits for the end of what follow began.
func drain(changes <-chan control.Changes) {
	for range changes {
	}
}

// lastEventID reads where a reader that comes back stood: the header that
// event streams resume by, else the parameter "after". given is false for a
// reader that is new.
func lastEventID(r *http.Request, p *params) (seq uint64, given bool) {
	header := strings.TrimSpace(r.Header.Get("Last-Event-ID"))
	if header == "" {
		return p.seq("after"), p.values.Has("after")
	}
	seq, err := strconv.ParseUint(header, 10, 64)
	if err != nil {
		p.fail("the header Last-Event-ID must be a sequence number; got %q", printable(header))
	}
	return seq, true
}

// startAt settles where a stream begins: at the end of the log for a new
// reader. reset is true where the log does not hold what follows that place:
// it was pruned, or it is another log than the one the reader knew.
func (d *Dashboard) startAt(seq uint64, given bool) (start uint64, reset bool, err error) {
	_, first, last, err := d.plane.Events(seq, 1, control.EventFilter{})
	switch {
	case err != nil:
		return 0, false, err
	case !given:
		return last, false, nil
	case seq > last:
		return last, true, nil
	case first > 0 && seq+1 < first:
		return first - 1, true, nil
	}
	return seq, false, nil
}

// streamEvents follows the log: each event once, in order, or one "reset"
// where the log no longer reaches back to where the reader stood. After a
// reset it goes on with the oldest event that there is.
func (d *Dashboard) streamEvents(c echo.Context) error {
	r := c.Request()
	p := query(r.URL, "after", "env", "kind")
	seq, given := lastEventID(r, p)
	f := eventFilter(p)
	if p.err != nil {
		return p.err
	}
	seq, reset, err := d.startAt(seq, given)
	if err != nil {
		return err
	}
	ctx, leave, err := d.enter(r)
	if err != nil {
		return err
	}
	defer leave()

	s, err := d.openStream(c)
	if err != nil {
		return nil // the reader is gone
	}
	if reset {
		if err := s.sendReset(seq); err != nil {
			return nil
		}
	}
	d.relay(ctx, s, seq, f)
	return nil
}

func (s *stream) sendReset(seq uint64) error {
	return s.send(message{id: strconv.FormatUint(seq, 10), event: "reset", data: fmt.Appendf(nil, `{"after":%d}`, seq)})
}

// relay sends events from seq+1 on until the reader or the plane is gone.
func (d *Dashboard) relay(ctx context.Context, s *stream, seq uint64, f control.EventFilter) {
	ctx, stop := context.WithCancel(ctx)
	changes := follow(ctx, d.plane.Watch(seq))
	defer func() { stop(); drain(changes) }()

	beat := time.NewTicker(d.opts.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			if s.comment("alive") != nil {
				return
			}
		case ch, ok := <-changes:
			if !ok {
				return
			}
			if ch.Reset {
				if len(ch.Events) > 0 {
					seq = ch.Events[0].Seq - 1
				}
				if s.sendReset(seq) != nil {
					return
				}
			}
			for _, ev := range ch.Events {
				if ev.Seq <= seq {
					continue // had by then
				}
				seq = ev.Seq
				if !matchesEvent(ev, f) {
					continue
				}
				data, err := json.Marshal(ev.View())
				if err != nil {
					d.log.Error("event cannot be written", "seq", ev.Seq, "err", err)
					return
				}
				if s.send(message{id: strconv.FormatUint(ev.Seq, 10), data: data}) != nil {
					return
				}
			}
		}
	}
}

func matchesEvent(ev control.Event, f control.EventFilter) bool {
	return (f.Env == "" || ev.Env == f.Env) && (f.Kind == "" || ev.Kind == f.Kind) && (f.Owner == "" || ev.Owner == f.Owner)
}

func isUnsupported(err error) bool { return errors.Is(err, http.ErrNotSupported) }
