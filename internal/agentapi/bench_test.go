package agentapi

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"nhooyr.io/websocket"

	"sandkeeper/internal/control"
)

// BenchmarkCall is the socket's own part of a call: there and back over
// loopback, with a plane that answers at once.
func BenchmarkCall(b *testing.B) {
	for name, frame := range map[string]string{
		"env.get":  `{"jsonrpc":"2.0","id":1,"method":"env.get","params":{"env":"e1"}}`,
		"exec.run": `{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"env":"e1","argv":["true"]}}`,
	} {
		b.Run(name, func(b *testing.B) {
			conn := benchSocket(b, newFake())
			b.ReportAllocs()
			for b.Loop() {
				exchange(b, conn, frame)
			}
		})
	}
}

// BenchmarkOutput is how fast the output of commands comes through, 400,000 bytes a stream.
func BenchmarkOutput(b *testing.B) {
	f := newFake()
	text := []byte(strings.Repeat("a line of sixty-four characters of output, as they often come.\n", 6250))
	f.run = func(context.Context, control.RunRequest) (control.Ran, error) {
		return control.Ran{End: control.ExecEnd{Stdout: text, Stderr: text}}, nil
	}
	conn := benchSocket(b, f)
	b.SetBytes(int64(2 * len(text)))
	for b.Loop() {
		exchange(b, conn, `{"jsonrpc":"2.0","id":1,"method":"exec.run","params":{"env":"e1","argv":["true"]}}`)
	}
}

// BenchmarkIdleSocket tells what an idle agent costs the server in memory; both
// ends are in this process.
func BenchmarkIdleSocket(b *testing.B) {
	const agents = 500
	f := newFake()
	f.gone = make(chan control.Sink, agents)
	s := serve(b, func(o *Options) { o.Plane = f })
	var before, after runtime.MemStats
	for b.Loop() {
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range agents {
			s.connect(b)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
	}
	used := (after.HeapInuse + after.StackInuse) - (before.HeapInuse + before.StackInuse)
	b.ReportMetric(float64(used)/agents/1024, "KiB/agent")
}

func benchSocket(b *testing.B, f *fakePlane) *websocket.Conn {
	b.Helper()
	s := serve(b, func(o *Options) { o.Plane = f })
	p := s.connect(b)
	return p.conn
}

func exchange(b *testing.B, conn *websocket.Conn, frame string) {
	b.Helper()
	if err := conn.Write(b.Context(), websocket.MessageText, []byte(frame)); err != nil {
		b.Fatal(err)
	}
	_, r, err := conn.Reader(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var buf [32 << 10]byte
	for err == nil {
		_, err = r.Read(buf[:])
	}
}
