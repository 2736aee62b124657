package contracttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"sandkeeper/docs"
)

// node is a schema as it is written, as far as members go.
type node struct {
	Ref        string          `json:"$ref"`
	Properties map[string]node `json:"properties"`
	Required   []string        `json:"required"`
	Items      *node           `json:"items"`
	AnyOf      []node          `json:"anyOf"`
	OneOf      []node          `json:"oneOf"`
}

var written = sync.OnceValue(func() map[string]node {
	var doc struct {
		Defs map[string]node `json:"$defs"`
	}
	if err := json.Unmarshal(docs.Schema, &doc); err != nil {
		panic(err)
	}
	return doc.Defs
})

// follow finds the schema that has the members: through references, and past
// the null that may stand for them.
func (n node) follow() node {
	for {
		switch {
		case n.Ref != "":
			n = written()[strings.TrimPrefix(n.Ref, "#/$defs/")]
		case n.Properties == nil && len(n.AnyOf) == 2 && n.AnyOf[1].Ref == "" && n.AnyOf[1].Properties == nil:
			n = n.AnyOf[0]
		default:
			return n
		}
	}
}

// members are those of an object and those of them that are always there, over
// all forms that it may have.
func (n node) members() (all map[string]node, always []string) {
	n = n.follow()
	all, always = maps.Clone(n.Properties), slices.Clone(n.Required)
	if len(all) > 0 {
		return all, always
	}
	for i, form := range n.OneOf {
		members, there := form.members()
		if i == 0 {
			all, always = map[string]node{}, there
		}
		maps.Copy(all, members)
		always = slices.DeleteFunc(always, func(s string) bool { return !slices.Contains(there, s) })
	}
	return all, always
}

// Members are the names that an object of the contract may have, in order.
func Members(name string) []string {
	all, _ := node{Ref: name}.members()
	return slices.Sorted(maps.Keys(all))
}

// Shape compares the members of a definition with the fields of the struct that
// is written for it, and so on within: each has what the other has, and what may
// be left out of one may be left out of the other.
func Shape(name string, v any) error {
	if !Has(name) {
		return fmt.Errorf("the contract has no %q", name)
	}
	return shape(name, node{Ref: name}, reflect.TypeOf(v))
}

var marshaler = reflect.TypeFor[json.Marshaler]()

func shape(at string, n node, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	n = n.follow()
	switch {
	case t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler):
		return nil
	case t.Kind() == reflect.Slice && n.Items != nil:
		return shape(at+"[]", *n.Items, t.Elem())
	case t.Kind() != reflect.Struct:
		return nil
	}
	all, always := n.members()
	fields := map[string]field{}
	fieldsOf(t, false, fields)
	for name, f := range fields {
		m, known := all[name]
		if !known {
			return fmt.Errorf("%s.%s is sent, and the contract has it not", at, name)
		}
		if there := slices.Contains(always, name); there == f.optional {
			return fmt.Errorf("%s.%s may be left out: by the server %t, by the contract %t", at, name, f.optional, !there)
		}
		if err := shape(at+"."+name, m, f.of); err != nil {
			return err
		}
	}
	for name := range all {
		if _, sent := fields[name]; !sent {
			return fmt.Errorf("%s.%s is in the contract, and is never sent", at, name)
		}
	}
	return nil
}

// field is one of a struct, as JSON has it.
type field struct {
	of       reflect.Type
	optional bool
}

func fieldsOf(t reflect.Type, optional bool, to map[string]field) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			e, maybe := f.Type, optional
			if e.Kind() == reflect.Pointer {
				e, maybe = e.Elem(), true
			}
			fieldsOf(e, maybe, to)
			continue
		}
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || name == "" {
			continue
		}
		to[name] = field{f.Type, optional || strings.Contains(rest, "omitempty") || strings.Contains(rest, "omitzero")}
	}
}
