package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"

	"sandkeeper/internal/control"
	"sandkeeper/internal/guest/link"
)

// attach reaches the guest through PID 1's stdin and stdout.
func (e *Engine) attach(ctx context.Context, name string, s *sandbox) (io.ReadWriteCloser, error) {
	hijacked, err := e.api.client(ctx).ContainerAttach(ctx, s.id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true})
	if err != nil {
		if _, found, gone := e.inspect(ctx, name); gone != nil || !found.State.Running {
			return nil, fmt.Errorf("container %s does not run: %w", name, control.ErrNoSandbox)
		}
		return nil, fault("container attach", err)
	}
	conn, err := link.Attached(ctx, newAttachment(hijacked))
	if err != nil {
		hijacked.Close()
		return nil, fmt.Errorf("guest attach: %w: %w", control.ErrGuestUnreachable, err)
	}
	return conn, nil
}

// attachment is a container's stdin for writing and its stdout for reading. The
// engine sends output in frames: a byte for the stream, three of nothing, the
// length in four, the bytes.
type attachment struct {
	hijacked types.HijackedResponse
	r        *bufio.Reader
	left     uint32 // bytes of the current frame still to be read
}

const stdoutStream = 1

func newAttachment(h types.HijackedResponse) *attachment {
	return &attachment{hijacked: h, r: bufio.NewReaderSize(h.Reader, 64<<10)}
}

// Read reads stdout. Other streams are skipped.
func (a *attachment) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for a.left == 0 {
		var header [8]byte
		if _, err := io.ReadFull(a.r, header[:]); err != nil {
			return 0, err
		}
		size := binary.BigEndian.Uint32(header[4:])
		if header[0] == stdoutStream {
			a.left = size
			continue
		}
		if _, err := io.CopyN(io.Discard, a.r, int64(size)); err != nil {
			return 0, unexpected(err)
		}
	}
	n, err := a.r.Read(p[:min(uint32(len(p)), a.left)])
	a.left -= uint32(n)
	if a.left > 0 {
		err = unexpected(err)
	}
	return n, err
}

// Write writes to stdin.
func (a *attachment) Write(p []byte) (int, error) { return a.hijacked.Conn.Write(p) }

// Close ends the attachment; the container's stdin stays open.
func (a *attachment) Close() error { return a.hijacked.Conn.Close() }

// unexpected is for an end in the middle of a frame.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
