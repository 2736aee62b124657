package pid1

import (
	"errors"
	"maps"
	"strings"
	"testing"
)

const here = "#cwd\n/w\n#end\n"

func TestParseExports(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want map[string]string // nil: malformed
	}{
		"bash":             {"declare -x A=\"a \\\"b\\\" \\$c \\\\ \\`d\\`\nx\"\ndeclare -x B\ndeclare -rx C=\"1\"\n" + here, map[string]string{"A": "a \"b\" $c \\ `d`\nx", "C": "1"}},
		"bash, ansi":       {"declare -x A=$'a\\001\\t\\'\\n\\E'\n" + here, map[string]string{"A": "a\x01\t'\n\x1b"}},
		"an array":         {"declare -ax A=([0]=\"1\")\ndeclare -x B=\"2\"\n" + here, map[string]string{"B": "2"}},
		"posix mode":       {"export A=\"1\"\nexport -a B=([0]=\"1\")\nexport -A C\n" + here, map[string]string{"A": "1"}},
		"dash":             {"export A='it'\"'\"'s'\nexport B\nexport C=''\n" + here, map[string]string{"A": "it's", "C": ""}},
		"ash":              {"export A='it'\\''s'\n" + here, map[string]string{"A": "it's"}},
		"an end in it":     {"export A='x\n#cwd\n/\n#end\n'\n" + here, map[string]string{"A": "x\n#cwd\n/\n#end\n"}},
		"none":             {here, map[string]string{}},
		"nothing":          {"", nil},
		"cut off":          {"export A='1'\n", nil},
		"cut off in quote": {"export A='1\n" + here, nil},
		"noise":            {"hello\n" + here, nil},
		"no mark":          {"export A=1", nil},
		"no flags":         {"declare A=\"1\"\n" + here, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseState("#state\n" + tc.in)
			if tc.want == nil {
				if err == nil {
					t.Errorf("%+v, want an error", got)
				}
				return
			}
			if err != nil || !maps.Equal(got.exported, tc.want) || got.cwd != "/w" || got.bash {
				t.Errorf("%+v, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestParseState(t *testing.T) {
	for name, tc := range map[string]struct {
		in   string
		want *leftState // nil: malformed
	}{
		"what a text wrote":     {"x\n#state\n#cwd\n/a\n#end\n", &leftState{cwd: "/a"}},
		"sh":                    {"#state\n#cwd\n/a b\n#end\n", &leftState{cwd: "/a b"}},
		"bash":                  {"#state\n#cwd\n/a\n#functions\nf () \n{ \n    :\n}\nalias a='b'\n#end\n", &leftState{cwd: "/a", bash: true, functions: "f () \n{ \n    :\n}\nalias a='b'\n"}},
		"bash without any":      {"#state\n#cwd\n/a\n#functions\n#end\n", &leftState{cwd: "/a", bash: true}},
		"an end in a function":  {"#state\n#cwd\n/a\n#functions\nf () \n{ \n    cat <<E\n#end\nE\n}\n#end\n", &leftState{cwd: "/a", bash: true, functions: "f () \n{ \n    cat <<E\n#end\nE\n}\n"}},
		"a line in a directory": {"#state\n#cwd\n/a\nb\n#end\n", &leftState{cwd: "/a\nb"}},
		"no mark":               {"#cwd\n/a\n#end\n", nil},
		"nowhere":               {"#state\n#cwd\n\n#end\n", nil},
		"no absolute directory": {"#state\n#cwd\na\n#end\n", nil},
		"no directory":          {"#state\n#end\n", nil},
		"no end":                {"#state\n#cwd\n/a\n#functions\n", nil},
		"something after it":    {"#state\n#cwd\n/a\n#end\n\n", nil},
		"something before it":   {"#state\nx\n#cwd\n/a\n#end\n", nil},
		"no whole line":         {"#state\n#cwd\n/a#end\n", nil},
		"a zero byte":           {"#state\nexport A='\x00'\n#cwd\n/a\n#end\n", nil},
		"a zero byte, escaped":  {"#state\nexport A=$'\\0'\n#cwd\n/a\n#end\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseState(tc.in)
			switch {
			case tc.want == nil:
				if err == nil {
					t.Errorf("%+v, want an error", got)
				}
			case err != nil || got.cwd != tc.want.cwd || got.bash != tc.want.bash || got.functions != tc.want.functions || len(got.exported) > 0:
				t.Errorf("%+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}

// Whatever a shell may have written: a state is whole and can be given to the next, or there is none.
func FuzzParseState(f *testing.F) {
	f.Add("#state\ndeclare -x A=\"1\"\n#cwd\n/a\n#functions\nf () \n{ \n    :\n}\n#end\n")
	f.Add("#state\nexport A='1'\\''2'\n#cwd\n/\n#end\n")
	f.Add("#state\nexport -A A=([a]=\"1\" )\nexport -r B=\"2\"\n#cwd\n/\n#functions\n#end\n")
	f.Add("#state\ndeclare -x A=$'\\001\\x'\n#cwd\n/\n#end\n")
	f.Add("#state\nexport A\nexport B=\\\n#cwd\n#end\n")
	f.Fuzz(func(t *testing.T, in string) {
		left, err := parseState(in)
		if err != nil {
			if !errors.Is(err, errState) {
				t.Fatal(err)
			}
			return
		}
		size := len(left.cwd) + len(left.functions)
		for name, v := range left.exported {
			size += len(name)
			if !identifier(name) || strings.IndexByte(v, 0) >= 0 {
				t.Fatalf("a variable %q=%q", name, v)
			}
		}
		if left.cwd[0] != '/' || size > len(in) || left.functions != "" && !left.bash {
			t.Fatalf("%+v", left)
		}
	})
}
