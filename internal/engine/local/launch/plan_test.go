package launch

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
)

// A field that comes to a plan later is among those that must be the same, unless it is named here.
func TestAPlanSuitsWhatIsHeldByAllThatCannotBeSetLate(t *testing.T) {
	late := []string{"Hostname", "Dir", "Tmp", "Shm", "Guest", "Hold"}
	whole := func() Plan {
		return Plan{Trees: []Tree{{Path: "/usr"}}, Files: map[string]string{"a": "b"}, Groups: Groups{Enter: []string{"/g"}}, Hold: true}
	}
	for i := range reflect.TypeFor[Plan]().NumField() {
		name := reflect.TypeFor[Plan]().Field(i).Name
		p := whole()
		switch f := reflect.ValueOf(&p).Elem().Field(i); v := f.Addr().Interface().(type) {
		case *Kind:
			v.NoNetwork = true
		case *string:
			*v = "other"
		case *bool:
			*v = !*v
		case *int64:
			*v++
		case *[]Tree:
			*v = []Tree{{Path: "/usr", Mask: "other"}}
		case *map[string]string:
			*v = map[string]string{"a": "c"}
		case *json.RawMessage:
			*v = json.RawMessage("{}")
		case *Groups:
			v.Enter = []string{"/other"}
		default:
			t.Fatalf("%s is of a type that this test does not know", name)
		}
		if got, want := p.Suits(whole()), slices.Contains(late, name); got != want {
			t.Errorf("with another %s it suits: %v", name, got)
		}
	}
}
