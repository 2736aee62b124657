package test_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/test"
)

func TestABackupOfARunningServerRestores(t *testing.T) { test.Each(t, aBackupOfARunningServerRestores) }

func aBackupOfARunningServerRestores(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	before := w.Acquire(t, "before", test.Params{"persistent": true}).Env.ID
	w.WriteFile(t, before, "note", "kept")
	file := filepath.Join(t.TempDir(), "backup.db")
	if out := s.CLI(t, "backup", file); !strings.Contains(out, "1 environments") {
		t.Errorf("backup says %q", out)
	}
	after := w.Acquire(t, "after", test.Params{"persistent": true}).Env.ID
	w.WriteFile(t, after, "note", "kept too")

	// What an operator downloads is a backup too; nobody else gets one.
	status, body := s.Do(t, http.MethodPost, "/api/v1/backup", nil)
	download := filepath.Join(t.TempDir(), "download.db")
	if err := os.WriteFile(download, body, 0o600); err != nil || status != http.StatusOK {
		t.Fatalf("%d %v", status, err)
	}
	if out := s.CLI(t, "check", download); !strings.HasPrefix(out, "whole: ") || !strings.Contains(out, "2 environments") {
		t.Errorf("the download: %q", out)
	}
	viewer := s.CLI(t, "token", "create", "--role", "viewer")
	for role, token := range map[string]string{"agent": s.Token(t, "agent"), "viewer": viewer} {
		if got := s.Status(t, http.MethodPost, "/api/v1/backup", token); got != http.StatusForbidden {
			t.Errorf("%s: %d", role, got)
		}
	}

	if out := s.CLI(t, "check"); !strings.HasPrefix(out, "whole: ") {
		t.Errorf("check beside the server: %q", out)
	}
	if err := s.TryCLI(t, "restore", file); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("restore under the server: %v", err)
	}
	s.Stop(t)
	if out := s.CLI(t, "check"); !strings.HasPrefix(out, "whole: ") {
		t.Errorf("check without a server: %q", out)
	}
	s.CLI(t, "restore", file)
	if err := s.TryCLI(t, "check"); err == nil || !strings.Contains(err.Error(), "faults") {
		t.Errorf("a sandbox that no environment has: %v", err)
	}
	s.ForgetEvents(t) // the log goes on from the backup
	s.Restart(t)

	w = s.Wire(t)
	if got := w.ReadFile(t, before, "note"); got != "kept" {
		t.Errorf("the file of what was backed up: %q", got)
	}
	s.Events().Wait(t, "what came after the backup is an orphan", test.Is(control.OrphanFound, after))
	test.Eventually(t, "the orphan is stopped and kept", func() bool {
		c, ok := s.Container(t, after)
		return ok && c.State == "exited"
	})
	var orphans struct {
		Orphans []struct{ Sandbox string }
	}
	s.Get(t, "/api/v1/orphans", &orphans)
	if len(orphans.Orphans) != 1 {
		t.Fatalf("orphans %+v", orphans)
	}
	if status, body := s.Do(t, http.MethodPost, "/api/v1/orphans/"+orphans.Orphans[0].Sandbox+"/adopt", nil); status != http.StatusOK {
		t.Fatalf("adopt: %d %s", status, body)
	}
	if got := w.ReadFile(t, after, "note"); got != "kept too" {
		t.Errorf("the file of what was adopted: %q", got)
	}
}
