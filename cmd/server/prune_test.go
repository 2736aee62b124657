package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestPruneIsRefusedWhileThatInstanceIsServedHere(t *testing.T) {
	dir := t.TempDir()
	a, err := startAdmin(dir, "served", adminCalls{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
	}()
	// An engine that does not answer: what gets past the refusal fails there.
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(dir, "no-engine.sock"))
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--instance", "served"}, "stop it first"},
		{[]string{"--instance", "served", "--force"}, "no-engine.sock"},
		{[]string{"--instance", "another"}, "no-engine.sock"},
	} {
		code, out, errs := sandkeeper(t, append([]string{"prune", "--data-dir", dir}, tc.args...)...)
		if code != 1 || out != "" || !strings.Contains(errs, tc.want) {
			t.Errorf("%v: exit %d, printed %q, %q", tc.args, code, out, errs)
		}
	}
}

func TestPruneNeedsAnInstanceByFlag(t *testing.T) {
	t.Setenv("SANDKEEPER_INSTANCE", "mine")
	if code, _, errs := sandkeeper(t, "prune", "--data-dir", t.TempDir()); code != 2 || !strings.Contains(errs, "--instance") {
		t.Errorf("exit %d, %q", code, errs)
	}
}
