package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
)

// Whatever a server sends breaks no client: its calls get an answer each or
// none, and a stream has no byte that did not come.
func FuzzServer(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{"exec":"x","exit_code":0,"stdout":"a","stderr_base64":"/w==","truncated":{"stdout":1,"stderr":0},"duration_ms":5}}`), []byte("\x00\x00\x00\x01\x01abc"))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":-32011,"message":"m","data":{"kind":"generation_gone","retry_after_ms":9223372036854775807,"tombstone":{"at":"x"}}}}`), []byte("\x00\x00\x00\x01\x03\xff\xff\xff\xff"))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"exec.exit","params":{"exec":"x","channel":1,"exit_code":null,"env_lost":{"reason":"r","tombstone":null},"duration_ms":1}}`), []byte("\x00\x00\x00\x02\x00"))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"exec.gap","params":{"channel":1,"skipped":{"stdout":-5,"stderr":9223372036854775807}}}`), []byte("\x00\x00\x00\x01\x02abc"))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"exec.detached","params":{"channel":1,"error":{"code":-32603,"message":"m","data":{"kind":"internal"}}}}`), []byte{})
	f.Add([]byte(`{"jsonrpc":"2.0","method":"env.state","params":{"env":{"id":"e","holds":[{"until":null}],"deadline":null}}}`), []byte{0})
	f.Add([]byte(`{"jsonrpc":"2.0","method":"event","params":{"seq":1,"kind":"env.ready","data":{"a":[1]}}}`), []byte{})
	f.Add([]byte(`{"id":"1","result":null}`), []byte{})
	f.Fuzz(func(t *testing.T, text, binary []byte) {
		var m message
		if json.Unmarshal(text, &m) != nil {
			return // ends the connection
		}
		o := Options{OnEnvState: func(Env) {}, OnEnvExpiring: func(Expiring) {}}
		ctx, stop := context.WithCancel(t.Context())
		c := &Client{ctx: ctx, stop: stop, notes: newNotes(o), calls: map[string]*call{}, channels: map[uint32]*Process{}}
		w := &call{method: "exec.run", answer: make(chan outcome, 1)}
		c.calls["1"] = w
		p := newProcess(c, 1<<10)
		c.channels[1] = p

		c.frame(binary)
		c.receive(&line{}, m)
		c.frame(binary)
		select {
		case got := <-w.answer:
			var run RunResult
			var exit Exit
			var env struct{ Env Env }
			for _, v := range []any{&run, &exit, &env} {
				json.Unmarshal(got.result, v) //nolint:errcheck // an error is the caller's
			}
		default:
		}
		p.fail(io.ErrUnexpectedEOF)
		came := 0
		for _, r := range []io.Reader{p.Stdout(), p.Stderr()} {
			b := make([]byte, 16)
			for {
				n, err := r.Read(b)
				came += n
				if _, gap := errors.AsType[*GapError](err); err != nil && !gap {
					break
				}
			}
		}
		if came > 2*len(binary) {
			t.Fatalf("%d bytes came of %d", came, 2*len(binary))
		}
		stop()
		c.notes.close()
	})
}
