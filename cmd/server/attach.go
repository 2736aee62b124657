package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sandkeeper/client"
	"sandkeeper/internal/terminal"
)

// attachSpec is how attach was called.
type attachSpec struct {
	env        string
	argv       []string
	exec       string // join this command, instead of starting one
	server     string
	owner      string
	detachKeys string
}

// The exit codes of attach's own: that of a failure, as ssh has it, which
// leaves the lower ones to the command, and how much a signal adds to its number.
const (
	exitFailed   = 255
	exitSignaled = 128
)

// hangUpTime bounds how long a terminal that went waits to tell the command.
const hangUpTime = 2 * time.Second

func newAttach() *cobra.Command {
	c := newConfig()
	var spec attachSpec
	cmd := &cobra.Command{
		Use:   "attach ENV [-- COMMAND ...]",
		Short: "Open a terminal in an environment",
		Long: `Open a terminal in an environment: a shell where the last command's left off, or the
command that is given. ENV is an environment's id, TASK/NAME, or TASK for its main
one. A dormant environment is brought back for it.

Every key goes through, but for ctrl-p ctrl-q (or --detach-keys), which leave: what
runs goes on, and --exec comes back to it. After a loss of the connection the
terminal goes on where it was. Without a terminal, input and output are passed on as
they are, standard error apart, and signals are the command's.

The exit code is the command's; 0 where the terminal was left; 255 where attach failed.

The server is that of the data directory, unless --server names another. The token is
SANDKEEPER_OPERATOR_TOKEN or SANDKEEPER_AGENT_TOKEN, or what the first start has left in
the data directory.`,
		Example: `  sandkeeper attach k3v9x2m7qd
  sandkeeper attach t-42/main -- top
  sandkeeper attach t-42 -- tar c src | tar x
  sandkeeper attach k3v9x2m7qd --exec xq7c2m`,
		Args: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			switch {
			case len(args) == 0 || dash == 0:
				return usagef("which environment? Say its id, TASK/NAME, or TASK; see --help")
			case len(args) > 1 && dash != 1:
				return usagef("%q is one argument too many: a command follows --", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.load(cmd, "config", "data-dir", "agent-token", "operator-token"); err != nil {
				return err
			}
			spec.env, spec.argv = args[0], args[1:]
			code, err := attach(cmd.Context(), c, spec, os.Stdin, os.Stdout, cmd.ErrOrStderr())
			if err != nil && code != exitFailed {
				return err
			}
			if code != 0 {
				return &exitError{code, err}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&spec.exec, "exec", "", "come back to this command, instead of starting one (default none)")
	flags.StringVar(&spec.detachKeys, "detach-keys", "ctrl-p,ctrl-q", "the keys that leave the terminal: single characters, or ctrl- with one")
	flags.StringVar(&spec.server, "server", os.Getenv(serverVariable), "where the server is, as http://127.0.0.1:7333 (default that of the data directory) ["+serverVariable+"]")
	flags.StringVar(&spec.owner, "owner", "", "with an operator's token, whose environment it is (default the id's own, and \""+defaultOwner+"\" for a task)")
	c.register(cmd, "config", "data-dir")
	return cmd
}

// exitError is a process's end with this code, which err explains unless it is nil.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// attach joins this terminal to a command, and returns the exit code. An error
// with the code 0 is one of how it was called.
func attach(ctx context.Context, c *config, spec attachSpec, in, out *os.File, stderr io.Writer) (int, error) {
	keys, err := terminal.ParseKeys(spec.detachKeys)
	if err != nil {
		return 0, usagef("--detach-keys: %w", err)
	}
	who, err := whereTo(ctx, c, spec)
	if err != nil {
		return codeOfFailure(err), err
	}
	a := &attachment{spec: spec, keys: keys, in: in, out: out, stderr: stderr, guard: func(f func()) { f() }, reconnected: make(chan struct{}, 1)}
	if a.client, err = client.Dial(ctx, client.Options{
		URL: who.url, Token: who.token, Owner: who.owner, Agent: "terminal",
		OnDropped: a.dropped, OnConnected: a.connected,
	}); err != nil {
		return exitFailed, who.explain(err)
	}
	defer a.client.Close()
	if err := a.open(ctx); err != nil {
		return exitFailed, err
	}
	// From here on signals are ours: one may be for the command.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	defer signal.Stop(signals)
	ctx = context.WithoutCancel(ctx)
	if a.tty {
		return a.interact(ctx, signals)
	}
	return a.relay(ctx, signals)
}

func codeOfFailure(err error) int {
	if isUsage(err) {
		return 0
	}
	return exitFailed
}

// attachment is one terminal, or one pair of pipes, at one command.
type attachment struct {
	spec   attachSpec
	keys   *terminal.Keys
	client *client.Client
	p      *client.Process
	tty    bool

	in, out *os.File
	stderr  io.Writer
	guard   func(f func()) // runs what may panic

	waiting     *time.Timer // tells of a loss that lasts; the client's callbacks have it
	reconnected chan struct{}
}

// theShell goes on where the last command left off; bash where there is one.
const theShell = `if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi`

// open starts the command, or joins the one that runs.
func (a *attachment) open(ctx context.Context) (err error) {
	a.tty = terminal.Is(a.in, a.out)
	ref, err := a.find(ctx)
	if err != nil {
		return err
	}
	if a.spec.exec != "" {
		if err := a.runsThere(ctx, ref); err != nil {
			return err
		}
		a.p, err = a.client.Attach(ctx, a.spec.exec, client.Offsets{})
		return err
	}
	r := client.StartRequest{Argv: a.spec.argv, Stdin: true}
	if len(r.Argv) == 0 {
		r.Command = theShell
	}
	if a.tty {
		cols, rows := terminal.Size(a.out)
		r.TTY = &client.TTY{Cols: cols, Rows: rows}
		r.Variables = map[string]string{}
		for _, name := range []string{"TERM", "COLORTERM", "NO_COLOR"} {
			if v := os.Getenv(name); v != "" {
				r.Variables[name] = v
			}
		}
	}
	a.p, err = a.client.Start(ctx, ref, r)
	return err
}

// interact is the life of a terminal.
func (a *attachment) interact(ctx context.Context, signals <-chan os.Signal) (int, error) {
	a.say("attached to %s; %s leaves it", a.p.Exec, a.keys)
	t, err := terminal.Open(a.in, a.out)
	if err != nil {
		return exitFailed, err
	}
	defer t.Restore() // in a panic, too
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.guard = t.Guard
	go a.guard(func() { a.followSize(ctx, t) })

	typed := make(chan error, 1)
	ended := make(chan ending, 1)
	go a.guard(func() { typed <- a.input() })
	go a.guard(func() { ended <- a.show(ctx, t, nil) })
	select {
	case e := <-ended:
		t.Restore()
		return e.code()
	case err := <-typed:
		t.Restore()
		if !errors.Is(err, errLeft) { // the terminal itself went
			a.signal(ctx, unix.SIGHUP)
			return exitSignaled + int(unix.SIGHUP), nil
		}
		a.say("left, and it goes on: sandkeeper attach %s --exec %s", a.spec.env, a.p.Exec)
		return 0, nil
	case sig := <-signals:
		t.Restore()
		if sig == unix.SIGHUP {
			a.signal(ctx, sig)
		} else {
			a.say("ended by a signal; the command goes on as %s", a.p.Exec)
		}
		return exitSignaled + int(sig.(unix.Signal)), nil
	}
}

// relay is the life of a pair of pipes. A signal goes to the command, once: a
// second one ends the waiting.
func (a *attachment) relay(ctx context.Context, signals <-chan os.Signal) (int, error) {
	go func() {
		io.Copy(a.p.Stdin(), a.in) //nolint:errcheck // the end of the command tells
		a.p.Stdin().Close()
	}()
	ended := make(chan ending, 1)
	go func() { ended <- a.show(ctx, a.out, a.stderr) }()
	for asked := false; ; {
		select {
		case e := <-ended:
			if errors.Is(e.err, unix.EPIPE) { // whoever read it has gone
				a.signal(ctx, unix.SIGPIPE)
				return exitSignaled + int(unix.SIGPIPE), nil
			}
			return e.code()
		case sig := <-signals:
			if sig == unix.SIGPIPE {
				continue // the write fails, too
			}
			if asked {
				return exitSignaled + int(sig.(unix.Signal)), nil
			}
			asked = true
			a.signal(ctx, sig)
		}
	}
}

// errLeft: the detach keys were typed.
var errLeft = errors.New("left")

// input passes on what is typed until the terminal goes or is left.
func (a *attachment) input() error {
	finder := a.keys.Finder()
	b := make([]byte, 4096)
	for {
		n, err := a.in.Read(b)
		through, left := finder.Find(b[:n])
		if _, werr := a.p.Stdin().Write(through); left {
			return errLeft
		} else if werr != nil {
			n = 0 // the command has ended; its end is told by its output's
		}
		if err != nil {
			return err
		}
	}
}

// ending is how the command ended, or why that is not known.
type ending struct {
	exit *client.Exit
	err  error
}

func (e ending) code() (int, error) {
	switch {
	case e.err != nil:
		return exitFailed, e.err
	case e.exit.Lost != nil:
		return exitFailed, fmt.Errorf("the environment went before the command's end: %s", e.exit.Lost.Reason)
	}
	return e.exit.ExitCode, nil
}

// show copies the output to its end. A nil stderr is of a terminal, which has none.
func (a *attachment) show(ctx context.Context, stdout, stderr io.Writer) ending {
	errs := make(chan error, 2)
	copies := func(w io.Writer, r io.Reader) {
		for {
			_, err := io.Copy(w, r)
			gap, ok := errors.AsType[*client.GapError](err)
			if !ok {
				errs <- err
				return
			}
			a.say("%d bytes of the output are no longer kept", gap.Bytes)
		}
	}
	if stderr == nil {
		stderr = stdout
	}
	go a.guard(func() { copies(stdout, a.p.Stdout()) })
	go a.guard(func() { copies(stderr, a.p.Stderr()) })
	for range 2 {
		if err := <-errs; err != nil {
			return ending{err: err}
		}
	}
	exit, err := a.p.Wait(ctx)
	return ending{exit, err}
}

// signal sends the command a signal, if that can be done soon.
func (a *attachment) signal(ctx context.Context, sig os.Signal) {
	ctx, cancel := context.WithTimeout(ctx, hangUpTime)
	defer cancel()
	name, _ := sig.(unix.Signal)
	if _, err := a.p.Signal(ctx, unix.SignalName(name)[len("SIG"):]); err != nil {
		a.say("the command goes on: %v", err)
	}
}

// followSize keeps the command's terminal as large as this one.
func (a *attachment) followSize(ctx context.Context, t *terminal.Terminal) {
	if a.spec.exec != "" {
		a.redraw(ctx)
	}
	for {
		select {
		case <-t.Resized():
			cols, rows := terminal.Size(a.out)
			a.resize(ctx, cols, rows)
		case <-a.reconnected:
			a.redraw(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// redraw has a full-screen program draw anew, by a size that is another for a moment.
func (a *attachment) redraw(ctx context.Context) {
	cols, rows := terminal.Size(a.out)
	a.resize(ctx, cols, max(rows-1, 1))
	a.resize(ctx, cols, rows)
}

func (a *attachment) resize(ctx context.Context, cols, rows int) {
	a.p.Resize(ctx, client.TTY{Cols: cols, Rows: rows}) //nolint:errcheck // a command that has ended has no size
}

// lossTime is how long a lost connection is not worth a word.
const lossTime = 2 * time.Second

// dropped and connected are called by the client, one at a time.
func (a *attachment) dropped(err error) {
	a.waiting = time.AfterFunc(lossTime, func() {
		a.say("the connection is lost, and tried again (%v)", err)
	})
}

func (a *attachment) connected(client.Hello) {
	if a.waiting == nil || a.waiting.Stop() {
		return
	}
	a.say("connected again")
	select {
	case a.reconnected <- struct{}{}:
	default:
	}
}

// say tells the user something; the terminal may be raw.
func (a *attachment) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "\r[sandkeeper: %s]\r\n", fmt.Sprintf(format, args...))
}
