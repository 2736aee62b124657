package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandkeeper/internal/engine/enginetest"
)

// A test that runs on one engine alone is in the table with its reason, and
// the table has none that is not there.
func TestEveryTestRunsOnEachEngine(t *testing.T) {
	paths, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
				continue
			}
			found[fn.Name.Name] = true
			if _, ok := alone[fn.Name.Name]; !ok && !callsEach(fn.Body) {
				t.Errorf("%s: %s neither calls Each nor is in the table of those that run on one engine alone", path, fn.Name.Name)
			}
		}
	}
	var names []string
	for _, on := range engines {
		names = append(names, on.Name)
	}
	if !slices.Equal(names, enginetest.Engines) {
		t.Errorf("tests run on %q; there are %q", names, enginetest.Engines)
	}
	names = append(names, "none")
	for name, one := range alone {
		if !found[name] || !slices.Contains(names, one.on) || one.why == "" {
			t.Errorf("the table has %s on %q because %q", name, one.on, one.why)
		}
	}
}

// callsEach says whether a test does nothing but that.
func callsEach(body *ast.BlockStmt) bool {
	if len(body.List) != 1 {
		return false
	}
	stmt, ok := body.List[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := stmt.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name == "Each"
	case *ast.SelectorExpr:
		return f.Sel.Name == "Each"
	}
	return false
}
