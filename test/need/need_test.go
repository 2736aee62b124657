package need

import (
	"fmt"
	"testing"
)

// ending notes how a test is ended, and lets it go on.
type ending struct {
	testing.TB
	how string
}

func (e *ending) Helper() {}
func (e *ending) Skipf(format string, args ...any) {
	e.how = "skipped: " + fmt.Sprintf(format, args...)
}
func (e *ending) Fatalf(format string, args ...any) {
	e.how = "failed: " + fmt.Sprintf(format, args...)
	panic(e)
}

func TestWhatIsMissingSkipsUnlessRequired(t *testing.T) {
	for _, tc := range []struct{ required, want string }{
		{"", "skipped: local is missing: no namespaces"},
		{"docker,browser", "skipped: local is missing: no namespaces"},
		{"locals", "skipped: local is missing: no namespaces"},
		{"local", "failed: local is required: no namespaces"},
		{"docker,local,browser", "failed: local is required: no namespaces"},
	} {
		t.Run(tc.required, func(t *testing.T) {
			t.Setenv("SANDKEEPER_TEST_REQUIRE", tc.required)
			e := &ending{}
			func() {
				defer func() { _ = recover() }() // a failure ends the test there
				Missing(e, "local", "no namespaces")
			}()
			if e.how != tc.want {
				t.Errorf("%s; want %s", e.how, tc.want)
			}
		})
	}
}
