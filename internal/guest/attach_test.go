package guest_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

// join joins an exec, and leaves it at the test's end.
func (s *sandbox) join(t testing.TB, a control.GuestAttach) control.GuestStream {
	t.Helper()
	j, err := s.Attach(t.Context(), a)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func (s *sandbox) begin(t testing.TB, c control.ExecStart) {
	t.Helper()
	if _, err := s.Start(t.Context(), c); err != nil {
		t.Fatalf("start: %v", err)
	}
}

// all reads a stream to its end.
func all(t testing.TB, j control.GuestStream) (out, errOut []byte, end control.ExecEnd) {
	t.Helper()
	buf := make([]byte, 100_000)
	for {
		n, of, err := j.Read(buf)
		if err == io.EOF {
			return out, errOut, j.End()
		}
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		if of == control.Stderr {
			errOut = append(errOut, buf[:n]...)
		} else {
			out = append(out, buf[:n]...)
		}
	}
}

// until reads until the output has a text, and no further.
func until(t testing.TB, j control.GuestStream, text string) string {
	t.Helper()
	var got []byte
	buf := make([]byte, 1)
	for !bytes.Contains(got, []byte(text)) {
		n, _, err := j.Read(buf)
		if err != nil {
			t.Fatalf("read: %v; %q came, and no %q", err, got, text)
		}
		got = append(got, buf[:n]...)
	}
	return string(got)
}

func TestAttachReadsEachByteOnceAndThenTheEnd(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		const lines = 300_000
		s.begin(t, control.ExecStart{Exec: "x", Shell: fmt.Sprintf("seq %d; echo bad >&2; exit 3", lines)})
		j := s.join(t, control.GuestAttach{Exec: "x"})
		skipped := j.Skipped().Stdout
		out, errOut, end := all(t, j)
		var want strings.Builder
		for i := range lines {
			fmt.Fprintln(&want, i+1)
		}
		if string(out) != want.String()[skipped:] || string(errOut) != "bad\n" {
			t.Errorf("%d bytes, %d skipped of %d; stderr %q", len(out), skipped, want.Len(), errOut)
		}
		if end.ExitCode != 3 {
			t.Errorf("ended %+v", end)
		}
	})
}

func TestStdinGoesOnAfterTheStart(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		s.begin(t, control.ExecStart{Exec: "x", Argv: []string{"cat"}, Stdin: []byte("first "), StdinOpen: true})
		j := s.join(t, control.GuestAttach{Exec: "x", Input: true})
		if !j.Running() || j.StdinTaken() != 0 {
			t.Errorf("running %v, %d taken", j.Running(), j.StdinTaken())
		}
		if _, err := j.Write([]byte("second")); err != nil {
			t.Fatal(err)
		}
		until(t, j, "first second")
		big := bytes.Repeat([]byte("0123456789abcde\n"), 50_000)
		wrote := make(chan error, 1)
		go func() {
			_, err := j.Write(big)
			wrote <- errors.Join(err, j.CloseStdin())
		}()
		out, _, end := all(t, j)
		if err := <-wrote; err != nil || !bytes.Equal(out, big) || end.ExitCode != 0 {
			t.Errorf("%d of %d bytes came back, ended %d, write: %v", len(out), len(big), end.ExitCode, err)
		}
		if _, err := j.Write([]byte("x")); !errors.Is(err, control.ErrStdinClosed) {
			t.Errorf("write after the end: %v", err)
		}
	})
}

func TestStdinIsTheLastJoined(t *testing.T) {
	s := start(t, "socket", options{})
	s.begin(t, control.ExecStart{Exec: "x", Argv: []string{"cat"}, StdinOpen: true})
	first := s.join(t, control.GuestAttach{Exec: "x", Input: true})
	if _, err := first.Write([]byte("one\n")); err != nil {
		t.Fatal(err)
	}
	until(t, first, "one\n")
	look := s.join(t, control.GuestAttach{Exec: "x"})
	if _, err := look.Write([]byte("no")); !errors.Is(err, control.ErrStdinClosed) {
		t.Errorf("without input: %v", err)
	}
	second := s.join(t, control.GuestAttach{Exec: "x", From: control.Offsets{Stdout: 4}, Input: true})
	if n := second.StdinTaken(); n != 4 {
		t.Errorf("%d bytes of stdin taken, want 4", n)
	}
	if _, err := second.Write([]byte("two\n")); err != nil {
		t.Fatal(err)
	}
	until(t, first, "two\n") // and so it was told before
	if _, err := first.Write([]byte("three\n")); !errors.Is(err, control.ErrStdinClosed) {
		t.Errorf("the earlier one writes: %v", err)
	}
	if err := s.CloseStdin(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if out, _, end := all(t, second); string(out) != "two\n" || end.ExitCode != 0 {
		t.Errorf("%q, ended %d", out, end.ExitCode)
	}
}

// What was taken is exact, also where the command reads nothing: the next giver
// goes on from there.
func TestStdinThatTheCommandDoesNotReadIsTakenUpByTheNext(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		s.begin(t, control.ExecStart{Exec: "x", Shell: "while [ ! -e go ]; do sleep 0.02; done; cat", StdinOpen: true})
		var all0 strings.Builder
		for i := range 200_000 {
			fmt.Fprintln(&all0, i)
		}
		in := []byte(all0.String())
		first := s.join(t, control.GuestAttach{Exec: "x", Input: true})
		blocked := make(chan error, 1)
		go func() {
			_, err := first.Write(in)
			blocked <- err
		}()
		for taken := int64(0); taken < 60_000; { // of a pipe's 64 KiB: now it waits
			look := s.join(t, control.GuestAttach{Exec: "x"})
			taken = look.StdinTaken()
			look.Close()
		}
		s.cut()
		<-blocked
		second := s.join(t, control.GuestAttach{Exec: "x", Input: true})
		taken := second.StdinTaken()
		go func() {
			second.Write(in[taken:])
			second.CloseStdin()
		}()
		if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "go"}); err != nil {
			t.Fatal(err)
		}
		if out, _, _ := all(t, second); !bytes.Equal(out, in) {
			t.Errorf("%d bytes came back of %d, %d were taken", len(out), len(in), taken)
		}
	})
}

// The command writes a mark beside its output when it gets on: it does not while
// nobody reads, and does once the reader has gone.
func TestAReaderThatStopsBlocksItsCommandUntilItLeaves(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		s.begin(t, control.ExecStart{Exec: "x", Shell: "while [ ! -e go ]; do sleep 0.02; done; seq 2000000; touch over"})
		j := s.join(t, control.GuestAttach{Exec: "x"})
		if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "go"}); err != nil {
			t.Fatal(err)
		}
		until(t, j, "1\n")
		// Others go on meanwhile, and it does not get to its end.
		for range 20 {
			if end := s.sh(t, "[ ! -e /workspace/over ]; x=$?; sleep 0.02; exit $x"); end.ExitCode != 0 {
				t.Fatal("the command got on without its reader")
			}
		}
		j.Close()
		if _, _, err := j.Read(make([]byte, 10)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("read of a closed one: %v", err)
		}
		if end := s.end(t, "x"); end.ExitCode != 0 {
			t.Errorf("ended %d", end.ExitCode)
		}
		again := s.join(t, control.GuestAttach{Exec: "x"})
		out, _, _ := all(t, again)
		if again.Running() || again.Skipped().Stdout == 0 || again.Skipped().Stdout+int64(len(out)) != 14888896 || !bytes.HasSuffix(out, []byte("\n2000000\n")) || len(out) < 1<<20 {
			t.Errorf("running %v, %d skipped, %d read", again.Running(), again.Skipped().Stdout, len(out))
		}
	})
}

func TestTheEndComesAfterTheLastByteHoweverSlowTheReader(t *testing.T) {
	s := start(t, "socket", options{})
	s.begin(t, control.ExecStart{Exec: "x", Shell: "while [ ! -e go ]; do sleep 0.02; done; seq 200000; exit 4"})
	j := s.join(t, control.GuestAttach{Exec: "x"})
	if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "go"}); err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		m, _, err := j.Read(make([]byte, 30_000))
		n += m
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Ping(t.Context())
	}
	if n != 1288895 || j.End().ExitCode != 4 {
		t.Errorf("%d bytes, then %+v", n, j.End())
	}
}

func TestWhatIsLeftWritesAndALaterAttachReadsIt(t *testing.T) {
	s := start(t, "socket", options{})
	s.begin(t, control.ExecStart{Exec: "x", Shell: "(while [ ! -e go ]; do sleep 0.02; done; echo late; touch wrote; sleep 100) & echo now"})
	j := s.join(t, control.GuestAttach{Exec: "x"})
	if out, _, end := all(t, j); string(out) != "now\n" || end.Left == 0 {
		t.Errorf("%q, %+v", out, end)
	}
	s.sh(t, "touch go; while [ ! -e wrote ]; do sleep 0.02; done")
	for {
		out, _, _ := all(t, s.join(t, control.GuestAttach{Exec: "x"}))
		if string(out) == "now\nlate\n" {
			break
		}
		if string(out) != "now\n" {
			t.Fatalf("%q", out)
		}
	}
}

func TestAFloodOfSmallWritesIsNoFloodOfReads(t *testing.T) {
	s := start(t, "socket", options{})
	const n = 20_000
	s.begin(t, control.ExecStart{Exec: "x", Shell: fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo x; i=$((i+1)); done", n)})
	j := s.join(t, control.GuestAttach{Exec: "x"})
	began, reads, got := time.Now(), 0, 0
	buf := make([]byte, 64<<10)
	for {
		m, _, err := j.Read(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		reads++
		got += m
	}
	// At most a small frame a millisecond, in up to two parts at the buffer's edge.
	if most := 2*int(time.Since(began)/time.Millisecond) + 2*got/(8<<10) + 10; got != 2*n || reads > most {
		t.Errorf("%d bytes in %d reads, of at most %d", got, reads, most)
	}
}

func TestABrokenConnectionEndsAStreamAndNotTheCommand(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		s.begin(t, control.ExecStart{Exec: "x", Shell: "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two"})
		j := s.join(t, control.GuestAttach{Exec: "x", Input: true})
		until(t, j, "one\n")
		s.cut()
		if _, _, err := j.Read(make([]byte, 10)); !errors.Is(err, control.ErrGuestUnreachable) {
			t.Errorf("read: %v", err)
		}
		again := s.join(t, control.GuestAttach{Exec: "x", From: control.Offsets{Stdout: 4}})
		if _, err := s.WriteFile(t.Context(), control.FileWrite{Path: "go"}); err != nil {
			t.Fatal(err)
		}
		if out, _, _ := all(t, again); string(out) != "two\n" {
			t.Errorf("%q", out)
		}
	})
}

func TestAttachErrors(t *testing.T) {
	s := start(t, "socket", options{})
	if _, err := s.Attach(t.Context(), control.GuestAttach{Exec: "nobody"}); !errors.Is(err, control.ErrNoExec) {
		t.Errorf("unknown: %v", err)
	}
	s.do(t, control.ExecStart{Exec: "x", Argv: []string{"echo"}})
	_, err := s.Attach(t.Context(), control.GuestAttach{Exec: "x", From: control.Offsets{Stdout: 2}})
	if e, ok := errors.AsType[*control.Error](err); !ok || e.Kind != control.KindInvalid {
		t.Errorf("from beyond: %v", err)
	}
	err = s.Resize(t.Context(), "x", control.TTY{Cols: 80, Rows: 24})
	if e, ok := errors.AsType[*control.Error](err); !ok || e.Kind != control.KindConflict {
		t.Errorf("resize without a terminal: %v", err)
	}
}

// What a command writes before somebody who is on the way has joined is not lost, however much.
func TestACommandThatIsToBeJoinedWaitsForIt(t *testing.T) {
	overEach(t, func(t *testing.T, over string) {
		s := start(t, over, options{})
		const lines = 1_000_000 // far more than is kept
		s.begin(t, control.ExecStart{Exec: "x", Shell: fmt.Sprintf("seq %d", lines), Join: true})
		s.sh(t, "sleep 0.5") // it has the time to write all of it
		j := s.join(t, control.GuestAttach{Exec: "x"})
		if skipped := j.Skipped(); skipped.Stdout != 0 {
			t.Errorf("%d bytes are lost", skipped.Stdout)
		}
		out, _, end := all(t, j)
		if !bytes.HasPrefix(out, []byte("1\n2\n")) || !bytes.HasSuffix(out, fmt.Appendf(nil, "\n%d\n", lines)) || len(out) != 6_888_896 || end.ExitCode != 0 {
			t.Errorf("%d bytes, ended %d", len(out), end.ExitCode)
		}
	})
}
