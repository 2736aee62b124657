"""Terminal sandboxes for AI agents: the client of a Sandkeeper server.

`AsyncClient` is the asyncio client, `Client` the same for plain synchronous
code, and `sandkeeper.adapter.Terminal` what an agent framework's terminal tool
needs. Each keeps one connection; when it drops, it dials again with growing
pauses and resumes its session, its streams and its events. A command carries an
id, so that a call that is asked again never runs it twice. What may not be asked
again and was under way fails with `Dropped`.

`sandkeeper.wire` has the types of what the server tells.
"""

from .aio import AsyncClient, Command, Ref, RunResult, Task
from .errors import (
    Closed,
    Conflict,
    Draining,
    Dropped,
    EngineUnavailable,
    EventsLost,
    Forbidden,
    GapError,
    GenerationGone,
    HandshakeRefused,
    HelloRequired,
    ImageUnavailable,
    InvalidParams,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    SandkeeperError,
    ServerError,
    TakenOver,
    TooBig,
    UnknownMethod,
)
from .events import Events
from .process import Output, Process
from .sync import Client, SyncEvents, SyncProcess

__all__ = [
    "AsyncClient",
    "Client",
    "Closed",
    "Command",
    "Conflict",
    "Draining",
    "Dropped",
    "EngineUnavailable",
    "Events",
    "EventsLost",
    "Forbidden",
    "GapError",
    "GenerationGone",
    "HandshakeRefused",
    "HelloRequired",
    "ImageUnavailable",
    "InvalidParams",
    "InvalidRequest",
    "NotFound",
    "Output",
    "Process",
    "QuotaExceeded",
    "Ref",
    "RunResult",
    "SandkeeperError",
    "ServerError",
    "SyncEvents",
    "SyncProcess",
    "TakenOver",
    "Task",
    "TooBig",
    "UnknownMethod",
]
