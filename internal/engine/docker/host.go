package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrNotConfigured means that nothing on this machine points at an engine.
var ErrNotConfigured = errors.New("no docker engine is configured: DOCKER_HOST is not set, no docker context is chosen, and there is no default socket")

// Host is where the engine is to be reached.
type Host struct {
	Address string // "unix:///var/run/docker.sock", "tcp://host:2376"
	Why     string // what pointed there, for people
	TLS     *TLS   // nil: none
}

// TLS names the PEM files of a connection; an empty name is none.
type TLS struct {
	CA, Cert, Key string
	SkipVerify    bool
}

// Socket returns the path of the engine's unix socket, or "" where it is
// reached in another way.
func (h Host) Socket() string {
	path, ok := strings.CutPrefix(h.Address, "unix://")
	if !ok {
		return ""
	}
	return path
}

// Surroundings is what discovery looks at.
type Surroundings struct {
	Getenv   func(string) string
	ReadFile func(string) ([]byte, error)
	Stat     func(string) error // nil: it is there
}

// System is the process's own surroundings.
func System() Surroundings {
	return Surroundings{
		Getenv:   os.Getenv,
		ReadFile: os.ReadFile,
		Stat:     func(path string) error { _, err := os.Stat(path); return err },
	}
}

// Configured says whether this machine points at a docker engine, answering or
// not, and what does. A configuration that cannot be read points at one too:
// the choice of engine fails closed.
func Configured(s Surroundings) (bool, string) {
	host, err := Discover(s)
	switch {
	case errors.Is(err, ErrNotConfigured):
		return false, err.Error()
	case err != nil:
		return true, err.Error()
	}
	return true, host.Why
}

// Discover finds the engine as the docker command does: DOCKER_HOST, else the
// context that DOCKER_CONTEXT or the configuration file names, else the default
// socket. Errors: ErrNotConfigured where there is none of these.
func Discover(s Surroundings) (Host, error) {
	if address := s.Getenv("DOCKER_HOST"); address != "" {
		host := Host{Why: "DOCKER_HOST", TLS: s.environmentTLS()}
		return host.at(address)
	}
	if name := s.Getenv("DOCKER_CONTEXT"); name != "" {
		return s.context(name, "DOCKER_CONTEXT")
	}
	config, err := readConfig(s)
	if err != nil {
		return Host{}, err
	}
	return s.context(config.CurrentContext, "the docker configuration")
}

// at completes a host with its address.
func (h Host) at(address string) (Host, error) {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		scheme, rest = "tcp", address
	}
	switch scheme {
	case "unix":
		if rest == "" {
			rest = defaultSocket
		}
	case "ssh":
		return Host{}, fmt.Errorf("%s names %s, and ssh is not spoken here: forward the engine's socket with "+
			"`ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST` and set DOCKER_HOST=unix:///tmp/docker.sock", h.Why, address)
	case "tcp", "http", "https":
		scheme = "tcp"
		authority, path, _ := strings.Cut(rest, "/")
		if authority == "" {
			return Host{}, fmt.Errorf("%s names %q, which has no host", h.Why, address)
		}
		if strings.LastIndexByte(authority, ':') <= strings.LastIndexByte(authority, ']') {
			port := ":2375"
			if h.TLS != nil {
				port = ":2376"
			}
			authority += port
		}
		rest = authority
		if path != "" {
			rest += "/" + path
		}
	default:
		return Host{}, fmt.Errorf("%s names %q: the engine is reached by unix:// or tcp://", h.Why, address)
	}
	h.Address = scheme + "://" + rest
	return h, nil
}

const defaultSocket = "/var/run/docker.sock"

// socket looks for the default sockets: the system's, a rootless engine's, and
// the one that Docker Desktop keeps in the home directory.
func (s Surroundings) socket() (Host, error) {
	paths := []string{defaultSocket}
	if dir := s.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		paths = append(paths, filepath.Join(dir, "docker.sock"))
	}
	if home := s.Getenv("HOME"); home != "" {
		paths = append(paths, filepath.Join(home, ".docker/run/docker.sock"))
	}
	for _, path := range paths {
		// What may not be looked at may be there.
		if err := s.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) && !isNotDir(err) {
			return Host{Address: "unix://" + path, Why: "the default socket " + path}, nil
		}
	}
	return Host{}, ErrNotConfigured
}

// environmentTLS is what DOCKER_TLS, DOCKER_TLS_VERIFY and DOCKER_CERT_PATH ask for.
func (s Surroundings) environmentTLS() *TLS {
	verify := s.Getenv("DOCKER_TLS_VERIFY") != ""
	if !verify && s.Getenv("DOCKER_TLS") == "" {
		return nil
	}
	dir := s.Getenv("DOCKER_CERT_PATH")
	if dir == "" {
		dir = s.configDir()
	}
	return s.filesOfTLS(dir, !verify)
}

func (s Surroundings) filesOfTLS(dir string, skipVerify bool) *TLS {
	t := &TLS{SkipVerify: skipVerify}
	for name, to := range map[string]*string{"ca.pem": &t.CA, "cert.pem": &t.Cert, "key.pem": &t.Key} {
		if path := filepath.Join(dir, name); s.Stat(path) == nil {
			*to = path
		}
	}
	return t
}

func (s Surroundings) configDir() string {
	if dir := s.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir
	}
	return filepath.Join(s.Getenv("HOME"), ".docker")
}

// context reads a docker context of the command line's store. The name
// "default" and none at all are the default socket.
func (s Surroundings) context(name, namedBy string) (Host, error) {
	if name == "" || name == "default" {
		return s.socket()
	}
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	path := filepath.Join(s.configDir(), "contexts/meta", id, "meta.json")
	raw, err := s.ReadFile(path)
	if err != nil {
		return Host{}, fmt.Errorf("docker context %q, which %s names, cannot be read: %w", name, namedBy, err)
	}
	var meta struct {
		Endpoints map[string]struct {
			Host          string
			SkipTLSVerify bool
		}
	}
	if err := json.Unmarshal(raw, &meta); err != nil {
		return Host{}, fmt.Errorf("docker context %q, which %s names, cannot be read: %s: %w", name, namedBy, path, err)
	}
	endpoint, ok := meta.Endpoints["docker"]
	if !ok {
		return Host{}, fmt.Errorf("docker context %q, which %s names, has no docker endpoint", name, namedBy)
	}
	if endpoint.Host == "" {
		return s.socket()
	}
	host := Host{Why: fmt.Sprintf("docker context %q", name)}
	tls := s.filesOfTLS(filepath.Join(s.configDir(), "contexts/tls", id, "docker"), endpoint.SkipTLSVerify)
	if *tls != (TLS{}) {
		host.TLS = tls
	}
	return host.at(endpoint.Host)
}
