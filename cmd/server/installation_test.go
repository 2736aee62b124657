package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestInstanceIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	first, err := openInstallation(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if !instanceName.MatchString(first.Instance) {
		t.Errorf("made %q", first.Instance)
	}
	for _, asked := range []string{"", first.Instance} {
		again, err := openInstallation(dir, asked)
		if err != nil || again != first {
			t.Errorf("asked for %q: got %v, %v; want %v", asked, again, err, first)
		}
	}
	if _, err := openInstallation(dir, "another"); err == nil || !strings.Contains(err.Error(), first.Instance) {
		t.Errorf("another instance: %v", err)
	}
}

func TestInstanceIsTheAskedOneAtTheFirstStart(t *testing.T) {
	in, err := openInstallation(t.TempDir(), "prod-1")
	if err != nil || in.Instance != "prod-1" {
		t.Errorf("got %v, %v", in, err)
	}
}

func TestTwoFirstStartsAtOnceAgree(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	got := make([]installation, 8)
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = openInstallation(dir, ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, in := range got {
		if in != got[0] {
			t.Fatalf("they differ: %v", got)
		}
	}
	left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDatabaseWithoutItsInstanceIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, databaseFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openInstallation(dir, ""); err == nil || !strings.Contains(err.Error(), "--instance") {
		t.Errorf("got %v", err)
	}
	if _, err := openInstallation(dir, "prod"); err != nil {
		t.Errorf("named: %v", err)
	}
}

func TestDamagedInstallationIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, installationFile)
	for _, text := range []string{"", "{", `{"instance":"../x"}`} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openInstallation(dir, "x"); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%q: %v", text, err)
		}
		if b, err := os.ReadFile(file); err != nil || string(b) != text {
			t.Errorf("%q became %q, %v", text, b, err)
		}
	}
}

func TestEngineChoiceIsKept(t *testing.T) {
	for _, tc := range []struct {
		kept, asked, auto, want string
		refused                 bool
	}{
		{asked: "auto", auto: "docker", want: "docker"},
		{asked: "auto", auto: "local", want: "local"},
		{asked: "docker", auto: "local", want: "docker"},
		{kept: "docker", asked: "auto", auto: "local", want: "docker"},
		{kept: "docker", asked: "docker", want: "docker"},
		{kept: "docker", asked: "local", refused: true},
		{kept: "local", asked: "docker", refused: true},
	} {
		in := installation{Instance: "x", Engine: tc.kept}
		err := in.chooseEngine(tc.asked, func() string { return tc.auto })
		if tc.refused {
			if err == nil || !strings.Contains(err.Error(), "--data-dir") {
				t.Errorf("%+v: %v", tc, err)
			}
			continue
		}
		if err != nil || in.Engine != tc.want {
			t.Errorf("%+v: got %q, %v", tc, in.Engine, err)
		}
	}
	dir := t.TempDir()
	in, err := openInstallation(dir, "x")
	if err != nil {
		t.Fatal(err)
	}
	in.Engine = "docker"
	if err := in.keep(dir); err != nil {
		t.Fatal(err)
	}
	if again, err := openInstallation(dir, ""); err != nil || again != in {
		t.Errorf("kept %v, %v; want %v", again, err, in)
	}
}
