"""Terminal sandboxes for AI agents: the client of a Sandkeeper server.

`AsyncClient` is the asyncio client, `Client` the same for plain synchronous
code. Both keep one connection; when it drops they dial again with growing
pauses and resume their session. A command carries an id, so that a call that is
repeated never runs it twice. What may not be repeated and was under way fails
with `Dropped`.
"""

from .aio import AsyncClient, RunResult, Task, connect
from .errors import (
    Closed,
    Conflict,
    Draining,
    Dropped,
    EngineUnavailable,
    Forbidden,
    GapError,
    GenerationGone,
    HandshakeRefused,
    HelloRequired,
    ImageUnavailable,
    InvalidParams,
    NotFound,
    NotificationsLost,
    QuotaExceeded,
    SandkeeperError,
    ServerError,
    TakenOver,
    UnknownMethod,
)
from .process import Process
from .sync import Client, SyncProcess

__all__ = [
    "AsyncClient",
    "Client",
    "Closed",
    "Conflict",
    "Draining",
    "Dropped",
    "EngineUnavailable",
    "Forbidden",
    "GapError",
    "GenerationGone",
    "HandshakeRefused",
    "HelloRequired",
    "ImageUnavailable",
    "InvalidParams",
    "NotFound",
    "NotificationsLost",
    "Process",
    "QuotaExceeded",
    "RunResult",
    "SandkeeperError",
    "ServerError",
    "SyncProcess",
    "TakenOver",
    "Task",
    "UnknownMethod",
    "connect",
]
