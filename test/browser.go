package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"sandkeeper/test/need"
)

// Tab is a tab of a real browser, with a profile of its own. Whatever its
// console complains of fails the test, unless it was forgiven.
type Tab struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex // guards the fields below
	requests []*url.URL
	console  []string // errors, warnings, exceptions, violations of the page's policy
	forgiven []string
}

// chromium is one browser for all tests of a process.
var chromium struct {
	sync.Mutex
	ctx context.Context // nil: it does not run yet
}

func launchChromium(path string) (context.Context, error) {
	chromium.Lock()
	defer chromium.Unlock()
	if chromium.ctx != nil {
		return chromium.ctx, nil
	}
	alloc, _ := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true), chromedp.WSURLReadTimeout(patience))...)
	ctx, _ := chromedp.NewContext(alloc)
	if err := chromedp.Do(ctx); err != nil {
		return nil, fmt.Errorf("start the browser: %w", err)
	}
	chromium.ctx = ctx
	return ctx, nil
}

func closeChromium() error {
	if chromium.ctx == nil {
		return nil
	}
	return chromedp.Cancel(chromium.ctx)
}

// Browser returns the path of Chromium.
func Browser(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	need.Missing(t, "browser", "there is no chromium on this machine")
	return ""
}

// OpenTab opens an empty tab, or ends the test where there is no browser.
func OpenTab(t testing.TB) *Tab {
	t.Helper()
	browser, err := launchChromium(Browser(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	tab := &Tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			tab.report()
		}
		closeTab()
		for _, c := range tab.Complaints() {
			t.Errorf("the browser complains: %s", c)
		}
	})
	if err := chromedp.Listen(ctx, tab.hear); err != nil {
		t.Fatal(err)
	}
	tab.Size(1500, 900)
	// Every tab believes itself in front, as each would be in a window of its own.
	Command(tab, func(ctx context.Context) error {
		_, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
		return err
	})
	return tab
}

// Address finds a free port for a server that has to come back where it was:
// below those that the system gives out, so that nobody gets it meanwhile.
func Address(t testing.TB) string {
	t.Helper()
	for port := 24000; port < 32000; port++ {
		taken.Lock()
		mine := !taken.ports[port]
		taken.ports[port] = true
		taken.Unlock()
		if !mine {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("there is no free port")
	return ""
}

var taken = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

func (tab *Tab) hear(ev any) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	switch ev := ev.(type) {
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(ev.Request.URL); err == nil {
			tab.requests = append(tab.requests, u)
		}
	case *runtime.EventConsoleAPICalled:
		if ev.Type == "error" || ev.Type == "warning" || ev.Type == "assert" {
			var words []string
			for _, arg := range ev.Args {
				words = append(words, string(arg.Value)+arg.Description)
			}
			tab.console = append(tab.console, strings.Join(words, " "))
		}
	case *runtime.EventExceptionThrown:
		text := ev.ExceptionDetails.Text
		if x := ev.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
		tab.console = append(tab.console, text)
	case *log.EventEntryAdded:
		if strings.Contains(ev.Entry.Text, "ERR_NETWORK_CHANGED") {
			// Chromium breaks requests, to loopback too, when an interface comes or
			// goes: those of containers do. The page is to get over it.
			tab.forgiven = append(tab.forgiven, "ERR_NETWORK_CHANGED", "Failed to fetch")
		}
		if ev.Entry.Level == "error" || ev.Entry.Level == "warning" {
			tab.console = append(tab.console, ev.Entry.Text+" "+ev.Entry.URL)
		}
	}
}

// Forgive has no complaint fail the test that contains one of these texts.
func (tab *Tab) Forgive(texts ...string) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	tab.forgiven = append(tab.forgiven, texts...)
}

// Complaints are those of the console that were not forgiven.
func (tab *Tab) Complaints() (list []string) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
next:
	for _, c := range tab.console {
		for _, f := range tab.forgiven {
			if strings.Contains(c, f) {
				continue next
			}
		}
		list = append(list, c)
	}
	return list
}

// Requests counts the requests of a path so far.
func (tab *Tab) Requests(path string) (n int) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	for _, u := range tab.requests {
		if u.Path == path {
			n++
		}
	}
	return n
}

// Command runs what may need more than a moment of the browser; it must succeed.
func Command(tab *Tab, do func(context.Context) error) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	if err := do(ctx); err != nil {
		tab.t.Fatal(err)
	}
}

// Do runs steps, which must succeed.
func (tab *Tab) Do(steps ...chromedp.Action[chromedp.Void]) {
	tab.t.Helper()
	Command(tab, func(ctx context.Context) error { return chromedp.Do(ctx, steps...) })
}

// Open goes to an address, as one typed by hand, and waits until it is loaded.
// A form's answer that comes in meanwhile can call it off: then it goes again.
func (tab *Tab) Open(address string) {
	tab.t.Helper()
	Command(tab, func(ctx context.Context) error {
		for {
			err := chromedp.Do(ctx, chromedp.Navigate(address))
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "net::ERR_ABORTED") {
				return err
			}
		}
	})
}

// Size sets the size of the viewport.
func (tab *Tab) Size(width, height int64) {
	tab.t.Helper()
	tab.Do(chromedp.EmulateViewport(width, height))
}

// Appear emulates what a person prefers: "prefers-color-scheme", "dark".
func (tab *Tab) Appear(feature, value string) {
	tab.t.Helper()
	Command(tab, func(ctx context.Context) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: feature, Value: value}},
		})
		return err
	})
}

// Before runs a script in every page from now on, ahead of the page's own.
func (tab *Tab) Before(script string) {
	tab.t.Helper()
	Command(tab, func(ctx context.Context) error {
		_, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	})
}

// Hold keeps requests of a pattern waiting until an expression is true in the page.
func (tab *Tab) Hold(pattern, until string) {
	tab.t.Helper()
	err := chromedp.Listen(tab.ctx, func(ev any) {
		paused, ok := ev.(*fetch.EventRequestPaused)
		if !ok {
			return
		}
		go func() { // the browser's events are told one after another
			for tab.ctx.Err() == nil {
				if done, err := read[bool](tab, "!!("+until+")"); err == nil && done {
					break
				}
			}
			chromedp.Call(tab.ctx, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: paused.RequestID})
		}()
	})
	if err != nil {
		tab.t.Fatal(err)
	}
	Command(tab, func(ctx context.Context) error {
		_, err := chromedp.Call(ctx, fetch.Enable, fetch.EnableParams{Patterns: []*fetch.RequestPattern{{URLPattern: pattern}}})
		return err
	})
}

// WithoutScripts turns the scripts of every page off, from the next one on.
func (tab *Tab) WithoutScripts() {
	tab.t.Helper()
	Command(tab, func(ctx context.Context) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		return err
	})
}

// Read evaluates an expression in the page. It may be read before a page has
// gone, or while it is coming: Wait is for what comes.
func Read[T any](tab *Tab, expression string) (v T) {
	tab.t.Helper()
	v, err := read[T](tab, expression)
	if err != nil {
		tab.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

func read[T any](tab *Tab, expression string) (T, error) {
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression))
}

// Wait asks until an expression is true in the page, which may be another page by then.
func (tab *Tab) Wait(what, expression string) {
	tab.t.Helper()
	var last error
	defer func() {
		if tab.t.Failed() && last != nil {
			tab.t.Logf("%s: %v", expression, last)
		}
	}()
	Eventually(tab.t, what, func() bool {
		var ok bool
		ok, last = read[bool](tab, "!!("+expression+")")
		return ok && last == nil
	})
}

// Sees waits until the element's text has these words.
func (tab *Tab) Sees(selector, words string) {
	tab.t.Helper()
	tab.Wait(fmt.Sprintf("%s says %q", selector, words),
		"document.querySelector("+JS(selector)+")?.innerText.includes("+JS(words)+")")
}

// Click moves the pointer to the middle of an element and presses its button.
// It waits until the element is there, enabled, and not covered. element is an expression.
func (tab *Tab) Click(element string) {
	tab.t.Helper()
	x, y := tab.find(element)
	tab.Do(chromedp.MouseClickXY(x, y))
}

// Hover moves the pointer to the middle of an element.
func (tab *Tab) Hover(element string) {
	tab.t.Helper()
	x, y := tab.find(element)
	tab.Do(chromedp.MouseEvent("mouseMoved", x, y))
}

// find waits until an element can be reached by the pointer, and says where.
func (tab *Tab) find(element string) (x, y float64) {
	tab.t.Helper()
	Eventually(tab.t, element+" can be clicked", func() bool {
		at, err := read[[]float64](tab, `(() => {
			const el = `+element+`;
			if (!el || el.disabled) return [];
			el.scrollIntoView({block: 'nearest', behavior: 'instant'});
			const r = el.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
			return el.contains(document.elementFromPoint(x, y)) ? [x, y] : [];
		})()`)
		if err != nil || len(at) != 2 {
			return false
		}
		x, y = at[0], at[1]
		return true
	})
	return x, y
}

// Type writes into the element that has the focus.
func (tab *Tab) Type(keys string) {
	tab.t.Helper()
	tab.Do(chromedp.KeyEvent(keys))
}

// Picture is what the viewport shows, as PNG.
func (tab *Tab) Picture() (png []byte) {
	tab.t.Helper()
	Command(tab, func(ctx context.Context) (err error) {
		png, err = chromedp.Run(ctx, chromedp.CaptureScreenshot())
		return err
	})
	return png
}

// SignIn opens the page by the server's own link.
func (tab *Tab) SignIn(s *Server) {
	tab.t.Helper()
	tab.Open(s.SignInLink)
	tab.Wait("the page is live", IsLive)
}

// IsLive is true in a page that is kept up to date.
const IsLive = "document.querySelector('#live[data-live=up]')"

// Element is the expression for a selector's first element.
func Element(selector string) string { return "document.querySelector(" + JS(selector) + ")" }

// Row is the selector of an environment's row.
func Row(env string) string { return "#rows > #env-" + env }

// Button is the expression for the button of that name within what a selector finds.
func Button(within, name string) string {
	return "[..." + "document.querySelectorAll(" + JS(within) + ")].flatMap(e => [...e.querySelectorAll('button')])" +
		".find(b => b.innerText.trim() === " + JS(name) + ")"
}

// JS writes a text as a literal.
func JS(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string is always written
	}
	return string(b)
}

// report tells what the page shows in the end.
func (tab *Tab) report() {
	ctx, cancel := context.WithTimeout(tab.ctx, 5*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("location.href + '\\n' + document.body.innerText"))
	if err != nil {
		err = errors.Join(errors.New("the page is not read"), err)
		text = err.Error()
	}
	tab.t.Logf("the page shows:\n%s", text)
}
