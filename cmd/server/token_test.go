package main

import (
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/internal/db"
)

// sandkeeper runs the program and returns its exit code and what it printed.
func sandkeeper(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func openStore(t *testing.T, dir string) *db.Store {
	t.Helper()
	store, err := db.Open(filepath.Join(dir, databaseFile), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestTokenCreateOpensTheDatabaseWhereNoServerRuns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	code, out, errs := sandkeeper(t, "token", "create", "--data-dir", dir, "--role", "agent", "--owner", "alice", "--name", "laptop")
	if code != 0 || errs != "" || strings.Count(out, "\n") != 1 {
		t.Fatalf("exit %d, printed %q, %q", code, out, errs)
	}
	p, ok := openStore(t, dir).Authenticate(strings.TrimSpace(out))
	if !ok || p.Role != control.RoleAgent || p.Owner != "alice" || p.Name != "laptop" {
		t.Errorf("it stands for %+v, %v", p, ok)
	}
}

func TestTokenCreateFindsTheRunningServer(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	a, err := startAdmin(dir, "x", adminCalls{createToken: storeTokens(store)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	code, out, errs := sandkeeper(t, "token", "create", "--data-dir", dir, "--role", "viewer")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	if p, ok := store.Authenticate(strings.TrimSpace(out)); !ok || p.Role != control.RoleViewer {
		t.Errorf("it stands for %+v, %v", p, ok)
	}
	if code, _, errs := sandkeeper(t, "token", "create", "--data-dir", dir, "--role", "viewer", "--owner", "alice"); code != 1 || !strings.Contains(errs, "owner") {
		t.Errorf("the server's refusal: exit %d, %s", code, errs)
	}
}

func TestDatabaseInUseIsNamed(t *testing.T) {
	dir := t.TempDir()
	openStore(t, dir)
	if _, err := openInstallation(dir, "x"); err != nil {
		t.Fatal(err)
	}
	code, out, errs := sandkeeper(t, "token", "create", "--data-dir", dir, "--role", "agent")
	if code != 1 || out != "" || !strings.Contains(errs, dir) {
		t.Errorf("exit %d, printed %q, %q", code, out, errs)
	}
}

func TestWrongCallsExitWith2AndOneSentence(t *testing.T) {
	for _, args := range [][]string{
		{"serv"},
		{"token", "creat"},
		{"token", "create"},
		{"token", "create", "--role", "root"},
		{"token", "create", "--role", "agent", "extra"},
		{"version", "--long"},
	} {
		code, out, errs := sandkeeper(t, args...)
		if code != 2 || out != "" || strings.Count(errs, "\n") != 1 || !strings.HasPrefix(errs, "sandkeeper: ") {
			t.Errorf("%v: exit %d, printed %q, %q", args, code, out, errs)
		}
	}
}

func TestVersionAndHelpGoToStandardOutput(t *testing.T) {
	for want, args := range map[string][]string{
		"sandkeeper ": {"version"},
		"Usage:":      {"--help"},
		"serve ":      {},
		"--role":      {"token", "create", "--help"},
	} {
		if code, out, errs := sandkeeper(t, args...); code != 0 || errs != "" || !strings.Contains(out, want) {
			t.Errorf("%v: exit %d, printed %q, %q", args, code, out, errs)
		}
	}
}
