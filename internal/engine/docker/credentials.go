package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"github.com/docker/docker/api/types/registry"
)

// hubKey is how the configuration names the registry of images without one.
const hubKey = "https://index.docker.io/v1/"

// helperTimeout bounds a credential helper, which may ask a keychain.
const helperTimeout = 20 * time.Second

// auth returns the credentials for a registry: of its own helper, else of the
// general store, else of the file itself. None is no error.
func (c cliConfig) auth(ctx context.Context, domain string) (registry.AuthConfig, error) {
	key := domain
	if domain == "docker.io" {
		key = hubKey
	}
	helper := c.CredHelpers[key]
	if helper == "" {
		helper = c.CredsStore
	}
	if helper != "" {
		auth, err := askHelper(ctx, helper, key)
		if err != nil || auth != (registry.AuthConfig{}) {
			return auth, err
		}
	}
	entry, ok := c.Auths[key]
	if !ok {
		for k, v := range c.Auths {
			if hostOf(k) == hostOf(key) {
				entry, ok = v, true
				break
			}
		}
	}
	if !ok {
		return registry.AuthConfig{}, nil
	}
	return entry.decode(key)
}

// hostOf strips the scheme and the path of a configuration's key.
func hostOf(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ := strings.Cut(key, "/")
	return host
}

func (a cliAuth) decode(server string) (registry.AuthConfig, error) {
	auth := registry.AuthConfig{
		Username:      a.Username,
		Password:      a.Password,
		IdentityToken: a.IdentityToken,
		RegistryToken: a.RegistryToken,
		ServerAddress: server,
	}
	if a.Auth != "" {
		raw, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return registry.AuthConfig{}, fmt.Errorf("docker configuration: auth of %s is not base64", server)
		}
		user, password, ok := strings.Cut(string(raw), ":")
		if !ok {
			return registry.AuthConfig{}, fmt.Errorf("docker configuration: auth of %s is not user:password", server)
		}
		auth.Username, auth.Password = user, strings.TrimRight(password, "\x00")
	}
	if auth == (registry.AuthConfig{ServerAddress: server}) {
		return registry.AuthConfig{}, nil // a key with nothing behind it: the store has it
	}
	return auth, nil
}

var helperName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// askHelper runs docker-credential-NAME get.
func askHelper(ctx context.Context, name, server string) (registry.AuthConfig, error) {
	if !helperName.MatchString(name) {
		return registry.AuthConfig{}, fmt.Errorf("docker configuration: %q is no name of a credential helper", name)
	}
	ctx, cancel := context.WithTimeout(ctx, helperTimeout)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker-credential-"+name, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.Stdout = &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if strings.Contains(out.String(), "credentials not found") {
			return registry.AuthConfig{}, nil
		}
		// Its output is not shown: it may hold a secret.
		return registry.AuthConfig{}, fmt.Errorf("credential helper %s: %w", name, err)
	}
	var got struct{ Username, Secret string }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return registry.AuthConfig{}, fmt.Errorf("credential helper %s: its answer is not JSON", name)
	}
	auth := registry.AuthConfig{ServerAddress: server}
	if got.Username == "<token>" {
		auth.IdentityToken = got.Secret
	} else {
		auth.Username, auth.Password = got.Username, got.Secret
	}
	return auth, nil
}
