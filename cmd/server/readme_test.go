package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the README's table of settings")

func TestReadmeHasEachSettingWithItsDefault(t *testing.T) {
	const file, begin, end = "../../README.md", "<!-- settings: made by go test ./cmd/server -run Readme -update -->\n", "<!-- end of settings -->"
	var table strings.Builder
	table.WriteString("| flag | variable | default | what it is |\n|---|---|---|---|\n")
	for _, s := range newConfig().settings() {
		name, def := "`--"+s.name+"`", s.value.String()
		if s.secret {
			name = ""
		}
		if def == "" {
			def = "none"
		}
		fmt.Fprintf(&table, "| %s | `%s` | %s | %s |\n", name, s.variable(), def, s.usage)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), begin)
	has, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the README has no place for the settings")
	}
	if has == table.String() {
		return
	}
	if !*update {
		t.Fatal("the README's settings differ from the program's: run go test ./cmd/server -run Readme -update")
	}
	if err := os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
