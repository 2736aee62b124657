package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"sandkeeper/internal/dashboard"
)

// What a request may take. Streams and sockets have no bound in time here; what
// serves them has its own.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	maxBody       = 1 << 20
)

// newEcho makes the router that agents and operators share.
func newEcho(log *slog.Logger) *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	// What a client says of its address in a header is not believed.
	e.IPExtractor = echo.ExtractIPDirect()
	e.Logger.SetOutput(io.Discard) // errors are logged below, and answered by the dashboard
	e.Use(logRequests(log), recoverPanics(log), readBody)
	return e
}

// logRequests logs each request without its query, which may hold a sign-in code.
func logRequests(log *slog.Logger) echo.MiddlewareFunc {
	return middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		LogMethod: true, LogURIPath: true, LogStatus: true, LogLatency: true, LogRemoteIP: true, LogError: true, HandleError: true,
		LogValuesFunc: func(c echo.Context, v middleware.RequestLoggerValues) error {
			level := slog.LevelDebug
			if v.Status >= http.StatusInternalServerError {
				level = slog.LevelWarn
			}
			attrs := []slog.Attr{slog.String("method", v.Method), slog.String("path", v.URIPath), slog.Int("status", v.Status),
				slog.Duration("took", v.Latency), slog.String("remote", v.RemoteIP)}
			if v.Error != nil {
				attrs = append(attrs, slog.Any("err", v.Error))
			}
			log.LogAttrs(c.Request().Context(), level, "request", attrs...)
			return nil
		},
	})
}

// recoverPanics answers 500 where a handler panicked; the stack goes to the log alone.
func recoverPanics(log *slog.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			defer func() {
				r := recover()
				if r == nil {
					return
				}
				if r == http.ErrAbortHandler { //nolint:errorlint // a recovered value is no error yet
					panic(r)
				}
				log.Error("panic in a handler", "method", c.Request().Method, "path", c.Request().URL.Path, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
				err = echo.NewHTTPError(http.StatusInternalServerError).SetInternal(fmt.Errorf("panic: %v", r))
			}()
			return next(c)
		}
	}
}

// readBody reads a request's body before its handler runs: bodies are small
// here, and so neither a slow sender nor a large body ties a handler up. Files are
// the exception: they are read as they come.
func readBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if r.ContentLength == 0 || dashboard.IsUpload(c) {
			return next(c)
		}
		rc := http.NewResponseController(c.Response())
		if err := rc.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		body, err := io.ReadAll(http.MaxBytesReader(c.Response(), r.Body, maxBody))
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return echo.NewHTTPError(http.StatusRequestEntityTooLarge, fmt.Sprintf("a body has at most %d bytes", maxBody))
		}
		if err != nil {
			return echo.NewHTTPError(http.StatusBadRequest, "the body could not be read").SetInternal(err)
		}
		if err := rc.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		return next(c)
	}
}
