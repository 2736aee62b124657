package test_test

import (
	"strconv"
	"strings"
	"testing"

	"sandkeeper/test"
)

func TestTheWholeOutputOfACommandCanBeFetched(t *testing.T) {
	test.Each(t, theWholeOutputOfACommandCanBeFetched)
}

func theWholeOutputOfACommandCanBeFetched(t *testing.T, on test.On) {
	s := on.Start(t)
	w := s.Wire(t)
	env := w.Acquire(t, "output", nil).Env.ID
	ran := w.RunWith(t, env, test.Params{"command": "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo $i; done; echo e >&2", "output_limit": 1000, "id": "once"}, 0)
	if len(ran.Stdout) != 1000 || ran.Files.Stdout == "" || ran.Files.Stderr != "" {
		t.Fatalf("%d bytes, files %+v", len(ran.Stdout), ran.Files)
	}
	var all strings.Builder
	for i := range 5000 {
		all.WriteString(strconv.Itoa(i+1) + "\n")
	}
	if got := w.ReadFile(t, env, ran.Files.Stdout); got != all.String() {
		t.Errorf("file.read gives %d bytes, want %d", len(got), all.Len())
	}
	if got := w.RunWith(t, env, test.Params{"argv": []string{"cat", ran.Files.Stdout}, "output_limit": 100_000}, 0); got.Stdout != all.String() || got.Files.Stdout != "" {
		t.Errorf("cat gives %d bytes, files %+v", len(got.Stdout), got.Files)
	}
	// It is named again to who asks again.
	s.Restart(t)
	w = s.Wire(t)
	again := w.RunWith(t, env, test.Params{"command": "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo $i; done; echo e >&2", "output_limit": 1000, "id": "once"}, 0)
	if again.Exec != ran.Exec || again.Files != ran.Files {
		t.Errorf("asked again it is %s, %+v; want %s, %+v", again.Exec, again.Files, ran.Exec, ran.Files)
	}
}
