package control

// Event is one line of the durable log, as it is kept. Seq has no gaps and outlives restarts.
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

// EventView is an event as clients read it: every member is there.
type EventView struct {
	Seq    uint64         `json:"seq"`
	Time   Time           `json:"time"`
	Kind   EventKind      `json:"kind"`
	Env    *string        `json:"env"` // null, as the next three: it is about none
	Owner  *string        `json:"owner"`
	Task   *string        `json:"task"`
	Name   *string        `json:"name"`
	Actor  string         `json:"actor"`
	Reason string         `json:"reason"` // "": none was given
	Data   map[string]any `json:"data"`   // never null
}

// View is the event as clients read it.
func (e *Event) View() EventView {
	some := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	v := EventView{Seq: e.Seq, Time: e.Time, Kind: e.Kind, Env: some(e.Env), Owner: some(e.Owner), Task: some(e.Task), Name: some(e.Name), Actor: e.Actor, Reason: e.Reason, Data: e.Data}
	if v.Data == nil {
		v.Data = map[string]any{}
	}
	return v
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
