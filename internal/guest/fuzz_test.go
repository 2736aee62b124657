package guest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"testing"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest/wire"
)

// Whatever a guest tells of a joined exec, no byte is made up, and the end comes
// only where it was told.
func FuzzJoined(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x03abc\x02\x00\x00\x00\x01x\x03\x00\x00\x00\x0a{\"code\":3}"))
	f.Add([]byte("\x04\x00\x00\x00\x02zz\x01\x00\x00\x00\x00"))
	f.Add([]byte("\x03\x00\x00\x00\x02{}"))
	f.Add([]byte("\x01\xff\xff\xff\xffabc"))
	f.Fuzz(func(t *testing.T, in []byte) {
		j := &joined{in: bufio.NewReader(bytes.NewReader(in))}
		came, b := 0, make([]byte, 16)
		for {
			n, out, err := j.Read(b)
			if came += n; err == nil && out != control.Stdout && out != control.Stderr {
				t.Fatalf("a stream %d", out)
			}
			if err != nil {
				if errors.Is(err, io.EOF) != (j.end != nil) {
					t.Fatalf("%v, and the end is %v", err, j.end)
				}
				break
			}
		}
		if end := j.End(); came > len(in) || end.ExitCode < 0 || end.ExitCode > 255 {
			t.Fatalf("%d bytes of %d, %+v", came, len(in), end)
		}
	})
}

// What a guest tells of an attach is taken where no count of it can overflow.
func FuzzAttached(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0), int64(0), int64(0))
	f.Add(int64(math.MaxInt64), int64(1), int64(5), int64(-1), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, fromOut, skippedOut, fromErr, skippedErr, taken int64) {
		if fromOut < 0 || fromErr < 0 {
			return // ours
		}
		j := newJoined(nil, &wire.Request{FromOut: fromOut, FromErr: fromErr}, &wire.Attached{SkippedOut: skippedOut, SkippedErr: skippedErr, StdinTaken: taken})
		if j == nil {
			return
		}
		if o := j.Skipped(); o.Stdout < 0 || o.Stderr < 0 || fromOut+o.Stdout < fromOut || fromErr+o.Stderr < fromErr || j.StdinTaken() < 0 {
			t.Fatalf("%+v", o)
		}
	})
}
