// Package link carries byte streams between the control plane and the guest of
// a sandbox, over one of two ways. Both ends of both are here.
//
// The socket. Where engine and control plane share a machine, Listen makes a
// unix socket and a nonce in a directory of the sandbox's own, which is mounted
// in it read-only. The guest dials in (DialIn), and keeps one connection more
// than are in use, so that Dial claims one without waiting. A connection counts
// only once the guest has sent back the nonce of its mount; who it comes from
// is the caller's to check by the peer's process id.
//
// The attach. Elsewhere the stream is an attach to the stdin and stdout of
// PID 1. All attaches share these two, and each sees all output, so that every
// stream gets a random session number and travels in frames (Attached,
// ServeAttached). Frames carry checksums and sequence numbers: bytes that others
// write in between are skipped, and a session that lost some is broken off, not
// silently mended.
//
// On failure: a stream that broke says so on Read or Write and is to be dialled
// anew; nothing is retried here but the guest's dialling in, which goes on for
// as long as the guest lives. What comes from a sandbox is untrusted: sizes and
// counts are bounded before anything is kept.
package link
