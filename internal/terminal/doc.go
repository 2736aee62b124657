// Package terminal is the user's own end of a terminal session: the device
// that keys come from and that the output goes to.
//
// While it is open the device is raw, so that every key goes through. Restore
// gives it back as it was: its line discipline, and what programs changed of it
// by escape sequences in the output and did not live to change back (the
// alternate screen, a hidden cursor, mouse reports, how keys are encoded).
package terminal
