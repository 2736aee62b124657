package control

import (
	"fmt"
	"maps"
	"time"
)

// What the reaper does to an environment.
const (
	actionStop   = "stop"
	actionRemove = "remove"
	actionPurge  = "purge"
)

// verdict is when the reaper acts on an environment, and by which rule.
type verdict struct {
	at     time.Time // zero: it will not
	action string    // "" where there is nothing to do
	rule   string    // a teardown's rule: "idle", "max_age", "retention", "failed"
	reason string    // for people
}

// action is what the reaper would do to the environment in its state.
func action(e *Env) string {
	switch e.State {
	case Dormant:
		if e.Persistent {
			return actionPurge
		}
		return actionRemove
	case Failed:
		return actionRemove
	case Starting, Ready:
		if e.Persistent {
			return actionStop
		}
		return actionRemove
	}
	return ""
}

// judge says when the reaper acts on an environment. held tells whether any
// hold stands; ran is our running time so far.
func (p *Plane) judge(e *Env, held bool, now time.Time, ran time.Duration) verdict {
	v := verdict{action: action(e)}
	if e.Pin != nil {
		return v
	}
	switch e.State {
	case Ready:
		if !held && !e.IdleSince.IsZero() {
			v.at, v.rule = e.IdleSince.Add(e.Lifetime), "idle"
			v.reason = "idle " + seconds(e.Lifetime)
		}
		if e.MaxAge > 0 {
			if at := latest(e.StartedAt, e.ReadyAt).Add(e.MaxAge); v.at.IsZero() || at.Before(v.at) {
				v.at, v.rule = at, "max_age"
				v.reason = "older than " + seconds(e.MaxAge)
			}
		}
	case Failed:
		v.at, v.rule = latest(e.FailedAt, e.UnpinnedAt).Add(p.o.FailedAfter), "failed"
		v.reason = "failed for " + seconds(p.o.FailedAfter)
	case Dormant:
		if !e.Persistent { // left between two steps of a recreation
			v.at, v.rule = latest(e.DormantSince, e.LastActivity.At).Add(e.Lifetime), "idle"
			v.reason = "idle " + seconds(e.Lifetime)
			break
		}
		if p.o.Retention <= 0 {
			break
		}
		base := latest(e.DormantSince, e.LastActivity.At, e.UnpinnedAt)
		v.at, v.rule = base.Add(p.o.Retention), "retention"
		v.reason = "dormant for " + seconds(p.o.Retention)
		// A clock alone deletes no files: the announcement comes first, and
		// then as much of our own running time.
		lead := p.purgeLead()
		if e.AnnouncedAt.IsZero() {
			v.at = latest(v.at, now.Add(lead))
			if announce := base.Add(p.o.Retention - lead); announce.After(now) {
				v.at = latest(base.Add(p.o.Retention), announce.Add(lead))
			}
		} else {
			v.at = latest(v.at, now.Add(lead-(ran-e.AnnouncedRun)))
		}
	}
	if !v.at.IsZero() {
		v.at = ceilMillis(latest(v.at, e.NotBefore))
	}
	return v
}

// purgeLead is how far ahead a purge is announced.
func (p *Plane) purgeLead() time.Duration { return min(24*time.Hour, p.o.Retention/2) }

// announceAt is when the purge of a dormant environment is announced; zero where it is not, or was.
func (p *Plane) announceAt(e *Env) time.Time {
	if e.State != Dormant || !e.Persistent || e.Pin != nil || p.o.Retention <= 0 || !e.AnnouncedAt.IsZero() {
		return time.Time{}
	}
	return ceilMillis(latest(e.DormantSince, e.LastActivity.At, e.UnpinnedAt).Add(p.o.Retention - p.purgeLead()))
}

// noticeLead is how far ahead agents are told of a reap.
func noticeLead(lifetime time.Duration) time.Duration { return min(30*time.Second, lifetime/2) }

// decideTurnEnd is the table of turn end. ok is false where there is no row.
func decideTurnEnd(e *Env) (kept bool, reason string, ok bool) {
	if e.State == Removed || e.State == Stopping && e.Teardown.Final() {
		return false, "", false
	}
	if e.Pin != nil {
		return true, "pinned", true
	}
	if e.Persistent {
		return true, "persistent", true
	}
	return false, "ephemeral", true
}

// drift lists the fields in which two specs differ, as env.acquire names them.
func drift(asked, applied Spec) []string {
	d := []string{}
	if asked.Image != applied.Image {
		d = append(d, "image")
	}
	if asked.Limits != applied.Limits {
		d = append(d, "limits")
	}
	if asked.Network != applied.Network {
		d = append(d, "network")
	}
	if asked.Persistent != applied.Persistent {
		d = append(d, "persistent")
	}
	if !maps.Equal(asked.Variables, applied.Variables) {
		d = append(d, "variables")
	}
	if asked.Workdir != applied.Workdir {
		d = append(d, "workdir")
	}
	return d
}

// backoff is the pause before the next attempt of a teardown.
func backoff(attempts int) time.Duration {
	return min(500*time.Millisecond<<min(attempts-1, 10), time.Minute)
}

// latest is the latest of some times.
func latest(ts ...time.Time) time.Time {
	var l time.Time
	for _, t := range ts {
		if t.After(l) {
			l = t
		}
	}
	return l
}

// earliest is the earliest of two times, a zero one not counted.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// seconds writes a duration as people read it in events: "300 s".
func seconds(d time.Duration) string { return fmt.Sprintf("%.10g s", d.Seconds()) }
