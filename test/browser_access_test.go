package test_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// paste signs in by the form.
func paste(tab *test.Tab, s *test.Server, token string) {
	tab.Open(s.URL + "/sign-in")
	tab.Click(test.Element("#token"))
	tab.Type(token + "\r")
}

// The printed link signs in once, and leaves nothing of itself.
func TestSignInLinkWorksOnce(t *testing.T) { test.Each(t, signInLinkWorksOnce) }

func signInLinkWorksOnce(t *testing.T, on test.On) {
	s := on.Start(t)
	tab := test.OpenTab(t)
	tab.SignIn(s)
	if at := test.Read[string](tab, "location.href"); at != s.URL+"/" {
		t.Errorf("the link leads to %s", at)
	}
	var past []*page.NavigationEntry
	test.Command(tab, func(ctx context.Context) error {
		h, err := chromedp.Run(ctx, chromedp.NavigationEntries())
		past = h.Entries
		return err
	})
	for _, entry := range past {
		if strings.Contains(entry.URL, "code") {
			t.Errorf("the browser's history has %s", entry.URL)
		}
	}
	if cookies := test.Read[string](tab, "document.cookie"); cookies != "" {
		t.Errorf("the page's scripts can read %s", cookies)
	}

	second := test.OpenTab(t)
	second.Forgive("status of 401")
	second.Open(s.SignInLink)
	second.Sees(".problem", "This link was used before")
	second.Open(s.URL)
	second.Wait("it is not signed in", test.Element("#token"))
	refused := s.Events().Wait(t, "the second use is told", test.Is(control.OperatorRefused, ""))
	tab.Wait("the first one's feed says so", test.Element("#feed > [data-kind='"+string(refused.Kind)+"']"))

	// A sign-in outlives a reload; what is signed out is out.
	tab.Do(chromedp.Reload())
	tab.Wait("it is signed in still", test.IsLive)
	tab.Click(test.Button(".top", "Sign out"))
	tab.Wait("the form is there", test.Element("#token"))
	tab.Open(s.URL)
	tab.Wait("the form is there again", test.Element("#token"))
}

// A token that is pasted signs in as what it is.
func TestSignInByToken(t *testing.T) { test.Each(t, signInByToken) }

func signInByToken(t *testing.T, on test.On) {
	s := on.Start(t)
	env := s.Wire(t).Acquire(t, "looked at", test.Params{"persistent": true}).Env.ID
	tab := test.OpenTab(t)
	tab.Forgive("status of 401", "status of 403")

	paste(tab, s, "no such token")
	tab.Sees(".problem", "not known")
	paste(tab, s, s.Token(t, "agent"))
	tab.Sees(".problem", "an agent's token")
	if status := test.Read[int](tab, "performance.getEntriesByType('navigation')[0].responseStatus"); status != http.StatusForbidden {
		t.Errorf("an agent's token is answered with %d", status)
	}

	// A viewer sees everything, live, and no button.
	paste(tab, s, s.CLI(t, "token", "create", "--role", "viewer", "--name", "grace"))
	tab.Wait("the viewer's page is live", test.IsLive)
	tab.Sees(".top .user", "grace")
	tab.Sees(test.Row(env), "turn 1 is open")
	buttons := "document.querySelectorAll('main form[method=post], main button:not(.filter button)').length"
	if n := test.Read[int](tab, buttons); n != 0 {
		t.Errorf("a viewer has %d buttons", n)
	}
	s.Act(t, env, "pin", nil)
	tab.Sees(test.Row(env), "pinned")
	if n := test.Read[int](tab, buttons); n != 0 {
		t.Errorf("a viewer has %d buttons in a row that changed", n)
	}
	tab.Open(s.URL + "/envs/" + env)
	tab.Sees("#env", "What holds it")
	if n := test.Read[int](tab, buttons); n != 0 {
		t.Errorf("a viewer has %d buttons on an environment's page", n)
	}
	tab.Open(s.URL + "/envs/" + env + "/kill")
	tab.Sees("main", "a viewer may look at everything and change nothing")

	// Who comes back for a page gets there by way of the form.
	tab.Click(test.Button(".top", "Sign out"))
	tab.Wait("the form is there", test.Element("#token"))
	tab.Open(s.URL + "/envs/" + env)
	tab.Click(test.Element("#token"))
	tab.Type(s.Token(t, "operator") + "\r")
	tab.Sees("#env-title", "looked at")
	tab.Wait("an operator has buttons", test.Button("#env", "Unpin"))
}

// Names are somebody else's text: they are shown, and do nothing.
func TestNamesAreShownAsText(t *testing.T) { test.Each(t, namesAreShownAsText) }

func namesAreShownAsText(t *testing.T, on test.On) {
	s := on.Start(t)
	const (
		script = `<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">`
		turned = "\u202eevil \u05e9\u05dc\u05d5\u05dd"
		smiles = "👩‍🚀 & co. 'quoted' \"twice\""
	)
	w := s.WireAs(t, test.Identity{Agent: script})
	env := w.Acquire(t, script, test.Params{"name": turned, "persistent": true, "labels": test.Params{"l": script}}).Env.ID
	other := w.Acquire(t, smiles, test.Params{"persistent": true}).Env.ID
	s.Act(t, env, "pin", map[string]string{"reason": script})
	run := w.Go(t, "exec.run", test.Params{"env": env, "command": "exec sleep 1000 # " + script})
	tab := test.OpenTab(t)
	tab.SignIn(s)
	tab.Sees(test.Row(env), "a command runs")

	row := test.Element(test.Row(env))
	for name, c := range map[string]struct{ expression, want string }{
		"task":       {row + ".querySelector('.c-env a bdi').textContent", script},
		"name":       {row + ".querySelector('.name bdi').textContent", turned},
		"pin":        {row + ".querySelector('.c-kept .sub bdi').textContent", script},
		"agent":      {row + ".querySelector('.c-active .sub bdi').textContent", "agent:" + script},
		"label":      {row + ".querySelector('form').ariaLabel", "Actions on \u2068" + script + "\u2069 \u2068" + turned + "\u2069"},
		"smiles":     {test.Element(test.Row(other)) + ".querySelector('.c-env a bdi').textContent", smiles},
		"feed's":     {"[...document.querySelectorAll('#feed .entry bdi')].find(e => e.textContent.includes('pwned')).textContent", "\u2068" + script + "\u2069 / \u2068" + turned + "\u2069"},
		"direction":  {"getComputedStyle(" + row + ".querySelector('.name bdi')).unicodeBidi", "isolate"},
		"pictures":   {"String(document.images.length)", "0"},
		"whole page": {"getComputedStyle(" + row + ").direction", "ltr"},
	} {
		if got := test.Read[string](tab, c.expression); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
	tab.Click(test.Button(test.Row(env), "Kill"))
	tab.Sees("#dialog", script)
	tab.Sees("#dialog .execs", "exec sleep 1000 # "+script)
	tab.Type("\u001b")
	tab.Open(s.URL + "/envs/" + env)
	tab.Sees("#env-title", script)
	tab.Sees("#env .facts", script)
	tab.Sees("#feed", script)
	if test.Read[bool](tab, "'pwned' in window") {
		t.Error("a name was run as a script")
	}
	s.Act(t, env, "kill", nil)
	if _, err := run.Wait(t); err == nil {
		t.Error("the command outlived the kill")
	}
}

// The page's policy runs no script that the server did not serve. It also
// shows that a breach would be heard.
func TestPolicyRunsNothingElse(t *testing.T) { test.Each(t, policyRunsNothingElse) }

func policyRunsNothingElse(t *testing.T, on test.On) {
	s := on.Start(t)
	tab := test.OpenTab(t)
	tab.SignIn(s)
	if c := tab.Complaints(); len(c) > 0 {
		t.Errorf("the page as it is: %q", c)
	}
	test.Read[bool](tab, `(() => {
		document.body.insertAdjacentHTML('beforeend', '<img src="/none" onerror="window.pwned = 1">');
		const s = document.createElement('script');
		s.textContent = 'window.pwned = 1';
		document.body.append(s);
		return true;
	})()`)
	tab.Forgive("status of 404")
	test.Eventually(t, "both are refused, and complained of", func() bool { return len(tab.Complaints()) == 2 })
	if test.Read[bool](tab, "'pwned' in window") {
		t.Error("a script in the page was run")
	}
	for _, c := range tab.Complaints() {
		if !strings.Contains(c, "Content Security Policy") {
			t.Errorf("the browser complains: %s", c)
		}
	}
	tab.Forgive("Content Security Policy")
}
