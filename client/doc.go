// Package client is how an agent in Go talks to Sandkeeper: it acquires
// sandboxes for its tasks, runs commands and moves files in them, and says when
// a turn has begun and ended.
//
// A Client keeps one connection. When that drops, it dials again with growing
// pauses, resumes its session, and asks again what may be asked twice without
// harm: a command is named by an id, so that the server never runs it a second
// time; an end of turn carries the number of its turn. What may not be repeated
// and was under way fails with ErrDropped. Calls made meanwhile wait for the
// connection, as long as their context lets them.
//
// Run brings a command's whole result at once. Start and Attach bring a Process,
// whose streams are an io.Reader each and an io.Writer. They outlive the
// connection as well: a reader sees each byte once, or is told how many bytes
// the server no longer had.
//
// Failures that the server reports are of type *Error; errors.Is matches their
// kind:
//
//	if errors.Is(err, client.KindNotFound) { … }
//	if e, ok := errors.AsType[*client.Error](err); ok && e.Tombstone != nil { … }
//
// The end of a call's context ends the waiting alone: what was asked goes on.
package client
