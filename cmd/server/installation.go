package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The files of a data directory.
const (
	databaseFile     = "sandkeeper.db"
	installationFile = "installation.json"
	adminSocket      = "admin.sock"
	linksDir         = "links"
)

// installation is what a data directory says about itself. Every sandbox is
// named after the instance, so another instance's data is other data; the
// engine is the one that its sandboxes are on.
type installation struct {
	Instance string `json:"instance"`
	Engine   string `json:"engine,omitempty"` // "" until the first start has chosen
}

// openInstallation reads the installation of a data directory, and makes it
// where there is none. An instance that is asked for must be the data's.
func openInstallation(dir, instance string) (installation, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return installation{}, fmt.Errorf("data directory: %w", err)
	}
	in, err := readInstallation(dir)
	if errors.Is(err, fs.ErrNotExist) {
		in, err = makeInstallation(dir, instance)
	}
	if err != nil {
		return installation{}, err
	}
	if instance != "" && instance != in.Instance {
		return installation{}, usagef("the data in %s belongs to the instance %q, not to %q: leave --instance out, or use another --data-dir", dir, in.Instance, instance)
	}
	return in, nil
}

func readInstallation(dir string) (installation, error) {
	var in installation
	b, err := os.ReadFile(filepath.Join(dir, installationFile))
	if err != nil {
		return in, fmt.Errorf("data directory: %w", err)
	}
	if err := json.Unmarshal(b, &in); err != nil || !instanceName.MatchString(in.Instance) {
		return in, fmt.Errorf("%s is damaged: restore it, or write {\"instance\":ID} into it with the ID that the engine's labels show", filepath.Join(dir, installationFile))
	}
	return in, nil
}

func makeInstallation(dir, instance string) (installation, error) {
	in := installation{Instance: instance}
	if instance == "" {
		// A database without its instance: a new name would make orphans of all its sandboxes.
		if _, err := os.Stat(filepath.Join(dir, databaseFile)); err == nil {
			return in, usagef("%s has a database and no %s: say with --instance which instance it is, as the engine's label sandkeeper.instance shows it", dir, installationFile)
		}
		in.Instance = strings.ToLower(rand.Text()[:10])
	}
	tmp, err := writeTemp(dir, in)
	if err != nil {
		return in, err
	}
	defer os.Remove(tmp)
	// A link, unlike a rename, leaves what another process made meanwhile.
	if err := os.Link(tmp, filepath.Join(dir, installationFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return in, fmt.Errorf("data directory: %w", err)
	}
	return readInstallation(dir)
}

// keep writes a changed installation; whoever calls it holds the database's lock.
func (in installation) keep(dir string) error {
	tmp, err := writeTemp(dir, in)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, installationFile)); err != nil {
		return fmt.Errorf("data directory: %w", errors.Join(err, os.Remove(tmp)))
	}
	return nil
}

func writeTemp(dir string, in installation) (string, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return "", err
	}
	return writePrivate(dir, append(b, '\n'))
}

// writePrivate writes a new file of mode 0600 in dir, durably, and returns its path.
func writePrivate(dir string, b []byte) (path string, err error) {
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("data directory: %w", err), os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(b)
	return f.Name(), errors.Join(err, f.Sync(), f.Close())
}

// chooseEngine settles which engine this data's sandboxes are on. The choice
// is kept: later starts never look for another one by themselves.
func (in *installation) chooseEngine(asked string, auto func() string) error {
	switch {
	case in.Engine != "" && asked != "auto" && asked != in.Engine:
		return usagef("the sandboxes of this data are on the engine %q: --engine %s needs a --data-dir of its own", in.Engine, asked)
	case in.Engine != "":
	case asked == "auto":
		in.Engine = auto()
	default:
		in.Engine = asked
	}
	return nil
}
