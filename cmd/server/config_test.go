package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// configOf loads the configuration as serve does.
func configOf(t *testing.T, args ...string) (*config, error) {
	t.Helper()
	c := newConfig()
	cmd := &cobra.Command{Use: "serve", SilenceErrors: true, SilenceUsage: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.load(cmd); err != nil {
				return err
			}
			return c.check(cmd.Context())
		}}
	c.register(cmd)
	root := newRoot(t.Output(), t.Output())
	root.ResetCommands()
	root.AddCommand(cmd)
	root.SetArgs(append([]string{"serve"}, args...))
	return c, root.ExecuteContext(t.Context())
}

func writeConfig(t *testing.T, name, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFlagGoesBeforeVariableGoesBeforeFile(t *testing.T) {
	file := writeConfig(t, "c.yaml", "lifetime: 1m\nretention: 2h\nmax-turn: 3h\n")
	t.Setenv("SANDKEEPER_RETENTION", "20h")
	t.Setenv("SANDKEEPER_MAX_TURN", "30h")
	c, err := configOf(t, "--config", file, "--max-turn", "300h")
	if err != nil {
		t.Fatal(err)
	}
	if c.lifetime != time.Minute || c.retention != 20*time.Hour || c.maxTurn != 300*time.Hour {
		t.Errorf("lifetime %v, retention %v, max-turn %v; want 1m, 20h, 300h", c.lifetime, c.retention, c.maxTurn)
	}
	if c.heartbeat != 20*time.Second {
		t.Errorf("heartbeat %v; want the default", c.heartbeat)
	}
}

func TestEachFormOfFileIsRead(t *testing.T) {
	for name, text := range map[string]string{
		"c.yaml": "cpus: 2.5\npids: 512\nread-only-root: true\nallowed-origin: [\"https://a.example\", \"https://b.example:8443\"]\n",
		"c.toml": "cpus = 2.5\npids = 512\nread-only-root = true\nallowed-origin = [\"https://a.example\", \"https://b.example:8443\"]\n",
		"c.json": `{"cpus":2.5,"pids":512,"read-only-root":true,"allowed-origin":["https://a.example","https://b.example:8443"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("SANDKEEPER_CONFIG", writeConfig(t, name, text))
			c, err := configOf(t)
			if err != nil {
				t.Fatal(err)
			}
			if c.limits.CPUs != 2.5 || c.limits.Pids != 512 || !c.readOnlyRoot || len(c.allowedOrigins) != 2 {
				t.Errorf("read %+v", c)
			}
		})
	}
}

func TestTokensAreNoFlags(t *testing.T) {
	_, err := configOf(t, "--agent-token", "secret-of-the-agent")
	if err == nil || !strings.Contains(err.Error(), "agent-token") {
		t.Fatalf("got %v; want an unknown flag", err)
	}
	t.Setenv("SANDKEEPER_AGENT_TOKEN", "secret-of-the-agent")
	c, err := configOf(t)
	if err != nil || c.agentToken != "secret-of-the-agent" {
		t.Errorf("got %q, %v", c.agentToken, err)
	}
}

func TestWrongSettingStopsTheStartAndSaysWhatItAccepts(t *testing.T) {
	file := func(text string) []string { return []string{"--config", writeConfig(t, "c.yaml", text)} }
	for name, tc := range map[string]struct {
		args []string
		env  map[string]string
		want []string // parts of the error
	}{
		"flag":                {args: []string{"--lifetime", "5 minutes"}, want: []string{"--lifetime", `"5 minutes"`, "a duration from 1s"}},
		"variable":            {env: map[string]string{"SANDKEEPER_LIFETIME": "soon"}, want: []string{"SANDKEEPER_LIFETIME", `"soon"`, "a duration from 1s"}},
		"key":                 {args: file("lifetime: soon"), want: []string{"lifetime in", `"soon"`, "a duration from 1s"}},
		"a number for a time": {args: file("lifetime: 300"), want: []string{"lifetime in", `"300"`, "a duration"}},
		"negative":            {args: []string{"--lifetime=-5m"}, want: []string{"--lifetime", "a duration from 1s"}},
		"zero lifetime":       {args: []string{"--lifetime=0"}, want: []string{"--lifetime", "a duration from 1s"}},
		"fraction":            {args: []string{"--pids", "1.5"}, want: []string{"--pids", "a whole number"}},
		"huge":                {args: []string{"--max-execs-per-env", "99999999999999999999"}, want: []string{"--max-execs-per-env", "a whole number from 1 to"}},
		"NaN":                 {args: []string{"--cpus", "NaN"}, want: []string{"--cpus", "a number from"}},
		"choice":              {args: []string{"--engine", "podman"}, want: []string{"--engine", `"auto", "docker" or "local"`}},
		"address":             {args: []string{"--listen", "7333"}, want: []string{"--listen", "HOST:PORT"}},
		"port":                {args: []string{"--listen", "127.0.0.1:77777"}, want: []string{"--listen", "HOST:PORT"}},
		"origin with a path":  {args: []string{"--allowed-origin", "https://a.example/x"}, want: []string{"--allowed-origin", "an origin"}},
		"instance":            {args: []string{"--instance", "prod 1"}, want: []string{"--instance", "letters"}},
		"list for a scalar":   {args: file("lifetime: [1m]"), want: []string{"lifetime in", "is a list", "a duration"}},
		"map for a scalar":    {args: file("lifetime:\n  a: 1m"), want: []string{"lifetime.a"}},
		"null":                {args: file("image: ['']"), want: []string{"image in", "the name of an image"}},
		"unknown key":         {args: file("liftime: 5m"), want: []string{`no setting "liftime"`}},
		"unknown flag":        {args: []string{"--liftime", "5m"}, want: []string{"liftime", "--help"}},
		"no such file":        {args: []string{"--config", "/nowhere/c.yaml"}, want: []string{"/nowhere/c.yaml"}},
		"file of no form":     {args: []string{"--config", writeConfig(t, "c.txt", "x")}, want: []string{".yaml, .toml or .json"}},
		"broken file":         {args: file("a: [1"), want: []string{"read the configuration"}},
		"stray argument":      {args: []string{"now"}, want: []string{`"now"`}},
		"a secret is not repeated": {env: map[string]string{"SANDKEEPER_AGENT_TOKEN": "with a space"},
			want: []string{"SANDKEEPER_AGENT_TOKEN", "without spaces"}},
		"two roles with one token": {env: map[string]string{"SANDKEEPER_AGENT_TOKEN": "same-same-same-same", "SANDKEEPER_OPERATOR_TOKEN": "same-same-same-same"},
			want: []string{"SANDKEEPER_AGENT_TOKEN", "a token of its own"}},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			_, err := configOf(t, tc.args...)
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not have %q", err, want)
				}
			}
			for _, v := range tc.env {
				if strings.Contains(err.Error(), v) && strings.Contains(name, "secret") {
					t.Errorf("error %q shows the secret", err)
				}
			}
			if !isUsage(err) {
				t.Errorf("%v is no usage error", err)
			}
		})
	}
}

func TestListeningBeyondLoopbackIsSaidTwice(t *testing.T) {
	for _, tc := range []struct {
		listen  string
		said    bool
		refused bool
	}{
		{listen: "127.0.0.1:0"},
		{listen: "127.8.8.8:0"},
		{listen: "localhost:7333"},
		{listen: "[::1]:7333"},
		{listen: "0.0.0.0:7333", refused: true},
		{listen: ":7333", refused: true},
		{listen: "[::]:7333", refused: true},
		{listen: "10.1.2.3:7333", refused: true},
		{listen: "0.0.0.0:7333", said: true},
		{listen: ":7333", said: true},
	} {
		args := []string{"--listen", tc.listen}
		if tc.said {
			args = append(args, "--insecure-listen-beyond-loopback")
		}
		_, err := configOf(t, args...)
		if tc.refused != (err != nil) {
			t.Errorf("%v: %v", args, err)
		}
		if err != nil && !strings.Contains(err.Error(), "--insecure-listen-beyond-loopback") {
			t.Errorf("%v: %v does not say how to mean it", args, err)
		}
	}
}

func TestHelpHasEachSettingWithItsVariableAndDefault(t *testing.T) {
	c := newConfig()
	var out bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, io.Discard); code != 0 {
		t.Fatalf("exit %d", code)
	}
	help := out.String()
	for _, s := range c.settings() {
		if s.secret {
			if !strings.Contains(help, s.variable()+" ") || strings.Contains(help, "--"+s.name) {
				t.Errorf("%s is not in the help, or as a flag", s.variable())
			}
			continue
		}
		i := strings.Index(help, "--"+s.name+" ")
		if i < 0 {
			i = strings.Index(help, "--"+s.name+"[")
		}
		if i < 0 {
			t.Errorf("--%s is not in the help", s.name)
			continue
		}
		line, _, _ := strings.Cut(help[i:], "\n")
		if !strings.Contains(line, "["+s.variable()+"]") || !strings.Contains(line, "(default ") {
			t.Errorf("the help of --%s lacks its variable or default: %s", s.name, line)
		}
	}
}
