package dashboard

import (
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// backup sends a copy of the database. It is a POST: it has what no viewer
// sees, and no other site may make a browser ask for it.
func (d *Dashboard) backup(c echo.Context) error {
	if err := d.read(c, &struct{}{}); err != nil {
		return err
	}
	if d.opts.Backup == nil {
		return invalid("this server has no database of its own")
	}
	name := "sandkeeper-" + d.plane.Now().UTC().Format("20060102-150405") + ".db"
	h := c.Response().Header()
	h.Set(echo.HeaderContentType, echo.MIMEOctetStream)
	h.Set(echo.HeaderContentDisposition, fmt.Sprintf("attachment; filename=%q", name))
	id, _ := who(c)
	d.log.Info("backup", "actor", id.actor())
	n, err := d.opts.Backup(&timedWriter{c.Response(), http.NewResponseController(c.Response()), d.opts.WriteTimeout})
	if err == nil {
		return nil
	}
	d.log.Warn("the backup broke off", "actor", id.actor(), "bytes", n, "err", err)
	panic(http.ErrAbortHandler) // what was sent is not the whole of it, and must not look so
}

// timedWriter gives each write its time: the whole may take long.
type timedWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (t *timedWriter) Write(p []byte) (int, error) {
	if err := t.control.SetWriteDeadline(time.Now().Add(t.timeout)); err != nil {
		return 0, err
	}
	return t.w.Write(p)
}
