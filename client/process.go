package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"io"
	"sync"
)

// Start starts a command and joins its streams. It never starts twice, however
// often the connection drops meanwhile. ctx bounds the starting alone. Who gets
// the Process reads it, and closes it.
func (c *Client) Start(ctx context.Context, r Ref, s StartRequest) (*Process, error) {
	if s.ID == "" {
		s.ID = rand.Text()
	}
	if s.Window == 0 {
		s.Window = defaultWindow
	}
	p := newProcess(c, s.Window)
	var got struct {
		PID    int     `json:"pid"`
		Notice *Notice `json:"notice"`
	}
	err := c.join(ctx, p, "exec.start", struct {
		Ref
		StartRequest
	}{r, s}, &got)
	if err != nil {
		p.Close() // it may have been opened for nobody
		return nil, err
	}
	p.PID, p.Notice = got.PID, got.Notice
	return p, nil
}

// Attach joins the streams of a command that runs or has lately ended, behind
// the bytes that are already had. Bytes that are no longer kept are a *GapError
// of the first Read. Its standard input is this one's from then on.
func (c *Client) Attach(ctx context.Context, exec string, from Offsets) (*Process, error) {
	p := newProcess(c, defaultWindow)
	p.Exec, p.had = exec, from
	if err := c.join(ctx, p, "exec.attach", p.attachParams(), nil); err != nil {
		p.Close() // it may have been opened for nobody
		return nil, err
	}
	return p, nil
}

// join makes a call that opens a channel for p.
func (c *Client) join(ctx context.Context, p *Process, method string, params, result any) error {
	err := c.doOn(ctx, method, true, params, result, func(l *line, raw json.RawMessage) error {
		var got opened
		if err := json.Unmarshal(raw, &got); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		p.opened(l, &got)
		c.channels[got.Channel] = p
		return nil
	})
	if err != nil {
		p.fail(err)
	}
	return err
}

const (
	defaultWindow = 1 << 20
	mostStdin     = 64 << 10 // of one frame
)

// The streams of a binary frame.
const (
	streamStdin  = 0
	streamStdout = 1
	streamStderr = 2
	streamCredit = 3
)

// opened is what a call that opens a channel answers.
type opened struct {
	Exec       string  `json:"exec"`
	Channel    uint32  `json:"channel"`
	Skipped    Offsets `json:"skipped"`
	StdinTaken *int64  `json:"stdin_taken"`
}

// Process is a command whose streams are joined. After a loss of the connection
// it is joined anew, behind the bytes that had come: a reader sees each byte
// once, or a *GapError in the place of those that the server no longer has.
//
// The client holds at most a window of bytes that were not read. Then the
// command waits, as behind any full pipe: read both streams, or Output.
type Process struct {
	Exec   string // the server's name for it
	PID    int
	Notice *Notice // what became of the sandbox since the session last used it

	c      *Client
	window int64
	stdout pipe
	stderr pipe

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	line    *line // nil while no channel is open
	channel uint32
	had     Offsets // bytes that came, or are known to be lost
	unread  int64   // bytes that came and were not read
	owed    int64   // bytes read that the server was not granted again
	asked   int64   // the window that the last call for a channel asked for
	exit    *Exit
	err     error // it failed, and no more comes
	closed  bool  // nobody reads

	credit  int64  // bytes of stdin that may be sent
	sent    int64  // bytes of stdin on their way, from the first
	joined  bool   // a channel was opened before
	before  int64  // bytes of stdin that the sandbox had then: others'
	taken   int64  // of ours, bytes that the sandbox has
	pending []byte // bytes of stdin from taken on
	closing bool   // stdin ends behind pending
	ended   bool   // that was sent on this channel
	feeding bool   // a goroutine sends pending
}

// pipe is what came of one stream and was not read.
type pipe struct {
	p     *Process
	parts []part
}

// part is a piece of a stream, or a gap in it.
type part struct {
	data []byte
	gap  int64
}

func newProcess(c *Client, window int64) *Process {
	p := &Process{c: c, window: window, asked: window}
	p.changed.L = &p.mu
	p.stdout.p, p.stderr.p = p, p
	return p
}

// Stdout reads standard output; on a terminal, all output. The end of the
// command is io.EOF.
func (p *Process) Stdout() io.Reader { return &p.stdout }

// Stderr reads standard error.
func (p *Process) Stderr() io.Reader { return &p.stderr }

// Stdin writes standard input. A write waits while the command does not read.
// Close is the end of file.
func (p *Process) Stdin() io.WriteCloser { return stdin{p} }

// Copy copies both streams until the command has ended, and waits for that.
// A nil writer discards.
func (p *Process) Copy(ctx context.Context, stdout, stderr io.Writer) (*Exit, error) {
	failed := make(chan error, 2)
	from := func(w io.Writer, r io.Reader) {
		if w == nil {
			w = io.Discard
		}
		_, err := io.Copy(w, r)
		failed <- err
	}
	go from(stdout, &p.stdout)
	go from(stderr, &p.stderr)
	for range 2 {
		select {
		case err := <-failed:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return p.Wait(ctx)
}

// Wait waits for the end of the command, which is told behind its last byte:
// who does not read may wait for ever. An environment that went before the end
// is no error: Exit.Lost says why.
func (p *Process) Wait(ctx context.Context) (*Exit, error) {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.exit == nil && p.err == nil && ctx.Err() == nil {
		p.changed.Wait()
	}
	switch {
	case p.exit != nil:
		return p.exit, nil
	case p.err != nil:
		return nil, p.err
	}
	return nil, context.Cause(ctx)
}

// Offsets tells how many bytes of each stream have come, for a later Attach by
// another client.
func (p *Process) Offsets() Offsets {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.had
}

// Signal sends a signal ("TERM", "KILL", …) to the command and all that it
// started, and returns how many of these still live.
func (p *Process) Signal(ctx context.Context, signal string) (survivors int, err error) {
	return p.c.Signal(ctx, p.Exec, signal, true)
}

// Resize sets the size of its terminal.
func (p *Process) Resize(ctx context.Context, t TTY) error { return p.c.Resize(ctx, p.Exec, t) }

// Close leaves the command alone: it goes on, and what it writes is kept for a
// while. Reads and writes under way fail with ErrClosed.
func (p *Process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = ErrClosed
	}
	// The channel is open for as long as the line: what comes on it is granted
	// again at once, since a command must not wait for nobody.
	p.closed = true
	p.stdout.parts, p.stderr.parts = nil, nil
	p.read(p.unread)
	p.changed.Broadcast()
	return nil
}

// fail ends it behind what came, unless it has ended.
func (p *Process) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.changed.Broadcast()
}

// read notes that the reader took n bytes more, and grants them to the server
// again once they are worth a frame. p.mu is held.
func (p *Process) read(n int64) {
	p.unread -= n
	p.owed += n
	if p.owed < p.window/4 || p.line == nil {
		return
	}
	l, grant := p.line, binary.BigEndian.AppendUint32(frameHead(p.channel, streamCredit), uint32(p.owed))
	p.owed = 0
	go l.send(p.c.ctx, outgoing{binary: true, data: grant})
}

func (p *Process) attachParams() any {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Room for what the reader has not read is not given twice.
	p.asked = max(p.window-p.unread, 4<<10)
	return struct {
		Exec   string  `json:"exec"`
		From   Offsets `json:"from"`
		Window int64   `json:"window"`
	}{p.Exec, p.had, p.asked}
}

// opened takes a channel that was opened on l; the line's reader calls it,
// ahead of the channel's first frame. Where the process no longer wants it, what
// comes is granted again at once: a command must not wait for nobody.
func (p *Process) opened(l *line, o *opened) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Exec = o.Exec
	p.line, p.channel = l, o.Channel
	p.credit = p.asked
	p.owed = p.window - p.unread - p.asked // what was read since that was asked for
	p.gap(&p.stdout, o.Skipped.Stdout)
	p.gap(&p.stderr, o.Skipped.Stderr)
	p.had.Stdout += o.Skipped.Stdout
	p.had.Stderr += o.Skipped.Stderr
	if o.StdinTaken != nil {
		if !p.joined {
			p.before = *o.StdinTaken
		}
		p.took(*o.StdinTaken - p.before - p.taken)
	}
	p.joined = true
	p.sent, p.ended = p.taken, false // the rest is sent again
	p.closed = p.closed || p.err != nil
	p.read(0)
	p.changed.Broadcast()
}

func (p *Process) gap(s *pipe, n int64) {
	if n > 0 && !p.closed {
		s.parts = append(s.parts, part{gap: n})
	}
}

// took notes that the sandbox has n more bytes of stdin.
func (p *Process) took(n int64) {
	n = min(max(n, 0), int64(len(p.pending)))
	p.taken += n
	p.pending = p.pending[n:]
	p.sent = max(p.sent, p.taken)
}

// frame takes a frame of its channel; the line's reader calls it.
func (p *Process) frame(stream byte, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch stream {
	case streamStdout:
		p.had.Stdout += int64(len(payload))
		p.stdout.add(payload)
	case streamStderr:
		p.had.Stderr += int64(len(payload))
		p.stderr.add(payload)
	case streamCredit:
		if len(payload) == 4 {
			n := int64(binary.BigEndian.Uint32(payload))
			p.credit += n
			p.took(n)
		}
		p.changed.Broadcast()
		return
	default:
		return
	}
	p.unread += int64(len(payload))
	if p.closed {
		p.read(p.unread)
	}
	p.changed.Broadcast()
}

// add takes bytes that came; p.mu is held.
func (s *pipe) add(b []byte) {
	if !s.p.closed && len(b) > 0 {
		s.parts = append(s.parts, part{data: b})
	}
}

// skipped notes a gap that came in the middle.
func (p *Process) skipped(o Offsets) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap(&p.stdout, o.Stdout)
	p.gap(&p.stderr, o.Stderr)
	p.had.Stdout += o.Stdout
	p.had.Stderr += o.Stderr
	p.changed.Broadcast()
}

func (p *Process) exited(e *Exit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exit, p.line = e, nil
	p.changed.Broadcast()
}

// dropped notes that the line is gone, and has the streams joined anew.
func (p *Process) dropped() {
	p.mu.Lock()
	p.line = nil
	over := p.exit != nil || p.err != nil
	p.changed.Broadcast()
	p.mu.Unlock()
	if !over {
		go p.c.join(p.c.ctx, p, "exec.attach", p.attachParams(), nil) //nolint:errcheck // the process has it
	}
}

// Read reads what came of the stream.
func (s *pipe) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(s.parts) == 0 && p.exit == nil && p.err == nil {
		p.changed.Wait()
	}
	if len(s.parts) == 0 {
		if p.err != nil {
			return 0, p.err
		}
		return 0, io.EOF
	}
	first := &s.parts[0]
	if first.gap > 0 {
		s.parts = s.parts[1:]
		return 0, &GapError{first.gap}
	}
	n := copy(b, first.data)
	if first.data = first.data[n:]; len(first.data) == 0 {
		s.parts[0] = part{}
		s.parts = s.parts[1:]
	}
	p.read(int64(n))
	return n, nil
}

func frameHead(channel uint32, stream byte) []byte {
	return append(binary.BigEndian.AppendUint32(make([]byte, 0, 16), channel), stream)
}

// stdin is a process's standard input.
type stdin struct{ p *Process }

// Write returns once the input is taken over: what the sandbox did not get
// before a loss of the connection is sent again.
func (s stdin) Write(b []byte) (n int, err error) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		for p.exit == nil && p.err == nil && !p.closing && int64(len(p.pending)) >= p.window {
			p.changed.Wait()
		}
		switch {
		case p.err != nil:
			return n, p.err
		case p.exit != nil, p.closing:
			return n, io.ErrClosedPipe
		}
		k := int(min(int64(len(b)), p.window-int64(len(p.pending))))
		p.pending = append(p.pending, b[:k]...)
		b, n = b[k:], n+k
		p.feedLocked()
	}
	return n, nil
}

// Close ends the input behind what was written.
func (s stdin) Close() error {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.p.closing = true
	s.p.feedLocked()
	return nil
}

func (p *Process) feedLocked() {
	if !p.feeding {
		p.feeding = true
		go p.feed()
	}
	p.changed.Broadcast()
}

// feed sends what is pending as the server grants it, until the end.
func (p *Process) feed() {
	for {
		l, frame := p.nextInput()
		if frame == nil {
			return
		}
		l.send(p.c.ctx, outgoing{binary: true, data: frame})
	}
}

// nextInput waits for the next frame of stdin; nil: there is none any more.
func (p *Process) nextInput() (*line, []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.exit == nil && p.err == nil {
		rest := p.pending[p.sent-p.taken:]
		k := min(int64(len(rest)), p.credit, mostStdin)
		switch {
		case p.line == nil:
		case k > 0:
			p.sent += k
			p.credit -= k
			return p.line, append(frameHead(p.channel, streamStdin), rest[:k]...)
		case len(rest) == 0 && p.closing && !p.ended:
			p.ended = true
			return p.line, frameHead(p.channel, streamStdin)
		}
		p.changed.Wait()
	}
	return nil, nil
}
