// Package launch is the part of the local engine that runs apart from the
// server, in the guest's binary: the launcher of one sandbox, and the builder
// that becomes its PID 1.
//
// The launcher is a small process that outlives the server. It clones the
// builder into namespaces of its own, writes down what runs (Run) before it lets
// the builder go on, waits for its end, and writes down how it ended. A sandbox
// never runs unwatched: its PID 1 dies with its launcher.
//
// The builder puts together what the sandbox sees, gives up what PID 1 need not
// have, and executes the guest. Any step that fails ends the start with that
// step's name: a sandbox is never weaker than it was asked to be.
package launch
