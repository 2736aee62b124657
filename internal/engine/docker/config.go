package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// cliConfig is what we use of the docker command's own config.json.
type cliConfig struct {
	CurrentContext string             `json:"currentContext"`
	Auths          map[string]cliAuth `json:"auths"`
	CredsStore     string             `json:"credsStore"`
	CredHelpers    map[string]string  `json:"credHelpers"`
}

// cliAuth is one registry's entry of the auths.
type cliAuth struct {
	Auth          string `json:"auth"` // base64 of user:password
	Username      string `json:"username"`
	Password      string `json:"password"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// readConfig reads the user's docker configuration; a missing one is empty.
func readConfig(s Surroundings) (cliConfig, error) {
	var c cliConfig
	path := filepath.Join(s.configDir(), "config.json")
	raw, err := s.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), isNotDir(err):
		return c, nil
	case err != nil:
		return c, fmt.Errorf("docker configuration: %w", err)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return cliConfig{}, fmt.Errorf("docker configuration %s: %w", path, err)
	}
	return c, nil
}

func isNotDir(err error) bool { return errors.Is(err, syscall.ENOTDIR) }
