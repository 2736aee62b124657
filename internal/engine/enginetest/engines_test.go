package enginetest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestEveryEngineIsHeldAgainstTheSuite(t *testing.T) {
	dirs, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	var there []string
	for _, d := range dirs {
		if d.IsDir() && d.Name() != "enginetest" {
			there = append(there, d.Name())
		}
	}
	if !slices.Equal(there, Engines) {
		t.Errorf("the packages of engines are %q, the table has %q", there, Engines)
	}
	for _, name := range Engines {
		if !runsAll(t, filepath.Join("..", name)) {
			t.Errorf("the TestConformance of %s does not run the suite, whole and whatever the machine", name)
		}
	}
}

// runsAll finds a package's TestConformance and a call of Run in it, which must be
// a statement of its own: under no condition.
func runsAll(t *testing.T, dir string) bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.Name == "TestConformance" {
				return slices.ContainsFunc(fn.Body.List, callsRun)
			}
		}
	}
	return false
}

func callsRun(stmt ast.Stmt) bool {
	x, ok := stmt.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := x.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := f.X.(*ast.Ident)
	return ok && pkg.Name == "enginetest" && f.Sel.Name == "Run"
}
