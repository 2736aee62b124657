package control_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("é", 128)
	for _, ok := range []string{"a", "t-42", long, "<script>alert(1)</script>", "🦊", "שלום", "a b", ".", "..", "a/b", "\u202etest"} {
		if err := control.CheckName("task", ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, bad := range []string{"", long + "é", "a\x00b", "a\nb", "\x1b[31m", "\x7f", "\u0085", "\u009f", "\xff\xfe", "a\xc3"} {
		err := control.CheckName("task", bad)
		if err == nil || control.AsError(err).Kind != control.KindInvalid || !strings.Contains(err.Error(), "task") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestBadInputIsRefusedAndChangesNothing(t *testing.T) {
	rule(t, "of an acquire", func(f *fixture) {
		limits := func(l control.LimitsView) ask { return func(r *control.AcquireRequest) { r.Limits = &l } }
		for name, a := range map[string]ask{
			"an empty task":          func(r *control.AcquireRequest) { r.Task = "" },
			"a control character":    func(r *control.AcquireRequest) { r.Name = "a\x1bb" },
			"a negative lifetime":    lifetime(-time.Second),
			"no lifetime":            lifetime(0),
			"a lifetime over a year": lifetime(31_536_001 * time.Second),
			"a negative age":         maxAge(-time.Second),
			"no age":                 maxAge(0),
			"an empty image":         image(""),
			"an image with a space":  image("a b"),
			"an image with a NUL":    image("a\x00b"),
			"an unknown network":     func(r *control.AcquireRequest) { r.Network = ptr("host") },
			"an unknown drift rule":  onDrift("perhaps"),
			"a relative workdir":     func(r *control.AcquireRequest) { r.Workdir = ptr("srv") },
			"a workdir with a NUL":   func(r *control.AcquireRequest) { r.Workdir = ptr("/s\x00") },
			"a variable without name": func(r *control.AcquireRequest) {
				r.Variables = map[string]string{"": "x"}
			},
			"a variable's name with =": func(r *control.AcquireRequest) { r.Variables = map[string]string{"A=B": "x"} },
			"a variable with a NUL":    func(r *control.AcquireRequest) { r.Variables = map[string]string{"A": "x\x00"} },
			"variables of a megabyte":  func(r *control.AcquireRequest) { r.Variables = map[string]string{"A": strings.Repeat("x", 1<<20)} },
			"a label without name":     func(r *control.AcquireRequest) { r.Labels = map[string]string{"": "x"} },
			"a label of two lines":     func(r *control.AcquireRequest) { r.Labels = map[string]string{"a": "x\ny"} },
			"no cpu":                   limits(control.LimitsView{CPUs: ptr(0.0)}),
			"a cpu that is no number":  limits(control.LimitsView{CPUs: ptr(math.NaN())}),
			"cpus without end":         limits(control.LimitsView{CPUs: ptr(math.Inf(1))}),
			"negative memory":          limits(control.LimitsView{MemoryMB: ptr(int64(-1))}),
			"memory without end":       limits(control.LimitsView{MemoryMB: ptr(int64(math.MaxInt64))}),
			"no pids":                  limits(control.LimitsView{Pids: ptr(int64(0))}),
			"no disk":                  limits(control.LimitsView{DiskMB: ptr(int64(0))}),
		} {
			if _, err := f.tryAcquire("t", a); control.AsError(err).Kind != control.KindInvalid {
				f.Errorf("%s: %v", name, err)
			}
		}
		f.told()
	})
	rule(t, "of a command", func(f *fixture) {
		id := f.idle("t")
		f.mark()
		for name, change := range map[string]func(r *control.RunRequest){
			"neither command nor argv": func(r *control.RunRequest) { r.Command = "" },
			"both":                     func(r *control.RunRequest) { r.Argv = []string{"true"} },
			"a NUL":                    func(r *control.RunRequest) { r.Command = "a\x00" },
			"an empty program":         func(r *control.RunRequest) { r.Command, r.Argv = "", []string{""} },
			"a NUL in argv":            func(r *control.RunRequest) { r.Command, r.Argv = "", []string{"a", "\x00"} },
			"no time":                  timeout(0),
			"more than a day":          timeout(86_401 * time.Second),
			"a negative limit":         func(r *control.RunRequest) { r.OutputLimit = ptr(int64(-1)) },
			"a limit over the most":    func(r *control.RunRequest) { r.OutputLimit = ptr(int64(400_001)) },
			"an id that is too long":   withID(strings.Repeat("x", 129)),
			"a cwd with a NUL":         func(r *control.RunRequest) { r.Cwd = "/\x00" },
			"neither env nor task":     func(r *control.RunRequest) { r.Ref = control.Ref{} },
			"both env and task":        func(r *control.RunRequest) { r.Ref = control.Ref{Env: id, Task: "t"} },
			"env and name":             func(r *control.RunRequest) { r.Ref = control.Ref{Env: id, Name: "main"} },
			"an empty variable":        func(r *control.RunRequest) { r.Variables = map[string]string{"": ""} },
		} {
			if _, err := f.tryRun("t", "true", change); control.AsError(err).Kind != control.KindInvalid {
				f.Errorf("%s: %v", name, err)
			}
		}
		f.told()
		f.equal("the commands that ran", len(f.guests.Starts()), 0)
	})
	rule(t, "the environment is looked up before the values", func(f *fixture) {
		_, err := f.tryRun("nobody", "")
		f.refused(err, control.KindNotFound)
		_, err = f.agent.ReadFile(f.Context(), control.Ref{Task: "nobody"}, "", -1, nil)
		f.refused(err, control.KindNotFound)
	})
	rule(t, "of a file call", func(f *fixture) {
		f.acquire("t")
		ref := control.Ref{Task: "t"}
		for name, call := range map[string]func() error{
			"an empty path":     func() error { _, err := f.agent.StatFile(f.Context(), ref, ""); return err },
			"a NUL":             func() error { return f.agent.Mkdir(f.Context(), ref, "a\x00", false) },
			"a path of 5,000":   func() error { return f.agent.RemoveFile(f.Context(), ref, strings.Repeat("x", 5000), false) },
			"a negative offset": func() error { _, err := f.agent.ReadFile(f.Context(), ref, "f", -1, nil); return err },
			"a length over 512 KiB": func() error {
				_, err := f.agent.ReadFile(f.Context(), ref, "f", 0, ptr(int64(512<<10+1)))
				return err
			},
			"a folder read as a file": func() error { _, err := f.agent.ReadFile(f.Context(), ref, "/workspace", 0, nil); return err },
		} {
			if err := call(); control.AsError(err).Kind != control.KindInvalid {
				f.Errorf("%s: %v", name, err)
			}
		}
		_, err := f.agent.ReadFile(f.Context(), ref, "/workspace", 0, nil)
		f.equal("the errno", f.refused(err, control.KindInvalid).Errno, "EISDIR")
		_, err = f.agent.ReadFile(f.Context(), ref, "nothing", 0, nil)
		f.refused(err, control.KindNotFound)
	})
	rule(t, "of a hello", func(f *fixture) {
		for name, h := range map[string]control.Hello{
			"no name": {}, "a control character": {Agent: "a\x00"}, "a negative grace": {Agent: "a", Grace: ptr(-time.Second)},
			"a long version": {Agent: "a", Version: strings.Repeat("1", 129)},
		} {
			if _, _, err := f.plane.Hello(f.Context(), "default", h, &sink{}); control.AsError(err).Kind != control.KindInvalid {
				f.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestTimesOnTheWire(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6_000_001, time.FixedZone("", 3600))
	b, err := control.At(at).MarshalJSON()
	if err != nil || string(b) != `"2026-01-02T02:04:05.006Z"` {
		t.Fatal(string(b), err)
	}
	var back control.Time
	if err := back.UnmarshalJSON(b); err != nil || !back.Equal(at.Truncate(time.Millisecond)) {
		t.Fatal(back, err)
	}
}
