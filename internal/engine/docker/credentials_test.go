package docker

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/registry"
)

func TestCredentialsOfTheUsersConfiguration(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	helper := func(name, script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, "docker-credential-"+name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	helper("good", `test "$1" = get && read -r server || test -n "$server"; echo "{\"ServerURL\":\"$server\",\"Username\":\"u@$server\",\"Secret\":\"s\"}"`)
	helper("token", `echo '{"Username":"<token>","Secret":"t"}'`)
	helper("empty", `echo "credentials not found in native keychain"; exit 1`)
	helper("broken", `echo "no keychain, secret was hunter2"; exit 2`)
	helper("garbled", `echo hunter2`)

	basic := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	tests := []struct {
		name, config, domain string
		want                 registry.AuthConfig
		err                  string
	}{
		{name: "no configuration", domain: "docker.io"},
		{name: "nothing for this registry", config: `{"auths":{"other.io":{"auth":"` + basic + `"}}}`, domain: "mine.io"},
		{name: "the file's", config: `{"auths":{"mine.io":{"auth":"` + basic + `"}}}`, domain: "mine.io",
			want: registry.AuthConfig{Username: "me", Password: "pass:word", ServerAddress: "mine.io"}},
		{name: "the hub's, by its old name", config: `{"auths":{"https://index.docker.io/v1/":{"auth":"` + basic + `"}}}`, domain: "docker.io",
			want: registry.AuthConfig{Username: "me", Password: "pass:word", ServerAddress: hubKey}},
		{name: "a key with scheme and path", config: `{"auths":{"https://mine.io/v2/":{"auth":"` + basic + `"}}}`, domain: "mine.io",
			want: registry.AuthConfig{Username: "me", Password: "pass:word", ServerAddress: "mine.io"}},
		{name: "a port is part of the registry", config: `{"auths":{"mine.io":{"auth":"` + basic + `"}}}`, domain: "mine.io:5000"},
		{name: "an identity token", config: `{"auths":{"mine.io":{"identitytoken":"t"}}}`, domain: "mine.io",
			want: registry.AuthConfig{IdentityToken: "t", ServerAddress: "mine.io"}},
		{name: "a helper of its own", config: `{"credHelpers":{"mine.io":"good"},"credsStore":"broken"}`, domain: "mine.io",
			want: registry.AuthConfig{Username: "u@mine.io", Password: "s", ServerAddress: "mine.io"}},
		{name: "the store", config: `{"credsStore":"token","auths":{"mine.io":{}}}`, domain: "mine.io",
			want: registry.AuthConfig{IdentityToken: "t", ServerAddress: "mine.io"}},
		{name: "a store without them leaves the file's", config: `{"credsStore":"empty","auths":{"mine.io":{"auth":"` + basic + `"}}}`, domain: "mine.io",
			want: registry.AuthConfig{Username: "me", Password: "pass:word", ServerAddress: "mine.io"}},
		{name: "a store without them, and an empty entry", config: `{"credsStore":"empty","auths":{"mine.io":{}}}`, domain: "mine.io"},
		{name: "a broken helper", config: `{"credsStore":"broken"}`, domain: "mine.io", err: "credential helper broken"},
		{name: "a garbled helper", config: `{"credsStore":"garbled"}`, domain: "mine.io", err: "credential helper garbled"},
		{name: "a missing helper", config: `{"credsStore":"nowhere"}`, domain: "mine.io", err: "credential helper nowhere"},
		{name: "a helper that is a path", config: `{"credsStore":"../x"}`, domain: "mine.io", err: "no name of a credential helper"},
		{name: "auth that is no base64", config: `{"auths":{"mine.io":{"auth":"%%"}}}`, domain: "mine.io", err: "not base64"},
		{name: "auth without a password", config: `{"auths":{"mine.io":{"auth":"bWU="}}}`, domain: "mine.io", err: "not user:password"},
		{name: "a configuration that is no JSON", config: `{`, domain: "mine.io", err: "config.json"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			files := map[string]string{}
			if test.config != "" {
				files["/home/u/.docker/config.json"] = test.config
			}
			e := &Engine{opts: Options{Surroundings: surroundings(map[string]string{"HOME": "/home/u"}, files)}}
			encoded, err := e.credentials(t.Context(), test.domain)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error %v, want one with %q", err, test.err)
				}
				if strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the error shows what the helper said: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if (encoded == "") != (test.want == registry.AuthConfig{}) {
				t.Errorf("the engine is shown %q", encoded)
			}
			got, err := registry.DecodeAuthConfig(encoded)
			if err != nil {
				t.Fatal(err)
			}
			if *got != test.want {
				t.Errorf("credentials are %+v, want %+v", *got, test.want)
			}
		})
	}
}
