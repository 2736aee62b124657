package guest_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var errOver = context.Canceled

// ended is a context that has ended.
func ended(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func residentKB(t testing.TB, pid int) int {
	t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
			kb, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return kb
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// await asks until ok says yes.
func (s *sandbox) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for ceiling := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(ceiling) {
			t.Fatalf("it never came that %s", what)
		}
	}
}
