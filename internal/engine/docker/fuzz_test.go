package docker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
)

// Whatever the engine's answers hold, they are read or refused.
func FuzzEngineAnswer(f *testing.F) {
	f.Add(`{"status":"Pulling"}{"errorDetail":{"message":"no space left"},"error":"no space left"}`, "2026-03-01T12:00:00.5Z")
	f.Add(`{"memory_stats":{"usage":5,"stats":{"inactive_file":9}},"pids_stats":{"current":1}}`, "0001-01-01T00:00:00Z")
	f.Add(`{"image":1}`, "9999-99-99")
	f.Fuzz(func(t *testing.T, text, time string) {
		if err := drainProgress(strings.NewReader(text)); err != nil && err.Error() == "" {
			t.Fatalf("%q fails without words", text)
		}
		var read container.StatsResponse
		if json.Unmarshal([]byte(text), &read) == nil && statsOf(read).Memory > int64(read.MemoryStats.Usage) && int64(read.MemoryStats.Usage) >= 0 {
			t.Fatalf("%q uses %d bytes", text, statsOf(read).Memory)
		}
		labelled(map[string]string{labelSpec: text})
		if at := parseTime(time); !at.IsZero() && at.Year() <= 1 {
			t.Fatalf("%q is %v", time, at)
		}
	})
}

func FuzzCLIConfig(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"}},"credsStore":"x","currentContext":"c"}`))
	f.Add([]byte(`{"auths":{"a":{"auth":"===="}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := readConfig(Surroundings{Getenv: func(string) string { return "" }, ReadFile: func(string) ([]byte, error) { return raw, nil }})
		if err != nil {
			return
		}
		c.CredsStore, c.CredHelpers = "", nil // no program is run here
		for _, domain := range []string{"docker.io", "registry.example"} {
			c.auth(t.Context(), domain) //nolint:errcheck // refusals are part of it
		}
	})
}
