package test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Missing ends the test because something is not on this machine: it is
// skipped, or fails where SANDKEEPER_TEST_REQUIRE names the thing.
func Missing(t testing.TB, thing, why string) {
	t.Helper()
	if slices.Contains(strings.Split(os.Getenv("SANDKEEPER_TEST_REQUIRE"), ","), thing) {
		t.Fatalf("%s is required: %s", thing, why)
	}
	t.Skipf("%s: %s", thing, why)
}

// Browser returns the path of Chromium.
func Browser(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	Missing(t, "browser", "there is no chromium on this machine")
	return ""
}
