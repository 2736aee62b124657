"""The websocket: what differs between versions of the websockets package stays here."""

from __future__ import annotations

import importlib
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from .errors import HandshakeRefused, SandkeeperError

try:  # websockets 13 and later
    _module = importlib.import_module("websockets.asyncio.client")
    _HEADERS = "additional_headers"
except ImportError:
    _module = importlib.import_module("websockets.legacy.client")
    _HEADERS = "extra_headers"
_connect: Any = _module.connect

SUBPROTOCOL = "sandkeeper.v1"
TAKEN_OVER = 4001
MOST_BYTES = 256 << 20  # of one message of the server's


async def dial(url: str, headers: dict[str, str]) -> Any:
    """Opens the socket. A refusal that no repetition helps is HandshakeRefused."""
    options: dict[str, Any] = {
        _HEADERS: headers,
        "subprotocols": [SUBPROTOCOL],
        "compression": None,
        "max_size": MOST_BYTES,
        "ping_interval": 20,
        "ping_timeout": 20,
        "close_timeout": 2,
    }
    try:
        return await _connect(url, **options)
    except InvalidHandshake as e:
        status = getattr(e, "status_code", None) or getattr(getattr(e, "response", None), "status_code", None)
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            raise HandshakeRefused(status) from e
        raise ConnectionError(str(e)) from e


def close_code(e: ConnectionClosed) -> int | None:
    return e.rcvd.code if e.rcvd is not None else None


def endpoint(url: str) -> str:
    """The agents' endpoint of a server's address."""
    for http, ws in (("http://", "ws://"), ("https://", "wss://"), ("ws://", "ws://"), ("wss://", "wss://")):
        if url.startswith(http):
            rest = ws + url.removeprefix(http).rstrip("/")
            return rest if rest.endswith("/api/v1/agent") else rest + "/api/v1/agent"
    raise SandkeeperError(f"{url!r} is no address of a server: it begins with http:// or https://")
