package dashboard

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sandkeeper/internal/contracttest"
)

var idInPath = regexp.MustCompile(`:(\w+)`)

// Each call of the operator API is in the contract with the parameters that the
// server knows, and the contract has no other.
func TestTheContractHasEveryCallAndItsParameters(t *testing.T) {
	h := newHouse(t, nil)
	e := h.handler()
	var calls []string
	for _, r := range e.Routes() {
		if path, ok := strings.CutPrefix(r.Path, "/api/v1/"); ok && !strings.Contains(path, "*") {
			calls = append(calls, r.Method+" /api/v1/"+idInPath.ReplaceAllString(path, "{$1}"))
		}
	}
	slices.Sort(calls)
	if want := contracttest.Calls(); !slices.Equal(calls, want) {
		t.Errorf("the server has\n%q\nthe contract\n%q", calls, want)
	}
	for _, c := range calls {
		method, path, _ := strings.Cut(c, " ")
		// Asked for what there is not, it says what there is.
		res := call(t, e, method, strings.Replace(path, "{id}", "e1", 1)+"?nonsense=1", "op", "")
		body := read(t, res.Body)
		_, list, _ := strings.Cut(body, "there are: ")
		list, _, _ = strings.Cut(list, `"`)
		known := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(known)
		if res.StatusCode != 400 || !strings.Contains(body, "nonsense") || !slices.Equal(known, contracttest.Queries(c)) {
			t.Errorf("%s takes %q, by the contract %q: %s", c, known, contracttest.Queries(c), body)
		}
	}
}
