package control

// Event is one line of the durable log. Seq has no gaps and outlives restarts.
type Event struct {
	Seq    uint64         `json:"seq"`
	Time   Time           `json:"time"`
	Kind   EventKind      `json:"kind"`
	Env    string         `json:"env,omitempty"`
	Owner  string         `json:"owner,omitempty"`
	Task   string         `json:"task,omitempty"`
	Name   string         `json:"name,omitempty"`
	Actor  string         `json:"actor"`
	Reason string         `json:"reason,omitempty"`
	Data   map[string]any `json:"data,omitempty"`
}

// EventKind names what happened.
type EventKind string

// The kinds of events.
const (
	EnvStarting  EventKind = "env.starting"
	EnvReady     EventKind = "env.ready"
	EnvResumed   EventKind = "env.resumed"
	EnvRecreated EventKind = "env.recreated"
	EnvChanged   EventKind = "env.changed"
	EnvStopping  EventKind = "env.stopping"
	EnvDormant   EventKind = "env.dormant"
	EnvRemoved   EventKind = "env.removed"
	EnvFailed    EventKind = "env.failed"
	EnvLost      EventKind = "env.lost"
	EnvPinned    EventKind = "env.pinned"
	EnvUnpinned  EventKind = "env.unpinned"
	EnvTouched   EventKind = "env.touched"
	EnvExpiring  EventKind = "env.expiring"

	TurnBegan  EventKind = "turn.began"
	TurnEnded  EventKind = "turn.ended"
	TurnLapsed EventKind = "turn.lapsed"

	ReaperStopped EventKind = "reaper.stopped"
	ReaperRemoved EventKind = "reaper.removed"
	ReaperPurged  EventKind = "reaper.purged"
	ReaperRetry   EventKind = "reaper.retry"

	OrphanFound   EventKind = "orphan.found"
	OrphanAdopted EventKind = "orphan.adopted"
	OrphanRemoved EventKind = "orphan.removed"

	ImagePulling EventKind = "image.pulling"
	ImagePulled  EventKind = "image.pulled"

	AgentConnected    EventKind = "agent.connected"
	AgentResumed      EventKind = "agent.resumed"
	AgentDisconnected EventKind = "agent.disconnected"
	AgentAbandoned    EventKind = "agent.abandoned"

	EngineDown EventKind = "engine.down"
	EngineUp   EventKind = "engine.up"

	ClockJumped     EventKind = "clock.jumped"
	OperatorLogin   EventKind = "operator.login"
	OperatorRefused EventKind = "operator.refused"
	ServerStarted   EventKind = "server.started"
	ServerStopping  EventKind = "server.stopping"
)

// The actors that are nobody's name.
const (
	ActorReaper     = "reaper"
	ActorReconciler = "reconciler"
	ActorServer     = "server"
)

// EventFilter narrows a reading of the log. Empty fields match all.
type EventFilter struct {
	Env   string
	Owner string
	Kind  EventKind
}
