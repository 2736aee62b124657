package test_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sandkeeper/test"
	"sandkeeper/test/need"
)

// The system's Python: its packages are those that the client needs.
const python = "/usr/bin/python3"

func needPython(t *testing.T, modules string) {
	t.Helper()
	if out, err := exec.Command(python, "-c", "import "+modules).CombinedOutput(); err != nil {
		need.Missing(t, "python", python+" with "+modules+": "+err.Error()+"\n"+string(out))
	}
}

func runPython(t *testing.T, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// pythonSource is a copy: building and checking leave files beside the sources.
func pythonSource(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "source")
	if err := os.CopyFS(dir, os.DirFS("../clients/python")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The Python client, from a wheel built by its own metadata, against the real server.
func TestPythonClient(t *testing.T) { test.Each(t, pythonClient) }

func pythonClient(t *testing.T, on test.On) {
	needPython(t, "websockets, setuptools, wheel, venv, pip")
	source, dir := pythonSource(t), t.TempDir()
	runPython(t, nil, python, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "--no-index", "-w", dir, source)
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("wheels %q, %v", wheels, err)
	}
	venv := filepath.Join(dir, "venv")
	inside := filepath.Join(venv, "bin/python")
	runPython(t, nil, python, "-m", "venv", "--without-pip", "--system-site-packages", venv)
	runPython(t, nil, python, "-m", "pip", "--python", inside, "install", "-q", "--no-index", "--no-deps", wheels[0])
	s := on.Start(t)
	runPython(t, []string{"SANDKEEPER_URL=" + s.URL, "SANDKEEPER_TOKEN=" + s.Token(t, "agent")},
		inside, "-m", "unittest", "discover", "-v", "-s", filepath.Join(source, "tests"))
}

func TestPythonClientIsTyped(t *testing.T) {
	t.Parallel()
	needPython(t, "mypy, websockets")
	source := pythonSource(t)
	runPython(t, []string{"MYPYPATH=" + filepath.Join(source, "src") + ":" + filepath.Join(source, "tests")},
		python, "-m", "mypy", "--strict", "--config-file", filepath.Join(source, "pyproject.toml"), "--cache-dir", t.TempDir(),
		filepath.Join(source, "src"), filepath.Join(source, "tests"))
}
