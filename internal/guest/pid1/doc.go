// Package pid1 is the guest as it runs in a sandbox: the init that reaps, runs
// commands each below a keeper, keeps their output, and serves files.
//
// It writes nothing to the root file system and needs nothing of the image but,
// for shell text, a shell. Commands and file calls have the rights of the
// image's user; the guest itself is root. All that it remembers is bounded:
// output by a budget for the sandbox (budget), records of ended commands by
// count, and answers to calls that must not happen twice by count.
//
// On failure: a command that cannot be started ends as in a shell, with 127 or
// 126 and a line on its stderr. A keeper that is killed ends its command as
// killed, and what ran below it is killed too: nothing runs that no name reaches.
// A call that panics fails alone. When the control plane is gone, commands go on
// and their output is kept.
package pid1
