package dashboard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"sandkeeper/internal/control"
)

// maxBody bounds every body that operators send, in bytes.
const maxBody = 64 << 10

// Where a request's context keeps who asks.
const identityKey = "sandkeeper.identity"

// identity is who a request comes from, and how that was told.
type identity struct {
	control.Principal
	token  string // the secret itself; it never leaves this struct
	cookie bool   // by a browser's session, so that forgery has to be ruled out
}

// actor is the name by which events know an operator.
func (i identity) actor() string { return "operator:" + i.Name }

// operates reports whether it may change things.
func (i identity) operates() bool { return i.Role == control.RoleOperator }

// formToken proves that a form was made by us for this very session: another
// site can neither read nor compute it. It needs nothing kept.
func (i identity) formToken() string {
	if !i.cookie {
		return ""
	}
	mac := hmac.New(sha256.New, []byte(i.token))
	mac.Write([]byte("sandkeeper form token"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// who returns who asks; ok is false for nobody.
func who(c echo.Context) (id identity, ok bool) {
	id, ok = c.Get(identityKey).(identity)
	return id, ok
}

// identify is identifyAny with a bound on the body.
func (d *Dashboard) identify(next echo.HandlerFunc) echo.HandlerFunc {
	next = d.identifyAny(next)
	return func(c echo.Context) error {
		r := c.Request()
		r.Body = http.MaxBytesReader(c.Response(), r.Body, maxBody)
		return next(c)
	}
}

// identifyAny finds out who asks, and lets nobody pass for somebody: a bearer
// token that is wrong is an error even where a session would do.
func (d *Dashboard) identifyAny(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		c.Response().Header().Add("Vary", "Authorization, Cookie")
		if header := r.Header.Get("Authorization"); header != "" {
			scheme, token, _ := strings.Cut(header, " ")
			if !strings.EqualFold(scheme, "Bearer") {
				return unauthorized("the Authorization header must be: Bearer TOKEN")
			}
			p, ok := d.auth.Authenticate(strings.TrimSpace(token))
			if !ok {
				return unauthorized("this token is not known, or its time has passed")
			}
			c.Set(identityKey, identity{Principal: p, token: token})
			return next(c)
		}
		if cookie, err := r.Cookie(cookieName(r)); err == nil && cookie.Value != "" {
			if p, ok := d.auth.Authenticate(cookie.Value); ok {
				c.Set(identityKey, identity{Principal: p, token: cookie.Value, cookie: true})
			}
		}
		return next(c)
	}
}

// admit lets operators through, viewers to what only looks, and nobody else.
func (d *Dashboard) admit(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id, ok := who(c)
		if !ok {
			return unauthorized("an operator's or a viewer's token is needed here")
		}
		looks := c.Request().Method == http.MethodGet || c.Request().Method == http.MethodHead
		switch {
		case id.Role != control.RoleOperator && id.Role != control.RoleViewer:
			return &httpError{status: http.StatusForbidden, kind: string(control.KindForbidden),
				message: "this is an agent's token: agents connect to the websocket at /api/v1/agent; these pages need an operator's or a viewer's token"}
		case !looks && !id.operates():
			return &httpError{status: http.StatusForbidden, kind: string(control.KindForbidden),
				message: "a viewer may look at everything and change nothing: this needs an operator's token"}
		case !looks && id.cookie:
			if err := d.checkForgery(c.Request(), id); err != nil {
				return err
			}
		}
		return next(c)
	}
}

// checkForgery rules out that another site made the browser ask: its own word
// (Sec-Fetch-Site, Origin) must not say so, and unless that word is
// "same-origin", the form's token must come along.
func (d *Dashboard) checkForgery(r *http.Request, id identity) error {
	if err := d.origins.Check(r); err != nil {
		return forged("this request comes from another site")
	}
	if r.Header.Get("Sec-Fetch-Site") == "same-origin" {
		return nil
	}
	token := r.Header.Get("X-CSRF-Token")
	if token == "" && r.Method == http.MethodPost && strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
		token = r.PostFormValue("csrf")
	}
	if !hmac.Equal([]byte(token), []byte(id.formToken())) {
		return forged("the form's token is missing or not this session's: load the page again")
	}
	return nil
}

func forged(message string) error {
	return &httpError{status: http.StatusForbidden, kind: string(control.KindForbidden), message: message}
}

// cookieName is the session cookie's name. Cookies of one host are shared by
// all its ports, so two servers on one machine would sign each other's
// operators out under one name.
func cookieName(r *http.Request) string {
	const name = "sandkeeper_session"
	if _, port, err := net.SplitHostPort(r.Host); err == nil && port != "" {
		return name + "_" + port
	}
	return name
}

// sessionCookie carries a session's token, or takes it back where token is "".
func sessionCookie(c echo.Context, token string, ttl time.Duration) *http.Cookie {
	cookie := &http.Cookie{
		Name: cookieName(c.Request()), Value: token, Path: "/",
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: c.Scheme() == "https",
		MaxAge: int(ttl.Seconds()),
	}
	if token == "" {
		cookie.MaxAge = -1
	}
	return cookie
}
