package test_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

// unloaded marks a page, so that one that was loaded again is told from it.
const unloaded = "window.neverLoadedAgain = true"

// stillTheSame fails the test where the page was loaded again, or asked for more
// than one stream beyond those that it lost.
func stillTheSame(t *testing.T, tab *test.Tab, streams int) {
	t.Helper()
	if !test.Read[bool](tab, "window.neverLoadedAgain === true") {
		t.Error("the page was loaded again")
	}
	if n := tab.Requests("/stream"); n != streams {
		t.Errorf("the page asked for its stream %d times, not %d", n, streams)
	}
}

// feedTells waits until the page's feed has an event on top, and returns the
// sequence numbers in it, from the top.
func feedTells(t *testing.T, tab *test.Tab, upTo uint64) []uint64 {
	t.Helper()
	tab.Wait("the feed has the last event", fmt.Sprintf("document.querySelector('#feed > #event-%d')", upTo))
	return test.Read[[]uint64](tab, "[...document.querySelectorAll('#feed > .entry')].map(e => Number(e.id.slice('event-'.length)))")
}

// eachOnce fails the test unless the feed has every event of the log once, newest first.
func eachOnce(t *testing.T, s *test.Server, tab *test.Tab) {
	t.Helper()
	all := s.Events().All()
	var want []uint64
	for _, ev := range slices.Backward(all) {
		want = append(want, ev.Seq)
	}
	got := feedTells(t, tab, want[0])
	for len(got) > 0 && got[0] > want[0] {
		got = got[1:] // what happened since
	}
	if !slices.Equal(got, want) {
		t.Errorf("the feed has the events %v, not %v", got, want)
	}
}

// The page follows an agent's turn, and the reaper after it, without a reload.
func TestPageFollowsAgentAndReaper(t *testing.T) { test.Each(t, pageFollowsAgentAndReaper) }

func pageFollowsAgentAndReaper(t *testing.T, on test.On) {
	s := on.Start(t)
	tab := test.OpenTab(t)
	tab.SignIn(s)
	tab.Sees("#empty", "No environments yet")
	test.Read[bool](tab, unloaded)

	w := s.Wire(t)
	kept := w.Acquire(t, "report", test.Params{"persistent": true}).Env.ID
	brief := w.Acquire(t, "report", test.Params{"name": "brief", "persistent": true, "lifetime_seconds": 2}).Env.ID
	gone := w.Acquire(t, "report", test.Params{"name": "scratch"}).Env.ID
	tab.Sees(test.Row(kept), "turn 1 is open")
	tab.Sees(test.Row(kept), "persistent")
	tab.Sees(test.Row(gone), "ephemeral")
	tab.Wait("the empty table's words are gone", "document.querySelector('#empty').children.length === 0")

	// A command holds it while it runs, and is seen to.
	run := w.Go(t, "exec.run", test.Params{"env": kept, "command": "until [ -e go ]; do sleep 0.05; done"})
	tab.Sees(test.Row(kept), "a command runs")
	w.WriteFile(t, kept, "go", "")
	run.Into(t, nil)
	tab.Wait("no command runs", "!"+test.Element(test.Row(kept))+".innerText.includes('a command runs')")

	// The turn ends: one goes, the others count down to the deadlines that they were given.
	deadlines := map[string]*control.Time{}
	for _, d := range w.EndTurn(t, "report").Decisions {
		deadlines[d.Env] = d.Deadline
	}
	tab.Wait("the ephemeral one's row has gone", "!document.getElementById('env-"+gone+"')")
	countdown := test.Row(kept) + " [data-left='" + strconv.FormatInt(deadlines[kept].UnixMilli(), 10) + "']"
	tab.Wait("the countdown is to the deadline", test.Element(countdown))

	// The reaper comes, and is seen to.
	tab.Wait("the brief one is dormant", test.Element(test.Row(brief)+"[data-state=dormant]"))
	stopped := s.Events().Wait(t, "the reaper stopped it", test.Is(control.ReaperStopped, brief))
	if stopped.Time.Before(deadlines[brief].Time) {
		t.Errorf("it was reaped at %v, before its deadline %v", stopped.Time, deadlines[brief])
	}
	tab.Sees(fmt.Sprintf("#feed > #event-%d.by-reaper", stopped.Seq), "The reaper stopped \u2068report\u2069 / \u2068brief\u2069")

	// The other ticks by itself. Looking on, here and elsewhere, moves no deadline.
	seconds := "(([m, s]) => m * 60 + Number(s))(" + test.Element(countdown) + ".innerText.split(':'))"
	first := test.Read[int](tab, seconds)
	other := test.OpenTab(t)
	other.Open(s.URL + "/sign-in?next=" + "/envs/" + kept)
	other.Click(test.Element("#token"))
	other.Type(s.Token(t, "operator") + "\r")
	other.Wait("its own page counts to the same", test.Element(strings.Replace(countdown, test.Row(kept), "#env .now", 1)))
	tab.Wait("the countdown has ticked twice", fmt.Sprintf("%s <= %d", seconds, first-2))
	if v := s.Env(t, kept); v.Deadline == nil || !v.Deadline.Equal(deadlines[kept].Time) {
		t.Errorf("after a look at it the deadline is %v, not %v", v.Deadline, deadlines[kept])
	}

	// The agent comes back.
	w.Acquire(t, "report", test.Params{"name": "brief"})
	tab.Sees(test.Row(brief)+"[data-state=ready]", "run 2")
	w.Call(t, "env.release", test.Params{"env": kept}, nil)
	tab.Wait("what its agent let go is dormant", test.Element(test.Row(kept)+"[data-state=dormant]"))
	other.Wait("its own page says so", test.Element("#env .state.is-dormant"))

	eachOnce(t, s, tab)
	stillTheSame(t, tab, 1)
}

// After a crash of the server the page says that it is lost, and catches up by itself.
func TestPageCatchesUpAfterACrash(t *testing.T) { test.Each(t, pageCatchesUpAfterACrash) }

func pageCatchesUpAfterACrash(t *testing.T, on test.On) {
	s := on.Start(t, "--listen", test.Address(t))
	w := s.Wire(t)
	lost := w.Acquire(t, "dies meanwhile", test.Params{"persistent": true}).Env.ID
	w.EndTurn(t, "dies meanwhile")
	tab := test.OpenTab(t)
	tab.SignIn(s)
	tab.Wait("its row is there", test.Element(test.Row(lost)+"[data-state=ready]"))
	test.Read[bool](tab, unloaded)
	test.Read[bool](tab, `(() => {
		window.seen = {};
		const once = (name, when) => { if (when && !(name in seen)) seen[name] = performance.now(); };
		new MutationObserver(() => {
			once('cut', document.querySelector('#live').dataset.live !== 'up');
			once('banner', !document.querySelector('#lost').hidden);
		}).observe(document.body, {subtree: true, attributes: true, childList: true});
		return true;
	})()`)

	tab.Forgive("net::ERR_", "htmx:sse:error")
	s.Kill(t)
	tab.Wait("the banner is up", "document.querySelector('#lost').checkVisibility()")
	if ms := test.Read[float64](tab, "seen.banner - seen.cut"); ms < 2000 || ms > 30_000 { // after 3 s; a busy machine notes both late
		t.Errorf("the banner came %.0f ms after the connection was lost", ms)
	}
	tab.Sees("#lost", "Connection lost")
	c, ok := s.Container(t, lost)
	if !ok {
		t.Fatal("its container has gone with the server")
	}
	s.KillBehind(t, c)

	s.Restart(t)
	w = s.Wire(t)
	born := w.Acquire(t, "born after it", nil).Env.ID
	tab.Wait("the banner has gone", "!document.querySelector('#lost').checkVisibility()")
	tab.Wait("the page is live", test.IsLive)
	tab.Wait("what died is told", test.Element(test.Row(lost)+"[data-state=dormant]"))
	tab.Wait("what is new is there", test.Element(test.Row(born)+"[data-state=ready]"))
	s.Events().Wait(t, "it was lost", test.Is(control.EnvLost, lost))
	w.EndTurn(t, "born after it")
	s.Events().Wait(t, "it is removed", test.Is(control.EnvRemoved, born))
	eachOnce(t, s, tab)
	if !test.Read[bool](tab, "window.neverLoadedAgain === true") {
		t.Error("the page was loaded again")
	}
}

// Rows do not move under the pointer: what is new waits, and says so.
func TestRowsWaitForThePointer(t *testing.T) { test.Each(t, rowsWaitForThePointer) }

func rowsWaitForThePointer(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	first := w.Acquire(t, "first", test.Params{"persistent": true}).Env.ID
	tab := test.OpenTab(t)
	tab.SignIn(s)
	tab.Hover(test.Element(test.Row(first) + " .c-kept"))
	moving := "document.querySelector('#table').dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))"
	test.Read[bool](tab, "(() => { window.moving = setInterval(() => "+moving+", 100); return true })()")

	second := w.Acquire(t, "second", test.Params{"persistent": true}).Env.ID
	tab.Sees("#arrived", "1 new")
	if test.Read[bool](tab, "!!"+test.Element(test.Row(second))) {
		t.Error("the new row is in the table already")
	}
	tab.Click(test.Element("#arrived"))
	tab.Wait("the new row is on top", test.Element("#rows > tr:first-child")+"?.id === 'env-"+second+"'")
	tab.Wait("nothing waits", "!"+test.Element("#arrived")+".checkVisibility()")

	third := w.Acquire(t, "third", test.Params{"persistent": true}).Env.ID
	tab.Sees("#arrived", "1 new")
	test.Read[bool](tab, "(() => { clearInterval(moving); return true })()")
	tab.Wait("a pointer that rests lets it in", test.Element("#rows > tr:first-child")+"?.id === 'env-"+third+"'")
}

// Times on the page are the server's, whatever the browser's clock says.
func TestCountdownKeepsToTheServersClock(t *testing.T) { test.Each(t, countdownKeepsToTheServersClock) }

func countdownKeepsToTheServersClock(t *testing.T, on test.On) {
	s := on.Start(t, "--lifetime", "10m")
	w := s.Wire(t)
	env := w.Acquire(t, "clock", test.Params{"persistent": true}).Env.ID
	tab := test.OpenTab(t)
	tab.Before("const real = Date.now; Date.now = () => real() + 3_600_000") // an hour ahead
	tab.SignIn(s)
	w.EndTurn(t, "clock")
	tab.Wait("the countdown runs", test.Element(test.Row(env)+" [data-left]"))
	deadline := s.Env(t, env).Deadline
	var shown string
	tab.Wait("it has been drawn", "/^9:[0-5]\\d$/.test("+test.Element(test.Row(env)+" [data-left]")+".innerText)")
	before := time.Until(deadline.Time)
	shown = test.Read[string](tab, test.Element(test.Row(env)+" [data-left]")+".innerText")
	after := time.Until(deadline.Time)
	var m, sec int
	if _, err := fmt.Sscanf(shown, "%d:%d", &m, &sec); err != nil {
		t.Fatalf("the countdown shows %q", shown)
	}
	got := time.Duration(m)*time.Minute + time.Duration(sec)*time.Second
	if got > before+30*time.Second || got < after-30*time.Second { // a busy browser draws late, but not by an hour
		t.Errorf("the countdown shows %s between %v and %v", shown, before, after)
	}
}

// Scripts may come slowly, and one long after another.
func TestPageIsLiveHoweverSlowlyItsScriptsCome(t *testing.T) {
	test.Each(t, pageIsLiveHoweverSlowlyItsScriptsCome)
}

func pageIsLiveHoweverSlowlyItsScriptsCome(t *testing.T, on test.On) {
	s := on.Start(t)
	tab := test.OpenTab(t)
	// Held until htmx is there and what it put off has had its turn.
	tab.Hold("*/hx-sse*", "typeof htmx !== 'undefined' && (window.off ??= setTimeout(() => { window.had = true })) && window.had")
	tab.SignIn(s)
}
