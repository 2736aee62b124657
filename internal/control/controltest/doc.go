// Package controltest has stand-ins for what the control plane needs of the
// world: an engine, guests, alarms and a store. They keep everything in memory
// and wait on channels and timers alone, so that a test in a synctest bubble
// decides about time. Faults are injected with Faults, which the engine and the
// guests embed; a fault never happens by itself.
package controltest
