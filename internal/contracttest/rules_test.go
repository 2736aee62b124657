package contracttest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var testName = regexp.MustCompile("`([a-z0-9/]+): ((?:Test|Fuzz)\\w+)(?:/([^`]+))?`")

// Every rule of the table has a test, and every test that it names is there.
func TestTheRulesHaveTheTestsThatTheyName(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "rules.md"))
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]string{} // the text of their tests
	text := func(pkg string) string {
		if s, ok := packages[pkg]; ok {
			return s
		}
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pkg), "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s has no tests: %v", pkg, err)
		}
		var all strings.Builder
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b)
		}
		packages[pkg] = all.String()
		return packages[pkg]
	}
	rules := 0
	for i, line := range strings.Split(string(page), "\n") {
		if !strings.HasPrefix(line, "| ") || line == "| rule | proved by |" {
			continue
		}
		rules++
		named := testName.FindAllStringSubmatch(line, -1)
		if len(named) == 0 || len(named) != strings.Count(line, ": Test")+strings.Count(line, ": Fuzz") {
			t.Errorf("rules.md:%d: a rule without a test, or with a name that cannot be read: %s", i+1, line)
		}
		for _, n := range named {
			pkg, test, part := text(n[1]), n[2], n[3]
			if !strings.Contains(pkg, "func "+test+"(") {
				t.Errorf("rules.md:%d: %s has no %s", i+1, n[1], test)
			}
			if part != "" && !strings.Contains(pkg, `"`+part+`"`) {
				t.Errorf("rules.md:%d: %s has no part %q", i+1, test, part)
			}
		}
	}
	if rules < 60 {
		t.Errorf("%d rules were read", rules)
	}
}
