package reaper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/internal/control/controltest"
)

// plane notes what it is asked, and when. Its clock is an hour ahead of ours.
type plane struct {
	began time.Time

	mu        sync.Mutex // guards the fields below
	shift     time.Duration
	log       []string
	inside    map[string]int
	nows      int // how often the clock was read
	due       func(ctx context.Context, key string) bool
	teardown  func(ctx context.Context, key string)
	housekeep func()
}

func newPlane() *plane {
	return &plane{began: time.Now(), shift: time.Hour, inside: map[string]int{}}
}

func (p *plane) Now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nows++
	return time.Now().Add(p.shift)
}

func (p *plane) in(d time.Duration) time.Time { return p.Now().Add(d) }

func (p *plane) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, fmt.Sprintf("%v ", time.Since(p.began))+fmt.Sprintf(format, args...))
}

// told returns the notes that have one of these words in them.
func (p *plane) told(words ...string) (lines []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.log {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, " "+w) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// alone notes whether a key is worked on twice at once.
func (p *plane) alone(key string) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inside[key]++; p.inside[key] > 1 {
		p.log = append(p.log, " twice "+key)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.inside[key]--
	}
}

func (p *plane) Due(ctx context.Context, key string) bool {
	defer p.alone(key)()
	p.note("due %s", key)
	return p.due != nil && p.due(ctx, key)
}

func (p *plane) Teardown(ctx context.Context, key string) {
	defer p.alone(key)()
	p.note("teardown %s", key)
	if p.teardown != nil {
		p.teardown(ctx, key)
	}
}

func (p *plane) Reconcile(_ context.Context, listed []control.SandboxStatus, began time.Time) error {
	p.note("reconcile %d began %v", len(listed), began.Sub(p.began))
	return nil
}

func (p *plane) Observe(_ context.Context, ev control.EngineEvent) (look bool) {
	p.note("observe %s %s", ev.Name, ev.Kind)
	return false
}

func (p *plane) EngineSeen(_ context.Context, info control.EngineInfo, err error) {
	switch {
	case err == nil:
		p.note("seen %s", info.Name)
	case errors.Is(err, control.ErrEngineUnavailable):
		p.note("seen down")
	default:
		p.note("seen %v", err)
	}
}

func (p *plane) Housekeep(context.Context) {
	p.note("housekeep")
	if p.housekeep != nil {
		p.housekeep()
	}
}

// start starts a reaper that is stopped at the end of the test.
func start(t *testing.T, r *Reaper, p *plane) {
	t.Helper()
	r.Start(t.Context(), p)
	t.Cleanup(r.Stop)
}

func newReaper(o Options) *Reaper {
	o.Engine = controltest.NewEngine()
	return New(o)
}

// after lets time pass, and all that is due in it happen.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func want(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestADeadlineIsAskedAboutAtItsTimeAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{})
		r.Set("before start", p.in(time.Second))
		r.Set("past", p.in(-time.Hour))
		start(t, r, p)
		synctest.Wait()
		r.Set("third", p.in(7*time.Second))
		r.Set("second", p.in(5*time.Second+1))
		r.Set("now", p.Now())
		after(time.Minute)
		want(t, p.told("due"), []string{"0s due past", "0s due now", "1s due before start", "5.000000001s due second", "7s due third"})
	})
}

func TestADeadlineIsReplacedAndTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{})
		start(t, r, p)
		r.Set("later", p.in(time.Second))
		r.Set("sooner", p.in(time.Hour))
		r.Set("never", p.in(2*time.Second))
		r.Set("again", p.in(3*time.Second))
		r.Set("later", p.in(10*time.Second))
		r.Set("sooner", p.in(4*time.Second))
		r.Clear("never")
		r.Clear("unknown")
		r.Clear("again")
		r.Set("again", p.in(5*time.Second))
		after(2 * time.Hour)
		want(t, p.told("due"), []string{"4s due sooner", "5s due again", "10s due later"})
	})
}

func TestBetweenDeadlinesNothingWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{Every: 1000 * time.Hour})
		for i := range 1000 {
			r.Set(fmt.Sprint(i), p.in(24*time.Hour))
		}
		start(t, r, p)
		after(0)
		reads := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.nows
		}
		before := reads() // the clock is read at each wake-up
		after(24*time.Hour - 1)
		if got := reads() - before; got != 0 {
			t.Errorf("the clock was read %d times in a day without a deadline", got)
		}
		after(1)
		if got := len(p.told("due")); got != 1000 {
			t.Errorf("%d were asked about, want 1000", got)
		}
	})
}

func TestTheEarliestOfManyIsAskedAboutFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{Dues: 1})
		var mu sync.Mutex
		var order []int
		p.due = func(_ context.Context, key string) bool {
			var n int
			fmt.Sscan(key, &n)
			mu.Lock()
			order = append(order, n)
			mu.Unlock()
			return false
		}
		for _, n := range rand.Perm(1000) {
			r.Set(fmt.Sprint(n), p.in(time.Duration(n-1000)*time.Second))
		}
		start(t, r, p)
		after(0)
		if len(order) != 1000 || !slices.IsSorted(order) {
			t.Errorf("%d in the order %v", len(order), order)
		}
	})
}

func TestTenThousandDeadlinesAreEachKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{})
		var mu sync.Mutex
		late := 0
		deadlines := map[string]time.Time{}
		p.due = func(_ context.Context, key string) bool {
			mu.Lock()
			defer mu.Unlock()
			if !time.Now().Add(time.Hour).Equal(deadlines[key]) {
				late++
			}
			delete(deadlines, key)
			return false
		}
		start(t, r, p)
		now := p.Now()
		for i := range 10_000 {
			key := fmt.Sprint(i)
			deadlines[key] = now.Add(time.Duration(rand.Int64N(int64(time.Hour))))
			mu.Lock()
			r.Set(key, deadlines[key])
			mu.Unlock()
		}
		after(time.Hour)
		if late != 0 || len(deadlines) != 0 {
			t.Errorf("%d were not asked about at their time, %d never", late, len(deadlines))
		}
	})
}

func TestABoundedNumberIsAskedAboutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{Dues: 10})
		p.due = func(context.Context, string) bool { time.Sleep(time.Second); return false }
		for i := range 25 {
			r.Set(fmt.Sprint(i), p.in(time.Second))
		}
		r.Set("last", p.in(1500*time.Millisecond))
		r.Set("cleared while it waits", p.in(1400*time.Millisecond))
		start(t, r, p)
		after(1500 * time.Millisecond)
		r.Clear("cleared while it waits")
		after(time.Minute)
		got := map[string]int{}
		for _, line := range p.told("due") {
			at, _, _ := strings.Cut(line, " ")
			got[at]++
		}
		if fmt.Sprint(got) != fmt.Sprint(map[string]int{"1s": 10, "2s": 10, "3s": 6}) {
			t.Errorf("asked about at once: %v", got)
		}
	})
}

func TestAKeyIsNeverWorkedOnTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{})
		p.due = func(_ context.Context, key string) bool { time.Sleep(3 * time.Second); return key == "torn" }
		p.teardown = func(context.Context, string) { time.Sleep(3 * time.Second) }
		r.Set("asked", p.in(time.Second))
		r.Set("torn", p.in(time.Second))
		r.Set("torn and let go", p.in(time.Second))
		start(t, r, p)
		after(2 * time.Second)
		r.Set("asked", p.Now())
		r.Set("torn", p.in(time.Second))
		r.Set("torn and let go", p.Now())
		r.Clear("torn and let go")
		after(3 * time.Second) // into torn's teardown
		r.Set("torn", p.in(4*time.Second))
		after(time.Minute)
		want(t, p.told("twice"), nil)
		want(t, p.told("due asked"), []string{"1s due asked", "4s due asked"})
		want(t, p.told("due torn", "teardown torn")[2:], []string{"4s teardown torn", "9s due torn", "12s teardown torn"})
	})
}

func TestATeardownThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{Dues: 1, Teardowns: 2}) // one decision after the other, so in this order
		p.due = func(context.Context, string) bool { return true }
		p.teardown = func(ctx context.Context, key string) {
			if key == "hangs" {
				<-ctx.Done()
				return
			}
			time.Sleep(time.Second)
		}
		for _, key := range []string{"hangs", "a", "b", "c"} {
			r.Set(key, p.in(time.Second))
		}
		start(t, r, p)
		after(time.Minute)
		want(t, p.told("teardown b", "teardown c"), []string{"2s teardown b", "3s teardown c"})
		if got := len(p.told("due")); got != 4 {
			t.Errorf("%d decisions, want 4: they wait for no teardown", got)
		}
		r.Stop() // ends the one that hangs
	})
}

func TestStopWaitsForWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{Dues: 1})
		p.due = func(ctx context.Context, key string) bool {
			<-ctx.Done()
			time.Sleep(time.Second)
			p.note("done %s", key)
			return false
		}
		r.Set("runs", p.in(time.Second))
		r.Set("waits", p.in(time.Second))
		r.Start(t.Context(), p)
		after(2 * time.Second)
		r.Stop()
		r.Set("after", p.Now())
		after(time.Hour)
		want(t, p.told("due", "done"), []string{"1s due runs", "3s done runs"})
	})
}

func TestStopWithoutStart(t *testing.T) { newReaper(Options{}).Stop() }

func TestAClockThatIsRebasedIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, r := newPlane(), newReaper(Options{Every: 10 * time.Second})
		r.Set("a", p.in(15*time.Second))
		p.housekeep = func() { // what was left of a deadline stays
			if time.Since(p.began) == 10*time.Second {
				r.Set("a", p.in(time.Hour+5*time.Second))
				p.mu.Lock()
				p.shift += time.Hour
				p.mu.Unlock()
			}
		}
		start(t, r, p)
		after(time.Minute)
		want(t, p.told("due"), []string{"15s due a"})
	})
}
