package test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandkeeper/test/need"
)

// Docker is the engine that the tests use, by the docker command: DOCKER_HOST
// or the default socket.
type Docker struct {
	Host  string // "" for the one that the docker command finds by itself
	Image string // a busybox with its applets, made for this test process
}

// OpenDocker returns the engine, with an image on it, or ends the test.
func OpenDocker(t testing.TB) Docker {
	t.Helper()
	if why := engineMissing(); why != "" {
		need.Missing(t, "docker", why)
	}
	image, err := importImage()
	if err != nil {
		t.Fatal(err)
	}
	return Docker{Image: image}
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
	f, err := busyboxFiles()
	if err != nil {
		return "", err
	}
	imported = true
	return imageName, Docker{}.importFiles(imageName, f)
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

// Files are what an image is made of: directories end with a slash and have no
// body; a body that begins with "-> " is a symbolic link.
type Files map[string]string

// busyboxFiles is a small system: busybox, a link for each applet, and users.
func busyboxFiles() (Files, error) {
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
	files := Files{
		"etc/": "", "root/": "", "home/": "", "usr/bin/": "", "var/": "", "tmp/": "",
		"etc/passwd":  "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home:/bin/sh\n",
		"etc/group":   "root:x:0:\nuser:x:1000:\n",
		"bin/busybox": string(bin),
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			files["bin/"+applet] = "-> busybox"
		}
	}
	return files, nil
}

// tar writes the files as docker import reads them.
func (f Files) tar() (io.Reader, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, name := range slices.Sorted(maps.Keys(f)) {
		body := f[name]
		h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(body))}
		target, link := strings.CutPrefix(body, "-> ")
		switch {
		case strings.HasSuffix(name, "/"):
			h.Typeflag = tar.TypeDir
			if name == "tmp/" {
				h.Mode = 0o1777
			}
		case link:
			h.Typeflag, h.Linkname, h.Size, body = tar.TypeSymlink, target, 0, ""
		case strings.HasPrefix(name, "etc/"):
			h.Mode = 0o644
		}
		if err := tw.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(tw, body); err != nil {
			return nil, err
		}
	}
	return &buf, tw.Close()
}

// importFiles makes an image of files, with changes as of docker import --change.
func (d Docker) importFiles(name string, f Files, changes ...string) error {
	root, err := f.tar()
	if err != nil {
		return err
	}
	args := []string{"import"}
	for _, c := range append([]string{"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, changes...) {
		args = append(args, "--change", c)
	}
	cmd := exec.Command("docker", append(args, "-", name)...)
	cmd.Env, cmd.Stdin = environ(d.Host), root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import the image: %w: %s", err, out)
	}
	return nil
}

// Import makes an image of files, which goes at the end of the test.
func (d Docker) Import(t testing.TB, f Files, changes ...string) (image string) {
	t.Helper()
	image = "sandkeeper-test:" + strings.ToLower(rand.Text()[:10])
	if err := d.importFiles(image, f, changes...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Run(t, "image", "rm", "--force", image) })
	return image
}

// Busybox returns the files of the tests' own image, to be changed.
func Busybox(t testing.TB) Files {
	t.Helper()
	f, err := busyboxFiles()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Run runs a docker command and returns what it printed.
func (d Docker) Run(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command("docker", args...)
	cmd.Env = environ(d.Host)
	out, err := cmd.Output()
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

// Volume keeps files. Env is "" for what all environments share.
type Volume struct{ Name, Env string }

// Volumes lists the volumes of an instance.
func (d Docker) Volumes(t testing.TB, instance string) (list []Volume) {
	t.Helper()
	out := d.Run(t, "volume", "ls", "--filter", "label=sandkeeper.instance="+instance, "--format", `{{.Name}}	{{.Label "sandkeeper.env"}}`)
	for line := range strings.Lines(out) {
		name, env, _ := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		list = append(list, Volume{name, env})
	}
	return list
}
