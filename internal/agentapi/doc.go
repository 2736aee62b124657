// Package agentapi is the agents' websocket: JSON-RPC 2.0 in text frames over
// the control plane's sessions. It owns the wire (shapes, types, codes, order,
// flow) and leaves every meaning to the plane.
//
// Shape comes first: a request that is no JSON, no request, of an unknown
// method, with an unknown field or a wrong type is refused here before anything
// is looked up. Then the environment is looked up, and only then the meaning of
// the other params is judged.
//
// One goroutine reads a socket, one writes it, and each call has its own. What
// is under way on one socket is bounded: past the bound on calls that wait for
// a sandbox the next is refused, past that on quick calls the socket is not
// read until one was answered. An answer counts until it is written, so a peer
// that does not read cannot make the server's memory grow. Notifications of one
// environment's state merge once more than a few wait.
//
// A channel carries the streams of one exec. Its pump reads ahead one buffer,
// waits for its credit and for room among what waits to be written, and so slows
// its own command down, as behind any full pipe. What a client sends to a
// command waits in a bounded buffer of the channel; past that the socket is not
// read, and no heartbeat counts as missed. Channels and subscriptions end with
// the socket; commands do not.
//
// A peer that for two heartbeats neither sends a byte nor takes one is dead; its
// socket is closed without ceremony, its session and its commands go on. Calls
// under way when a socket goes have a moment to reach the disk before the
// waiting for them ends.
package agentapi
