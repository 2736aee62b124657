package main

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/control"
)

// keptPresets is what a store was told: role to "owner token".
type keptPresets map[control.Role]string

func (p keptPresets) DropPreset(_ context.Context, role control.Role) error {
	delete(p, role)
	return nil
}

func (p keptPresets) PresetToken(_ context.Context, role control.Role, owner, token string) error {
	p[role] = owner + " " + token
	return nil
}

// bootstrapped is what one more start makes of the tokens.
func bootstrapped(t *testing.T, c *config, earlier keptPresets) keptPresets {
	t.Helper()
	p := keptPresets{}
	maps.Copy(p, earlier)
	if err := bootstrapTokens(t.Context(), p, c, slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFirstStartMakesPrivateTokenFilesThatLaterStartsKeep(t *testing.T) {
	c := &config{dataDir: t.TempDir()}
	first := bootstrapped(t, c, nil)
	for role, owner := range map[control.Role]string{control.RoleAgent: "default", control.RoleOperator: ""} {
		file := filepath.Join(c.dataDir, string(role)+".token")
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if want := owner + " " + strings.TrimSpace(string(b)); first[role] != want {
			t.Errorf("%s: stored %q; the file and owner say %q", role, first[role], want)
		}
		if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", role, fi.Mode(), err)
		}
	}
	if _, ok := first[control.RoleViewer]; ok {
		t.Error("a viewer's token was made unasked")
	}
	if second := bootstrapped(t, c, first); second[control.RoleAgent] != first[control.RoleAgent] || second[control.RoleOperator] != first[control.RoleOperator] {
		t.Errorf("the second start has other tokens: %v, %v", first, second)
	}
}

func TestPresetReplacesTheTokenOfTheFile(t *testing.T) {
	c := &config{dataDir: t.TempDir()}
	first := bootstrapped(t, c, nil)
	c.agentToken, c.viewerToken = "preset-agent-0123456789", "preset-viewer-0123456789"
	got := bootstrapped(t, c, first)
	if got[control.RoleAgent] != "default preset-agent-0123456789" || got[control.RoleViewer] != " preset-viewer-0123456789" {
		t.Errorf("stored %v", got)
	}
	if got[control.RoleOperator] != first[control.RoleOperator] {
		t.Error("the operator's token changed")
	}
	if _, err := os.Stat(filepath.Join(c.dataDir, "agent.token")); !os.IsNotExist(err) {
		t.Errorf("the file still promises a token that ended: %v", err)
	}
	c.agentToken, c.viewerToken = "", ""
	again := bootstrapped(t, c, got)
	if _, ok := again[control.RoleViewer]; ok {
		t.Error("without its variable, the viewer's token lives on")
	}
	if again[control.RoleAgent] == got[control.RoleAgent] || again[control.RoleAgent] == first[control.RoleAgent] {
		t.Error("without the preset, its token lives on")
	}
}

func TestEmptyTokenFileIsRefused(t *testing.T) {
	c := &config{dataDir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.dataDir, "agent.token"), []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := bootstrapTokens(t.Context(), keptPresets{}, c, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "agent.token") {
		t.Errorf("got %v", err)
	}
}
