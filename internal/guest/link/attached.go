package link

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Attached makes a stream to the guest of an attach to PID 1's stdin (Write)
// and stdout (Read), already demultiplexed. It returns once the guest has
// answered; ctx bounds that alone. Closing the stream closes rw. Its Read must
// be called all the time: a reader that pauses holds up every other attach.
func Attached(ctx context.Context, rw io.ReadWriteCloser) (io.ReadWriteCloser, error) {
	var id [8]byte
	rand.Read(id[:])
	a := &attached{
		rw: rw,
		in: newFrameReader(bufio.NewReaderSize(rw, readBuffer)),
		out: frameWriter{
			w: rw, session: binary.BigEndian.Uint64(id[:]), maxPayload: maxStdinPayload,
		},
	}
	stop := context.AfterFunc(ctx, func() { rw.Close() })
	err := a.open()
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		rw.Close()
		return nil, fmt.Errorf("attach to guest: %w", err)
	}
	return a, nil
}

type attached struct {
	rw  io.ReadWriteCloser
	in  *frameReader
	seq uint32 // of the next frame to come
	err error  // why reading is over

	mu  sync.Mutex // guards out: one frame at a time
	out frameWriter
}

func (a *attached) open() error {
	if err := a.out.send(kindOpen, nil); err != nil {
		return err
	}
	for {
		h, err := a.in.next()
		if err != nil {
			return err
		}
		if h.session == a.out.session && h.kind == kindOpened {
			return nil
		}
		if err := a.in.skip(); err != nil {
			return err
		}
	}
}

// Read is for one goroutine.
func (a *attached) Read(p []byte) (int, error) {
	if len(p) == 0 || a.err != nil {
		return 0, a.err
	}
	n, err := a.read(p)
	a.err = err
	return n, err
}

func (a *attached) read(p []byte) (int, error) {
	for a.in.left == 0 {
		h, err := a.in.next()
		if err != nil {
			return 0, err
		}
		if h.session != a.out.session {
			if err := a.in.skip(); err != nil {
				return 0, err
			}
			continue
		}
		switch h.kind {
		case kindData:
			if h.seq != a.seq {
				return 0, errLost
			}
			a.seq++
		case kindClose:
			return 0, io.EOF
		default:
			if err := a.in.skip(); err != nil {
				return 0, err
			}
		}
	}
	return a.in.Read(p)
}

// Write sends p in frames that one write to a pipe takes whole.
func (a *attached) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out.Write(p)
}

func (a *attached) Close() error {
	if a.mu.TryLock() { // a Write that hangs is ended by the close below
		a.out.send(kindClose, nil)
		a.mu.Unlock()
	}
	return a.rw.Close()
}
