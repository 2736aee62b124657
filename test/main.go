package test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// Main runs a package's tests and then removes what they shared.
func Main(m *testing.M) {
	flag.Parse()
	// They wait for engines far more than they compute.
	if p := flag.Lookup("test.parallel"); p.Value.String() == p.DefValue {
		if err := p.Value.Set(fmt.Sprint(max(6, runtime.GOMAXPROCS(0)))); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := errors.Join(closeChromium(), removeImage(), removeBinary()); err != nil {
		fmt.Fprintln(os.Stderr, "test:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// BuildFlags are those that the server is built with: what the tests were built with, too.
func BuildFlags() []string {
	if raceDetector {
		return []string{"-race"}
	}
	return nil
}

// binary builds the server, once for each test process.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sandkeeper-test-*")
	if err != nil {
		return "", err
	}
	built.dir = dir
	path := filepath.Join(dir, "sandkeeper")
	args := append([]string{"build", "-o", path}, BuildFlags()...)
	out, err := exec.Command("go", append(args, "sandkeeper/cmd/server")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the server: %w\n%s", err, out)
	}
	return path, nil
})

// built is the directory of the binary, once there is one.
var built struct{ dir string }

func removeBinary() error {
	if built.dir == "" {
		return nil
	}
	return os.RemoveAll(built.dir)
}

// Binary returns the path of the server's binary.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
