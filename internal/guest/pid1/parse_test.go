package pid1

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (sleep) S 1 12 12 0 -1 4194304 9"))
	f.Add([]byte("12 (a) b) Z 7"))
	f.Add([]byte("12 (a"))
	f.Fuzz(func(t *testing.T, in []byte) { parseStat(1, in) })
}

func TestParseStat(t *testing.T) {
	for in, want := range map[string]process{
		"12 (a) R 99) Z 7 1 1 0 -1 0 9":        {12, 7, true},
		"12 (sleep) S 7 1 1 0 -1 4194304 9":    {12, 7, false},
		"12 (sleep) R 7 1 1 0 -1 4228100 9":    {12, 7, true}, // exiting
		"12 (sleep) S 7 1 1 0 -1 4194304x 9":   {},
		"12 (sleep) S 7":                       {},
		"12 (sleep) S seven 1 1 0 -1 0 ":       {},
		"12 sleep S 7 1 1 0 -1 4194304 9 10 1": {},
	} {
		if p, ok := parseStat(12, []byte(in)); p != want || ok != (want != process{}) {
			t.Errorf("%s: %+v, %v", in, p, ok)
		}
	}
}

func TestBelow(t *testing.T) {
	all := []process{{pid: 2, parent: 1}, {pid: 3, parent: 2}, {pid: 4, parent: 3}, {pid: 5, parent: 3, dead: true}, {pid: 6, parent: 5}, {pid: 7, parent: 1}, {pid: 8, parent: 8}}
	got := below(2, all)
	slices.Sort(got)
	if !slices.Equal(got, []int{3, 4, 6}) {
		t.Errorf("%v", got)
	}
	if got := below(8, all); len(got) != 0 {
		t.Errorf("of a circle: %v", got)
	}
}

func TestLookupUser(t *testing.T) {
	const passwd = "# a comment\nroot:x:0:0:root:/root:/bin/sh\nweb:x:33:44::/srv:/bin/false\nbroken:x:a:b:::\nshort:x\n12:x:900:901::/twelve:\n"
	const group = "root:x:0:\nweb:x:44:\nlog:x:50:web,x\nops:x:51:x, web\nadm:x:52:web\n"
	for spec, want := range map[string]User{
		"":          {Name: "root", Home: "/root"},
		"0":         {Name: "root", Home: "/root"},
		"web":       {Name: "web", UID: 33, GID: 44, Home: "/srv", Groups: []uint32{50, 52}},
		"33":        {Name: "web", UID: 33, GID: 44, Home: "/srv", Groups: []uint32{50, 52}},
		"33:log":    {Name: "web", UID: 33, GID: 50, Home: "/srv"},
		"web:7":     {Name: "web", UID: 33, GID: 7, Home: "/srv"},
		"web:":      {Name: "web", UID: 33, GID: 44, Home: "/srv", Groups: []uint32{50, 52}},
		"4242":      {UID: 4242, Home: "/"},
		"4242:4343": {UID: 4242, GID: 4343, Home: "/"},
		"12":        {Name: "12", UID: 900, GID: 901, Home: "/twelve"},
	} {
		got, err := LookupUser(spec, passwd, group)
		if err != nil || got.Name != want.Name || got.Home != want.Home || got.UID != want.UID || got.GID != want.GID || !slices.Equal(got.Groups, want.Groups) {
			t.Errorf("%q: %+v, %v; want %+v", spec, got, err, want)
		}
	}
	for _, spec := range []string{"nobody", "broken", "short", "-1", "4294967296", "web:nogroup"} {
		if u, err := LookupUser(spec, passwd, group); err == nil {
			t.Errorf("%q: %+v, want an error", spec, u)
		}
	}
	if u, err := LookupUser("", "", ""); err != nil || !u.root() || u.Home != "/root" {
		t.Errorf("root without a passwd: %+v, %v", u, err)
	}
}

func FuzzLookupUser(f *testing.F) {
	f.Add("web:log", "web:x:33:44::/srv:/bin/false\n", "log:x:50:web\n")
	f.Add("0", "", "")
	f.Fuzz(func(t *testing.T, spec, passwd, group string) { LookupUser(spec, passwd, group) })
}

func TestOOMKills(t *testing.T) {
	for in, want := range map[string]int64{
		"low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n": 1,
		"oom_kill_disable 0\nunder_oom 0\noom_kill 12\n":              12,
		"oom_kill_disable 0\nunder_oom 0\n":                           -1,
		"oom_kill x\n":                                                -1,
	} {
		if got, ok := parseOOMKills([]byte(in)); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %d, %v", in, got, ok)
		}
	}
}

func TestTheEnvironmentOfCommandsIsWithoutOurs(t *testing.T) {
	cfg, env, err := readEnvironment([]string{"A=1=2", `SANDKEEPER_GUEST={"user":"u","workdir":"/w","link":"/l","later":1}`, "EMPTY=", "odd"})
	if err != nil || cfg != (Config{"u", "/w", "/l"}) || !maps.Equal(env, map[string]string{"A": "1=2", "EMPTY": ""}) {
		t.Errorf("%+v, %v, %v", cfg, env, err)
	}
	if _, _, err := readEnvironment([]string{"SANDKEEPER_GUEST={"}); err == nil {
		t.Error("a malformed config was taken")
	}
}

func TestHomeIsTheUsersUnlessTheImageChoseOne(t *testing.T) {
	agent := &User{Name: "agent", UID: 1000, Home: "/home/agent"}
	for _, tc := range []struct {
		env  map[string]string
		user *User
		home string
	}{
		{map[string]string{}, agent, "/home/agent"},
		{map[string]string{"HOME": "/root"}, agent, "/home/agent"}, // the engine's, of root
		{map[string]string{"HOME": "/app"}, agent, "/app"},
		{map[string]string{"HOME": "/root"}, &User{Home: "/root"}, "/root"},
	} {
		setIdentity(tc.env, tc.user)
		if tc.env["HOME"] != tc.home {
			t.Errorf("HOME %q, want %q", tc.env["HOME"], tc.home)
		}
	}
}

func FuzzParseOOMKills(f *testing.F) {
	f.Add([]byte("low 0\noom_kill 3\n"))
	f.Add([]byte("oom_kill 99999999999999999999"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if kills, ok := parseOOMKills(b); !ok && kills != 0 && kills != math.MaxInt64 && kills != math.MinInt64 {
			t.Fatalf("%q has %d kills, and none", b, kills)
		}
	})
}

// What the guest is told in its environment is not in that of its commands.
func FuzzReadEnvironment(f *testing.F) {
	f.Add("PATH=/bin\x00" + Variable + "={}")
	f.Add(Variable + "={\x00=x\x00A")
	f.Fuzz(func(t *testing.T, text string) {
		_, env, err := readEnvironment(strings.Split(text, "\x00"))
		if _, told := env[Variable]; told || err == nil && env == nil {
			t.Fatalf("%q: %q, %v", text, env, err)
		}
		if _, some := env[""]; some {
			t.Fatalf("%q: a variable without a name", text)
		}
	})
}
