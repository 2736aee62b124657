package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/engine/docker"
	"sandkeeper/internal/engine/enginetest"
	"sandkeeper/internal/engine/local"
	"sandkeeper/test/need"
)

// machine is what may point at docker.
type machine struct {
	variable string // DOCKER_HOST
	context  string // of the docker configuration
	broken   bool   // that configuration cannot be read
	socket   bool   // the default socket is there
}

func (m machine) around(address string) docker.Surroundings {
	sum := sha256.Sum256([]byte(m.context))
	meta := filepath.Join("contexts/meta", hex.EncodeToString(sum[:]), "meta.json")
	return docker.Surroundings{
		Getenv: func(name string) string {
			if name == "DOCKER_HOST" {
				return m.variable
			}
			return ""
		},
		ReadFile: func(path string) ([]byte, error) {
			switch {
			case strings.HasSuffix(path, "config.json") && m.broken:
				return []byte("{"), nil
			case strings.HasSuffix(path, "config.json") && m.context != "":
				return []byte(`{"currentContext":"` + m.context + `"}`), nil
			case strings.HasSuffix(path, meta) && m.context != "":
				return []byte(`{"Endpoints":{"docker":{"Host":"` + address + `"}}}`), nil
			}
			return nil, fs.ErrNotExist
		},
		Stat: func(path string) error {
			if m.socket && path == "/var/run/docker.sock" {
				return nil
			}
			return fs.ErrNotExist
		},
	}
}

// Whether docker answers is never asked: a docker that is down is no reason to
// run commands in a weaker place.
func TestChoiceOfEngineFailsClosed(t *testing.T) {
	mute := filepath.Join(t.TempDir(), "mute.sock") // accepts, and never answers
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addresses := map[string]string{"answering not at all": "unix://" + filepath.Join(t.TempDir(), "absent.sock"), "mute": "unix://" + mute}
	for how, address := range addresses {
		machines := map[string]struct {
			machine
			auto string // what auto takes
		}{
			"nothing":                  {machine{}, "local"},
			"a variable":               {machine{variable: address}, "docker"},
			"a context":                {machine{context: "there"}, "docker"},
			"the default context":      {machine{context: "default"}, "local"},
			"a socket":                 {machine{socket: true}, "docker"},
			"a variable and a socket":  {machine{variable: address, socket: true}, "docker"},
			"a context and a socket":   {machine{context: "there", socket: true}, "docker"},
			"a broken configuration":   {machine{broken: true}, "docker"},
			"a variable of no meaning": {machine{variable: "ssh://host"}, "docker"},
		}
		for what, m := range machines {
			for _, asked := range []string{"auto", "docker", "local"} {
				for _, kept := range []string{"", "docker", "local"} {
					t.Run(strings.Join([]string{what, how, "asked " + asked, "kept " + kept}, ", "), func(t *testing.T) {
						want, refused := asked, kept != "" && asked != "auto" && asked != kept
						if asked == "auto" {
							want = m.auto
						}
						if kept != "" {
							want = kept
						}
						in := installation{Instance: "x", Engine: kept}
						err := in.chooseEngine(asked, auto(m.around(address)))
						if refused != (err != nil) || in.Engine != want {
							t.Errorf("chose %q, %v; want %q, refused %v", in.Engine, err, want, refused)
						}
						if refused && (!isUsage(err) || !strings.Contains(err.Error(), "--data-dir of its own")) {
							t.Errorf("the refusal does not say what to do: %v", err)
						}
					})
				}
			}
		}
	}
}

func TestEveryEngineCanBeChosen(t *testing.T) {
	for _, name := range append([]string{"auto"}, enginetest.Engines...) {
		if _, err := configOf(t, "--engine", name); err != nil {
			t.Errorf("--engine %s: %v", name, err)
		}
	}
}

func TestTheChosenEngineIsOpened(t *testing.T) {
	for name, tc := range map[string]struct {
		asked, kept string
		machine     machine
		want        string
		image       string // the default that is left
		refused     string // part of why it cannot be opened
	}{
		"docker that is asked for may come up later":    {asked: "docker", want: "docker", image: "debian:bookworm-slim"},
		"docker that was chosen once may come up later": {asked: "auto", kept: "docker", want: "docker", image: "debian:bookworm-slim"},
		"docker that cannot be spoken to is an error":   {asked: "auto", machine: machine{variable: "ssh://host"}, refused: "ssh is not spoken here"},
		"a configuration that is broken is an error":    {asked: "auto", machine: machine{broken: true}, refused: "docker configuration"},
		"local has no default image":                    {asked: "auto", want: "local"},
		"local is kept when docker comes":               {asked: "auto", kept: "local", machine: machine{socket: true}, want: "local"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newConfig()
			c.engine = tc.asked
			in := installation{Instance: "t" + strings.ToLower(rand.Text()[:8]), Engine: tc.kept}
			eng, err := openEngine(t.Context(), c, &in, t.TempDir(), tc.machine.around(""), false, slog.New(slog.DiscardHandler))
			if tc.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tc.refused) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if errors.Is(err, local.ErrNoIsolation) {
				need.Missing(t, "local", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			info, infoErr := eng.Info(t.Context())
			if err := eng.Close(); err != nil {
				t.Error(err)
			}
			if in.Engine != tc.want || c.image != tc.image || infoErr == nil && info.Name != tc.want {
				t.Errorf("chose %q with the image %q, opened %+v", in.Engine, c.image, info)
			}
		})
	}
}
