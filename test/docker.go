package test

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// Docker is the engine that the tests use, by the docker command: DOCKER_HOST
// or the default socket.
type Docker struct {
	Image string // a busybox with its applets, made for this test process
}

// OpenDocker returns the engine, with an image on it, or ends the test.
func OpenDocker(t testing.TB) Docker {
	t.Helper()
	if why := engineMissing(); why != "" {
		Missing(t, "docker", why)
	}
	image, err := importImage()
	if err != nil {
		t.Fatal(err)
	}
	return Docker{image}
}

// engineMissing says why no engine can be used, once for each test process.
var engineMissing = sync.OnceValue(func() string {
	if _, err := exec.LookPath("docker"); err != nil {
		return "there is no docker command on this machine"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").CombinedOutput(); err != nil {
		return "the engine does not answer: " + strings.TrimSpace(string(out))
	}
	if _, err := busybox(); err != nil {
		return err.Error()
	}
	return ""
})

// busybox finds a static busybox, which is all of the image.
func busybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("there is no busybox on this machine to make an image of (busybox-static)")
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("busybox: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s is not static, so no image can be made of it (busybox-static)", path)
		}
	}
	return path, nil
}

var imageName = fmt.Sprintf("sandkeeper-test:%d", os.Getpid())

// importImage makes the image, once for each test process.
var importImage = sync.OnceValues(func() (string, error) {
	root, err := rootFS()
	if err != nil {
		return "", err
	}
	imported = true
	cmd := exec.Command("docker", "import", "--change", `ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`, "-", imageName)
	cmd.Stdin = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("import the image: %w: %s", err, out)
	}
	return imageName, nil
})

var imported bool

func removeImage() error {
	if !imported {
		return nil
	}
	if out, err := exec.Command("docker", "image", "rm", "--force", imageName).CombinedOutput(); err != nil {
		return fmt.Errorf("remove the image: %w: %s", err, out)
	}
	return nil
}

// rootFS is a root file system as a tar: busybox, a link for each applet, and users.
func rootFS() (io.Reader, error) {
	path, err := busybox()
	if err != nil {
		return nil, err
	}
	bin, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	add := func(h tar.Header, body string) {
		if err != nil {
			return
		}
		h.Size = int64(len(body))
		if err = tw.WriteHeader(&h); err == nil {
			_, err = io.WriteString(tw, body)
		}
	}
	for _, dir := range []string{"bin/", "etc/", "root/", "home/", "usr/", "usr/bin/", "var/"} {
		add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755}, "")
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home:/bin/sh\n")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, "root:x:0:\nuser:x:1000:\n")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "bin/busybox", Mode: 0o755}, string(bin))
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			add(tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/" + applet, Linkname: "busybox", Mode: 0o777}, "")
		}
	}
	if err == nil {
		err = tw.Close()
	}
	return &buf, err
}

// Run runs a docker command and returns what it printed.
func (Docker) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).Output()
	if err != nil {
		stderr := ""
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			stderr = string(e.Stderr)
		}
		t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, stderr)
	}
	return strings.TrimSpace(string(out))
}

// Container is a line of docker ps -a.
type Container struct {
	ID     string
	Name   string
	State  string // "created", "running", "exited", ...
	Env    string // the environment's id
	Status string // for people: "Up 3 seconds", "Exited (137) ..."
}

// Containers lists every container of an instance, in whatever state.
func (d Docker) Containers(t testing.TB, instance string) []Container {
	t.Helper()
	out := d.Run(t, "ps", "--all", "--no-trunc", "--filter", "label=sandkeeper.instance="+instance,
		"--format", `{{.ID}}	{{.Names}}	{{.State}}	{{.Label "sandkeeper.env"}}	{{.Status}}`)
	var list []Container
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 5 {
			t.Fatalf("docker ps printed %q", line)
		}
		list = append(list, Container{f[0], f[1], f[2], f[3], f[4]})
	}
	return list
}

// Container finds the container of an environment; ok is false where there is none.
func (d Docker) Container(t testing.TB, instance, env string) (c Container, ok bool) {
	t.Helper()
	for _, c := range d.Containers(t, instance) {
		if c.Env == env {
			return c, true
		}
	}
	return Container{}, false
}

// Volumes lists the volumes of an instance.
func (d Docker) Volumes(t testing.TB, instance string) []string {
	t.Helper()
	return strings.Fields(d.Run(t, "volume", "ls", "--quiet", "--filter", "label=sandkeeper.instance="+instance))
}
