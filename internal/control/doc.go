// Package control is the control plane: it owns the domain's types and decides
// what happens to each environment. It speaks neither HTTP nor Docker nor
// bbolt; what it needs of them it states as small interfaces (Store, Engine,
// Guests, Alarms), which the packages around it fulfil.
//
// The unit of locking is the task, (owner, task): a turn belongs to it and so
// do its environments. A decision is made on copies under the task's lock,
// committed, and only then applied to memory: what anybody can read or was
// told is on disk. No lock is held while the engine or a guest is asked.
package control
