package guest_test

import (
	"fmt"
	"strings"
	"testing"

	"sandkeeper/internal/control"
)

func TestOutputBeyondTheAnswerIsInFilesOfTheSandbox(t *testing.T) {
	for _, o := range []options{{}, {user: "agent", readonly: true}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			s := start(t, "socket", o)
			c := control.ExecStart{Exec: newName(), Spill: 1000, Shell: "seq 1 5000; seq 1 5000 >&2; echo -n ü"}
			if _, err := s.Start(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			end, err := s.Wait(t.Context(), c.Exec, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if len(end.Stdout) != 1000 || end.FileOut == "" || end.FileErr == "" || end.FileOut == end.FileErr {
				t.Fatalf("%d bytes, files %q and %q", len(end.Stdout), end.FileOut, end.FileErr)
			}
			var all strings.Builder
			for i := range 5000 {
				fmt.Fprintln(&all, i+1)
			}
			for path, want := range map[string]string{end.FileOut: all.String() + "ü", end.FileErr: all.String()} {
				chunk, err := s.ReadFile(t.Context(), path, 0, 400_000)
				if err != nil || string(chunk.Data) != want {
					t.Errorf("%s has %d bytes, %v", path, len(chunk.Data), err)
				}
				if cat := s.sh(t, "cat "+path); string(cat.Stdout) != want {
					t.Errorf("cat %s gives %d bytes, %q", path, len(cat.Stdout), cat.Stderr)
				}
			}
			for _, c := range []control.ExecStart{{Shell: "echo short", Spill: 1000}, {Shell: "seq 1 5000"}} {
				if end := s.do(t, c); end.FileOut != "" || end.FileErr != "" {
					t.Errorf("%s: files %q and %q", c.Shell, end.FileOut, end.FileErr)
				}
			}
		})
	}
}
