// Package local runs sandboxes on Linux with nothing installed: a directory and
// a process tree for each, in namespaces of their own.
//
// A sandbox sees the host's programs and their configuration (/usr, /etc, /opt
// and the like) and nothing else of the host: no home, no data, no socket under
// /run, no other sandbox, no process but its own. As root its root file system
// is an overlay, so that what it changes is its own and is kept; what others of
// the host may not read is hidden from it. As an ordinary user the host's files
// are read-only, and nothing but /workspace and /root is kept. Network "default" is the
// host's own.
//
// PID 1 is our guest. Around it stands a launcher (package launch), which
// outlives the server once it has a sandbox, so that a server that starts finds what runs, and how
// what ended did end, in files. Processes are named by id and start, so that
// none of another's is ever signalled.
//
// Of each network that was asked for, a launcher is held ready, and a whole
// sandbox that is nobody's yet (held): empty files and waiting processes, which a new sandbox
// takes over by renaming the directory. One that shows other than what a sandbox is to see now, or is
// gone, is not used: the start goes on without it. What is held ends with the
// server, however that ends; what is left of it goes with the next.
//
// Policy on failure: where namespaces cannot be had, New fails; nothing ever
// runs with less around it than Info says. Limits are enforced by control groups where
// these can be written; others are told. What cannot be removed is an error,
// and is tried again by whoever asked.
package local
