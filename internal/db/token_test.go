package db

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandkeeper/internal/control"
)

func TestATokenStandsForWhatItWasMadeFor(t *testing.T) {
	s := open(t)
	for _, tc := range []struct {
		spec TokenSpec
		want control.Principal
	}{
		{TokenSpec{Role: control.RoleAgent, Owner: "hermes"}, control.Principal{Name: "hermes", Role: control.RoleAgent, Owner: "hermes"}},
		{TokenSpec{Role: control.RoleAgent, Owner: "<h1>Ω</h1>", Name: "laptop"}, control.Principal{Name: "laptop", Role: control.RoleAgent, Owner: "<h1>Ω</h1>"}},
		{TokenSpec{Role: control.RoleOperator}, control.Principal{Name: "operator", Role: control.RoleOperator}},
		{TokenSpec{Role: control.RoleViewer, Name: "wall"}, control.Principal{Name: "wall", Role: control.RoleViewer}},
	} {
		token, err := s.CreateToken(t.Context(), tc.spec)
		if err != nil {
			t.Fatal(err)
		}
		form := regexp.MustCompile(`^sk_` + string(tc.spec.Role) + `_[a-z2-7]{10}_[a-z2-7]{26}$`)
		if !form.MatchString(token) {
			t.Errorf("token %q", token)
		}
		for _, when := range []string{"at once", "after a restart"} {
			got, ok := s.Authenticate(token)
			if got.Token == "" || strings.Contains(got.Token, token[len(token)-26:]) {
				t.Errorf("%s: token id %q", when, got.Token)
			}
			got.Token = ""
			if !ok || got != tc.want {
				t.Errorf("%s: got %+v, %v, want %+v", when, got, ok, tc.want)
			}
			s = reopen(t, s)
		}
	}
}

func TestAWrongTokenIsNobody(t *testing.T) {
	s := open(t)
	token, err := s.CreateToken(t.Context(), TokenSpec{Role: control.RoleOperator})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PresetToken(t.Context(), control.RoleAgent, "default", "chosen"); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{
		"", " ", "chosen ", "chose", "Chosen", token + "a", token[:len(token)-1], strings.ToUpper(token),
		strings.Replace(token, "operator", "viewer", 1), "sk_operator_preset-agent_chosen", "___", strings.Repeat("_", 1<<20),
	} {
		if got, ok := s.Authenticate(wrong); ok {
			t.Errorf("%.40q is %+v", wrong, got)
		}
	}
}

func TestNoTokenIsOnDisk(t *testing.T) {
	s := open(t)
	token, err := s.CreateToken(t.Context(), TokenSpec{Role: control.RoleOperator})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PresetToken(t.Context(), control.RoleAgent, "default", "chosen-by-hand"); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{token[len(token)-26:], "chosen-by-hand"} {
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("the file has %q", secret)
		}
	}
}

func TestATokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		token, err := s.CreateToken(t.Context(), TokenSpec{Role: control.RoleOperator, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour - 1)
		if _, ok := s.Authenticate(token); !ok {
			t.Error("refused before its time")
		}
		time.Sleep(1)
		if _, ok := s.Authenticate(token); ok {
			t.Error("taken after its time")
		}
		if err := s.Prune(t.Context(), control.PruneLimits{}); err != nil {
			t.Fatal(err)
		}
		if n := len(s.tokens.byID); n != 0 {
			t.Errorf("%d tokens are kept", n)
		}
		s = reopen(t, s)
		if n := len(s.tokens.byID); n != 0 {
			t.Errorf("%d tokens are on disk", n)
		}
		shut(t, s)
	})
}

func TestADeletedTokenIsVoid(t *testing.T) {
	s := open(t)
	token, err := s.CreateToken(t.Context(), TokenSpec{Role: control.RoleViewer})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := s.Authenticate(token)
	if err := s.DeleteToken(t.Context(), p.Token); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, ok := s.Authenticate(token); ok {
			t.Error("it is taken")
		}
		s = reopen(t, s)
	}
	if err := s.DeleteToken(t.Context(), p.Token); err == nil || control.AsError(err).Kind != control.KindNotFound {
		t.Errorf("deleted again: %v", err)
	}
}

func TestAChangedPresetReplacesTheOldOneOfItsRole(t *testing.T) {
	s := open(t)
	preset := func(role control.Role, owner, token string) {
		t.Helper()
		if err := s.PresetToken(t.Context(), role, owner, token); err != nil {
			t.Fatal(err)
		}
	}
	who := func(token string) string {
		p, ok := s.Authenticate(token)
		if !ok {
			return "nobody"
		}
		return string(p.Role) + " " + p.Owner
	}
	made, err := s.CreateToken(t.Context(), TokenSpec{Role: control.RoleAgent, Owner: "hermes"})
	if err != nil {
		t.Fatal(err)
	}
	preset(control.RoleAgent, "default", "one")
	preset(control.RoleOperator, "", "two")
	before := transactions(t, s)
	preset(control.RoleAgent, "default", "one")
	if got := transactions(t, s); got != before {
		t.Error("an unchanged preset was written again")
	}
	preset(control.RoleAgent, "default", "three")
	s = reopen(t, s)
	preset(control.RoleAgent, "default", "three")
	for token, want := range map[string]string{
		"one": "nobody", "two": "operator ", "three": "agent default", made: "agent hermes",
	} {
		if got := who(token); got != want {
			t.Errorf("%q is %q, want %q", token, got, want)
		}
	}
	preset(control.RoleAgent, "somebody", "three")
	if got := who("three"); got != "agent somebody" {
		t.Errorf("with another owner it is %q", got)
	}
	if err := s.PresetToken(t.Context(), control.RoleViewer, "", "two"); err == nil {
		t.Error("one token was taken for two roles")
	}
	for range 2 { // the second time it has none
		if err := s.DropPreset(t.Context(), control.RoleOperator); err != nil {
			t.Fatal(err)
		}
	}
	s = reopen(t, s)
	if got := who("two"); got != "nobody" {
		t.Errorf("a preset that was dropped is %q", got)
	}
}

func TestABadTokenSpecIsRefused(t *testing.T) {
	s := open(t)
	long := strings.Repeat("Ω", 128)
	for name, spec := range map[string]TokenSpec{
		"no role":              {},
		"unknown role":         {Role: "root"},
		"no owner":             {Role: control.RoleAgent},
		"an operator's owner":  {Role: control.RoleOperator, Owner: "o"},
		"129 characters":       {Role: control.RoleAgent, Owner: long + "Ω"},
		"a name of 129":        {Role: control.RoleViewer, Name: long + "Ω"},
		"C0":                   {Role: control.RoleAgent, Owner: "a\nb"},
		"NUL":                  {Role: control.RoleAgent, Owner: "a\x00b"},
		"DEL":                  {Role: control.RoleAgent, Owner: "a\x7fb"},
		"C1":                   {Role: control.RoleAgent, Owner: "a\u0085b"},
		"no UTF-8":             {Role: control.RoleAgent, Owner: "a\xffb"},
		"negative TTL":         {Role: control.RoleViewer, TTL: -1},
		"C1 in an agents name": {Role: control.RoleAgent, Owner: "o", Name: "\u009b"},
	} {
		if _, err := s.CreateToken(t.Context(), spec); err == nil || control.AsError(err).Kind != control.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.CreateToken(t.Context(), TokenSpec{Role: control.RoleAgent, Owner: long, Name: long}); err != nil {
		t.Errorf("128 characters: %v", err)
	}
	for _, token := range []string{"", "a b", "a\n", "Ω", strings.Repeat("x", 1025)} {
		if err := s.PresetToken(t.Context(), control.RoleOperator, "", token); err == nil || control.AsError(err).Kind != control.KindInvalid {
			t.Errorf("preset %.20q: %v", token, err)
		}
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	s := open(b)
	token, err := s.CreateToken(b.Context(), TokenSpec{Role: control.RoleAgent, Owner: "o"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.Authenticate(token)
	}
}
