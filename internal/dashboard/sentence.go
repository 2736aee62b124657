package dashboard

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

// entryOf tells an event as a sentence.
func entryOf(ev control.Event) templates.Entry {
	return templates.Entry{
		Seq: ev.Seq, Kind: string(ev.Kind), Tone: toneOf(ev), Who: sideOf(ev),
		Parts: sentence(ev),
		At:    templates.Moment{MS: ev.Time.UnixMilli(), ISO: ev.Time.String()},
		Clock: ev.Time.Format("15:04:05"),
	}
}

// entriesOf tells events, given oldest first, newest first.
func entriesOf(events []control.Event) []templates.Entry {
	out := make([]templates.Entry, 0, len(events))
	for _, ev := range slices.Backward(events) {
		out = append(out, entryOf(ev))
	}
	return out
}

func toneOf(ev control.Event) string {
	switch ev.Kind {
	case control.EnvFailed, control.EnvLost, control.ReaperRetry, control.EngineDown, control.OperatorRefused:
		return "bad"
	case control.EnvExpiring, control.OrphanFound, control.ClockJumped, control.AgentAbandoned, control.TurnLapsed:
		return "warn"
	case control.EnvReady, control.EnvResumed, control.EnvRecreated, control.EngineUp, control.ServerStarted:
		return "good"
	}
	return "calm"
}

// sideOf says whose doing it was, for the feed's filter.
func sideOf(ev control.Event) string {
	side, _, _ := strings.Cut(ev.Actor, ":")
	if side == control.ActorReaper || strings.HasPrefix(string(ev.Kind), "reaper.") || ev.Kind == control.EnvExpiring {
		return control.ActorReaper
	}
	return side
}

// words makes a sentence of plain words (string) and parts.
func words(pieces ...any) []templates.Part {
	var out []templates.Part
	for _, p := range pieces {
		switch p := p.(type) {
		case string:
			if p != "" {
				out = append(out, templates.Part{Text: p})
			}
		case templates.Part:
			out = append(out, p)
		case []templates.Part:
			out = append(out, p...)
		}
	}
	return out
}

func theirs(s string) templates.Part { return templates.Part{Text: s, Theirs: true} }

// envPart names the environment that an event is about.
func envPart(ev control.Event) templates.Part {
	text := ev.Task
	if ev.Name != "" && ev.Name != "main" {
		text = isolate(ev.Task) + " / " + isolate(ev.Name) // neither turns the other around
	}
	if text == "" {
		text = ev.Env
	}
	p := templates.Part{Text: text, Theirs: true}
	switch {
	case ev.Env != "":
		p.Href = envHref(ev.Env)
	case ev.Task != "":
		p.Href = "/?q=" + url.QueryEscape(ev.Task) // a turn is of a task, and acts on all it has
	}
	return p
}

// actorPart names who did it.
func actorPart(actor string) []templates.Part {
	switch side, name, _ := strings.Cut(actor, ":"); side {
	case "agent", "operator":
		if name == side { // one that was given no name
			return words("an " + side)
		}
		return words(side+" ", theirs(name))
	case control.ActorReaper, control.ActorReconciler, control.ActorServer:
		return words("the " + side)
	}
	return words(theirs(actor))
}

// because adds an event's reason, where there is one.
func because(ev control.Event) []templates.Part {
	if ev.Reason == "" {
		return nil
	}
	return words(": ", theirs(ev.Reason))
}

func sentence(ev control.Event) []templates.Part {
	env, by, why := envPart(ev), actorPart(ev.Actor), because(ev)
	switch ev.Kind {
	case control.EnvStarting:
		return words(env, " is starting", why)
	case control.EnvReady:
		return words(env, " is ready")
	case control.EnvResumed:
		return words(env, " came back with its files", why)
	case control.EnvRecreated:
		return words(env, " was made anew", why)
	case control.EnvChanged:
		return words(env, " was changed by ", by, why)
	case control.EnvStopping:
		return words(env, " is being torn down by ", by, why)
	case control.EnvDormant:
		return words(env, " is dormant: its files are kept")
	case control.EnvRemoved:
		return words(env, " is gone", why)
	case control.EnvFailed:
		return words(env, " could not start", why)
	case control.EnvLost:
		return words(env, " died by itself", lostWords(ev), why)
	case control.EnvPinned:
		return words(env, " was pinned by ", by, why)
	case control.EnvUnpinned:
		return words(env, " was unpinned by ", by, why)
	case control.EnvTouched:
		return words(env, " was given time by ", by)
	case control.EnvExpiring:
		return words("The files of ", env, " will be deleted", why)
	case control.TurnBegan:
		return words("A turn of ", env, " began", turnWords(ev))
	case control.TurnEnded:
		return words("A turn of ", env, " ended", turnWords(ev), decisionWords(ev), why)
	case control.TurnLapsed:
		return words("A turn of ", env, " has been still for too long and no longer holds it")
	case control.ReaperStopped:
		return words("The reaper stopped ", env, why)
	case control.ReaperRemoved:
		return words("The reaper removed ", env, why)
	case control.ReaperPurged:
		return words("The reaper deleted the files of ", env, why)
	case control.ReaperRetry:
		return words("Tearing down ", env, " failed and will be tried again", why)
	case control.OrphanFound:
		return words("A sandbox without a record was found: ", env, why)
	case control.OrphanAdopted:
		return words("An orphan was adopted by ", by, ": ", env)
	case control.OrphanRemoved:
		return words("An orphan was removed: ", env, why)
	case control.ImagePulling:
		return words("Pulling an image for ", env, why)
	case control.ImagePulled:
		return words("The image for ", env, " is here", why)
	case control.AgentConnected:
		return words(sentenceParts(by), " connected")
	case control.AgentResumed:
		return words(sentenceParts(by), " is back")
	case control.AgentDisconnected:
		return words(sentenceParts(by), " disconnected")
	case control.AgentAbandoned:
		return words("The turn of ", env, " was abandoned: its agents have gone")
	case control.EngineDown:
		return words("The engine does not answer", why)
	case control.EngineUp:
		return words("The engine answers again")
	case control.ClockJumped:
		return words("The clock jumped; every countdown was set anew", why)
	case control.OperatorLogin:
		return words(sentenceParts(by), " signed in")
	case control.OperatorRefused:
		return words("A sign-in was refused", why)
	case control.ServerStarted:
		return words("The server started")
	case control.ServerStopping:
		return words("The server is going down")
	}
	if ev.Env != "" || ev.Task != "" {
		return words(string(ev.Kind)+": ", env, why)
	}
	return words(string(ev.Kind), why)
}

// sentenceParts begins a sentence with these words.
func sentenceParts(parts []templates.Part) []templates.Part {
	if len(parts) > 0 && !parts[0].Theirs {
		parts[0].Text = sentenceCase(parts[0].Text)
	}
	return parts
}

// data reads one field of an event's data, whether it comes from memory or
// from disk.
func data[T any](ev control.Event, name string) (v T, ok bool) {
	raw, ok := ev.Data[name]
	if !ok {
		return v, false
	}
	b, err := json.Marshal(raw)
	return v, err == nil && json.Unmarshal(b, &v) == nil
}

func lostWords(ev control.Event) string {
	var s string
	if code, ok := data[int](ev, "exit_code"); ok {
		s = fmt.Sprintf(" with exit code %d", code)
	}
	if oom, ok := data[bool](ev, "oom"); ok && oom {
		s += ", out of memory"
	}
	return s
}

func turnWords(ev control.Event) string {
	s := ""
	if n, ok := data[int64](ev, "turn"); ok {
		s = fmt.Sprintf(" (turn %d", n)
		if outcome, ok := data[string](ev, "outcome"); ok && (outcome == "done" || outcome == "failed" || outcome == "cancelled") {
			s += ", " + outcome
		}
		s += ")"
	}
	return s
}

// decisionWords says what became of the task's environments.
func decisionWords(ev control.Event) string {
	decisions, ok := data[[]control.Decision](ev, "decisions")
	if !ok || len(decisions) == 0 {
		return ""
	}
	kept := 0
	for _, d := range decisions {
		if d.Decision == "kept" {
			kept++
		}
	}
	switch removed := len(decisions) - kept; {
	case removed == 0:
		return fmt.Sprintf(": %d kept", kept)
	case kept == 0:
		return fmt.Sprintf(": %d removed", removed)
	default:
		return fmt.Sprintf(": %d kept, %d removed", kept, removed)
	}
}
