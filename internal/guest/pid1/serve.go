package pid1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"

	"sandkeeper/internal/guest/wire"
)

var features = []string{"execs", "files", wire.FeatureStreams, wire.FeatureTTY, wire.FeatureFiles}

// Guest is what a control plane calls.
type Guest struct {
	run    string // names this life of the guest
	runner *runner
	files  *files
	once   onceOnly
}

// Serve answers calls on one connection of a control plane, until that or ctx
// ends. It closes conn.
func (g *Guest) Serve(ctx context.Context, conn io.ReadWriteCloser) {
	mux, err := wire.Server(conn)
	if err != nil {
		conn.Close()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { mux.Close() })
	var wg sync.WaitGroup
	for {
		s, err := mux.AcceptStream()
		if err != nil {
			break
		}
		wg.Go(func() {
			defer s.Close()
			g.stream(ctx, s)
		})
	}
	cancel()
	stop()
	mux.Close()
	wg.Wait()
}

// caller is one stream of a control plane.
type caller struct {
	*bufio.Reader
	peeking chan struct{} // closed once nothing else reads
}

// stream answers the calls of one stream, one after the other.
func (g *Guest) stream(ctx context.Context, s *wire.Stream) {
	in := &caller{Reader: bufio.NewReaderSize(s, 512)}
	for {
		if in.peeking != nil {
			<-in.peeking
			in.peeking = nil
		}
		var req wire.Request
		payload, err := wire.Read(in, &req, wire.MaxPayload)
		if err != nil {
			return
		}
		if req.Method == wire.MethodAttach {
			if !g.attach(ctx, in, s, &req) {
				return
			}
			continue
		}
		if req.Method == wire.MethodOpen || req.Method == wire.MethodCreate {
			if !g.transfer(ctx, in, s, &req) {
				return
			}
			continue
		}
		resp, data := g.answer(ctx, in, &req, payload)
		if err := wire.Write(s, resp, data...); err != nil {
			return
		}
	}
}

// answer answers one call. A call that panics fails alone.
func (g *Guest) answer(ctx context.Context, in *caller, req *wire.Request, payload []byte) (resp *wire.Response, data [][]byte) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "sandkeeper: call %s: %v\n%s", req.Method, p, debug.Stack())
			resp, data = failure(errors.New("the guest failed")), nil
		}
	}()
	resp = new(wire.Response)
	var err error
	switch req.Method {
	case wire.MethodHello:
		resp.Version, resp.Features, resp.Run = wire.Version, features, g.run
	case wire.MethodPing:
	case wire.MethodStart:
		if req.Start == nil {
			return failure(&wire.Error{Code: wire.CodeInvalid, Message: "no start"}), nil
		}
		if run := req.Start.Run; run != "" && run != g.run {
			return failure(&wire.Error{Code: wire.CodeRun, Message: "this is another run of the sandbox"}), nil
		}
		resp.Started, err = g.runner.start(ctx, req.Start, payload)
	case wire.MethodWait:
		err = in.whileOpen(ctx, func(ctx context.Context) error {
			var out, errs []byte
			resp.End, out, errs, err = g.runner.wait(ctx, req.Exec, req.Limit)
			data = [][]byte{out, errs}
			return err
		})
	case wire.MethodGone:
		err = in.whileOpen(ctx, func(ctx context.Context) error { return g.runner.gone(ctx, req.Exec) })
	case wire.MethodSignal:
		err = in.whileOpen(ctx, func(ctx context.Context) error {
			resp.Survivors, err = g.runner.signal(ctx, req.Exec, req.Signal, req.Tree)
			return err
		})
	case wire.MethodClose:
		err = g.runner.closeStdin(req.Exec)
	case wire.MethodResize:
		err = g.runner.resize(req.Exec, req.TTY)
	case wire.MethodExecs:
		resp.Execs = g.runner.list()
	case wire.MethodRead:
		var b []byte
		resp.Chunk, b, err = g.files.read(req.Path, req.Offset, req.Length)
		data = [][]byte{b}
	case wire.MethodList:
		resp.Files, err = g.files.list(req.Path)
	case wire.MethodStat:
		var f wire.File
		f, err = g.files.stat(req.Path)
		resp.Files = []wire.File{f}
	case wire.MethodWrite, wire.MethodRemove, wire.MethodMkdir:
		return g.once.do(req.Call, func() *wire.Response { return g.change(req, payload) }), nil
	default:
		err = &wire.Error{Code: wire.CodeUnknown, Message: "this guest does not know the call"}
	}
	if err != nil {
		return failure(err), nil
	}
	return resp, data
}

// change does a file call that must not be done twice.
func (g *Guest) change(req *wire.Request, payload []byte) *wire.Response {
	resp := new(wire.Response)
	var err error
	switch req.Method {
	case wire.MethodWrite:
		resp.Size, err = g.files.write(req, payload)
	case wire.MethodRemove:
		err = g.files.remove(req.Path, req.Recursive)
	case wire.MethodMkdir:
		err = g.files.mkdir(req.Path, req.Recursive)
	}
	if err != nil {
		return failure(err)
	}
	return resp
}

func failure(err error) *wire.Response {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return &wire.Response{Error: e}
	}
	return &wire.Response{Error: &wire.Error{Code: wire.CodeFailed, Message: err.Error()}}
}

// whileOpen calls fn with a context that ends when the caller closes its stream.
// What the caller sends instead is its next request, and stays in the buffer.
func (c *caller) whileOpen(ctx context.Context, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	peeking := make(chan struct{})
	c.peeking = peeking
	go func() {
		defer close(peeking)
		if _, err := c.Peek(1); err != nil {
			cancel()
		}
	}()
	return fn(ctx)
}

// onceOnly remembers the answers to calls that must not take effect twice,
// since a control plane repeats a call whose answer was lost on the way.
type onceOnly struct {
	mu    sync.Mutex // guards the fields below
	calls map[string]*onceCall
	order []string
}

type onceCall struct {
	done chan struct{}
	resp *wire.Response
}

const maxOnce = 256

// do calls fn, or returns what an earlier do of that name did. Without a name there is no memory.
func (o *onceOnly) do(name string, fn func() *wire.Response) *wire.Response {
	if name == "" {
		return fn()
	}
	o.mu.Lock()
	if c := o.calls[name]; c != nil {
		o.mu.Unlock()
		<-c.done
		return c.resp
	}
	c := &onceCall{done: make(chan struct{}), resp: failure(errors.New("the guest failed"))}
	if o.calls == nil {
		o.calls = make(map[string]*onceCall)
	}
	o.calls[name] = c
	o.order = append(o.order, name)
	if len(o.order) > maxOnce {
		delete(o.calls, o.order[0])
		o.order = o.order[1:]
	}
	o.mu.Unlock()
	defer close(c.done)
	c.resp = fn()
	return c.resp
}
