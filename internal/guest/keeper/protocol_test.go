package keeper

import (
	"reflect"
	"testing"
)

func TestCommandsComeBackAsTheyWere(t *testing.T) {
	for _, c := range []Command{
		{Seq: 1, Path: "/bin/true", Dir: "/", Argv: []string{"true"}},
		{Seq: 1 << 31, Path: "/p", Dir: "", Argv: []string{"", "a b", "ü"}, Env: []string{"A=", "B=x\ny"}, Switch: true, UID: 1, GID: 2, Groups: []uint32{3, 4}, TTY: true, Extra: 19},
	} {
		b, err := c.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseCommand(b[4:])
		if c.Env == nil {
			c.Env = []string{}
		}
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%+v, %v; want %+v", got, err, c)
		}
	}
}

func TestWhatNoSystemCallTakesIsRefused(t *testing.T) {
	for _, c := range []Command{
		{Path: "a\x00b"}, {Path: "/", Argv: []string{"\x00"}}, {Path: "/", Env: []string{"A=\x00"}},
		{Path: "/", Env: []string{string(make([]byte, MaxCommand))}},
	} {
		if _, err := c.append(nil); err == nil {
			t.Errorf("%.20q: no error", c.Path)
		}
	}
	if _, err := (&Command{Path: "/", Argv: []string{string(make([]byte, 10))}}).append(nil); err != errNUL {
		t.Errorf("%v, want errNUL", err)
	}
}

func FuzzCommand(f *testing.F) {
	c := Command{Seq: 1, Path: "/p", Dir: "/", Argv: []string{"a"}, Env: []string{"A=b"}, Switch: true, Groups: []uint32{3}, Extra: 8}
	b, _ := c.append(nil)
	f.Add(b[4:])
	f.Add(b[4:20])
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := parseCommand(in)
		if err != nil {
			return
		}
		out, err := c.append(nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseCommand(out[4:])
		if err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v came back as %+v, %v", c, again, err)
		}
	})
}

func FuzzReply(f *testing.F) {
	b := Reply{Event: Started, Seq: 3, PID: 9}.encode()
	f.Add(b[:])
	b = Reply{Event: Exited, Empty: true, Seq: 4, Status: 256, Errno: 1}.encode()
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < replySize {
			return
		}
		r := parseReply([replySize]byte(in))
		if again := parseReply(r.encode()); again != r {
			t.Fatalf("%+v came back as %+v", r, again)
		}
	})
}
