package test

import (
	"testing"
	"time"
)

// Eventually asks until ok says yes. It is for what no event tells.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	timeout := time.After(patience)
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for !ok() {
		select {
		case <-pause.C:
		case <-timeout:
			t.Fatalf("it never came that %s", what)
		}
	}
}
