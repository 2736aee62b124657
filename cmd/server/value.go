package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// value is a setting's value: a pflag.Value that says what it accepts.
type value[T any] struct {
	p       *T
	kind    string // as --help shows it
	accepts string // as errors say it: "it takes ..."
	parse   func(string) (T, bool)
	format  func(T) string
}

func (v *value[T]) Set(s string) error {
	t, ok := v.parse(s)
	if !ok {
		return v.refusal()
	}
	*v.p = t
	return nil
}

func (v *value[T]) refusal() error { return errors.New("it takes " + v.accepts) }

func (v *value[T]) String() string {
	if v.p == nil {
		return ""
	}
	return v.format(*v.p)
}

func (v *value[T]) Type() string { return v.kind }

// duration takes Go's durations from low to high, and 0 where zero says what that means.
func duration(p *time.Duration, low, high time.Duration, zero string) *value[time.Duration] {
	accepts := fmt.Sprintf(`a duration from %s to %s, such as "90s" or "5m"`, shortDuration(low), shortDuration(high))
	if zero != "" {
		accepts += ", or 0, which " + zero
	}
	return &value[time.Duration]{p: p, kind: "duration", accepts: accepts, format: shortDuration,
		parse: func(s string) (time.Duration, bool) {
			d, err := time.ParseDuration(s)
			return d, err == nil && (d >= low && d <= high || d == 0 && zero != "")
		}}
}

// shortDuration is Go's form without zero seconds and minutes at its end.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	if s == "0s" {
		return "0"
	}
	return s
}

// count takes whole numbers from low to high, and 0 where zero says what that means.
func count[T int | int64](p *T, low, high T, zero string) *value[T] {
	accepts := fmt.Sprintf("a whole number from %d to %d", low, high)
	if zero != "" {
		accepts += ", or 0, which " + zero
	}
	return &value[T]{p: p, kind: "number", accepts: accepts,
		format: func(n T) string { return strconv.FormatInt(int64(n), 10) },
		parse: func(s string) (T, bool) {
			n, err := strconv.ParseInt(s, 10, 64)
			t := T(n)
			return t, err == nil && int64(t) == n && (t >= low && t <= high || t == 0 && zero != "")
		}}
}

func cpus(p *float64) *value[float64] {
	return &value[float64]{p: p, kind: "number", accepts: "a number from 0.01 to 1024, or 0, which sets no limit",
		format: func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) },
		parse: func(s string) (float64, bool) {
			f, err := strconv.ParseFloat(s, 64)
			return f, err == nil && !math.IsNaN(f) && (f == 0 || f >= 0.01 && f <= 1024)
		}}
}

// yesNo is true where a flag stands without a value.
func yesNo(p *bool) *value[bool] {
	return &value[bool]{p: p, kind: "bool", accepts: `"true" or "false"`, format: strconv.FormatBool,
		parse: func(s string) (bool, bool) {
			b, err := strconv.ParseBool(s)
			return b, err == nil
		}}
}

func choice(p *string, of ...string) *value[string] {
	quoted := make([]string, len(of))
	for i, s := range of {
		quoted[i] = strconv.Quote(s)
	}
	return text(p, "string", strings.Join(quoted[:len(of)-1], ", ")+" or "+quoted[len(of)-1],
		func(s string) bool { return slices.Contains(of, s) })
}

func text(p *string, kind, accepts string, ok func(string) bool) *value[string] {
	return &value[string]{p: p, kind: kind, accepts: accepts, format: func(s string) string { return s },
		parse: func(s string) (string, bool) { return s, ok(s) }}
}

func path(p *string, kind string) *value[string] {
	return text(p, kind, "a path", func(s string) bool { return s != "" && !strings.ContainsRune(s, 0) })
}

// address takes what a TCP listener takes, with a port by number.
func address(p *string) *value[string] {
	return text(p, "host:port", `HOST:PORT, such as "127.0.0.1:7333"; port 0 picks a free one`, func(s string) bool {
		_, port, err := net.SplitHostPort(s)
		if err != nil {
			return false
		}
		_, err = strconv.ParseUint(port, 10, 16)
		return err == nil
	})
}

var instanceName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?$`)

func instance(p *string) *value[string] {
	return text(p, "id", "1 to 63 letters, digits, ., _ and -, with a letter or digit at either end", instanceName.MatchString)
}

// token takes what an Authorization header can carry.
func token(p *string) *value[string] {
	return text(p, "token", "visible ASCII characters without spaces, at most 512", func(s string) bool {
		return len(s) <= 512 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
	})
}

// origins takes one or more origins or hosts, separated by commas, and adds them to those it has.
func origins(p *[]string) *value[[]string] {
	return &value[[]string]{p: p, kind: "origin", accepts: `an origin or a host, such as "https://agents.example.org" or "agents.example.org:8443"`,
		format: func(l []string) string { return strings.Join(l, ",") },
		parse: func(s string) ([]string, bool) {
			list := slices.Clone(*p)
			for o := range strings.SplitSeq(s, ",") {
				o = strings.TrimSpace(o)
				scheme, host, ok := strings.Cut(o, "://")
				if !ok {
					scheme, host = "https", o
				}
				u, err := url.Parse("//" + host)
				if err != nil || scheme != "http" && scheme != "https" || u.Host == "" || u.Host != host {
					return nil, false
				}
				list = append(list, o)
			}
			return list, true
		}}
}

// fullOrigins gives a host without a scheme both of them.
func fullOrigins(list []string) []string {
	var full []string
	for _, o := range list {
		if strings.Contains(o, "://") {
			full = append(full, o)
			continue
		}
		full = append(full, "https://"+o, "http://"+o)
	}
	return full
}
