package terminal

import (
	"bytes"
	"testing"
)

func TestASequenceIsFoundOverTheBordersOfReads(t *testing.T) {
	for name, tc := range map[string]struct {
		keys    string
		typed   []string
		through string
		found   bool
	}{
		"at once":                       {"ctrl-p,ctrl-q", []string{"ls\r\x10\x11rest"}, "ls\r\x10", true},
		"in two reads":                  {"ctrl-p,ctrl-q", []string{"\x10", "\x11"}, "\x10", true},
		"its first key alone":           {"ctrl-p,ctrl-q", []string{"\x10", "a"}, "\x10a", false},
		"with a key between":            {"ctrl-p,ctrl-q", []string{"\x10a\x11"}, "\x10a\x11", false},
		"the first key twice":           {"ctrl-p,ctrl-q", []string{"\x10\x10\x11"}, "\x10\x10", true},
		"the other way round":           {"ctrl-p,ctrl-q", []string{"\x11\x10"}, "\x11\x10", false},
		"one key":                       {"ctrl-]", []string{"abc\x1d"}, "abc", true},
		"a plain key behind one":        {"ctrl-a,d", []string{"d\x01d"}, "d\x01", true},
		"in xterm's longer form":        {"ctrl-p,ctrl-q", []string{"\x1b[27;5;112~", "\x1b[27;5;113~"}, "\x1b[27;5;112~", true},
		"in kitty's form, and plain":    {"ctrl-p,ctrl-q", []string{"\x1b[112;5u\x11"}, "\x1b[112;5u", true},
		"in a form cut in two by reads": {"ctrl-p,ctrl-q", []string{"\x10\x1b[113", ";5u"}, "\x10\x1b[113", true},
		"behind a lot":                  {"ctrl-p,ctrl-q", []string{string(bytes.Repeat([]byte("x"), 1000)), "\x10", "\x11"}, string(bytes.Repeat([]byte("x"), 1000)) + "\x10", true},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := ParseKeys(tc.keys)
			if err != nil {
				t.Fatal(err)
			}
			f := k.Finder()
			var through []byte
			found := false
			for _, typed := range tc.typed {
				var part []byte
				part, found = f.Find([]byte(typed))
				through = append(through, part...)
			}
			if string(through) != tc.through || found != tc.found {
				t.Errorf("through %q, found %v", through, found)
			}
		})
	}
}

func TestWhatIsNoKeyIsRefused(t *testing.T) {
	for _, s := range []string{"", ",", "ctrl-", "ctrl-pp", "ctrl-1", "é", "ab", "a,,b", "\x10", "a,a,a,a,a,a,a,a,a"} {
		if k, err := ParseKeys(s); err == nil {
			t.Errorf("%q is %v", s, k.keys)
		}
	}
}

func FuzzFinder(f *testing.F) {
	f.Add([]byte("ls\x10\x11rest"), 3)
	f.Add([]byte("\x1b[27;5;112~\x1b[113;5u"), 14)
	f.Fuzz(func(t *testing.T, typed []byte, cut int) {
		k, err := ParseKeys("ctrl-p,ctrl-q")
		if err != nil {
			t.Fatal(err)
		}
		whole, found := k.Finder().Find(typed)
		if !bytes.HasPrefix(typed, whole) || !found && len(whole) != len(typed) {
			t.Fatalf("of %q goes through %q", typed, whole)
		}
		if cut < 0 || cut > len(typed) {
			return
		}
		// However it is read, it is found the same.
		fi := k.Finder()
		_, again := fi.Find(typed[:cut])
		if !again {
			_, again = fi.Find(typed[cut:])
		}
		if again != found {
			t.Fatalf("%q cut at %d: %v, whole: %v", typed, cut, again, found)
		}
	})
}
