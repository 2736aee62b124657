package guestbin

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestWhatIsEmbeddedIsForItsArchitecture(t *testing.T) {
	for goarch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		b, err := Binary(goarch)
		if _, absent := fs.Stat(binaries, "binaries/guest-linux-"+goarch); errors.Is(absent, fs.ErrNotExist) {
			t.Skip("the guest is not built: ", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", goarch, err)
		}
		if f.Machine != machine {
			t.Errorf("%s: built for %v", goarch, f.Machine)
		}
		if libs, _ := f.ImportedLibraries(); len(libs) > 0 {
			t.Errorf("%s: not static, it wants %v", goarch, libs)
		}
	}
}

func TestAMissingOneNamesTheRemedy(t *testing.T) {
	if _, err := Binary("sparc"); err == nil || !strings.Contains(err.Error(), "make guest") {
		t.Errorf("got %v", err)
	}
}
