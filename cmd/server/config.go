package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"sandkeeper/internal/control"
)

const (
	envPrefix = "SANDKEEPER"
	day       = 24 * time.Hour
	year      = 365 * day
)

// config is everything that can be set, with the values that hold now.
type config struct {
	file string // --config

	listen         string
	listenInsecure bool
	allowedOrigins []string
	dataDir        string
	instance       string
	agentToken     string
	operatorToken  string
	viewerToken    string

	engine       string
	link         string
	image        string
	readOnlyRoot bool
	limits       control.Limits

	lifetime         time.Duration
	retention        time.Duration
	disconnectGrace  time.Duration
	restartGrace     time.Duration
	maxTurn          time.Duration
	backgroundMaxAge time.Duration
	failedAfter      time.Duration
	startTimeout     time.Duration
	pullTimeout      time.Duration
	teardownTimeout  time.Duration

	heartbeat       time.Duration
	maxFrameBytes   int64
	maxExecsPerEnv  int
	maxEnvsPerOwner int
	eventsKeep      int
	eventsMaxAge    time.Duration

	logFormat string
	logLevel  string
}

func newConfig() *config {
	return &config{
		listen:  "127.0.0.1:7333",
		dataDir: "./data",

		engine: "auto",
		link:   "auto",
		image:  "debian:bookworm-slim",
		limits: control.Limits{CPUs: 1, MemoryMB: 5120, Pids: 256},

		lifetime:         5 * time.Minute,
		retention:        7 * day,
		disconnectGrace:  time.Minute,
		restartGrace:     time.Minute,
		maxTurn:          time.Hour,
		backgroundMaxAge: day,
		failedAfter:      10 * time.Minute,
		startTimeout:     time.Minute,
		pullTimeout:      10 * time.Minute,
		teardownTimeout:  30 * time.Second,

		heartbeat:       20 * time.Second,
		maxFrameBytes:   1 << 20,
		maxExecsPerEnv:  64,
		maxEnvsPerOwner: 10_000,
		eventsKeep:      1_000_000,
		eventsMaxAge:    30 * day,

		logFormat: "text",
		logLevel:  "info",
	}
}

// setting is a flag, a variable and a key of the file by one name.
type setting struct {
	name  string
	value interface {
		pflag.Value
		refusal() error // says what it accepts
	}
	usage  string
	secret bool // a variable and a key alone: a command line is for all to read
}

// variable is the setting's environment variable.
func (s setting) variable() string {
	return envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// settings lists all of them in the order of --help.
func (c *config) settings() []setting {
	return []setting{
		{name: "config", value: path(&c.file, "file"), usage: "read settings from this file (.yaml, .toml or .json); its keys are the flags' names"},

		{name: "listen", value: address(&c.listen), usage: "serve the page, the API and the agents' socket here"},
		{name: "insecure-listen-beyond-loopback", value: yesNo(&c.listenInsecure), usage: "allow --listen to be reached from other machines: tokens then cross the network unencrypted, so put a TLS proxy in front"},
		{name: "allowed-origin", value: origins(&c.allowedOrigins), usage: "let pages of this origin open the agents' socket (repeatable)"},
		{name: "data-dir", value: path(&c.dataDir, "dir"), usage: "keep the database, the tokens and the sandboxes' sockets here"},
		{name: "instance", value: instance(&c.instance), usage: "name this installation on the engine; made at the first start and kept with the data"},
		{name: "agent-token", value: token(&c.agentToken), secret: true, usage: `the preset agent's token, of the owner "default"`},
		{name: "operator-token", value: token(&c.operatorToken), secret: true, usage: "the preset operator's token"},
		{name: "viewer-token", value: token(&c.viewerToken), secret: true, usage: "the preset viewer's token"},

		{name: "engine", value: choice(&c.engine, "auto", "docker", "local"), usage: `what sandboxes run on: "auto", "docker" or "local"; kept with the data once chosen`},
		{name: "link", value: choice(&c.link, "auto", "socket", "attach"), usage: `how to reach a sandbox's guest: over its "socket", over the engine's "attach", or "auto"`},
		{name: "image", value: text(&c.image, "image", "the name of an image", func(s string) bool { return s != "" && !strings.ContainsAny(s, " \t\n\x00") }), usage: "the image of an environment that asks for none"},
		{name: "read-only-root", value: yesNo(&c.readOnlyRoot), usage: "make the sandboxes' root file systems read-only; /workspace and /tmp stay writable"},
		{name: "cpus", value: cpus(&c.limits.CPUs), usage: "CPUs of an environment that asks for no limit; 0 sets none"},
		{name: "memory-mb", value: count(&c.limits.MemoryMB, 16, 1<<30, "sets no limit"), usage: "its memory in MiB; 0 sets no limit"},
		{name: "pids", value: count(&c.limits.Pids, 16, 1<<22, "sets no limit"), usage: "its processes; 0 sets no limit"},
		{name: "disk-mb", value: count(&c.limits.DiskMB, 16, 1<<30, "sets no limit"), usage: "its disk space in MiB; 0 sets no limit"},

		{name: "lifetime", value: duration(&c.lifetime, time.Second, year, ""), usage: "how long an environment may be idle; then the reaper acts"},
		{name: "retention", value: duration(&c.retention, time.Second, 100*year, "keeps them for ever"), usage: "how long the files of a dormant environment are kept; 0 keeps them for ever"},
		{name: "disconnect-grace", value: duration(&c.disconnectGrace, time.Millisecond, day, ""), usage: "how long an agent may be gone before its turn is abandoned, at most"},
		{name: "restart-grace", value: duration(&c.restartGrace, time.Millisecond, day, "gives none"), usage: "how long after a start of the server nothing is reaped whose countdown ran before"},
		{name: "max-turn", value: duration(&c.maxTurn, time.Second, year, ""), usage: "how long an open turn without activity holds its environments"},
		{name: "background-max-age", value: duration(&c.backgroundMaxAge, time.Second, year, ""), usage: "how long a process left in the background holds its environment"},
		{name: "failed-after", value: duration(&c.failedAfter, time.Second, year, ""), usage: "when an environment that could not be started goes"},
		{name: "start-timeout", value: duration(&c.startTimeout, time.Second, day, ""), usage: "how long creating and starting a sandbox may take"},
		{name: "pull-timeout", value: duration(&c.pullTimeout, time.Second, day, ""), usage: "how long pulling an image may take"},
		{name: "teardown-timeout", value: duration(&c.teardownTimeout, time.Second, day, ""), usage: "how long one attempt of a teardown may take"},

		{name: "heartbeat", value: duration(&c.heartbeat, time.Second, time.Hour, ""), usage: "how often agents' sockets are pinged; two unanswered pings end one"},
		{name: "max-frame-bytes", value: count(&c.maxFrameBytes, 64<<10, 64<<20, ""), usage: "the largest frame that an agent may send"},
		{name: "max-execs-per-env", value: count(&c.maxExecsPerEnv, 1, 100_000, ""), usage: "commands that may run in one environment at once"},
		{name: "max-envs-per-owner", value: count(&c.maxEnvsPerOwner, 1, 10_000_000, ""), usage: "environments that one owner may have"},
		{name: "events-keep", value: count(&c.eventsKeep, 100, 1<<40, ""), usage: "events that the log keeps, at most"},
		{name: "events-max-age", value: duration(&c.eventsMaxAge, time.Minute, 100*year, ""), usage: "how long it keeps them, at most"},

		{name: "log-format", value: choice(&c.logFormat, "text", "json"), usage: `"text" or "json"`},
		{name: "log-level", value: choice(&c.logLevel, "debug", "info", "warn", "error"), usage: `the least that is logged: "debug", "info", "warn" or "error"`},
	}
}

// pick returns the settings of these names, or all where none is named.
func (c *config) pick(names []string) []setting {
	all := c.settings()
	if len(names) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(s setting) bool { return !slices.Contains(names, s.name) })
}

// register adds a command's settings to its flags; without names, all.
func (c *config) register(cmd *cobra.Command, names ...string) {
	flags := cmd.Flags()
	flags.SortFlags = false
	for _, s := range c.pick(names) {
		if s.secret {
			continue
		}
		f := flags.VarPF(s.value, s.name, "", fmt.Sprintf("%s [%s]", s.usage, s.variable()))
		switch f.DefValue {
		case "false":
			f.NoOptDefVal = "true"
			f.Usage += " (default false)"
		case "0":
			f.Usage += " (default 0)"
		case "":
			f.Usage += " (default none)"
		}
	}
}

// load fills in what the flags did not set (a variable goes before the file) and
// makes the data directory's path absolute.
func (c *config) load(cmd *cobra.Command, names ...string) error {
	v := viper.New()
	v.SetEnvPrefix(envPrefix)
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_"))
	v.AutomaticEnv()
	if !cmd.Flags().Changed("config") {
		c.file = v.GetString("config")
	}
	if c.file != "" {
		if err := c.readFile(v); err != nil {
			return err
		}
	}
	for _, s := range c.pick(names) {
		if s.name == "config" || cmd.Flags().Changed(s.name) || !v.IsSet(s.name) {
			continue
		}
		from := s.variable()
		if os.Getenv(from) == "" {
			from = s.name + " in " + c.file
		}
		if err := s.set(v.Get(s.name)); err != nil {
			return usagef("%s %w", from, err)
		}
	}
	dir, err := filepath.Abs(c.dataDir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	c.dataDir = dir
	return nil
}

// readFile reads the file and refuses keys that are no setting: a typo must not pass silently.
func (c *config) readFile(v *viper.Viper) error {
	v.SetConfigFile(c.file)
	if err := v.ReadInConfig(); err != nil {
		if _, ok := errors.AsType[viper.UnsupportedConfigError](err); ok {
			return usagef("the configuration file %s must end in .yaml, .toml or .json", c.file)
		}
		return usagef("read the configuration: %w", err)
	}
	known := c.settings()[1:]
	keys := v.AllKeys()
	slices.Sort(keys)
	for _, k := range keys {
		if !slices.ContainsFunc(known, func(s setting) bool { return s.name == k }) {
			return usagef("%s: there is no setting %q; see sandkeeper serve --help", c.file, k)
		}
	}
	return nil
}

// set takes a value as a variable or a file gives it.
func (s setting) set(raw any) error {
	var str string
	switch raw := raw.(type) {
	case string:
		str = raw
	case bool, int, int64, uint64:
		str = fmt.Sprint(raw)
	case float64:
		str = strconv.FormatFloat(raw, 'f', -1, 64)
	case []any:
		if s.value.Type() != "origin" {
			return fmt.Errorf("is a list: %w", s.value.refusal())
		}
		for _, item := range raw {
			if err := s.set(item); err != nil {
				return err
			}
		}
		return nil
	default:
		return fmt.Errorf("is no plain value: %w", s.value.refusal())
	}
	if err := s.value.Set(str); err != nil {
		if s.secret {
			return fmt.Errorf("is not right: %w", err)
		}
		return fmt.Errorf("is %q: %w", str, err)
	}
	return nil
}

// strangeVariables lists variables with our prefix that are no setting: most likely typos.
func (c *config) strangeVariables() []string {
	var strange []string
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, envPrefix+"_") && !strings.HasPrefix(name, envPrefix+"_TEST_") && name != serverVariable &&
			!slices.ContainsFunc(c.settings(), func(s setting) bool { return s.variable() == name }) {
			strange = append(strange, name)
		}
	}
	return strange
}

// check holds the rules that join settings.
func (c *config) check(ctx context.Context) error {
	if presets := slices.DeleteFunc([]string{c.agentToken, c.operatorToken, c.viewerToken}, func(s string) bool { return s == "" }); len(presets) > 1 {
		slices.Sort(presets)
		if len(slices.Compact(presets)) < len(presets) {
			return usagef("two of SANDKEEPER_AGENT_TOKEN, SANDKEEPER_OPERATOR_TOKEN and SANDKEEPER_VIEWER_TOKEN are the same: each role needs a token of its own")
		}
	}
	local, err := onLoopback(ctx, c.listen)
	if err != nil {
		return err
	}
	if !local && !c.listenInsecure {
		return usagef("--listen %s can be reached from other machines, and whoever has a token there runs commands here, over an unencrypted line: "+
			"say --insecure-listen-beyond-loopback too where that is meant, or listen on 127.0.0.1 behind a TLS proxy", c.listen)
	}
	return nil
}

// onLoopback reports whether this machine alone can reach the address.
func onLoopback(ctx context.Context, addr string) (bool, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false, usagef("--listen %s: %w", addr, err)
	}
	if host == "" {
		return false, nil
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return false, usagef("--listen %s: the host cannot be resolved: %w", addr, err)
	}
	return !slices.ContainsFunc(ips, func(ip net.IPAddr) bool { return !ip.IP.IsLoopback() }), nil
}
