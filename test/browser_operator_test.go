package test_test

import (
	"slices"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// isIn is an expression: an environment's row shows that state.
func isIn(env string, state control.State) string {
	return test.Element(test.Row(env) + "[data-state=" + string(state) + "]")
}

// noRow is an expression: an environment has no row.
func noRow(env string) string { return "!document.getElementById(" + test.JS("env-"+env) + ")" }

// left is what an environment has on the engine.
func left(t *testing.T, s *test.Server, env string) (found []string) {
	t.Helper()
	if c, ok := s.Container(t, env); ok {
		found = append(found, c.Name)
	}
	return append(found, volumesOf(t, s, env)...)
}

// Pin, unpin and stop are a button each, and the row tells what came of it.
func TestOperatorPinsAndStops(t *testing.T) { test.Each(t, operatorPinsAndStops) }

func operatorPinsAndStops(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "kept", test.Params{"persistent": true}).Env.ID
	brief := w.Acquire(t, "brief", nil).Env.ID
	row := test.Row(env)
	tab := test.OpenTab(t)
	tab.SignIn(s)
	test.Read[bool](tab, unloaded)

	tab.Click(test.Button(row, "Pin"))
	tab.Sees(row, "pinned")
	if v := s.Env(t, env); !v.Pinned || v.Pin.By != "operator:operator" {
		t.Errorf("its pin is %+v", v.Pin)
	}
	tab.Click(test.Button(test.Row(brief), "Pin"))
	tab.Sees(test.Row(brief), "pinned")
	w.EndTurn(t, "kept")
	for _, d := range w.EndTurn(t, "brief").Decisions {
		if d.Decision != "kept" || d.Reason != "pinned" {
			t.Errorf("the turn's end: %s, %s", d.Decision, d.Reason)
		}
	}
	tab.Wait("no turn holds it any more", "!"+test.Element(row)+".innerText.includes('turn 1 is open')")
	if test.Read[bool](tab, "!!"+test.Element(row+" [data-left]")) {
		t.Error("a countdown is shown of what is pinned")
	}

	tab.Click(test.Button(row, "Unpin"))
	tab.Wait("it counts down", test.Element(row+" [data-left]"))
	if v := s.Env(t, env); v.Pinned || v.Deadline == nil {
		t.Errorf("unpinned, it is %+v", v)
	}

	// What keeps no files cannot be stopped, and the button says why.
	stop := test.Button(test.Row(brief), "Stop")
	if !test.Read[bool](tab, stop+".disabled") || !strings.Contains(test.Read[string](tab, stop+".title"), "ephemeral") {
		t.Error("an ephemeral one's Stop is offered")
	}
	tab.Click(test.Button(row, "Stop"))
	tab.Wait("it is dormant", isIn(env, control.Dormant))
	stopped := s.Events().Wait(t, "an operator stopped it", test.Is(control.EnvDormant, env))
	if stopped.Actor != "operator:operator" {
		t.Errorf("it was stopped by %s", stopped.Actor)
	}
	eachOnce(t, s, tab)
	stillTheSame(t, tab, 1)
	for _, path := range []string{"/envs/" + env + "/pin", "/envs/" + env + "/unpin", "/envs/" + env + "/stop"} {
		if n := tab.Requests(path); n != 1 {
			t.Errorf("%s was asked for %d times", path, n)
		}
	}
}

// The environment's own page pins with a reason and an end, and keeps what is typed.
func TestOperatorPinsWithAReasonAndAnEnd(t *testing.T) { test.Each(t, operatorPinsWithAReasonAndAnEnd) }

func operatorPinsWithAReasonAndAnEnd(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "kept", test.Params{"persistent": true}).Env.ID
	tab := test.OpenTab(t)
	tab.SignIn(s)
	tab.Click(test.Element(test.Row(env) + " .c-env a"))
	tab.Click(test.Element("#pin summary"))
	tab.Click(test.Element("#reason"))
	tab.Type("for the post-")
	w.Run(t, env, "true")
	tab.Wait("the page has told of the command", "[...document.querySelectorAll('.execs code')].some(e => e.innerText === 'true')")
	tab.Type("mortem")
	test.Read[bool](tab, "(() => { document.querySelector('#until').value = '8'; return true })()")
	tab.Click(test.Button("#pin", "Pin with these"))
	tab.Sees("#env .now", "for the post-mortem")
	tab.Wait("the end is shown", `/7 h 59 min left|8 h 00 min left/.test(document.querySelector('#env .now').innerText)`)
	if v := s.Env(t, env); !v.Pinned || v.Pin.Reason != "for the post-mortem" || v.Pin.Until == nil {
		t.Errorf("its pin is %+v", v.Pin)
	}
}

// A kill is asked back: what is lost is named, and Cancel has the focus.
func TestOperatorKills(t *testing.T) { test.Each(t, operatorKills) }

func operatorKills(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	kept := w.Acquire(t, "kept", test.Params{"persistent": true}).Env.ID
	gone := w.Acquire(t, "gone", nil).Env.ID
	w.WriteFile(t, kept, "note", "still here")
	run := w.Go(t, "exec.run", test.Params{"env": kept, "argv": []string{"sleep", "1000"}})
	tab := test.OpenTab(t)
	tab.SignIn(s)
	test.Read[bool](tab, unloaded)
	tab.Sees(test.Row(kept), "a command runs")

	open := "document.querySelector('#dialog').open"
	ask := func(env string, named ...string) {
		t.Helper()
		tab.Click(test.Button(test.Row(env), "Kill"))
		tab.Wait("the dialog is open", open)
		for _, words := range named {
			tab.Sees("#dialog", words)
		}
		tab.Wait("Cancel has the focus", "document.activeElement.innerText === 'Cancel'")
	}
	closed := func() {
		t.Helper()
		tab.Wait("the dialog is closed", "!"+open)
	}

	// What has the focus does no harm, and neither does Escape.
	for _, key := range []string{"\r", "\u001b"} {
		ask(kept, "kept", "in the middle of turn 1", "One command ends at once", "sleep 1000", "files are kept")
		tab.Type(key)
		closed()
	}
	// A close that is told once it is open again takes nothing from it.
	ask(kept)
	test.Read[bool](tab, "document.querySelector('#dialog').dispatchEvent(new Event('close'))")
	tab.Sees("#dialog", "files are kept")
	tab.Type("\u001b")
	closed()
	if v := s.Env(t, kept); v.State != control.Ready || v.Generation != 1 {
		t.Errorf("after two kills that were taken back it is %s, in generation %d", v.State, v.Generation)
	}

	// A persistent one keeps its files.
	ask(kept)
	tab.Click(test.Button("#dialog", "Kill"))
	closed()
	tab.Wait("it is dormant", isIn(kept, control.Dormant))
	if e := run.Refused(t); e.Data.Kind != "generation_gone" {
		t.Errorf("the command that ran is answered with %v", e)
	}
	w.Acquire(t, "kept", nil)
	if got := w.ReadFile(t, kept, "note"); got != "still here" {
		t.Errorf("after a kill its file says %q", got)
	}

	// An ephemeral one goes with them; so does a persistent one where that is chosen.
	ask(gone, "all its files go with it")
	if test.Read[bool](tab, "!!"+test.Element("#dialog input[name=purge]")) {
		t.Error("a choice to purge is offered for what keeps no files")
	}
	tab.Click(test.Button("#dialog", "Kill"))
	closed()
	tab.Wait("the ephemeral one's row has gone", noRow(gone))

	tab.Wait("it is ready again", isIn(kept, control.Ready))
	ask(kept, "Also delete its files, for ever")
	tab.Click(test.Element("#dialog input[name=purge]"))
	tab.Click(test.Button("#dialog", "Kill"))
	closed()
	tab.Wait("the purged one's row has gone", noRow(kept))
	for _, env := range []string{kept, gone} {
		removed := s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, env))
		if removed.Actor != "operator:operator" {
			t.Errorf("it was removed by %s", removed.Actor)
		}
		if found := left(t, s, env); len(found) > 0 {
			t.Errorf("of what was killed there is still %v", found)
		}
	}
	tab.Sees("#empty", "No environments yet")
	eachOnce(t, s, tab)
	stillTheSame(t, tab, 1)
}

// Without scripts every button works: as a form, with a page to ask back.
func TestFormsWorkWithoutScripts(t *testing.T) { test.Each(t, formsWorkWithoutScripts) }

func formsWorkWithoutScripts(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	kept := w.Acquire(t, "kept", test.Params{"persistent": true}).Env.ID
	gone := w.Acquire(t, "gone", nil).Env.ID
	row := test.Row(kept)
	tab := test.OpenTab(t)
	tab.WithoutScripts()
	tab.Open(s.URL)
	tab.Click(test.Element("#token"))
	tab.Type(s.Token(t, "operator") + "\r")
	tab.Sees(row, "turn 1 is open")

	tab.Click(test.Button(row, "Pin"))
	tab.Sees(row, "pinned")
	tab.Click(test.Button(row, "Unpin"))
	tab.Wait("it is not pinned", test.Button(row, "Pin"))
	tab.Click(test.Element(row + " .c-env a"))
	tab.Click(test.Element("#pin summary"))
	tab.Click(test.Element("#reason"))
	tab.Type("without scripts")
	tab.Click(test.Button("#pin", "Pin with these"))
	tab.Sees(row, "without scripts")
	tab.Click(test.Button(row, "Unpin"))
	tab.Wait("it is not pinned", test.Button(row, "Pin"))

	tab.Click(test.Button(row, "Stop"))
	s.Events().Wait(t, "it is dormant", test.Is(control.EnvDormant, kept))
	tab.Open(s.URL)
	tab.Wait("it is dormant", isIn(kept, control.Dormant))

	tab.Click(test.Button(test.Row(gone), "Kill"))
	tab.Sees("main", "all its files go with it")
	tab.Wait("Cancel has the focus", "document.activeElement.innerText === 'Cancel'")
	tab.Click(test.Button("main", "Cancel"))
	tab.Sees("#env-title", "gone")
	tab.Click(test.Button("#env", "Kill"))
	tab.Sees("main", "Kill gone?")
	tab.Click(test.Button("main", "Kill"))
	s.Events().Wait(t, "the ephemeral one is removed", test.Is(control.EnvRemoved, gone))

	tab.Open(s.URL)
	tab.Click(test.Button(row, "Kill"))
	tab.Sees("main", "files are kept")
	tab.Click(test.Element("input[name=purge]"))
	tab.Click(test.Button("main", "Kill"))
	s.Events().Wait(t, "the purged one is removed", test.Is(control.EnvRemoved, kept))
	tab.Open(s.URL)
	tab.Sees("#empty", "No environments yet")
	for _, env := range []string{kept, gone} {
		if found := left(t, s, env); len(found) > 0 {
			t.Errorf("of what was killed there is still %v", found)
		}
	}
	if n := tab.Requests("/stream"); n != 0 {
		t.Errorf("without scripts the page asked for its stream %d times", n)
	}
	kinds := s.Events().Of(kept)
	if want := []control.EventKind{control.EnvPinned, control.EnvUnpinned, control.EnvPinned, control.EnvUnpinned, control.EnvStopping, control.EnvDormant}; !slices.Equal(slices.DeleteFunc(kinds, func(k control.EventKind) bool { return !slices.Contains(want, k) })[:len(want)], want) {
		t.Errorf("its events are %v", kinds)
	}
	tab.Click(test.Button(".top", "Sign out"))
	tab.Wait("the form is there", test.Element("#token"))
}
