"""What can fail. What the server reports is a ServerError, of the class of its kind."""

from __future__ import annotations

from typing import Any

from .wire import Tombstone


class SandkeeperError(Exception):
    """Any failure of this package's."""


class Closed(SandkeeperError):
    """The client, the process or the subscription was closed."""


class Dropped(SandkeeperError):
    """The connection dropped under a call that may not be repeated, or did not come back in time.

    Whether the call was done is not known.
    """


class TakenOver(SandkeeperError):
    """A newer connection has the session."""


class TooBig(SandkeeperError):
    """The call is larger than the server takes."""


class HandshakeRefused(SandkeeperError):
    """The server refused the connection: `status` is HTTP's (401: the token, 403: its role)."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server refused the connection: {status}")
        self.status = status


class GapError(SandkeeperError):
    """`size` bytes of `stream` are no longer kept; reading goes on behind them."""

    def __init__(self, stream: str, size: int) -> None:
        super().__init__(f"{size} bytes of {stream} are no longer kept")
        self.stream = stream
        self.size = size


class EventsLost(SandkeeperError):
    """The log no longer reaches back to where the reader was; reading goes on with what there is."""


class ServerError(SandkeeperError):
    """What the server answered instead of a result."""

    def __init__(self, method: str, error: dict[str, Any]) -> None:
        data = error.get("data")
        self.method = method
        self.code = int(error.get("code", 0))
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.kind = str(self.data.get("kind", ""))
        super().__init__(f"{method}: {error.get('message') or self.kind}")

    @property
    def retry_after(self) -> float | None:
        """Seconds after which it is worth another try, where the server says so."""
        ms = self.data.get("retry_after_ms")
        return None if ms is None else float(ms) / 1000


class InvalidRequest(ServerError):
    """What was sent is no request."""


class InvalidParams(ServerError):
    """The server does not take these parameters."""

    @property
    def field(self) -> str | None:
        """The parameter that is wrong, where it is one alone."""
        return self.data.get("field")

    @property
    def errno(self) -> str | None:
        """The file system's own reason ("EISDIR", "EACCES", ...), where that refused."""
        return self.data.get("errno")


class UnknownMethod(ServerError):
    """This server does not have the method; hello's features lists those it has."""


class HelloRequired(ServerError):
    """A call before hello."""


class Forbidden(ServerError):
    """The token's role may not."""


class NotFound(ServerError):
    """No such environment, command, task or file of this owner's."""


class GenerationGone(ServerError):
    """The sandbox was replaced or removed; `tombstone` says how."""

    @property
    def tombstone(self) -> Tombstone | None:
        return self.data.get("tombstone")


class QuotaExceeded(ServerError):
    """Over a limit on environments, commands or bytes."""


class EngineUnavailable(ServerError):
    """The engine does not answer; see retry_after."""


class ImageUnavailable(ServerError):
    """The image is not here and cannot be pulled."""


class Conflict(ServerError):
    """It contradicts what is there: a pin, drift, or an id of another command."""

    @property
    def drift(self) -> list[str]:
        """Of an acquire: the fields that differ."""
        return self.data.get("drift") or []


class Draining(ServerError):
    """The server is going down."""


_KINDS: dict[str, type[ServerError]] = {
    "invalid_request": InvalidRequest,
    "invalid_params": InvalidParams,
    "unknown_method": UnknownMethod,
    "hello_required": HelloRequired,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "generation_gone": GenerationGone,
    "quota_exceeded": QuotaExceeded,
    "engine_unavailable": EngineUnavailable,
    "image_unavailable": ImageUnavailable,
    "conflict": Conflict,
    "draining": Draining,
}


def server_error(method: str, error: dict[str, Any]) -> ServerError:
    """The error of the class of its kind; of an unknown kind, a ServerError."""
    data = error.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    return _KINDS.get(str(kind), ServerError)(method, error)
