// Package launch is the part of the local engine that runs apart from the
// server, in the guest's binary: the launcher of one sandbox, and the builder
// that becomes its PID 1.
//
// The launcher is a small process that outlives the server. It clones the
// builder into namespaces of its own, and both wait for a plan: processes are
// what takes time to start, so they may be started before anybody asks. Until
// there is a plan they are of no sandbox, and have nothing but a pipe whose end
// is theirs too. With it the launcher writes down what runs (Run) before it lets
// the builder go on, waits for its end, and writes down how it ended. A sandbox
// never runs unwatched: its PID 1 dies with its launcher.
//
// A plan may have a sandbox held: all of it is built, of empty files, its keeper
// is confined and has run a command of no effect, and it waits for a second plan, that
// says whose it is. Nothing of anybody's runs in it before that. What the second
// says beyond its name and its bounds must be what it was built by; else it ends.
//
// The builder puts together what the sandbox sees, gives up in every thread what
// PID 1 need not have, looks whether all of it is gone (rights, and files that are
// open), and goes on as the guest. It is executed from a mount that is
// read-only, as what a sandbox can reach must be. Any step that fails ends the
// start with that step's name: a sandbox is never weaker than it was asked to be.
package launch
