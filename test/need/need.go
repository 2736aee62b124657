// Package need has the one rule for tests whose machine lacks something: a test
// is skipped, naming what is missing, unless SANDKEEPER_TEST_REQUIRE (a list of
// "docker", "local", "browser", "python" and "tmux") has the thing. Then the test
// fails. What is
package need

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Missing ends a test for which a thing is missing: why says what of it.
func Missing(t testing.TB, thing string, why any) {
	t.Helper()
	if Required(thing) {
		t.Fatalf("%s is required: %v", thing, why)
	}
	t.Skipf("%s is missing: %v", thing, why)
}

// Required reports whether a thing may not be missing here.
func Required(thing string) bool {
	return slices.Contains(strings.Split(os.Getenv("SANDKEEPER_TEST_REQUIRE"), ","), thing)
}
