package test_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"sandkeeper/test"
	"sandkeeper/test/need"
)

var update = flag.Bool("update", false, "write the README's transcript")

const (
	readme          = "../README.md"
	transcriptBegin = "<!-- transcript: made by go test ./test -run Readme -update -->\n"
	transcriptEnd   = "<!-- end of transcript -->"
)

// newcomer has a copy of the source, as a clone is, and an environment in which
// nothing points at docker.
type newcomer struct {
	dir string
	env []string
}

func newNewcomer(t *testing.T) newcomer {
	t.Helper()
	home := t.TempDir()
	n := newcomer{dir: filepath.Join(home, "sandkeeper")}
	n.env = []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "SANDKEEPER_LISTEN=127.0.0.1:0", "npm_config_prefer_offline=true",
		// The tests' own, so that nothing is compiled for this alone.
		"BUILDFLAGS=" + strings.Join(test.BuildFlags(), " "),
	}
	// What was downloaded and built once is used again.
	for name, from := range map[string][]string{
		"GOCACHE": {"go", "env", "GOCACHE"}, "GOMODCACHE": {"go", "env", "GOMODCACHE"}, "GOPROXY": {"go", "env", "GOPROXY"},
		"GOFLAGS": {"go", "env", "GOFLAGS"}, "GOSUMDB": {"go", "env", "GOSUMDB"}, "npm_config_cache": {"npm", "config", "get", "cache"},
	} {
		out, err := exec.Command(from[0], from[1:]...).Output()
		if err != nil {
			t.Fatalf("%v: %v", from, err)
		}
		n.env = append(n.env, name+"="+strings.TrimSpace(string(out)))
	}
	for _, name := range []string{"npm_config_registry", "npm_config_cafile", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "https_proxy"} {
		if v, ok := os.LookupEnv(name); ok {
			n.env = append(n.env, name+"="+v)
		}
	}
	if _, err := os.Stat("/var/run/docker.sock"); err == nil {
		n.env = append(n.env, "SANDKEEPER_ENGINE=local") // this machine's docker cannot be hidden
	}
	copySource(t, n.dir)
	return n
}

// copySource copies what is no product of make, and what npm has installed, so that the
// test needs no network. The copies are newer than what they are made of, as make wants it.
func copySource(t *testing.T, dir string) {
	t.Helper()
	made := regexp.MustCompile(`^(\.git|bin|data|node_modules|web/static/third_party/.*\.js|internal/guest/guestbin/binaries/guest-.*)$`)
	root := os.DirFS("..")
	for _, from := range []string{".", "node_modules"} {
		err := fs.WalkDir(root, from, func(path string, d fs.DirEntry, err error) error {
			switch {
			case from == "node_modules" && path == from && errors.Is(err, fs.ErrNotExist):
				return nil // npm installs it
			case err != nil:
				return err
			case from == "." && made.MatchString(path) && d.IsDir():
				return fs.SkipDir
			case from == "." && made.MatchString(path):
				return nil
			case d.IsDir():
				return os.MkdirAll(filepath.Join(dir, path), 0o755)
			case !d.Type().IsRegular():
				return nil
			}
			b, err := fs.ReadFile(root, path)
			if err != nil {
				return err
			}
			mode := fs.FileMode(0o644)
			if info, err := d.Info(); err == nil {
				mode = info.Mode().Perm()
			}
			return os.WriteFile(filepath.Join(dir, path), b, mode)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// command runs a line of the README as a shell would, in a process group of its own.
func (n newcomer) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir, cmd.Env = n.dir, n.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// The first five minutes, as the README tells them: its transcript is what comes.
func TestReadmesFirstTurn(t *testing.T) {
	t.Parallel()
	test.Browser(t) // it is missed before anything is built
	n := newNewcomer(t)

	serve := n.command(context.Background(), "make run") // until the clean-up ends it
	var stderr bytes.Buffer
	serve.Stderr = &stderr
	stdout, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	link := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(link)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if strings.Contains(lines.Text(), "/sign-in?code=") {
				link <- lines.Text()
			}
		}
		_ = serve.Wait() // the sandboxes' end is what counts
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-serve.Process.Pid, syscall.SIGINT) // as Ctrl-C; it may have ended
		<-ended
		out, err := n.command(context.Background(), "bin/sandkeeper prune --instance $(sed -n 's/.*\"instance\": *\"\\([^\"]*\\)\".*/\\1/p' data/installation.json)").CombinedOutput()
		if err != nil {
			t.Errorf("prune: %v: %s", err, out)
		}
	})
	signIn, ok := <-link
	if !ok {
		if strings.Contains(stderr.String(), "cannot isolate sandboxes on this machine") {
			need.Missing(t, "local", stderr.String())
		}
		t.Fatalf("make run printed no link: %s", &stderr)
	}

	tab := test.OpenTab(t) // closed before the server is, which it would complain of
	tab.Open(signIn[strings.Index(signIn, "http"):])
	tab.Wait("the page is live", test.IsLive)
	begin := test.Read[string](tab, "document.querySelector('#begin').innerText")
	agent := n.command(t.Context(), begin)
	said, err := agent.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", begin, err, said)
	}
	tab.Sees("#rows", "fix the login page")
	tab.Wait("how to begin is told no more", "document.querySelector('#begin') === null")

	got := transcript(signIn, begin, string(said))
	b, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), transcriptBegin)
	has, after, ok2 := strings.Cut(rest, transcriptEnd)
	if !ok || !ok2 {
		t.Fatal("the README has no place for the transcript")
	}
	if has == got {
		return
	}
	if !*update {
		t.Fatalf("the README's transcript differs from what comes: run go test ./test -run Readme -update\n%s", got)
	}
	if err := os.WriteFile(readme, []byte(before+transcriptBegin+got+transcriptEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// passing is what differs from run to run, and what the README has instead.
var passing = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "127.0.0.1:7333"},
	{regexp.MustCompile(` --url http://127\.0\.0\.1:7333`), ""},
	{regexp.MustCompile(`code=\w+`), "code=…"},
	{regexp.MustCompile(`connected to sandkeeper [^;]+;`), "connected to sandkeeper;"},
	{regexp.MustCompile(`sandbox \S+ created in \S+`), "sandbox … created in … ms"},
	{regexp.MustCompile(`total \d+ (-\S+ +\d+) \S+ \S+ +(\d+) \w+ +\d+ \S+ `), "total 4 $1 root root $2 Nov 30 12:00 "},
	{regexp.MustCompile(`sleep \d+;`), "sleep 1;"},
}

// transcript is one task's first turn: the tasks' lines mix as they come.
func transcript(signIn, begin, said string) string {
	lines := []string{"$ make run", "…", signIn, "", "$ " + begin}
	turn := true
	for line := range strings.Lines(said) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "connected to "), strings.HasPrefix(line, "done; "):
			lines = append(lines, line)
		case strings.HasPrefix(line, "fix the login page") && turn:
			lines = append(lines, line)
			if turn = !strings.Contains(line, "turn 1 ends"); !turn {
				lines = append(lines, "…")
			}
		}
	}
	text := strings.Join(lines, "\n")
	for _, p := range passing {
		text = p.pattern.ReplaceAllString(text, p.instead)
	}
	return fmt.Sprintf("```console\n%s\n```\n", text)
}
