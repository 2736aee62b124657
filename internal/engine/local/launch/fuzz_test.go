package launch

import "testing"

// A process names itself as it likes: its line is read past that, or refused.
func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 4096 7 18446744073709551615"))
	f.Add([]byte("1 () S"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err == nil && s.State == 0 {
			t.Fatalf("%q is %+v", b, s)
		}
	})
}
