package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"sandkeeper/internal/control"
)

// presets keeps one preset token for each role.
type presets interface {
	DropPreset(ctx context.Context, role control.Role) error
	PresetToken(ctx context.Context, role control.Role, owner, token string) error
}

// defaultOwner owns what the preset agent's token makes.
const defaultOwner = "default"

// bootstrapTokens sees to it that an agent and an operator can get in. The
// token of a role is the preset one; where none is given it is that of the role's
// file in the data directory, which the first start makes.
func bootstrapTokens(ctx context.Context, store presets, c *config, log *slog.Logger) error {
	for _, t := range []struct {
		role   control.Role
		owner  string
		preset string
		make   bool
	}{
		{control.RoleAgent, defaultOwner, c.agentToken, true},
		{control.RoleOperator, "", c.operatorToken, true},
		{control.RoleViewer, "", c.viewerToken, false},
	} {
		tok, file := t.preset, filepath.Join(c.dataDir, string(t.role)+".token")
		switch {
		case tok != "":
			if len(tok) < 16 {
				log.Warn("a preset token is short enough to be guessed", "role", t.role, "length", len(tok))
			}
			// The file's token ends here, so the file must not promise it.
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("token file: %w", err)
			}
		case t.make:
			var err error
			if tok, err = tokenOfFile(file, t.role); err != nil {
				return err
			}
		default:
			// A variable that was taken away takes its token with it.
			if err := store.DropPreset(ctx, t.role); err != nil {
				return fmt.Errorf("preset token of the role %s: %w", t.role, err)
			}
			continue
		}
		if err := store.PresetToken(ctx, t.role, t.owner, tok); err != nil {
			return fmt.Errorf("preset token of the role %s: %w", t.role, err)
		}
	}
	return nil
}

// tokenOfFile reads a role's token, or makes both the token and its file.
func tokenOfFile(file string, role control.Role) (string, error) {
	b, err := os.ReadFile(file)
	if err == nil {
		if tok := strings.TrimSpace(string(b)); tok != "" {
			return tok, nil
		}
		return "", fmt.Errorf("token file %s is empty: delete it, and the next start makes a new one", file)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("token file: %w", err)
	}
	tok := fmt.Sprintf("sk_%s_%s", role, rand.Text())
	tmp, err := writePrivate(filepath.Dir(file), []byte(tok+"\n"))
	if err != nil {
		return "", err
	}
	if err := os.Rename(tmp, file); err != nil {
		return "", fmt.Errorf("token file: %w", errors.Join(err, os.Remove(tmp)))
	}
	return tok, nil
}
