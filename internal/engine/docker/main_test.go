package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"sandkeeper/test/need"
)

// testImage is made of a static busybox, so that no registry is needed.
const testImage = "sandkeeper-engine-test:busybox"

// lab is what the tests share: an engine that answers, an image, a guest.
type lab struct {
	host  Host
	cli   *client.Client
	guest []byte // as built from this tree
	stub  []byte // does the least that the engine needs of a guest
	dir   string
	arch  string
}

var openLab = sync.OnceValues(newLab)

func TestMain(m *testing.M) {
	code := m.Run()
	if l, err := openLab(); err == nil {
		l.removeImage(testImage)
		os.RemoveAll(l.dir)
	}
	os.Exit(code)
}

// needLab skips a test where there is no engine, or fails it where one is required.
func needLab(t testing.TB) *lab {
	t.Helper()
	l, err := openLab()
	if err == nil {
		return l
	}
	if errors.Is(err, errMissing) {
		need.Missing(t, "docker", err)
	}
	t.Fatal(err)
	return nil
}

// errMissing is newLab's where this machine has no engine, or nothing to make an image of.
var errMissing = errors.New("not on this machine")

func newLab() (*lab, error) {
	host, err := Discover(System())
	if errors.Is(err, ErrNotConfigured) {
		return nil, fmt.Errorf("%w: %w", errMissing, err)
	}
	if err != nil {
		return nil, err
	}
	cli, err := newClient(host, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	info, err := cli.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMissing, err)
	}
	l := &lab{host: host, cli: cli, arch: goarch(info.Architecture)}
	if err := l.importImage(ctx, testImage); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp("", "sandkeeper-engine-test-"); err != nil {
		return nil, err
	}
	if l.guest, err = l.build("sandkeeper/cmd/guest"); err != nil {
		return nil, err
	}
	l.stub, err = l.build("./testdata/pid1")
	return l, err
}

// build compiles a static program for the engine's machines.
func (l *lab) build(pkg string) ([]byte, error) {
	out := filepath.Join(l.dir, "guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+l.arch)
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build %s: %w: %s", pkg, err, said)
	}
	return os.ReadFile(out)
}

// importImage makes an image of the machine's busybox, changed by Dockerfile lines.
func (l *lab) importImage(ctx context.Context, ref string, changes ...string) error {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w: busybox-static: %w", errMissing, err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	names, err := exec.Command(path, "--list").Output()
	if err != nil {
		return err
	}
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	add := func(h tar.Header, body []byte) {
		h.Size = int64(len(body))
		if err == nil {
			err = archive.WriteHeader(&h)
		}
		if err == nil {
			_, err = archive.Write(body)
		}
	}
	for _, dir := range []string{"bin", "etc", "root"} {
		add(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	add(tar.Header{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n"))
	add(tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nuser:x:1000:\n"))
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, busybox)
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" {
			add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	if err == nil {
		err = archive.Close()
	}
	if err != nil {
		return err
	}
	said, err := l.cli.ImageImport(ctx, image.ImportSource{Source: &b, SourceName: "-"}, ref,
		image.ImportOptions{Changes: append([]string{"ENV PATH=/bin"}, changes...)})
	if err != nil {
		return err
	}
	defer said.Close()
	return drainProgress(said)
}

func (l *lab) removeImage(ref string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := l.cli.ImageRemove(ctx, ref, image.RemoveOptions{Force: true}); err != nil {
		fmt.Fprintf(os.Stderr, "image %s is left: %v\n", ref, err)
	}
}

// options are those of an engine with an instance of its own, whose leftovers
// are removed when the test ends.
func (l *lab) options(t testing.TB) Options {
	t.Helper()
	var random [5]byte
	rand.Read(random[:])
	opts := Options{
		Instance: "enginetest-" + hex.EncodeToString(random[:]),
		Host:     l.host,
		DataDir:  t.TempDir(),
		Binary:   func(string) ([]byte, error) { return l.stub, nil },
		LinkWait: time.Minute, // a guest on a busy machine may be late
	}
	after := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		e, err := New(after, opts)
		if err != nil {
			t.Error(err)
			return
		}
		defer e.Close()
		ctx, cancel := context.WithTimeout(after, time.Minute)
		defer cancel()
		if _, err := e.Prune(ctx); err != nil {
			t.Errorf("prune: %v", err)
		}
	})
	return opts
}

func open(t testing.TB, opts Options) *Engine {
	t.Helper()
	e, err := New(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// inside runs a command in a container through the engine's own exec.
func (l *lab) inside(t testing.TB, name, user string, argv ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	made, err := l.cli.ContainerExecCreate(ctx, name, container.ExecOptions{User: user, Cmd: argv, AttachStdout: true, AttachStderr: true})
	if err != nil {
		t.Fatalf("exec create: %v", err)
	}
	attached, err := l.cli.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{})
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	defer attached.Close()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &out, attached.Reader); err != nil {
		t.Fatalf("exec: %v", err)
	}
	ended, err := l.cli.ContainerExecInspect(ctx, made.ID)
	if err != nil {
		t.Fatalf("exec inspect: %v", err)
	}
	return out.String(), ended.ExitCode
}
