// Package docker runs sandboxes as containers of an engine that speaks the
// Docker API, version 1.41 and on.
//
// Each sandbox is one container, named as the plane says, and one named volume
// NAME-workspace mounted at /workspace. PID 1 is our guest, from one volume per
// instance that every container mounts read-only. Nothing in a container is
// privileged; create.go is the whole of what a sandbox is allowed.
//
// Policy on failure: an engine that does not answer, or not in time, is
// control.ErrEngineUnavailable and says nothing about any sandbox. Only "not
// found" means gone. What does not carry this instance's label is never
// touched, also where its name is one of ours. Calls are not retried here; each
// may be repeated.
package docker
