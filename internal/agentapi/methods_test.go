package agentapi

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"sandkeeper/internal/control"
)

func TestParamsOfTheWrongShape(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	for name, tt := range map[string]struct {
		method, params, field string
	}{
		"an unknown field":               {"env.acquire", `{"task":"t","persistant":true}`, "persistant"},
		"a field in another case":        {"env.acquire", `{"Task":"t"}`, "Task"},
		"an unknown field within":        {"env.acquire", `{"task":"t","limits":{"ram":1}}`, "limits.ram"},
		"a field that comes twice":       {"env.get", `{"env":"e1","env":"e2"}`, "env"},
		"an escaped twin":                {"env.get", `{"env":"e1","\u0065nv":"e2"}`, "env"},
		"no task":                        {"env.acquire", `{}`, "task"},
		"a null task":                    {"env.acquire", `{"task":null}`, "task"},
		"a task that is a number":        {"env.acquire", `{"task":7}`, "task"},
		"an empty task":                  {"env.acquire", `{"task":""}`, "task"},
		"a task with a NUL":              {"env.acquire", `{"task":"a\u0000"}`, "task"},
		"a task with a C1 control":       {"env.acquire", `{"task":"a\u0085"}`, "task"},
		"a task with a DEL":              {"env.acquire", `{"task":"a\u007f"}`, "task"},
		"a task with half a pair":        {"env.acquire", `{"task":"\ud800"}`, "task"},
		"a task of 129":                  {"env.acquire", `{"task":"` + strings.Repeat("é", 129) + `"}`, "task"},
		"a name with a newline":          {"env.acquire", `{"task":"t","name":"a\nb"}`, "name"},
		"an empty name":                  {"env.get", `{"task":"t","name":""}`, "name"},
		"persistent as text":             {"env.acquire", `{"task":"t","persistent":"yes"}`, "persistent"},
		"a lifetime with a fraction":     {"env.acquire", `{"task":"t","lifetime_seconds":1.5}`, "lifetime_seconds"},
		"a lifetime as text":             {"env.acquire", `{"task":"t","lifetime_seconds":"300"}`, "lifetime_seconds"},
		"limits as a list":               {"env.acquire", `{"task":"t","limits":[1]}`, "limits"},
		"cpus as text":                   {"env.acquire", `{"task":"t","limits":{"cpus":"1"}}`, "limits.cpus"},
		"cpus beyond all numbers":        {"env.acquire", `{"task":"t","limits":{"cpus":1e400}}`, "limits.cpus"},
		"half a memory":                  {"env.acquire", `{"task":"t","limits":{"memory_mb":0.5}}`, "limits.memory_mb"},
		"a variable that is a number":    {"env.acquire", `{"task":"t","variables":{"A":1}}`, "variables.A"},
		"a variable that comes twice":    {"env.acquire", `{"task":"t","variables":{"A":"1","A":"2"}}`, "variables.A"},
		"labels as a list":               {"env.acquire", `{"task":"t","labels":["a"]}`, "labels"},
		"a label that is null":           {"env.acquire", `{"task":"t","labels":{"a":null}}`, "labels.a"},
		"positional params":              {"env.list", `["t"]`, "params"},
		"params that are a string":       {"env.list", `"t"`, "params"},
		"neither env nor task":           {"env.get", `{}`, "env"},
		"both env and task":              {"env.get", `{"env":"e1","task":"t"}`, "env"},
		"a name beside env":              {"env.get", `{"env":"e1","name":"main"}`, "name"},
		"an empty env":                   {"env.get", `{"env":""}`, "env"},
		"a turn with a fraction":         {"turn.end", `{"task":"t","turn":0.5}`, "turn"},
		"an argument that is a number":   {"exec.run", `{"env":"e1","argv":["a",1]}`, "argv[1]"},
		"argv as text":                   {"exec.run", `{"env":"e1","argv":"true"}`, "argv"},
		"stdin as an object":             {"exec.run", `{"env":"e1","command":"cat","stdin":{}}`, "stdin"},
		"no path":                        {"file.read", `{"env":"e1"}`, "path"},
		"no data":                        {"file.write", `{"env":"e1","path":"p"}`, "data"},
		"purge as a number":              {"env.release", `{"env":"e1","purge":1}`, "purge"},
		"too many variables":             {"env.acquire", `{"task":"t","variables":{` + manyEntries(mostEntries+1) + `}}`, "variables"},
		"shape before look-up":           {"exec.run", `{"env":"nowhere","command":"true","tiemout_seconds":1}`, "tiemout_seconds"},
		"a field of a deeply nested one": {"env.get", `{"x":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			r := p.call(tt.method, tt.params)
			if r.Error == nil {
				t.Fatalf("taken: %s", r.Result)
			}
			if r.Error.Code != codeInvalidParams || r.Error.Data.Kind != "invalid_params" || r.Error.Data.Field != tt.field {
				t.Errorf("got %+v, want -32602 for %q", r.Error, tt.field)
			}
			if !strings.Contains(r.Error.Message, tt.field) {
				t.Errorf("message %q does not name the field", r.Error.Message)
			}
		})
	}
}

func manyEntries(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"K`)
		b.WriteString(strings.Repeat("k", i/1000))
		b.WriteString(string(rune('a' + i/100%10)))
		b.WriteString(string(rune('a' + i/10%10)))
		b.WriteString(string(rune('a' + i%10)))
		b.WriteString(`":""`)
	}
	return b.String()
}

func TestTheEnvironmentIsLookedUpBeforeValuesAreJudged(t *testing.T) {
	p := serve(t).connect(t)
	for name, tt := range map[string]struct{ method, rest, field string }{
		"neither command nor argv": {"exec.run", ``, "command"},
		"command and argv":         {"exec.run", `,"command":"true","argv":["true"]`, "argv"},
		"an empty argv":            {"exec.run", `,"argv":[]`, "argv"},
		"an empty id":              {"exec.run", `,"command":"true","id":""`, "id"},
		"an empty path":            {"file.stat", `,"path":""`, "path"},
		"data that is no base64":   {"file.write", `,"path":"p","data":"é"`, "data"},
		"data without padding":     {"file.write", `,"path":"p","data":"YQ"`, "data"},
		"a mode beyond the bits":   {"file.write", `,"path":"p","data":"","mode":4096`, "mode"},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			r := p.call(tt.method, `{"env":"nowhere"`+tt.rest+`}`)
			if r.Error == nil || r.Error.Code != codeNotFound {
				t.Errorf("of an unknown env: %v, want not_found", r.Error)
			}
			r = p.call(tt.method, `{"env":"e1"`+tt.rest+`}`)
			if r.Error == nil || r.Error.Code != codeInvalidParams || r.Error.Data.Field != tt.field {
				t.Errorf("of a known env: %v, want -32602 for %s", r.Error, tt.field)
			}
		})
	}
}

func TestWhatThePlaneIsAsked(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	yes, image, net := true, "busybox", "none"
	n := func(v int64) *int64 { return &v }
	cpus := 0.5
	mode := fs.FileMode(0o755) | fs.ModeSetuid
	for name, tt := range map[string]struct {
		method, params string
		want           any
	}{
		"acquire, plainly": {"env.acquire", `{"task":"t"}`, control.AcquireRequest{Task: "t"}},
		"acquire, nulls are left out": {"env.acquire", `{"task":"t","name":null,"persistent":null,"limits":null,"labels":null}`,
			control.AcquireRequest{Task: "t"}},
		"acquire, all of it": {"env.acquire", `{"task":"t","name":"n","persistent":true,"image":"busybox","lifetime_seconds":300,
			"max_age_seconds":1e3,"limits":{"cpus":0.5,"memory_mb":64,"pids":null},"network":"none","variables":{"A":"b"},
			"workdir":"/w","labels":{},"on_drift":"error"}`,
			control.AcquireRequest{Task: "t", Name: "n", Persistent: &yes, Image: &image, LifetimeS: n(300), MaxAgeS: n(1000),
				Limits: &control.LimitsView{CPUs: &cpus, MemoryMB: n(64)}, Network: &net, Variables: map[string]string{"A": "b"},
				Workdir: func() *string { s := "/w"; return &s }(), Labels: map[string]string{}, OnDrift: "error"}},
		"acquire, values are the plane's to judge": {"env.acquire", `{"task":"t","lifetime_seconds":-5,"max_age_seconds":1e30}`,
			control.AcquireRequest{Task: "t", LifetimeS: n(-5), MaxAgeS: n(math.MaxInt64)}},
		"get by task": {"env.get", `{"task":"t","name":"n"}`, control.Ref{Task: "t", Name: "n"}},
		"turn end":    {"turn.end", `{"task":"t","turn":3,"outcome":"done"}`, control.TurnEndRequest{Task: "t", Turn: n(3), Outcome: "done"}},
		"run": {"exec.run", `{"env":"e1","argv":["echo","a b",""],"cwd":"/","variables":{"A":"b"},"stdin":"in","timeout_seconds":1,
			"output_limit":2,"id":"i","generation":4}`,
			control.RunRequest{Ref: control.Ref{Env: "e1"}, Argv: []string{"echo", "a b", ""}, Cwd: "/", Variables: map[string]string{"A": "b"},
				Stdin: "in", TimeoutS: n(1), OutputLimit: n(2), ID: "i", Generation: n(4)}},
		"write": {"file.write", `{"env":"e1","path":"p","data":"aGk=","mode":2541,"append":true,"mkdirs":true}`,
			control.FileWrite{Path: "p", Data: []byte("hi"), Mode: &mode, Append: true, Mkdirs: true}},
		"release with purge": {"env.release", `{"env":"e1","purge":true}`, true},
		"remove":             {"file.remove", `{"env":"e1","path":"p","recursive":true}`, true},
		"mkdir":              {"file.mkdir", `{"env":"e1","path":"p"}`, false},
		"list without task":  {"env.list", `{}`, ""},
		"params left out":    {"env.list", `null`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			if r := p.call(tt.method, tt.params); r.Error != nil {
				t.Fatal(r.Error)
			}
			if got := s.plane.last(); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("asked %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestResults(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	s.plane.run = func(_ context.Context, r control.RunRequest) (control.Ran, error) {
		end := control.ExecEnd{Cwd: "/w", Duration: 1500 * time.Microsecond, Stdout: []byte("out"), Stderr: []byte("\xff")}
		if r.Command == "killed" {
			end = control.ExecEnd{ExitCode: 137, Signal: "KILL", OOM: true, TimedOut: true, OmittedOut: 7, OmittedErr: 8, OutputLost: true, Left: 2, CwdLost: "/gone"}
			return control.Ran{Exec: "x2", End: end, Notice: &control.Notice{Generation: 2, Lost: []string{"processes"}, Kept: []string{}}}, nil
		}
		return control.Ran{Exec: "x1", End: end}, nil
	}
	s.plane.readFile = func(string, int64, *int64) (control.FileChunk, error) {
		return control.FileChunk{Data: []byte("hi"), Size: 9, Mode: 0o644 | fs.ModeSticky, MTime: noon}, nil
	}
	for _, tt := range []struct{ method, params, want string }{
		{"exec.run", `{"env":"e1","command":"x"}`, `{"exec":"x1","exit_code":0,"stdout":"out","stderr_base64":"/w==",
			"truncated":{"stdout":0,"stderr":0},"timed_out":false,"duration_ms":1,"cwd":"/w"}`},
		{"exec.run", `{"env":"e1","command":"killed"}`, `{"exec":"x2","exit_code":137,"signal":"KILL","oom":true,"stdout":"","stderr":"",
			"truncated":{"stdout":7,"stderr":8},"timed_out":true,"duration_ms":0,"cwd":"","cwd_lost":"/gone","output_lost":true,"left":2,
			"notice":{"generation":2,"lost":["processes"],"kept":[]}}`},
		{"exec.list", `{"env":"e1"}`, `{"execs":[]}`},
		{"env.list", `{}`, `{"envs":[]}`},
		{"turn.begin", `{"task":"t"}`, `{"turn":1,"opened":true}`},
		{"turn.end", `{"task":"t"}`, `{"turn":null,"decisions":[]}`},
		{"file.read", `{"env":"e1","path":"p"}`, `{"data":"aGk=","size":9,"mode":932,"mtime":"2026-03-01T12:00:00.123Z","eof":false}`},
		{"file.write", `{"env":"e1","path":"p","data":"aGk="}`, `{"size":2}`},
		{"file.list", `{"env":"e1","path":"p"}`, `{"entries":[]}`},
		{"file.stat", `{"env":"e1","path":"p"}`, `{"name":"p","type":"file","size":3,"mode":384,"mtime":"2026-03-01T12:00:00.123Z"}`},
		{"file.remove", `{"env":"e1","path":"p"}`, `{}`},
		{"file.mkdir", `{"env":"e1","path":"p"}`, `{}`},
	} {
		r := p.call(tt.method, tt.params)
		if r.Error != nil {
			t.Errorf("%s: %v", tt.method, r.Error)
			continue
		}
		if got, want := normal(t, r.Result), normal(t, []byte(tt.want)); got != want {
			t.Errorf("%s:\n got %s\nwant %s", tt.method, got, want)
		}
	}
	s.plane.readFile = nil
	if r := p.call("file.read", `{"env":"e1","path":"empty"}`); !strings.Contains(string(r.Result), `"data":""`) {
		t.Errorf("an empty file has %s, want data \"\"", r.Result)
	}
	r := p.call("env.acquire", `{"task":"t"}`)
	var got map[string]any
	if err := json.Unmarshal(r.Result, &got); err != nil {
		t.Fatal(err)
	}
	if got["outcome"] != "created" || got["drift"] == nil || got["env"].(map[string]any)["id"] != "e1" {
		t.Errorf("acquire: %s", r.Result)
	}
}

func normal(t *testing.T, raw []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	b, _ := json.Marshal(v)
	return string(b)
}

func TestErrors(t *testing.T) {
	s := serve(t)
	p := s.connect(t)
	exit := 137
	tomb := &control.Tombstone{Reason: "turn ended", Actor: "agent:a", At: control.At(noon), Generation: 3, ExitCode: &exit, OOM: true}
	for name, tt := range map[string]struct {
		err  error
		code int
		data string
	}{
		"invalid":     {control.Errorf(control.KindInvalid, "lifetime_seconds: from 1 to 31536000"), -32602, `{"kind":"invalid_params"}`},
		"errno":       {&control.Error{Kind: control.KindInvalid, Message: "m", Errno: "EISDIR"}, -32602, `{"errno":"EISDIR","kind":"invalid_params"}`},
		"forbidden":   {control.Errorf(control.KindForbidden, "m"), -32002, `{"kind":"forbidden"}`},
		"not found":   {control.Errorf(control.KindNotFound, "m"), -32010, `{"kind":"not_found"}`},
		"gone":        {&control.Error{Kind: control.KindGenerationGone, Message: "m", Tombstone: tomb}, -32011, `{"kind":"generation_gone","tombstone":{"actor":"agent:a","at":"2026-03-01T12:00:00.123Z","exit_code":137,"generation":3,"oom":true,"reason":"turn ended"}}`},
		"quota":       {control.Errorf(control.KindQuota, "m"), -32012, `{"kind":"quota_exceeded"}`},
		"engine":      {&control.Error{Kind: control.KindEngineUnavailable, Message: "m", RetryAfter: 1500*time.Millisecond + 1}, -32013, `{"kind":"engine_unavailable","retry_after_ms":1501}`},
		"image":       {control.Errorf(control.KindImageUnavailable, "m"), -32014, `{"kind":"image_unavailable"}`},
		"conflict":    {&control.Error{Kind: control.KindConflict, Message: "m", Drift: []string{"image"}}, -32015, `{"drift":["image"],"kind":"conflict"}`},
		"draining":    {control.Errorf(control.KindDraining, "m"), -32016, `{"kind":"draining"}`},
		"any other":   {errors.New("open /var/lib/secret: denied"), -32603, `{"kind":"internal"}`},
		"a new kind":  {control.Errorf("novel", "m"), -32603, `{"kind":"novel"}`},
		"wrapped too": {&wrapped{control.Errorf(control.KindNotFound, "m")}, -32010, `{"kind":"not_found"}`},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			s.plane.err = tt.err
			r := p.call("env.get", `{"env":"e1"}`)
			if r.Error == nil || r.Error.Code != tt.code {
				t.Fatalf("got %v, want code %d", r.Error, tt.code)
			}
			b, _ := json.Marshal(r.Error.Data)
			if normal(t, b) != tt.data {
				t.Errorf("data %s, want %s", normal(t, b), tt.data)
			}
			if strings.Contains(r.Error.Message, "secret") {
				t.Errorf("message %q gives the cause away", r.Error.Message)
			}
		})
	}
}

type wrapped struct{ error }

func (w *wrapped) Unwrap() error { return w.error }
