package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

// Of one address: so many attempts at once, then one a second.
const (
	attemptsBurst = 20
	attemptsRate  = 1
)

// registerSignIn adds the ways in and out.
func (d *Dashboard) registerSignIn(add router) {
	add("GET", "/sign-in", d.signInPage)
	add("HEAD", "/sign-in", d.signInPage)
	add("POST", "/sign-in", d.signIn)
	add("POST", "/sign-out", d.signOut)
}

// slowDown bounds attempts to sign in. Looking at the form is none.
func (d *Dashboard) slowDown() echo.MiddlewareFunc {
	return middleware.RateLimiterWithConfig(middleware.RateLimiterConfig{
		Skipper: func(c echo.Context) bool {
			return c.Path() != "/sign-in" || c.Request().Method != http.MethodPost && !c.QueryParams().Has("code")
		},
		Store: middleware.NewRateLimiterMemoryStoreWithConfig(middleware.RateLimiterMemoryStoreConfig{
			Rate: attemptsRate, Burst: attemptsBurst, ExpiresIn: 10 * time.Minute,
		}),
		IdentifierExtractor: func(c echo.Context) (string, error) { return c.RealIP(), nil },
		DenyHandler: func(c echo.Context, _ string, _ error) error {
			return &httpError{status: http.StatusTooManyRequests, kind: string(control.KindQuota), message: "too many attempts to sign in: wait a minute"}
		},
	})
}

// signInPage shows the form, or takes the code of a link. The code is gone from
// the address after the redirect, and worth nothing after its first use.
func (d *Dashboard) signInPage(c echo.Context) error {
	if !c.QueryParams().Has("code") {
		return render(c, http.StatusOK, templates.SignIn(d.frame(c, "Sign in"), templates.SignInForm{Next: nextAddress(c.QueryParam("next"))}))
	}
	if c.Request().Method != http.MethodGet || !d.codes.take(c.QueryParam("code"), time.Now()) {
		d.refused(c, "a sign-in code that is wrong, used or too old")
		return d.refuse(c, http.StatusUnauthorized, "This link was used before, or is older than 15 minutes. Every start of the server prints a new one; a token works at any time.")
	}
	return d.open(c, control.RoleOperator, "operator", "code", "/")
}

// signIn takes a token that was pasted into the form.
func (d *Dashboard) signIn(c echo.Context) error {
	r := c.Request()
	if err := d.origins.Check(r); err != nil {
		return forged("this request comes from another site")
	}
	if err := r.ParseForm(); err != nil {
		return invalid("the form cannot be read")
	}
	p, ok := d.auth.Authenticate(strings.TrimSpace(r.PostForm.Get("token")))
	switch {
	case !ok:
		d.refused(c, "a token that is not known")
		return d.refuse(c, http.StatusUnauthorized, "This token is not known, or its time has passed.")
	case p.Role != control.RoleOperator && p.Role != control.RoleViewer:
		d.refused(c, "an agent's token")
		return d.refuse(c, http.StatusForbidden, "This is an agent's token. Agents connect to the websocket; this page takes an operator's or a viewer's token.")
	}
	return d.open(c, p.Role, p.Name, "token", nextAddress(r.PostForm.Get("next")))
}

// open begins a session and goes on to the page.
func (d *Dashboard) open(c echo.Context, role control.Role, name, by, next string) error {
	ctx := c.Request().Context()
	token, err := d.sessions.CreateSession(ctx, role, name, d.opts.SessionTTL)
	if err != nil {
		return err
	}
	if err := d.plane.Record(ctx, control.Event{
		Kind: control.OperatorLogin, Actor: "operator:" + name, Reason: "signed in by " + by,
		Data: map[string]any{"role": string(role), "address": c.RealIP()},
	}); err != nil {
		return err
	}
	c.SetCookie(sessionCookie(c, token, d.opts.SessionTTL))
	return c.Redirect(http.StatusSeeOther, next)
}

// refused tells operators of an attempt that failed. The attempt stays refused
// whether or not that can be written.
func (d *Dashboard) refused(c echo.Context, reason string) {
	err := d.plane.Record(c.Request().Context(), control.Event{
		Kind: control.OperatorRefused, Actor: control.ActorServer, Reason: reason,
		Data: map[string]any{"address": c.RealIP()},
	})
	if err != nil {
		d.log.Warn("refused sign-in not recorded", "err", err)
	}
}

func (d *Dashboard) refuse(c echo.Context, status int, message string) error {
	return render(c, status, templates.SignIn(d.frame(c, "Sign in"), templates.SignInForm{
		Error: message, Next: nextAddress(c.FormValue("next")),
	}))
}

// signOut ends the session here and in the store.
func (d *Dashboard) signOut(c echo.Context) error {
	if id, ok := who(c); ok && id.cookie {
		if err := d.checkForgery(c.Request(), id); err != nil {
			return err
		}
		err := d.sessions.DeleteToken(c.Request().Context(), id.Token)
		if err != nil && control.AsError(err).Kind != control.KindNotFound { // not found: another tab was quicker
			return err
		}
	}
	c.SetCookie(sessionCookie(c, "", 0))
	return c.Redirect(http.StatusSeeOther, "/sign-in")
}

// signInAddress is the form's address, with the way back to what was asked for.
func signInAddress(r *http.Request) string {
	next := nextAddress(r.URL.RequestURI())
	if next == "/" {
		return "/sign-in"
	}
	return "/sign-in?next=" + url.QueryEscape(next)
}

// nextAddress lets through an address of our own pages, and nothing that leads
// elsewhere.
func nextAddress(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || strings.ContainsAny(s, "\\\r\n\t") {
		return "/"
	}
	if u.Path == "/" || strings.HasPrefix(u.Path, "/envs/") {
		return u.RequestURI()
	}
	return "/"
}
