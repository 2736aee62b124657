package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func startTestAdmin(t *testing.T, dir string) {
	t.Helper()
	a, err := startAdmin(dir, "inst", adminCalls{createToken: func(_ context.Context, spec tokenSpec) (string, error) {
		if spec.Role != "agent" {
			return "", errors.New("no such role")
		}
		return "tok-" + spec.Owner + "-" + spec.Name, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(filepath.Join(dir, adminSocket)); !os.IsNotExist(err) {
			t.Errorf("the socket is left: %v", err)
		}
	})
}

func TestAdminSocketAnswersTheServersOwnUser(t *testing.T) {
	for name, dir := range map[string]string{
		"short path": t.TempDir(),
		"long path":  filepath.Join(t.TempDir(), strings.Repeat("long/", 40)),
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			startTestAdmin(t, dir)
			fi, err := os.Lstat(filepath.Join(dir, adminSocket))
			if err != nil || fi.Mode().Perm() != 0o600 || fi.Mode().Type() != os.ModeSocket {
				t.Fatalf("socket: %v, %v", fi.Mode(), err)
			}
			var st adminStatus
			if err := callAdmin(t.Context(), dir, http.MethodGet, "/status", nil, &st); err != nil || st.Instance != "inst" || st.PID != os.Getpid() {
				t.Errorf("status: %+v, %v", st, err)
			}
			var tok adminToken
			if err := callAdmin(t.Context(), dir, http.MethodPost, "/tokens", tokenSpec{Role: "agent", Owner: "o", Name: "n"}, &tok); err != nil || tok.Token != "tok-o-n" {
				t.Errorf("token: %+v, %v", tok, err)
			}
			if err := callAdmin(t.Context(), dir, http.MethodPost, "/tokens", tokenSpec{Role: "x"}, &tok); err == nil || err.Error() != "no such role" {
				t.Errorf("the server's refusal came as %v", err)
			}
			left, err := filepath.Glob(filepath.Join(dir, ".admin-*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestDeadServersSocketIsNoServerAndIsReplaced(t *testing.T) {
	dir := t.TempDir()
	if err := callAdmin(t.Context(), dir, http.MethodGet, "/status", nil, nil); !errors.Is(err, errNoServer) {
		t.Errorf("no socket: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, adminSocket), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := callAdmin(t.Context(), dir, http.MethodGet, "/status", nil, nil); !errors.Is(err, errNoServer) {
		t.Errorf("a dead server's socket: %v", err)
	}
	startTestAdmin(t, dir)
	var st adminStatus
	if err := callAdmin(t.Context(), dir, http.MethodGet, "/status", nil, &st); err != nil {
		t.Errorf("replaced: %v", err)
	}
}
