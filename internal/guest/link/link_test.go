package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// dialer makes streams to an echoing guest over one of the links.
type dialer func(ctx context.Context) (io.ReadWriteCloser, error)

var links = map[string]func(t testing.TB, serve func(io.ReadWriteCloser)) dialer{
	"socket": overSocket,
	"attach": overAttach,
}

func overSocket(t testing.TB, serve func(io.ReadWriteCloser)) dialer {
	dir := t.TempDir()
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	guest(t, dir, serve)
	t.Cleanup(func() { l.Close() })
	return func(ctx context.Context) (io.ReadWriteCloser, error) { return l.Dial(ctx, nil) }
}

func guest(t testing.TB, dir string, serve func(io.ReadWriteCloser)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { DialIn(ctx, dir, serve) })
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func overAttach(t testing.TB, serve func(io.ReadWriteCloser)) dialer {
	a := newAttachable(t, serve)
	return func(ctx context.Context) (io.ReadWriteCloser, error) { return Attached(ctx, a.attach()) }
}

// attachable is a PID 1 as an engine shows it: everybody who attaches writes to
// its stdin and sees all of its stdout.
type attachable struct {
	stdin *os.File

	mu   sync.Mutex
	outs map[*attachment]*os.File
}

func newAttachable(t testing.TB, serve func(io.ReadWriteCloser)) *attachable {
	inR, inW := pipe(t)
	outR, outW := pipe(t)
	a := &attachable{stdin: inW, outs: make(map[*attachment]*os.File)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { ServeAttached(ctx, inR, outW, serve); outW.Close() })
	wg.Go(func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := outR.Read(buf)
			if err != nil {
				return
			}
			a.mu.Lock()
			for _, f := range a.outs {
				f.Write(buf[:n])
			}
			a.mu.Unlock()
		}
	})
	t.Cleanup(func() { cancel(); inW.Close(); wg.Wait(); inR.Close(); outR.Close() })
	return a
}

func pipe(t testing.TB) (r, w *os.File) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

type attachment struct {
	a *attachable
	r *os.File
}

func (a *attachable) attach() *attachment {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	at := &attachment{a, r}
	a.mu.Lock()
	a.outs[at] = w
	a.mu.Unlock()
	return at
}

func (at *attachment) Read(p []byte) (int, error)  { return at.r.Read(p) }
func (at *attachment) Write(p []byte) (int, error) { return at.a.stdin.Write(p) }
func (at *attachment) Close() error {
	err := at.r.Close() // first, so that a writer that is stuck on it fails
	at.a.mu.Lock()
	defer at.a.mu.Unlock()
	if w := at.a.outs[at]; w != nil {
		w.Close()
		delete(at.a.outs, at)
	}
	return err
}

func echo(c io.ReadWriteCloser) {
	defer c.Close()
	io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
}

func TestBytesComeThrough(t *testing.T) {
	for name, over := range links {
		t.Run(name, func(t *testing.T) {
			dial := over(t, echo)
			var wg sync.WaitGroup
			for i := range 8 { // several sessions at once
				wg.Go(func() {
					c, err := dial(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					sent := bytes.Repeat([]byte(fmt.Sprintf("session %d. ", i)), 40_000)
					wg.Go(func() { c.Write(sent) })
					got := make([]byte, len(sent))
					if _, err := io.ReadFull(c, got); err != nil {
						t.Errorf("read: %v", err)
					}
					if !bytes.Equal(got, sent) {
						t.Error("what came back differs from what was sent")
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestCloseReachesTheGuest(t *testing.T) {
	for name, over := range links {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			dial := over(t, func(c io.ReadWriteCloser) {
				defer c.Close()
				_, err := io.ReadAll(c)
				ended <- err
			})
			c, err := dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if err := <-ended; err != nil {
				t.Errorf("guest read %v, want end of file", err)
			}
		})
	}
}

func TestGuestClosingIsEndOfFile(t *testing.T) {
	for name, over := range links {
		t.Run(name, func(t *testing.T) {
			dial := over(t, func(c io.ReadWriteCloser) { io.WriteString(c, "bye"); c.Close() })
			c, err := dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got, err := io.ReadAll(c); string(got) != "bye" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

func TestDialWaitsForTheGuest(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Dial(short, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial without a guest: %v, want context.Canceled", err)
	}
	got := make(chan error, 1)
	go func() {
		c, err := l.Dial(t.Context(), nil)
		if err == nil {
			c.Close()
		}
		got <- err
	}()
	guest(t, dir, echo)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestLongDirectoryPath(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		dir = filepath.Join(dir, strings.Repeat("d", 100))
	}
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// In a sandbox the directory is mounted at a short path.
	short := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, short); err != nil {
		t.Fatal(err)
	}
	guest(t, short, echo)
	c, err := l.Dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestListenAgainReplacesWhatWasLeft(t *testing.T) {
	dir := t.TempDir()
	first, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	guest(t, dir, echo)
	c, err := first.Dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	first.ln.Close() // as a crash does: the files stay

	second, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	first.Close() // lets the spare go, and its successor's socket be

	d, err := second.Dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
}

func TestASocketThatCannotBePutInPlaceIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, socketName), 0o755); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(dir); err == nil {
		l.Close()
		t.Error("nobody can dial it, and there is no error")
	}
}

func TestWithoutTheNonceNobodyIsTheGuest(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, said := range []string{
		greeting + strings.Repeat("0", nonceLen) + "\n",
		strings.Repeat("x", 500),
		"",
	} {
		c, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, said)
		c.(*net.UnixConn).CloseWrite()
		if n, err := io.Copy(io.Discard, c); n != 0 {
			t.Errorf("after %.20q: %d bytes, %v; want a closed connection", said, n, err)
		}
		c.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.spares) != 0 {
		t.Errorf("%d spares, want none", len(l.spares))
	}
}

func TestCheckIsGivenThePeerAndRefuses(t *testing.T) {
	dial := func(t *testing.T, ctx context.Context, check func(int) error) error {
		dir := t.TempDir()
		l, err := Listen(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		guest(t, dir, echo)
		c, err := l.Dial(ctx, check)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := dial(t, t.Context(), func(pid int) error {
		if pid != os.Getpid() {
			return fmt.Errorf("pid %d", pid)
		}
		return nil
	}); err != nil {
		t.Errorf("our own process: %v", err)
	}
	refusal := errors.New("not the init")
	ctx, cancel := context.WithCancel(t.Context())
	if err := dial(t, ctx, func(int) error { cancel(); return refusal }); !errors.Is(err, refusal) || !errors.Is(err, context.Canceled) {
		t.Errorf("refused: %v, want the refusal and the context's end", err)
	}
}

func TestClosedListenerDialsNothing(t *testing.T) {
	l, err := Listen(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() { _, err := l.Dial(t.Context(), nil); got <- err }()
	l.Close()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Errorf("Dial: %v, want ErrClosed", err)
	}
}

func TestAttachIsRefusedWhereNobodyAnswers(t *testing.T) {
	inR, inW := pipe(t)
	outR, outW := pipe(t)
	defer inR.Close()
	defer outW.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Attached(ctx, joined{outR, inW})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Attached: %v, want the deadline", err)
	}
}

type joined struct {
	r *os.File
	w *os.File
}

func (j joined) Read(p []byte) (int, error)  { return j.r.Read(p) }
func (j joined) Write(p []byte) (int, error) { return j.w.Write(p) }
func (j joined) Close() error                { return errors.Join(j.r.Close(), j.w.Close()) }

func TestBytesOfOthersAreSkipped(t *testing.T) {
	a := newAttachable(t, echo)
	at := a.attach()
	at.Write([]byte("noise before SKf1 and half a header"))
	c, err := Attached(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, word := range []string{"one", "two"} {
		at.Write([]byte("SKf1SKf1" + strings.Repeat("\x00", 40)))
		io.WriteString(c, word)
		got := make([]byte, 3)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != word {
			t.Fatalf("read %q, %v; want %q", got, err, word)
		}
	}
}

func TestALostFrameBreaksItsSessionAlone(t *testing.T) {
	ended := make(chan error, 2)
	a := newAttachable(t, func(c io.ReadWriteCloser) {
		defer c.Close()
		_, err := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		ended <- err
	})
	good, err := Attached(t.Context(), a.attach())
	if err != nil {
		t.Fatal(err)
	}
	defer good.Close()
	bad, err := Attached(t.Context(), a.attach())
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	bad.(*attached).out.seq++ // as if one frame had gone under
	io.WriteString(bad, "x")
	if err := <-ended; !errors.Is(err, errLost) {
		t.Errorf("the guest's end of the session: %v, want %v", err, errLost)
	}
	io.WriteString(good, "y")
	if _, err := io.ReadFull(good, make([]byte, 1)); err != nil {
		t.Errorf("the other session: %v", err)
	}
}

func TestTheQuietestSessionGivesWay(t *testing.T) {
	a := newAttachable(t, echo)
	var all []io.ReadWriteCloser
	for range maxSessions + 1 {
		c, err := Attached(t.Context(), a.attach())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	if _, err := all[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the first session: %v, want end of file", err)
	}
	io.WriteString(all[1], "z")
	if _, err := io.ReadFull(all[1], make([]byte, 1)); err != nil {
		t.Errorf("the second session: %v", err)
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	for name, over := range links {
		b.Run(name, func(b *testing.B) {
			c, err := over(b, echo)(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, 64)
			for b.Loop() {
				c.Write(buf)
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
