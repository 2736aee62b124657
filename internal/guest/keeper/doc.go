// Package keeper is the process between PID 1 and one command, and PID 1's
// handle on it.
//
// A keeper is a child subreaper: whatever descends from its command stays below
// it, also what forks twice, leaves its session, clears its environment or
// changes its user. It does three things, one after the other, and so gets by
// with one thread of its own: it waits for a command, starts it, and reaps until
// the kernel says that it has no child left (ECHILD). That word of the kernel's
// is how the end of a tree is known; then it takes the next command. Signals are
// PID 1's to send.
//
// On failure: a command that cannot be started is an errno in the reply, and the
// keeper takes the next. A keeper that is killed closes its socket (Lost), and
// what ran below it becomes PID 1's. When PID 1 goes, the kernel ends all.
package keeper
