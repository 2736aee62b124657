// Command report reads what "go test -json" writes and prints what go test
// would, without the output of tests that passed; then it names the tests that
// were not run, with the reason each gave. Its exit code is for the pipe alone:
// go test's own says whether the tests passed.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// event is one line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func report(r io.Reader, w io.Writer) error {
	out := bufio.NewWriter(w)
	held := map[string][]string{} // output of tests that still run, by package and test
	var notRun []string
	passed, failed := 0, 0

	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var ev event
		if err := json.Unmarshal(lines.Bytes(), &ev); err != nil {
			fmt.Fprintln(out, lines.Text()) // what is no event is for people
			continue
		}
		key := ev.Package + " " + ev.Test
		switch {
		case ev.Action == "output" && ev.Test != "":
			held[key] = append(held[key], ev.Output)
		case ev.Action == "output" && (ev.Output == "PASS\n" || strings.HasPrefix(ev.Output, "? ")):
			// said again by the package's closing line, or nothing to say
		case ev.Action == "output" || ev.Action == "build-output":
			fmt.Fprint(out, ev.Output)
		case ev.Test == "":
		case ev.Action == "pass":
			passed++
			delete(held, key)
		case ev.Action == "skip":
			notRun = append(notRun, fmt.Sprintf("  %s %s: %s", ev.Package, ev.Test, reason(held[key])))
			delete(held, key)
		case ev.Action == "fail":
			failed++
			for _, s := range held[key] {
				if !strings.HasPrefix(s, "=== ") {
					fmt.Fprint(out, s)
				}
			}
			delete(held, key)
		}
		if ev.Action == "fail" || ev.Test == "" {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
	// A test that never ended: the process died under it, and its output says how.
	for key, output := range held {
		fmt.Fprintf(out, "--- UNFINISHED: %s\n%s", key, strings.Join(output, ""))
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d not run\n", passed, failed, len(notRun))
	for _, s := range notRun {
		fmt.Fprintln(out, s)
	}
	return errors.Join(lines.Err(), out.Flush())
}

// reason is what a skipped test said, without the file and line before it.
func reason(output []string) string {
	for _, s := range output {
		s = strings.TrimSpace(s)
		if s == "" || strings.HasPrefix(s, "=== ") || strings.HasPrefix(s, "--- ") {
			continue
		}
		if _, why, ok := strings.Cut(s, ".go:"); ok {
			if _, why, ok = strings.Cut(why, ": "); ok {
				return why
			}
		}
		return s
	}
	return "no reason given"
}
