package main

import (
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"sandkeeper/internal/engine/docker"
)

// bare is a machine on which nothing points at an engine.
var bare = docker.Surroundings{
	Getenv:   func(string) string { return "" },
	ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist },
	Stat:     func(string) error { return fs.ErrNotExist },
}

func TestEngineOfThisMachine(t *testing.T) {
	pointed := bare
	pointed.Getenv = func(name string) string {
		return map[string]string{"DOCKER_HOST": "unix:///nowhere/docker.sock"}[name]
	}
	for name, tc := range map[string]struct {
		asked, kept string
		around      docker.Surroundings
		want        string // the choice, or part of the refusal
		refused     bool
	}{
		"auto takes docker where something points at it, answering or not": {asked: "auto", around: pointed, want: "docker"},
		"auto without docker is refused, not replaced":                     {asked: "auto", around: bare, refused: true, want: `"local" is not in this version`},
		"local is refused, not replaced":                                   {asked: "local", around: pointed, refused: true, want: `"local" is not in this version`},
		"docker that is asked for may come up later":                       {asked: "docker", around: bare, want: "docker"},
		"docker that was chosen once may come up later":                    {asked: "auto", kept: "docker", around: bare, want: "docker"},
		"docker that was chosen once is never left":                        {asked: "local", kept: "docker", around: pointed, refused: true, want: "--data-dir of its own"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfig()
			c.engine = tc.asked
			in := installation{Instance: "x", Engine: tc.kept}
			eng, err := openEngine(t.Context(), c, &in, t.TempDir(), tc.around, slog.New(slog.DiscardHandler))
			if tc.refused {
				if err == nil || !strings.Contains(err.Error(), tc.want) || !isUsage(err) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := eng.Close(); err != nil {
				t.Error(err)
			}
			if in.Engine != tc.want {
				t.Errorf("chose %q", in.Engine)
			}
		})
	}
}
