package main

import (
	"strings"
	"testing"
	"time"

	"sandkeeper/client"
)

func TestSettings(t *testing.T) {
	t.Setenv("SANDKEEPER_AGENT_TOKEN", "from-env")
	s, err := parse([]string{"--url", "http://x", "--tasks", "2", "--rounds", "5", "--think", "1s"})
	if err != nil || s.url != "http://x" || s.token != "from-env" || s.tasks != 2 || s.rounds != 5 || s.think != time.Second {
		t.Errorf("got %+v, %v", s, err)
	}
	if s, err := parse([]string{"--token", "given"}); err != nil || s.token != "given" {
		t.Errorf("got %+v, %v", s, err)
	}
	for _, args := range [][]string{{"--tasks", "0"}, {"--rounds", "-1"}, {"--think", "-1s"}, {"--lifetime", "0s"}, {"stray"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
	t.Setenv("SANDKEEPER_AGENT_TOKEN", "")
	if _, err := parse(nil); err == nil || !strings.Contains(err.Error(), "SANDKEEPER_AGENT_TOKEN") {
		t.Errorf("no token: %v", err)
	}
}

func TestTasksHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for i := range 50 {
		if n := taskName(i); seen[n] {
			t.Errorf("%q comes twice", n)
		} else {
			seen[n] = true
		}
	}
}

func TestSummary(t *testing.T) {
	for want, r := range map[string]client.RunResult{
		"a b":                         {Stdout: []byte("a\n b\n")},
		"exit 3: oops":                {ExitCode: 3, Stderr: []byte("oops\n")},
		"(no output)":                 {},
		"timed out: ":                 {TimedOut: true, ExitCode: 124},
		strings.Repeat("é", 36) + "…": {Stdout: []byte(strings.Repeat("é", 100))},
	} {
		if got := summary(&r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
