package control

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// maxSeconds bounds lifetime_seconds and max_age_seconds: a year.
const maxSeconds = 31_536_000

// CheckName reports whether s may be a task, a name, an agent or an owner: 1
// to 128 code points of valid UTF-8 without control characters. field is what
// the error calls it.
func CheckName(field, s string) error {
	if s == "" {
		return Errorf(KindInvalid, "%s is empty; it takes 1 to 128 characters", field)
	}
	return checkText(field, s, 128)
}

// checkText is CheckName for text of any length up to a bound, also none.
func checkText(field, s string, most int) error {
	if !utf8.ValidString(s) {
		return Errorf(KindInvalid, "%s is not valid UTF-8", field)
	}
	if n := utf8.RuneCountInString(s); n > most {
		return Errorf(KindInvalid, "%s has %d characters; at most %d are allowed", field, n, most)
	}
	for _, r := range s {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return Errorf(KindInvalid, "%s holds the control character %U", field, r)
		}
	}
	return nil
}

func checkSeconds(field string, s *int64) error {
	if s != nil && (*s < 1 || *s > maxSeconds) {
		return Errorf(KindInvalid, "%s is %d; it takes 1 to %d", field, *s, maxSeconds)
	}
	return nil
}

func checkOneOf(field, s string, allowed ...string) error {
	if slices.Contains(allowed, s) {
		return nil
	}
	return Errorf(KindInvalid, "%s is %q; it takes %s", field, clip(s, 64), `"`+strings.Join(allowed, `", "`)+`"`)
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// checkPath refuses what no file system takes.
func checkPath(field, s string) error {
	switch {
	case s == "":
		return Errorf(KindInvalid, "%s is empty", field)
	case strings.ContainsRune(s, 0):
		return Errorf(KindInvalid, "%s holds a NUL byte", field)
	case len(s) > 4096:
		return Errorf(KindInvalid, "%s has %d bytes; a path has at most 4096", field, len(s))
	}
	return nil
}

func checkVariables(vars map[string]string) error {
	total := 0
	for k, v := range vars {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return Errorf(KindInvalid, "variables: %q is no name of a variable", clip(k, 64))
		}
		if strings.ContainsRune(v, 0) {
			return Errorf(KindInvalid, "variables: the value of %q holds a NUL byte", clip(k, 64))
		}
		total += len(k) + len(v)
	}
	if total > 128<<10 {
		return Errorf(KindInvalid, "variables: %d bytes in all; at most %d are allowed", total, 128<<10)
	}
	return nil
}

// check looks at all that can be judged without the environment.
func (r *AcquireRequest) check() error {
	if r.Name == "" {
		r.Name = "main"
	}
	if err := CheckName("task", r.Task); err != nil {
		return err
	}
	if err := CheckName("name", r.Name); err != nil {
		return err
	}
	if err := checkSeconds("lifetime_seconds", r.LifetimeS); err != nil {
		return err
	}
	if err := checkSeconds("max_age_seconds", r.MaxAgeS); err != nil {
		return err
	}
	if r.Image != nil {
		if err := CheckName("image", *r.Image); err != nil {
			return err
		}
		if strings.ContainsAny(*r.Image, " \t") {
			return Errorf(KindInvalid, "image %q holds a space", *r.Image)
		}
	}
	if r.Network != nil {
		if err := checkOneOf("network", *r.Network, "default", "none"); err != nil {
			return err
		}
	}
	if r.OnDrift == "" {
		r.OnDrift = "keep"
	}
	if err := checkOneOf("on_drift", r.OnDrift, "keep", "recreate", "error"); err != nil {
		return err
	}
	if r.Workdir != nil {
		if err := checkPath("workdir", *r.Workdir); err != nil {
			return err
		}
		if !strings.HasPrefix(*r.Workdir, "/") {
			return Errorf(KindInvalid, "workdir %q is not absolute", clip(*r.Workdir, 64))
		}
	}
	if err := checkVariables(r.Variables); err != nil {
		return err
	}
	if len(r.Labels) > 64 {
		return Errorf(KindInvalid, "labels: %d of them; at most 64 are allowed", len(r.Labels))
	}
	for k, v := range r.Labels {
		if err := CheckName("labels: a name", k); err != nil {
			return err
		}
		if err := checkText(fmt.Sprintf("labels: the value of %q", k), v, 1024); err != nil {
			return err
		}
	}
	return r.Limits.check()
}

func (l *LimitsView) check() error {
	if l == nil {
		return nil
	}
	if l.CPUs != nil && !(*l.CPUs >= 0.01 && *l.CPUs <= 4096) || l.CPUs != nil && math.IsNaN(*l.CPUs) {
		return Errorf(KindInvalid, "limits.cpus is %g; it takes 0.01 to 4096", *l.CPUs)
	}
	for _, f := range []struct {
		name     string
		v        *int64
		lo, most int64
	}{
		{"memory_mb", l.MemoryMB, 16, 1 << 26},
		{"pids", l.Pids, 8, 1 << 22},
		{"disk_mb", l.DiskMB, 1, 1 << 40},
	} {
		if f.v != nil && (*f.v < f.lo || *f.v > f.most) {
			return Errorf(KindInvalid, "limits.%s is %d; it takes %d to %d", f.name, *f.v, f.lo, f.most)
		}
	}
	return nil
}

// over lays what was asked over what there is.
func (l *LimitsView) over(base Limits) Limits {
	if l == nil {
		return base
	}
	if l.CPUs != nil {
		base.CPUs = *l.CPUs
	}
	if l.MemoryMB != nil {
		base.MemoryMB = *l.MemoryMB
	}
	if l.Pids != nil {
		base.Pids = *l.Pids
	}
	if l.DiskMB != nil {
		base.DiskMB = *l.DiskMB
	}
	return base
}

const (
	defaultTimeoutS    = 180
	maxTimeoutS        = 86_400
	defaultOutputLimit = 50_000
	maxOutputLimit     = 400_000
)

// check looks at the values; the environment was looked up before.
func (r *RunRequest) check() error {
	switch {
	case r.Command == "" && len(r.Argv) == 0:
		return Errorf(KindInvalid, "command or argv is needed, and not empty")
	case r.Command != "" && len(r.Argv) > 0:
		return Errorf(KindInvalid, "command and argv exclude each other")
	case strings.ContainsRune(r.Command, 0):
		return Errorf(KindInvalid, "command holds a NUL byte")
	case len(r.Argv) > 0 && r.Argv[0] == "":
		return Errorf(KindInvalid, "argv[0] is empty")
	}
	size := len(r.Command)
	for i, a := range r.Argv {
		if strings.ContainsRune(a, 0) {
			return Errorf(KindInvalid, "argv[%d] holds a NUL byte", i)
		}
		size += len(a)
	}
	if size > 1<<20 || len(r.Command) > 120<<10 {
		return Errorf(KindInvalid, "the command has %d bytes; a command has at most %d, an argv %d in all: pass more by stdin", size, 120<<10, 1<<20)
	}
	if r.Cwd != "" {
		if err := checkPath("cwd", r.Cwd); err != nil {
			return err
		}
	}
	if err := checkVariables(r.Variables); err != nil {
		return err
	}
	if r.TimeoutS != nil && (*r.TimeoutS < 1 || *r.TimeoutS > maxTimeoutS) {
		return Errorf(KindInvalid, "timeout_seconds is %d; it takes 1 to %d", *r.TimeoutS, maxTimeoutS)
	}
	if r.OutputLimit != nil && (*r.OutputLimit < 0 || *r.OutputLimit > maxOutputLimit) {
		return Errorf(KindInvalid, "output_limit is %d; it takes 0 to %d", *r.OutputLimit, maxOutputLimit)
	}
	if r.ID != "" {
		if err := CheckName("id", r.ID); err != nil {
			return err
		}
	}
	return nil
}

func (r *RunRequest) timeout() time.Duration {
	if r.TimeoutS == nil {
		return defaultTimeoutS * time.Second
	}
	return time.Duration(*r.TimeoutS) * time.Second
}

func (r *RunRequest) outputLimit() int {
	if r.OutputLimit == nil {
		return defaultOutputLimit
	}
	return int(*r.OutputLimit)
}
