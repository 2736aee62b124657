package dashboard

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

func envHref(id string) string { return "/envs/" + url.PathEscape(id) }

// orderOf sorts environments by their creation when compared as text.
func orderOf(v *control.View) string {
	return fmt.Sprintf("%013d.%s", max(v.CreatedAt.UnixMilli(), 0), v.ID)
}

// rowOf draws one environment for one asker.
func rowOf(v *control.View, now time.Time, id identity) templates.Row {
	r := templates.Row{
		ID: v.ID, Href: envHref(v.ID), Order: orderOf(v),
		Task: v.Task, Owner: v.Owner, Label: "Actions on " + isolate(v.Task),
		State: string(v.State), Gone: v.State == control.Removed,
		Persistent: v.Persistent,
		Clock:      clockOf(v, now),
		Activity:   templates.Activity{What: activityWord(v.LastActivity.Kind), Who: v.LastActivity.Actor, When: since(v.LastActivity.At, now)},
		Isolation:  v.Isolation, Weak: v.Isolation == "none",
		Age: since(v.CreatedAt, now),
	}
	if v.Name != "main" {
		r.Name = v.Name
		r.Label += " " + isolate(v.Name)
	}
	if v.Generation > 1 {
		r.Generation = "run " + strconv.FormatInt(v.Generation, 10)
	}
	if v.Image != nil {
		r.Image = *v.Image
	}
	if len(v.Unenforced) > 0 {
		r.Unenforced = "no limit on " + limitNames(v.Unenforced)
	}
	if v.Pin != nil {
		r.Pin = &templates.Pin{By: personOf(v.Pin.By), Reason: v.Pin.Reason}
		if v.Pin.Until != nil {
			m := untilTime(*v.Pin.Until, now)
			r.Pin.Until = &m
		}
	}
	if id.operates() && !r.Gone {
		r.Acts = actsOf(v, id)
	}
	return r
}

func actsOf(v *control.View, id identity) *templates.Acts {
	a := &templates.Acts{CSRF: id.formToken(), Pinned: v.Pinned, CanKill: true}
	final := v.State == control.Stopping && !v.Persistent
	a.CanPin = !final
	switch {
	case !v.Persistent:
		a.WhyNot = "An ephemeral environment keeps no files to come back to: Kill removes it"
	case v.State == control.Ready || v.State == control.Starting:
		a.CanStop = true
	default:
		a.WhyNot = "It is " + string(v.State)
	}
	return a
}

// removedRow is what is left on the page of an environment that was removed.
func removedRow(r templates.Row, t *control.Tombstone) templates.Row {
	r.State, r.Gone, r.Acts, r.Pin = string(control.Removed), true, nil, nil
	r.Clock = templates.Clock{Kind: templates.ClockGone, Word: "removed"}
	if t != nil && t.Reason != "" {
		r.Clock.Word = "removed: " + isolate(t.Reason)
	}
	return r
}

// personOf is the name within an actor.
func personOf(actor string) string {
	if _, name, ok := strings.Cut(actor, ":"); ok {
		return name
	}
	return actor
}

func activityWord(kind string) string {
	switch kind {
	case "exec":
		return "command"
	case "":
		return "created"
	}
	return kind
}

// actionWords are the reaper's actions as ends of a countdown.
var actionWords = map[string]string{"stop": "stop", "remove": "removal", "purge": "purge"}

// clockOf says what the countdown is, or what stands in its way.
func clockOf(v *control.View, now time.Time) templates.Clock {
	c := templates.Clock{Rule: sentenceCase(v.Rule)}
	if v.NextAction != nil {
		c.Act = actionWords[*v.NextAction]
	}
	if v.Deadline != nil {
		d := v.Deadline.Sub(now)
		c.Deadline, c.Left, c.LeftText = v.Deadline.UnixMilli(), max(d.Milliseconds(), 0), left(d)
	}
	if v.Error != nil {
		c.Error = *v.Error
	}
	switch {
	case v.State == control.Removed:
		c.Kind, c.Word = templates.ClockGone, "removed"
	case v.State == control.Starting:
		c.Kind, c.Word, c.Deadline = templates.ClockWorking, "starting", 0
	case v.State == control.Stopping:
		c.Kind, c.Word, c.Deadline = templates.ClockWorking, "stopping", 0
		teardownOf(&c, v.Teardown, now)
	case v.Pinned:
		c.Kind, c.Word, c.Deadline = templates.ClockPinned, "pinned: no countdown", 0
		c.More = holdWords(v, control.HoldPin)
	case len(v.Holds) > 0:
		c.Kind, c.Word = templates.ClockHeld, holdWords(v, "")
	case v.Deadline != nil:
		c.Kind, c.Total = templates.ClockRuns, max(totalOf(v), c.Left)
	case v.State == control.Dormant:
		c.Kind, c.Word = templates.ClockNever, "files kept until they are purged"
	default:
		c.Kind, c.Word = templates.ClockNever, "no countdown"
	}
	return c
}

// totalOf is what the countdown's bar is full at, in milliseconds.
func totalOf(v *control.View) int64 {
	if v.State == control.Ready {
		return v.LifetimeS * 1000
	}
	return v.Deadline.Sub(v.LastActivity.At.Time).Milliseconds()
}

func teardownOf(c *templates.Clock, t *control.TeardownView, now time.Time) {
	if t == nil {
		return
	}
	c.More = isolate(t.Reason)
	if t.Error != "" {
		c.Error = t.Error
		c.Word = fmt.Sprintf("stopping: attempt %d failed", t.Attempts)
		if t.NextAt != nil {
			m := untilTime(*t.NextAt, now)
			c.Next = &m
		}
	}
}

// holdWords says in a line what holds an environment, each kind once; skip is
// a kind that is told elsewhere.
func holdWords(v *control.View, skip control.HoldKind) string {
	counts := map[control.HoldKind]int{}
	var kinds []control.HoldKind
	for _, h := range v.Holds {
		if h.Kind == skip {
			continue
		}
		if counts[h.Kind]++; counts[h.Kind] == 1 {
			kinds = append(kinds, h.Kind)
		}
	}
	words := make([]string, len(kinds))
	for i, k := range kinds {
		words[i] = holdWord(k, counts[k], v.Turn)
	}
	return strings.Join(words, " · ")
}

func holdWord(k control.HoldKind, n int, turn *control.TurnView) string {
	switch k {
	case control.HoldTurn:
		if turn != nil {
			return fmt.Sprintf("turn %d is open", turn.Number)
		}
		return "a turn is open"
	case control.HoldExec:
		return counted(n, "a command runs", "%d commands run")
	case control.HoldProcess:
		return counted(n, "a process was left running", "%d processes were left running")
	case control.HoldTerminal:
		return counted(n, "a terminal is attached", "%d terminals are attached")
	case control.HoldFile:
		return counted(n, "a file is on its way", "%d files are on their way")
	case control.HoldPin:
		return "pinned"
	}
	return string(k)
}

func counted(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(many, n)
}

// cautions say what an isolation weaker than a container's means, and what to do.
var cautions = map[string]string{
	"namespaces": "Sandboxes run on this machine's own programs and kernel, in namespaces, and unless they ask for network \"none\" on its own network: " +
		"good for agents that you trust; for others install Docker and start the server with --engine docker and a --data-dir of its own.",
	"none": "Nothing stands between sandboxes and this machine: stop the server, and start it with --engine docker and a --data-dir of its own.",
}

func engineOf(s control.EngineStatus) templates.Engine {
	e := templates.Engine{Reachable: s.Reachable, Label: strings.TrimSpace(s.Name + " " + s.Version), Isolation: s.Isolation, Error: s.Error}
	if e.Label == "" {
		e.Label = "the engine"
	}
	e.Caution = cautions[s.Isolation]
	if !s.Since.IsZero() {
		e.SinceMS, e.Since = s.Since.UnixMilli(), control.At(s.Since).String()
	}
	if s.Reachable {
		var lacks []string
		for _, l := range allLimits {
			if !slices.Contains(s.Enforces, l) {
				lacks = append(lacks, l)
			}
		}
		e.Lacks = limitNames(lacks)
	}
	return e
}

func orphansOf(list []control.Orphan, asker identity) []templates.Orphan {
	out := make([]templates.Orphan, len(list))
	for i, o := range list {
		out[i] = templates.Orphan{Name: o.Name, Task: o.Task, Image: o.Image, Word: "still running"}
		if o.Stopped {
			out[i].Word = "stopped"
		}
		if asker.operates() {
			out[i].Acts = &templates.OrphanActs{CSRF: asker.formToken(), Href: "/orphans/" + url.PathEscape(o.Name), CanAdopt: o.Stopped}
		}
	}
	return out
}

func tombstoneOf(t *control.Tombstone, now time.Time) *templates.Tombstone {
	if t == nil {
		return nil
	}
	out := &templates.Tombstone{Reason: t.Reason, Actor: t.Actor, At: since(t.At, now)}
	var detail []string
	if t.ExitCode != nil {
		detail = append(detail, fmt.Sprintf("Exit code %d", *t.ExitCode))
	}
	if t.OOM {
		detail = append(detail, "Out of memory")
	}
	out.Detail = strings.Join(detail, ". ")
	return out
}

func execOf(x control.ExecView, now time.Time) templates.Exec {
	e := templates.Exec{Name: x.Exec, Command: x.Command, Started: since(x.StartedAt, now)}
	switch {
	case x.State == "running" && x.Background:
		e.Word, e.Runs = "running in the background", true
	case x.State == "running":
		e.Word, e.Runs = "running", true
	case x.Left:
		e.Word, e.Runs = "ended, and left processes running", true
	case x.ExitCode != nil:
		e.Word = fmt.Sprintf("ended with %d", *x.ExitCode)
	default:
		e.Word = "ended"
	}
	return e
}

// factsOf are the lines of an environment's own page.
func factsOf(v *control.View, now time.Time) []templates.Fact {
	created := since(v.CreatedAt, now)
	facts := []templates.Fact{
		{Name: "Id", Value: v.ID},
		{Name: "Owner", Value: v.Owner},
		{Name: "Task", Value: v.Task},
		{Name: "Name", Value: v.Name},
		{Name: "Created", Value: v.CreatedAt.Format("2006-01-02 15:04:05 UTC"), Time: &created},
		{Name: "Run", Value: strconv.FormatInt(v.Generation, 10)},
		{Name: "Kept", Value: keptWord(v)},
		{Name: "Idle lifetime", Value: asked(v.LifetimeS)},
	}
	if v.MaxAgeS != nil {
		facts = append(facts, templates.Fact{Name: "Longest life of a run", Value: asked(*v.MaxAgeS)})
	}
	image := "none: this host's own files"
	if v.Image != nil {
		image = *v.Image
	}
	facts = append(facts,
		templates.Fact{Name: "Engine", Value: v.Engine},
		templates.Fact{Name: "Isolation", Value: v.Isolation},
		templates.Fact{Name: "Image", Value: image},
		templates.Fact{Name: "Working directory", Value: v.Workdir},
	)
	facts = append(facts, limitFacts(v)...)
	if v.Turn != nil {
		state := "ended"
		if v.Turn.Open {
			state = "open"
		}
		began := since(v.Turn.Since, now)
		facts = append(facts, templates.Fact{Name: "Turn", Value: fmt.Sprintf("%d, %s, began", v.Turn.Number, state), Time: &began})
	}
	if len(v.Drift) > 0 {
		facts = append(facts, templates.Fact{Name: "Differs from what was asked", Value: strings.Join(v.Drift, ", ")})
	}
	names := make([]string, 0, len(v.Labels))
	for name := range v.Labels {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		facts = append(facts, templates.Fact{Name: "Label " + isolate(name), Value: v.Labels[name]})
	}
	if v.Error != nil {
		facts = append(facts, templates.Fact{Name: "Last error", Value: *v.Error})
	}
	return facts
}

func keptWord(v *control.View) string {
	if v.Persistent {
		return "persistent: the end of a turn keeps it"
	}
	return "ephemeral: the end of its turn removes it"
}

// asked is a length that was asked for in seconds.
func asked(seconds int64) string {
	if seconds%60 != 0 || seconds == 0 {
		return fmt.Sprintf("%d s", seconds)
	}
	if seconds%3600 != 0 {
		return fmt.Sprintf("%d min", seconds/60)
	}
	return fmt.Sprintf("%d h", seconds/3600)
}

func limitFacts(v *control.View) []templates.Fact {
	var facts []templates.Fact
	add := func(limit, name, value string) {
		f := templates.Fact{Name: name, Value: value}
		if slices.Contains(v.Unenforced, limit) {
			f.Note = "asked for, but this host cannot enforce it"
		}
		facts = append(facts, f)
	}
	if v.Limits.CPUs != nil {
		add("cpus", "CPU limit", strconv.FormatFloat(*v.Limits.CPUs, 'f', -1, 64))
	}
	if v.Limits.MemoryMB != nil {
		add("memory_mb", "Memory limit", fmt.Sprintf("%d MiB", *v.Limits.MemoryMB))
	}
	if v.Limits.Pids != nil {
		add("pids", "Process limit", strconv.FormatInt(*v.Limits.Pids, 10))
	}
	if v.Limits.DiskMB != nil {
		add("disk_mb", "Disk limit", fmt.Sprintf("%d MiB", *v.Limits.DiskMB))
	}
	return facts
}

func holdsOf(v *control.View, now time.Time) []templates.Hold {
	out := make([]templates.Hold, len(v.Holds))
	for i, h := range v.Holds {
		out[i] = templates.Hold{Word: sentenceCase(holdWord(h.Kind, 1, v.Turn)), Ref: h.Ref, Since: since(h.Since, now)}
		if h.Until != nil {
			m := untilTime(*h.Until, now)
			out[i].Until = &m
		}
	}
	return out
}

func sentenceCase(s string) string {
	if s == "" {
		return s
	}
	r, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[n:]
}
