package dashboard

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"sandkeeper/internal/control"
	"sandkeeper/web/templates"
)

// The page's script writes the same words for the same times (app.js), so that
// nothing jumps when it takes over.

// span says how long something is, roughly: "12 s", "3 min", "5 h", "9 d".
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + " s"
	case d < time.Hour:
		return strconv.Itoa(int(d/time.Minute)) + " min"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d/time.Hour)) + " h"
	}
	return strconv.Itoa(int(d/(24*time.Hour))) + " d"
}

// left says how much is left of a countdown, exactly while that matters:
// "0:09", "3:42", "5 h 12 min", "6 d 23 h"; "0:00" once it has passed.
func left(d time.Duration) string {
	s := int64((d + time.Second - 1) / time.Second) // a countdown shows 0:01 until its end
	switch {
	case d <= 0:
		return "0:00"
	case s < 3600:
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	case s < 48*3600:
		return fmt.Sprintf("%d h %02d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s/3600%24)
}

func since(t control.Time, now time.Time) templates.Moment {
	return templates.Moment{MS: t.UnixMilli(), ISO: t.String(), Text: span(now.Sub(t.Time))}
}

func untilTime(t control.Time, now time.Time) templates.Moment {
	return templates.Moment{MS: t.UnixMilli(), ISO: t.String(), Text: left(t.Sub(now))}
}

// isolate keeps text of somebody else from changing the direction of what is
// around it, where there is no markup to do that: in a title, a label.
func isolate(s string) string { return "\u2068" + s + "\u2069" }

// limitWords names limits for people.
var limitWords = map[string]string{"cpus": "cpu", "memory_mb": "memory", "pids": "processes", "disk_mb": "disk"}

func limitNames(limits []string) string {
	words := make([]string, len(limits))
	for i, l := range limits {
		words[i] = l
		if w, ok := limitWords[l]; ok {
			words[i] = w
		}
	}
	return strings.Join(words, ", ")
}

// allLimits are the limits that an engine may enforce.
var allLimits = []string{"cpus", "memory_mb", "pids", "disk_mb"}
