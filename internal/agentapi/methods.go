package agentapi

import (
	"context"
	"slices"

	"sandkeeper/internal/control"
)

// method is one method of the protocol, all but hello, which is the socket's own.
type method struct {
	fields []string // the params that it knows
	// slow calls may wait for an engine or a guest. They are bounded apart from
	// the others, which touch memory and disk alone.
	slow bool
	// large answers take several places of the quick calls; 0 is one.
	places int64
	run    func(ctx context.Context, s Session, p *params) (any, error)
	// open is run of a method that opens something on the socket: its result is an opened.
	open func(ctx context.Context, on *socket, s Session, p *params) (any, error)
}

var helloFields = []string{"agent", "version", "session", "disconnect_grace_seconds"}

var ref = []string{"env", "task", "name"}

func refAnd(fields ...string) []string { return append(slices.Clone(ref), fields...) }

// methods are all that this server offers beside hello.
var methods = map[string]method{
	"env.acquire": {
		fields: []string{"task", "name", "persistent", "image", "lifetime_seconds", "max_age_seconds", "limits",
			"network", "variables", "workdir", "labels", "on_drift"},
		slow: true, run: envAcquire,
	},
	"env.get":     {fields: ref, run: envGet},
	"env.list":    {fields: []string{"task"}, places: 16, run: envList},
	"env.touch":   {fields: ref, run: envTouch},
	"env.release": {fields: refAnd("purge"), slow: true, run: envRelease},
	"turn.begin":  {fields: []string{"task"}, run: turnBegin},
	"turn.end":    {fields: []string{"task", "turn", "outcome"}, run: turnEnd},
	"exec.run": {
		fields: refAnd("command", "argv", "cwd", "variables", "stdin", "timeout_seconds", "output_limit", "id", "generation"),
		slow:   true, run: execRun,
	},
	"exec.list": {fields: ref, slow: true, run: execList},
	"exec.start": {
		fields: refAnd("command", "argv", "cwd", "variables", "id", "generation", "timeout_seconds", "tty", "background", "stdin", "window"),
		slow:   true, open: execStart,
	},
	"exec.attach":      {fields: []string{"exec", "from", "stdin", "window"}, slow: true, open: execAttach},
	"exec.wait":        {fields: []string{"exec", "timeout_seconds"}, slow: true, run: execWait},
	"exec.signal":      {fields: []string{"exec", "signal", "tree"}, slow: true, run: execSignal},
	"exec.resize":      {fields: []string{"exec", "cols", "rows"}, slow: true, run: execResize},
	"exec.close_stdin": {fields: []string{"exec"}, slow: true, open: execCloseStdin},
	"events.subscribe": {fields: []string{"after"}, open: eventsSubscribe},
	"file.read":        {fields: refAnd("path", "offset", "length"), slow: true, run: fileRead},
	"file.write":       {fields: refAnd("path", "data", "mode", "append", "mkdirs"), slow: true, run: fileWrite},
	"file.list":        {fields: refAnd("path"), slow: true, run: fileList},
	"file.stat":        {fields: refAnd("path"), slow: true, run: fileStat},
	"file.remove":      {fields: refAnd("path", "recursive"), slow: true, run: fileRemove},
	"file.mkdir":       {fields: refAnd("path", "recursive"), slow: true, run: fileMkdir},
}

// features names what a client may send.
func features() []string {
	names := []string{"hello"}
	for name := range methods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func envAcquire(ctx context.Context, s Session, p *params) (any, error) {
	r := control.AcquireRequest{
		Task:       p.name("task"),
		Name:       p.name("name"),
		Persistent: p.boolean("persistent"),
		Image:      p.text("image"),
		LifetimeS:  p.whole("lifetime_seconds"),
		MaxAgeS:    p.whole("max_age_seconds"),
		Limits:     p.limits("limits"),
		Network:    p.text("network"),
		Variables:  p.textMap("variables"),
		Workdir:    p.text("workdir"),
		Labels:     p.textMap("labels"),
		OnDrift:    p.textOrNone("on_drift"),
	}
	p.need("task")
	if err := p.err(); err != nil {
		return nil, err
	}
	got, err := s.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	got.Drift = listed(got.Drift)
	return got, nil
}

func envGet(ctx context.Context, s Session, p *params) (any, error) {
	r := p.ref()
	if err := p.err(); err != nil {
		return nil, err
	}
	return envAnswer(s.Env(ctx, r))
}

func envList(ctx context.Context, s Session, p *params) (any, error) {
	task := p.name("task")
	if err := p.err(); err != nil {
		return nil, err
	}
	views, err := s.Envs(ctx, task)
	if err != nil {
		return nil, err
	}
	return envsResult{listed(views)}, nil
}

func envTouch(ctx context.Context, s Session, p *params) (any, error) {
	r := p.ref()
	if err := p.err(); err != nil {
		return nil, err
	}
	return envAnswer(s.Touch(ctx, r))
}

func envRelease(ctx context.Context, s Session, p *params) (any, error) {
	r, purge := p.ref(), p.flag("purge")
	if err := p.err(); err != nil {
		return nil, err
	}
	return envAnswer(s.Release(ctx, r, purge))
}

func envAnswer(v control.View, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return envResult{v}, nil
}

func turnBegin(ctx context.Context, s Session, p *params) (any, error) {
	task := p.name("task")
	p.need("task")
	if err := p.err(); err != nil {
		return nil, err
	}
	turn, opened, err := s.TurnBegin(ctx, task)
	if err != nil {
		return nil, err
	}
	return turnResult{turn, opened}, nil
}

func turnEnd(ctx context.Context, s Session, p *params) (any, error) {
	r := control.TurnEndRequest{Task: p.name("task"), Turn: p.whole("turn"), Outcome: p.textOrNone("outcome")}
	p.need("task")
	if err := p.err(); err != nil {
		return nil, err
	}
	end, err := s.TurnEnd(ctx, r)
	if err != nil {
		return nil, err
	}
	end.Decisions = listed(end.Decisions)
	return end, nil
}

func execRun(ctx context.Context, s Session, p *params) (any, error) {
	r := control.RunRequest{
		Ref:         p.ref(),
		Command:     p.textOrNone("command"),
		Argv:        p.textList("argv"),
		Cwd:         p.textOrNone("cwd"),
		Variables:   p.textMap("variables"),
		Stdin:       p.textOrNone("stdin"),
		TimeoutS:    p.whole("timeout_seconds"),
		OutputLimit: p.whole("output_limit"),
		ID:          p.textOrNone("id"),
		Generation:  p.whole("generation"),
	}
	p.rejectCommand(r.Command, r.Argv)
	if err := p.errFor(ctx, s, r.Ref); err != nil {
		return nil, err
	}
	ran, err := s.Run(ctx, r)
	if err != nil {
		return nil, err
	}
	return runResultOf(ran), nil
}

func execList(ctx context.Context, s Session, p *params) (any, error) {
	r := p.ref()
	if err := p.err(); err != nil {
		return nil, err
	}
	execs, err := s.Execs(ctx, r)
	if err != nil {
		return nil, err
	}
	return execsResult{listed(execs)}, nil
}

// pathOf reads the path of a file call.
func pathOf(p *params) string {
	p.need("path")
	path := p.textOrNone("path")
	if p.has("path") && path == "" {
		p.reject("path", "must not be empty")
	}
	return path
}

func fileRead(ctx context.Context, s Session, p *params) (any, error) {
	r, path := p.ref(), pathOf(p)
	offset, length := p.whole("offset"), p.whole("length")
	if err := p.errFor(ctx, s, r); err != nil {
		return nil, err
	}
	if offset == nil {
		offset = new(int64)
	}
	c, err := s.ReadFile(ctx, r, path, *offset, length)
	if err != nil {
		return nil, err
	}
	return readResult{Data: listed(c.Data), Size: c.Size, Mode: modeBits(c.Mode), MTime: control.At(c.MTime), EOF: c.EOF}, nil
}

func fileWrite(ctx context.Context, s Session, p *params) (any, error) {
	r := p.ref()
	p.need("data")
	w := control.FileWrite{
		Path:   pathOf(p),
		Data:   p.bytes("data"),
		Mode:   p.mode("mode"),
		Append: p.flag("append"),
		Mkdirs: p.flag("mkdirs"),
	}
	if err := p.errFor(ctx, s, r); err != nil {
		return nil, err
	}
	size, err := s.WriteFile(ctx, r, w)
	if err != nil {
		return nil, err
	}
	return writeResult{size}, nil
}

func fileList(ctx context.Context, s Session, p *params) (any, error) {
	r, path := p.ref(), pathOf(p)
	if err := p.errFor(ctx, s, r); err != nil {
		return nil, err
	}
	files, err := s.ListFiles(ctx, r, path)
	if err != nil {
		return nil, err
	}
	entries := make([]fileEntry, len(files))
	for i, f := range files {
		entries[i] = fileEntryOf(f)
	}
	return filesResult{entries}, nil
}

func fileStat(ctx context.Context, s Session, p *params) (any, error) {
	r, path := p.ref(), pathOf(p)
	if err := p.errFor(ctx, s, r); err != nil {
		return nil, err
	}
	f, err := s.StatFile(ctx, r, path)
	if err != nil {
		return nil, err
	}
	return fileEntryOf(f), nil
}

func fileRemove(ctx context.Context, s Session, p *params) (any, error) {
	return fileChange(ctx, p, s, s.RemoveFile)
}

func fileMkdir(ctx context.Context, s Session, p *params) (any, error) {
	return fileChange(ctx, p, s, s.Mkdir)
}

func fileChange(ctx context.Context, p *params, s Session, do func(context.Context, control.Ref, string, bool) error) (any, error) {
	r, path, recursive := p.ref(), pathOf(p), p.flag("recursive")
	if err := p.errFor(ctx, s, r); err != nil {
		return nil, err
	}
	if err := do(ctx, r, path, recursive); err != nil {
		return nil, err
	}
	return empty{}, nil
}

// listed makes an empty list of none: the protocol's lists are never null.
func listed[E any](l []E) []E {
	if l == nil {
		return []E{}
	}
	return l
}
