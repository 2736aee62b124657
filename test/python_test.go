package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sandkeeper/test/need"
)

// The Python client, from a wheel built by its own metadata, against the real server.
func TestPythonClient(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import websockets, setuptools, wheel, venv, pip").Run(); err != nil {
		need.Missing(t, "python", python+" with websockets, setuptools, wheel, venv and pip: "+err.Error())
	}
	dir := t.TempDir()
	run := func(env []string, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	// A copy: building leaves files beside the sources.
	source := filepath.Join(dir, "source")
	if err := os.CopyFS(source, os.DirFS("../clients/python")); err != nil {
		t.Fatal(err)
	}
	run(nil, python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", dir, source)
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("wheels %q, %v", wheels, err)
	}
	venv := filepath.Join(dir, "venv")
	run(nil, python, "-m", "venv", "--system-site-packages", venv)
	inside := filepath.Join(venv, "bin/python")
	run(nil, inside, "-m", "pip", "install", "--no-index", "--no-deps", wheels[0])
	s := StartLocal(t)
	run([]string{"SANDKEEPER_URL=" + s.URL, "SANDKEEPER_TOKEN=" + s.Token(t, "agent")}, inside, filepath.Join(source, "tests/test_client.py"))
}
