package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"
)

// surroundings of a made-up machine: its variables and files.
func surroundings(env, files map[string]string) Surroundings {
	return Surroundings{
		Getenv: func(name string) string { return env[name] },
		ReadFile: func(path string) ([]byte, error) {
			text, ok := files[path]
			if !ok {
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			}
			return []byte(text), nil
		},
		Stat: func(path string) error {
			switch files[path] {
			case "forbidden":
				return &fs.PathError{Op: "stat", Path: path, Err: fs.ErrPermission}
			case "":
				return &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
			}
			return nil
		},
	}
}

const socketFile = "a socket"

func metaPath(dir, name string) string {
	sum := sha256.Sum256([]byte(name))
	return dir + "/contexts/meta/" + hex.EncodeToString(sum[:]) + "/meta.json"
}

// tlsOfC is where the certificates of the context c are.
func tlsOfC() string {
	sum := sha256.Sum256([]byte("c"))
	return "/home/u/.docker/contexts/tls/" + hex.EncodeToString(sum[:]) + "/docker"
}

func TestDiscoverAsTheDockerCommandDoes(t *testing.T) {
	const home = "/home/u"
	context := func(host string) string { return `{"Name":"c","Endpoints":{"docker":{"Host":"` + host + `"}}}` }
	tests := []struct {
		name  string
		env   map[string]string
		files map[string]string
		want  string // the address
		tls   *TLS
		err   string // part of it
	}{
		{name: "nothing at all", err: ErrNotConfigured.Error()},
		{name: "the default socket", files: map[string]string{defaultSocket: socketFile}, want: "unix://" + defaultSocket},
		{name: "a default socket that may not be looked at is one", files: map[string]string{defaultSocket: "forbidden"}, want: "unix://" + defaultSocket},
		{name: "a rootless engine's socket",
			env:   map[string]string{"XDG_RUNTIME_DIR": "/run/user/1000"},
			files: map[string]string{"/run/user/1000/docker.sock": socketFile}, want: "unix:///run/user/1000/docker.sock"},
		{name: "the desktop's socket", files: map[string]string{home + "/.docker/run/docker.sock": socketFile}, want: "unix://" + home + "/.docker/run/docker.sock"},
		{name: "DOCKER_HOST", env: map[string]string{"DOCKER_HOST": "unix:///tmp/d.sock"}, want: "unix:///tmp/d.sock"},
		{name: "DOCKER_HOST need not be there", env: map[string]string{"DOCKER_HOST": "tcp://10.0.0.1:2375"}, want: "tcp://10.0.0.1:2375"},
		{name: "DOCKER_HOST comes before DOCKER_CONTEXT",
			env:   map[string]string{"DOCKER_HOST": "unix:///tmp/d.sock", "DOCKER_CONTEXT": "c"},
			files: map[string]string{metaPath(home+"/.docker", "c"): context("tcp://c:1")}, want: "unix:///tmp/d.sock"},
		{name: "DOCKER_CONTEXT comes before the file's",
			env: map[string]string{"DOCKER_CONTEXT": "c"},
			files: map[string]string{
				home + "/.docker/config.json":      `{"currentContext":"other"}`,
				metaPath(home+"/.docker", "c"):     context("tcp://c:1"),
				metaPath(home+"/.docker", "other"): context("tcp://other:1"),
			}, want: "tcp://c:1"},
		{name: "the file's context comes before the default socket",
			files: map[string]string{
				defaultSocket:                  socketFile,
				home + "/.docker/config.json":  `{"currentContext":"c"}`,
				metaPath(home+"/.docker", "c"): context("unix:///run/c.sock"),
			}, want: "unix:///run/c.sock"},
		{name: "the context called default is the default socket",
			env:   map[string]string{"DOCKER_CONTEXT": "default"},
			files: map[string]string{defaultSocket: socketFile}, want: "unix://" + defaultSocket},
		{name: "DOCKER_CONFIG says where the files are",
			env: map[string]string{"DOCKER_CONFIG": "/etc/d"},
			files: map[string]string{
				"/etc/d/config.json":    `{"currentContext":"c"}`,
				metaPath("/etc/d", "c"): context("unix:///run/c.sock"),
			}, want: "unix:///run/c.sock"},
		{name: "a context's certificates",
			env: map[string]string{"DOCKER_CONTEXT": "c"},
			files: map[string]string{
				metaPath(home+"/.docker", "c"): context("tcp://c"),
				tlsOfC() + "/ca.pem":           "pem",
				tlsOfC() + "/cert.pem":         "pem",
				tlsOfC() + "/key.pem":          "pem",
			}, want: "tcp://c:2376",
			tls: &TLS{CA: tlsOfC() + "/ca.pem", Cert: tlsOfC() + "/cert.pem", Key: tlsOfC() + "/key.pem"}},
		{name: "certificates by variables",
			env:   map[string]string{"DOCKER_HOST": "tcp://h", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"},
			files: map[string]string{"/certs/ca.pem": "pem"}, want: "tcp://h:2376", tls: &TLS{CA: "/certs/ca.pem"}},
		{name: "TLS without verification",
			env:  map[string]string{"DOCKER_HOST": "tcp://h", "DOCKER_TLS": "1"},
			want: "tcp://h:2376", tls: &TLS{SkipVerify: true}},
		{name: "no port, no scheme", env: map[string]string{"DOCKER_HOST": "engine.local"}, want: "tcp://engine.local:2375"},
		{name: "an IPv6 address without a port", env: map[string]string{"DOCKER_HOST": "tcp://[::1]"}, want: "tcp://[::1]:2375"},
		{name: "a path behind the address", env: map[string]string{"DOCKER_HOST": "tcp://h:1/prefix"}, want: "tcp://h:1/prefix"},
		{name: "ssh is refused with the way round it", env: map[string]string{"DOCKER_HOST": "ssh://u@h"}, err: "ssh -nNT -L"},
		{name: "ssh in a context too",
			env:   map[string]string{"DOCKER_CONTEXT": "c"},
			files: map[string]string{metaPath(home+"/.docker", "c"): context("ssh://u@h")}, err: "ssh -nNT -L"},
		{name: "an unknown scheme", env: map[string]string{"DOCKER_HOST": "npipe:////./pipe/x"}, err: "unix:// or tcp://"},
		{name: "an address without a host", env: map[string]string{"DOCKER_HOST": "tcp://"}, err: "no host"},
		{name: "a context that is not there", env: map[string]string{"DOCKER_CONTEXT": "c"}, files: map[string]string{defaultSocket: socketFile}, err: `context "c"`},
		{name: "a context that is no JSON", env: map[string]string{"DOCKER_CONTEXT": "c"},
			files: map[string]string{metaPath(home+"/.docker", "c"): "{"}, err: `context "c"`},
		{name: "a context of something else", env: map[string]string{"DOCKER_CONTEXT": "c"},
			files: map[string]string{metaPath(home+"/.docker", "c"): `{"Endpoints":{"kubernetes":{}}}`}, err: "no docker endpoint"},
		{name: "a configuration that is no JSON", files: map[string]string{home + "/.docker/config.json": "{", defaultSocket: socketFile}, err: "config.json"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			env := map[string]string{"HOME": home}
			maps.Copy(env, test.env)
			s := surroundings(env, test.files)
			host, err := Discover(s)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want one with %q", err, test.err)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if host.Address != test.want {
				t.Errorf("address %q, want %q", host.Address, test.want)
			}
			if (host.TLS == nil) != (test.tls == nil) || host.TLS != nil && *host.TLS != *test.tls {
				t.Errorf("TLS %+v, want %+v", host.TLS, test.tls)
			}
			// The choice of engine fails closed: only nothing at all is no docker.
			configured, why := Configured(s)
			if want := !errors.Is(err, ErrNotConfigured); configured != want || why == "" {
				t.Errorf("configured: %v (%s), want %v", configured, why, want)
			}
		})
	}
}

func TestSocketOfAHost(t *testing.T) {
	for address, want := range map[string]string{"unix:///a/b": "/a/b", "tcp://h:1": ""} {
		if got := (Host{Address: address}).Socket(); got != want {
			t.Errorf("socket of %s is %q, want %q", address, got, want)
		}
	}
}
