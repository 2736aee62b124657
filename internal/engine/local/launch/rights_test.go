package launch

import (
	"os"
	"strings"
	"testing"
)

// The process of a test is not confined.
func TestRightsThatAreLeftAreToldAndEndTheStart(t *testing.T) {
	if err := checkRights(); err == nil || !strings.Contains(err.Error(), "is not confined") {
		t.Errorf("got %v", err)
	}
}

func TestAFileOfTheHostThatIsOpenIsToldAndEndsTheStart(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	known := make([]int, 0, 1000) // of whoever runs the test
	for fd := range cap(known) {
		if fd != int(f.Fd()) {
			known = append(known, fd)
		}
	}
	if err := checkFiles(known...); err == nil || !strings.Contains(err.Error(), f.Name()+" is open") {
		t.Errorf("got %v", err)
	}
	if err := checkFiles(append(known, int(f.Fd()))...); err != nil {
		t.Errorf("one that is known: %v", err)
	}
}
