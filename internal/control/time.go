package control

import (
	"encoding/json"
	"time"
)

// Time is an instant as the protocol writes it: UTC, RFC 3339 with exactly
// three decimals.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z"

// At makes a Time of t, without its monotonic reading.
func At(t time.Time) Time { return Time{t.Round(0).UTC()} }

// AtPtr is At for an optional time: nil for the zero time.
func AtPtr(t time.Time) *Time {
	if t.IsZero() {
		return nil
	}
	v := At(t)
	return &v
}

func (t Time) String() string { return t.UTC().Format(timeLayout) }

// MarshalJSON writes the protocol's form.
func (t Time) MarshalJSON() ([]byte, error) { return []byte(`"` + t.String() + `"`), nil }

// UnmarshalJSON reads any RFC 3339 time.
func (t *Time) UnmarshalJSON(b []byte) error {
	var v time.Time
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*t = At(v)
	return nil
}

// ceilMillis rounds up to the millisecond, so that a deadline as shown is never
// before the deadline as kept.
func ceilMillis(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	r := t.Truncate(time.Millisecond)
	if r.Before(t) {
		r = r.Add(time.Millisecond)
	}
	return r
}
