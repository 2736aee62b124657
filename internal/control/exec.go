package control

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// What an exec is doing.
type execState int

const (
	execWaiting execState = iota // for its environment
	execRunning
	execLeft // its command has ended; processes of it live on
	execEnded
)

const (
	endedKept     = 10 * time.Minute // how long exec.list shows an ended one
	endedMost     = 64               // how many of them, per environment
	recordedBytes = 64 << 10         // of each stream kept on disk with an exec's id
	execHoldMax   = 24 * time.Hour   // a running exec holds no longer
	execHoldSlack = 5 * time.Second  // past its timeout: TERM, 2 s, KILL
)

// exec is one command. Its fields are guarded by the task's lock until done is
// closed; then end, lost and err are there to be read.
type exec struct {
	e          *env
	name       string
	id         string // the caller's, "" if none
	digest     string
	command    string // as shown
	session    string
	actor      string // whose command it is; "" after a restart
	start      ExecStart
	guard      *int64 // the generation it may start in alone
	state      execState
	generation int64 // 0 until it is bound to one
	pid        int
	startedAt  time.Time
	endedAt    time.Time
	leftSince  time.Time

	ctx    context.Context // ends with it: with all that it left, or with its run of the sandbox
	cancel context.CancelFunc
	begun  chan struct{} // closed once its command has a pid; or never
	done   chan struct{} // closed at the end of its command
	end    ExecEnd
	lost   *Tombstone
	err    error

	terminals  int       // streams joined to its terminal
	joinedAt   time.Time // the first of them
	lastInput  time.Time
	inputNoted time.Time // when input was last taken for activity
}

func (e *env) newExec(name string, now time.Time) *exec {
	x := &exec{e: e, name: name, startedAt: now, begun: make(chan struct{}), done: make(chan struct{})}
	x.ctx, x.cancel = context.WithCancel(e.t.p.ctx)
	e.t.p.execs.add(x)
	return x
}

// command is what begin starts: a RunRequest, or what a StartRequest has beside.
type command struct {
	RunRequest
	tty        *TTY
	background bool
	streamed   bool // by Start: no timeout unless asked
	stdinOpen  bool
}

// hold tells whether and until when the exec keeps the countdown from running.
func (x *exec) hold(now time.Time) (Hold, bool) {
	h := Hold{Kind: HoldExec, Ref: x.name, Since: At(x.startedAt)}
	var until, drop time.Time
	switch {
	case x.state == execEnded:
		return h, false
	case x.state == execLeft:
		h.Kind, h.Since = HoldProcess, At(x.leftSince)
		until = x.leftSince.Add(x.e.t.p.o.BackgroundMaxAge)
		drop = until
	case x.start.Background:
		h.Kind = HoldProcess
		until = x.startedAt.Add(x.e.t.p.o.BackgroundMaxAge)
		drop = until
	default:
		until = x.startedAt.Add(execHoldMax)
		drop = until
		if t := x.start.Timeout; t > 0 && t < execHoldMax {
			until = x.startedAt.Add(t)
			drop = until.Add(execHoldSlack)
		}
	}
	if !now.Before(drop) {
		return h, false
	}
	h.Until = AtPtr(ceilMillis(until))
	if !now.Before(until) { // in the slack: the bound is the slack's end
		h.Until = AtPtr(ceilMillis(drop))
	}
	return h, true
}

// digestOf tells one command from another: what runs, where, and with what. Run
// and Start of the same command are the same.
func digestOf(r *command) string {
	vars := r.Variables
	if len(vars) == 0 {
		vars = nil // none is none, however it is written
	}
	what := []any{r.Command, r.Argv, r.Cwd, vars, r.Stdin}
	if r.tty != nil || r.background {
		what = append(what, r.tty != nil, r.background)
	}
	b, _ := json.Marshal(what)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

func shown(r *RunRequest) string {
	if r.Command != "" {
		return clip(r.Command, 200)
	}
	return clip(strings.Join(r.Argv, " "), 200)
}

// Run runs a command to its end. The command goes on when ctx ends; with an id
// it can be asked for again.
func (s *Session) Run(ctx context.Context, r RunRequest) (Ran, error) {
	c := &command{RunRequest: r}
	e, id, err := s.resolve(r.Ref)
	if err != nil {
		rec, err := s.remembered(id, c, err)
		if err != nil {
			return Ran{}, err
		}
		return Ran{Exec: rec.Exec, End: clipEnd(*rec.End, r.outputLimit())}, nil
	}
	x, known, err := s.begin(ctx, e, c)
	if err != nil {
		return Ran{}, err
	}
	if known != nil {
		return s.recorded(ctx, e, *known, r.outputLimit())
	}
	select {
	case <-x.done:
	case <-ctx.Done():
		return Ran{}, ctx.Err()
	}
	switch {
	case x.err != nil:
		return Ran{}, x.err
	case x.lost != nil:
		return Ran{}, gone(x.lost)
	}
	ran := Ran{Exec: x.name, End: clipEnd(x.end, r.outputLimit())}
	ran.Notice = s.notice(e, x.generation)
	return ran, nil
}

// remembered finds the end of a command by its id where its environment is no
// more: an id is remembered longer. It fails as err says where there is none.
func (s *Session) remembered(env string, c *command, err error) (*ExecRecord, error) {
	if env == "" || c.ID == "" || c.check() != nil {
		return nil, err
	}
	switch rec, ok, rerr := s.p.o.Store.Exec(env, c.ID); {
	case rerr != nil || !ok || rec.End == nil && rec.Lost == nil:
		return nil, err
	case rec.Digest != digestOf(c):
		return nil, idTaken(c.ID)
	case rec.Lost != nil:
		return nil, gone(rec.Lost)
	default:
		return &rec, nil
	}
}

func idTaken(id string) *Error {
	return Errorf(KindConflict, "the id %q was used for another command", clip(id, 64))
}

// begin finds the exec of that id, or starts a new one. The task is locked on
// entry, and not on return. known is the record of one that has ended.
func (s *Session) begin(ctx context.Context, e *env, r *command) (x *exec, known *ExecRecord, err error) {
	t := e.t
	defer t.mu.Unlock()
	if err := r.check(); err != nil {
		return nil, nil, err
	}
	digest := digestOf(r)
	name := ""
	if r.ID != "" {
		if x := e.byID[r.ID]; x != nil {
			if x.digest != digest {
				return nil, nil, idTaken(r.ID)
			}
			return x, nil, s.takePart(ctx, t)
		}
		rec, ok, err := s.p.o.Store.Exec(e.id, r.ID)
		switch {
		case err != nil:
			return nil, nil, &Error{Kind: KindInternal, Message: "the server could not read its database", Err: err}
		case !ok || rec.refused():
		case rec.Digest != digest:
			return nil, nil, idTaken(r.ID)
		case rec.End != nil || rec.Lost != nil:
			return nil, &rec, s.takePart(ctx, t)
		case rec.Generation != e.rec.Load().Generation:
			return nil, nil, gone(e.endOf(e.rec.Load(), rec.Generation))
		default:
			// It is on disk, and nobody waits for it: the guest says whether it
			// ever started. By the same name it starts at most once.
			name = rec.Exec
			delete(e.unended, name)
		}
	}
	if err := s.p.checkDraining(); err != nil {
		return nil, nil, err
	}
	rec := e.rec.Load()
	if r.Generation != nil && (*r.Generation != rec.Generation || rec.State != Ready && rec.State != Starting) {
		return nil, nil, gone(e.endOf(rec, *r.Generation))
	}
	running := 0
	for _, x := range e.execs {
		if x.state != execLeft {
			running++
		}
	}
	if running >= s.p.o.MaxExecsPerEnv {
		return nil, nil, Errorf(KindQuota, "%d commands run in the environment; at most %d are allowed", running, s.p.o.MaxExecsPerEnv)
	}
	if name == "" {
		name = "x" + newID()
	}
	x = e.newExec(name, s.p.Now())
	x.id, x.digest, x.command, x.guard = r.ID, digest, shown(&r.RunRequest), r.Generation
	x.session, x.actor = s.rec.ID, s.actor()
	x.start = ExecStart{
		Exec: name, Shell: r.Command, Argv: r.Argv, Cwd: r.Cwd,
		Variables: r.Variables, Stdin: []byte(r.Stdin), Timeout: r.timeout(),
		TTY: r.tty, StdinOpen: r.stdinOpen, Background: r.background, Join: r.streamed,
	}
	switch {
	case !r.streamed:
		x.start.Spill = max(r.outputLimit(), 1)
	case r.TimeoutS == nil:
		x.start.Timeout = 0
	}
	tx := t.begin()
	tx.join(s, true)
	tx.activity(e, "exec", s.actor())
	tx.uses(s, e)
	e.execs[name] = x
	if r.ID != "" {
		e.byID[r.ID] = x
	}
	if err := tx.finish(ctx); err != nil {
		e.forget(x)
		s.p.execs.end(x, tx.now)
		x.cancel()
		return nil, nil, err
	}
	s.p.background(func() { s.p.drive(x) })
	return x, nil, nil
}

// takePart makes the session a participant of the turn, if one is open: it has
// called on the task. The task is locked.
func (s *Session) takePart(ctx context.Context, t *task) error {
	x := t.begin()
	x.join(s, false)
	if !x.must { // it has a part already, or there is no turn
		return nil
	}
	return x.finish(ctx)
}

// forget takes an exec that never started out again; the task is locked.
func (e *env) forget(x *exec) {
	delete(e.execs, x.name)
	if e.byID[x.id] == x {
		delete(e.byID, x.id)
	}
}

// drive brings an exec from waiting to its end.
func (p *Plane) drive(x *exec) {
	e, t := x.e, x.e.t
	t.mu.Lock()
	err := e.bind(p.ctx, x)
	t.mu.Unlock()
	if err == nil {
		err = p.startExec(x)
	}
	if errors.Is(err, ErrOtherRun) {
		e.startedBehindOurBack(p.ctx, x.generation)
	}
	if err != nil {
		p.execFailed(x, err)
		return
	}
	p.followExec(x)
}

// startedBehindOurBack takes the word of a guest of a later run that the run of
// this generation is over. A round would find the same.
func (e *env) startedBehindOurBack(ctx context.Context, generation int64) {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if r := e.rec.Load(); r.State == Ready && r.Generation == generation {
		e.lost(ctx, nil, false)
	}
}

// bind waits for its environment and ties the exec to the generation that is
// ready: from then on the reaper sees it. The task is locked.
func (e *env) bind(ctx context.Context, x *exec) error {
	if err := e.awaitReady(ctx, x.actor, "exec"); err != nil {
		return err
	}
	rec := e.rec.Load()
	if x.guard != nil && *x.guard != rec.Generation {
		return gone(e.endOf(rec, *x.guard))
	}
	tx := e.t.begin()
	x.generation, x.state, x.startedAt = rec.Generation, execRunning, tx.now
	x.start.Run = rec.GuestRun
	x.start.Workdir = rec.Applied.Workdir
	x.start.Env = rec.Applied.Variables
	if x.id != "" {
		tx.must = true // before the command starts
		tx.batch.Execs = append(tx.batch.Execs, x.record())
	}
	tx.activity(e, "exec", x.actor)
	return tx.finish(ctx)
}

// record is what is kept of an exec whose caller gave an id.
func (x *exec) record() ExecRecord {
	return ExecRecord{Exec: x.name, Env: x.e.id, ID: x.id, Digest: x.digest, Generation: x.generation, StartedAt: x.startedAt, Timeout: x.start.Timeout}
}

// startPatience is how long a start is tried against a guest that cannot be reached.
const startPatience = 10 * time.Second

// persist calls f until it is no longer the guest that cannot be reached, the
// exec's run of the sandbox is over, or patience (0: none) has run out.
// Whether a call took effect is not known then; all of them can be repeated.
func (p *Plane) persist(x *exec, patience time.Duration, f func(g Guest) error) error {
	began := p.Now()
	pause := 50 * time.Millisecond
	for {
		err := f(p.o.Guests.Guest(x.e.sandbox()))
		if !errors.Is(err, ErrGuestUnreachable) && !errors.Is(err, ErrEngineUnavailable) {
			return err
		}
		if patience > 0 && p.Now().Sub(began) >= patience {
			return err
		}
		select {
		case <-x.ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
	}
}

func (p *Plane) startExec(x *exec) error {
	return p.persist(x, startPatience, func(g Guest) error {
		started, err := g.Start(x.ctx, x.start)
		if err != nil {
			return err
		}
		x.e.t.mu.Lock()
		x.pid = started.PID
		x.start.Stdin = nil
		close(x.begun)
		x.e.t.mu.Unlock()
		return nil
	})
}

// unknownPatience is how long a guest that does not know an exec that ran is
// taken for one of a later run of the sandbox, whose start is about to be heard
// of: then the exec was lost with the earlier one.
const unknownPatience = 2 * time.Minute

// followExec waits for the end of an exec that runs, and then for what it left.
func (p *Plane) followExec(x *exec) {
	var (
		end   ExecEnd
		since time.Time
	)
	err := p.persist(x, 0, func(g Guest) (err error) {
		end, err = g.Wait(x.ctx, x.name, maxOutputLimit)
		if !errors.Is(err, ErrNoExec) {
			return err
		}
		if since.IsZero() {
			since = p.Now()
		}
		if p.Now().Sub(since) < unknownPatience {
			return ErrGuestUnreachable
		}
		return err
	})
	if err != nil {
		p.execFailed(x, err)
		return
	}
	p.execEnded(x, end)
	if end.Left > 0 {
		p.followLeft(x)
	}
}

// followLeft waits until nothing is left of an exec that has ended.
func (p *Plane) followLeft(x *exec) {
	e := x.e
	err := p.persist(x, 0, func(g Guest) error { return g.Gone(x.ctx, x.name) })
	if err != nil && !errors.Is(err, ErrNoExec) {
		return // its sandbox is gone, or we are
	}
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if e.execs[x.name] != x {
		return
	}
	tx := e.t.begin()
	x.state = execEnded
	x.cancel()
	delete(e.execs, x.name)
	e.keepEnded(x, tx.now)
	tx.finish(p.ctx) //nolint:errcheck // written behind
	p.hub.changed(e.id)
}

// execEnded takes the end of an exec. One with an id is told once that is on disk.
func (p *Plane) execEnded(x *exec, end ExecEnd) {
	e := x.e
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if x.state == execEnded || x.state == execLeft {
		return // lost meanwhile
	}
	tx := e.t.begin()
	x.endedAt, x.end = tx.now, end
	kept := x
	if end.Left > 0 {
		x.state, x.leftSince = execLeft, tx.now
	} else {
		x.state = execEnded
		x.cancel()
		delete(e.execs, x.name)
		kept = e.keepEnded(x, tx.now)
	}
	if x.id != "" {
		rec := x.record()
		rec.EndedAt = tx.now
		short := end
		if len(end.Stdout) > recordedBytes || len(end.Stderr) > recordedBytes {
			short.OmittedOut += int64(len(end.Stdout))
			short.OmittedErr += int64(len(end.Stderr))
			short.Stdout, short.Stderr, short.OutputLost = nil, nil, true
		}
		rec.End = &short
		tx.must = true
		tx.batch.Execs = append(tx.batch.Execs, rec)
		if e.byID[x.id] == x {
			tx.after = append(tx.after, func() { delete(e.byID, x.id) })
		}
	}
	tx.activity(e, "exec", cmp.Or(x.actor, e.rec.Load().LastActivity.Actor))
	tx.checkTurn()
	if err := tx.finish(p.ctx); err != nil && x.id != "" {
		x.err, kept.err = err, err // the guest keeps the result: asking again by id finds it
		e.forget(x)
	}
	p.hub.changed(e.id)
	close(x.done)
}

// execFailed ends an exec that did not come to an end of its own.
func (p *Plane) execFailed(x *exec, err error) {
	e := x.e
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if x.state == execEnded || x.state == execLeft {
		return // lost meanwhile, and told so
	}
	x.err = p.execError(err, x)
	if p.ctx.Err() != nil { // it goes on, and the next process takes it up
		close(x.done)
		return
	}
	tx := e.t.begin()
	switch _, refused := errors.AsType[*FileError](err); {
	case errors.Is(err, ErrGuestUnreachable):
		e.unasked = true // it may run all the same: the next round asks the guest
		if x.id != "" && x.state == execRunning {
			e.unended[x.name] = x.record()
		}
	case errors.Is(err, ErrNoExec): // it ran, and is gone with what ran it
		x.err, x.endedAt = nil, tx.now
		x.lost = &Tombstone{Reason: "the sandbox no longer knows the command", Actor: ActorReconciler, At: At(tx.now), Generation: x.generation}
		if x.id != "" {
			rec := x.record()
			rec.EndedAt, rec.Lost = tx.now, x.lost
			tx.must = true
			tx.batch.Execs = append(tx.batch.Execs, rec)
		}
	case refused && x.id != "":
		rec := x.record()
		rec.EndedAt = tx.now
		tx.must = true
		tx.batch.Execs = append(tx.batch.Execs, rec)
	}
	if x.state == execRunning {
		tx.activity(e, "exec", cmp.Or(x.actor, e.rec.Load().LastActivity.Actor))
	}
	x.state = execEnded
	x.cancel()
	e.forget(x)
	p.execs.end(x, tx.now)
	tx.checkTurn()
	// What was not written is tried again by the same id; an abandoned turn is looked at again.
	if err := tx.finish(p.ctx); err != nil && x.lost != nil && x.id != "" {
		x.lost, x.err = nil, err
	}
	p.hub.changed(e.id)
	close(x.done)
}

func (p *Plane) execError(err error, x *exec) error {
	if fe, ok := errors.AsType[*FileError](err); ok {
		return fileError(fe)
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, ErrNoExec) {
		return Errorf(KindInternal, "the sandbox no longer knows the exec %s", x.name)
	}
	if p.ctx.Err() != nil {
		return Errorf(KindDraining, "the server is going down; the command goes on and can be asked for by its id")
	}
	if errors.Is(err, ErrEngineUnavailable) || errors.Is(err, ErrGuestUnreachable) || errors.Is(err, ErrOtherRun) {
		return &Error{Kind: KindEngineUnavailable, Message: "the sandbox does not answer; with an id, the call can be repeated", RetryAfter: 2 * time.Second, Err: err}
	}
	return &Error{Kind: KindInternal, Message: "the command could not be run; the server's log has the cause", Err: err}
}

// loseExecs says that what is bound to the present generation ends with its
// sandbox. The records are part of the decision; the returned func tells who waits.
func (x *tx) loseExecs(e *env, tomb *Tombstone) func() {
	var lost []*exec
	for _, ex := range e.execs {
		if ex.generation == 0 {
			continue // it waits, and finds out itself
		}
		lost = append(lost, ex)
		if ex.id != "" && ex.state == execRunning {
			rec := ex.record()
			rec.EndedAt, rec.Lost = x.now, tomb
			x.batch.Execs = append(x.batch.Execs, rec)
		}
	}
	for _, ex := range lost {
		if t := x.task(); ex.state == execRunning && t.Open && !t.Lapsed {
			t.Active = x.now // an end is an end
		}
	}
	for _, rec := range e.unended {
		rec.EndedAt, rec.Lost = x.now, tomb
		x.batch.Execs = append(x.batch.Execs, rec)
	}
	return func() {
		clear(e.unended)
		for _, ex := range lost {
			running := ex.state != execLeft
			ex.state = execEnded
			ex.cancel()
			e.forget(ex)
			e.t.p.execs.end(ex, x.now)
			if running {
				ex.lost, ex.endedAt = tomb, x.now
				close(ex.done)
			}
		}
		e.ended = nil
	}
}

// keepEnded remembers an ended exec for exec.list and exec.attach, and returns
// what is remembered of it: all but its output, which goes with those who wait for it.
func (e *env) keepEnded(x *exec, now time.Time) *exec {
	kept := *x
	kept.end.Stdout, kept.end.Stderr = nil, nil
	x = &kept
	e.t.p.execs.end(x, now)
	e.ended = append(e.ended, x)
	e.ended = slices.DeleteFunc(e.ended, func(o *exec) bool { return now.Sub(o.endedAt) > endedKept })
	if n := len(e.ended) - endedMost; n > 0 {
		e.ended = slices.Clone(e.ended[n:])
	}
	return x
}

// recorded answers for an exec that has ended before.
func (s *Session) recorded(ctx context.Context, e *env, rec ExecRecord, limit int) (Ran, error) {
	if rec.Lost != nil {
		return Ran{}, gone(rec.Lost)
	}
	end := *rec.End
	if r := e.rec.Load(); end.OutputLost && r.State == Ready && r.Generation == rec.Generation {
		// Too much for our disk, and perhaps still with the guest.
		if full, err := s.p.o.Guests.Guest(e.sandbox()).Wait(ctx, rec.Exec, maxOutputLimit); err == nil {
			end = full
		}
	}
	return Ran{Exec: rec.Exec, End: clipEnd(end, limit), Notice: s.notice(e, rec.Generation)}, nil
}

// met notes the generation in which the session first used the environment's
// name: what becomes of it is news to the session, though it ran nothing yet.
func (s *Session) met(r *Env) {
	k := usedKey(r)
	s.mu.Lock()
	_, ok := s.used[k]
	if !ok {
		s.used[k] = r.Generation
	}
	s.mu.Unlock()
	if !ok {
		s.p.markSessionDirty(s)
	}
}

func usedKey(r *Env) string { return r.Task + "\x00" + r.Name }

// notice is due once, with the first result of a generation later than the
// last that the session used.
func (s *Session) notice(e *env, generation int64) *Notice {
	r := e.rec.Load()
	k := usedKey(r)
	s.mu.Lock()
	last, ok := s.used[k]
	if generation > last {
		s.used[k] = generation
	}
	s.mu.Unlock()
	if generation > last {
		s.p.markSessionDirty(s)
	}
	if !ok || generation <= last {
		return nil
	}
	n := &Notice{Generation: generation, Lost: []string{"processes", "memory", "/tmp", "shell state"}, Kept: []string{}}
	switch {
	case r.CreatedGeneration > last: // another environment took the key
		n.Lost = append(n.Lost, "root file system", "workspace")
	case r.RootGeneration > last:
		n.Lost = append(n.Lost, "root file system")
		n.Kept = append(n.Kept, "workspace")
	default:
		n.Kept = append(n.Kept, "root file system", "workspace")
	}
	return n
}

// listPatience is how long a list waits, after a restart, for what the guest knows.
const listPatience = 5 * time.Second

// Execs lists what runs in the environment and what has lately ended.
func (s *Session) Execs(ctx context.Context, r Ref) ([]ExecView, error) {
	e, _, err := s.resolve(r)
	if err != nil {
		return nil, err
	}
	defer e.t.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, listPatience,
		&Error{Kind: KindEngineUnavailable, Message: "what runs in the sandbox is not known yet; try again", RetryAfter: 2 * time.Second})
	defer cancel()
	for e.unknown() && e.rec.Load().State == Ready {
		if e.t.unlockedWait(ctx, e.changed) != nil {
			return nil, context.Cause(ctx)
		}
	}
	return e.execViews(), nil
}

func (e *env) execViews() []ExecView {
	vs := []ExecView{}
	add := func(x *exec) {
		v := ExecView{Exec: x.name, ID: x.id, Command: x.command, PID: x.pid, StartedAt: At(x.startedAt), Background: x.start.Background, State: "running"}
		if x.state == execLeft || x.state == execEnded {
			code := x.end.ExitCode
			v.State, v.ExitCode, v.Left = "exited", &code, x.state == execLeft
		}
		vs = append(vs, v)
	}
	for _, x := range e.execs {
		add(x)
	}
	now := e.t.p.Now()
	for _, x := range e.ended {
		if now.Sub(x.endedAt) <= endedKept {
			add(x)
		}
	}
	slices.SortFunc(vs, func(a, b ExecView) int {
		if c := a.StartedAt.Compare(b.StartedAt.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Exec, b.Exec)
	})
	return vs
}

// clipEnd bounds the output to limit bytes of each stream.
func clipEnd(end ExecEnd, limit int) ExecEnd {
	end.Stdout, end.OmittedOut = headTail(end.Stdout, end.OmittedOut, limit)
	end.Stderr, end.OmittedErr = headTail(end.Stderr, end.OmittedErr, limit)
	return end
}

// headTail keeps the first 40 % and the last 60 % of limit, and counts what is
// left out. A character of UTF-8 is not cut in two: it is left out.
func headTail(b []byte, omitted int64, limit int) ([]byte, int64) {
	if len(b) <= limit {
		return b, omitted
	}
	head := limit * 2 / 5
	tail := len(b) - (limit - head)
	head, _ = character(b, head)
	_, tail = character(b, tail)
	return slices.Concat(b[:head], b[tail:]), omitted + int64(tail-head)
}

// character returns where the character begins and ends that a cut at i would
// divide; i twice where it divides none.
func character(b []byte, i int) (begin, end int) {
	for begin = i - 1; begin >= 0 && begin > i-utf8.UTFMax; begin-- {
		if !utf8.RuneStart(b[begin]) {
			continue
		}
		if _, size := utf8.DecodeRune(b[begin:]); begin+size > i {
			return begin, begin + size
		}
		break
	}
	return i, i
}
