"""One connection, from its hello to its loss.

What differs between versions of the websockets package stays here. Frames are
sent by one writer in the order in which they were given. The line counts as dead
once the server has neither answered a ping nor said anything for two heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from .errors import HandshakeRefused, SandkeeperError, server_error
from .wire import Hello

try:  # websockets 13 and later
    _module = importlib.import_module("websockets.asyncio.client")
    _HEADERS = "additional_headers"
except ImportError:
    _module = importlib.import_module("websockets.legacy.client")
    _HEADERS = "extra_headers"
_connect: Any = _module.connect

_SUBPROTOCOL = "sandkeeper.v1"
_TAKEN_OVER = 4001
_MOST_BYTES = 256 << 20  # of one message of the server's
_PATIENCE = 15  # seconds for the answer to hello


class Line:
    """Made by Line.open()."""

    def __init__(self, ws: Any) -> None:
        self._ws = ws
        self._out: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._heard = 0  # messages of the server's
        self._heartbeat = 20.0
        self.taken_over = False

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str]) -> Line:
        """Opens the websocket. A refusal that no repetition helps is HandshakeRefused, any other failure an OSError."""
        options: dict[str, Any] = {
            _HEADERS: headers,
            "subprotocols": [_SUBPROTOCOL],
            "compression": None,
            "max_size": _MOST_BYTES,
            "ping_interval": None,  # the heartbeat is the server's to say
            "close_timeout": 2,
        }
        try:
            return cls(await _connect(url, **options))
        except InvalidHandshake as e:
            status = getattr(e, "status_code", None) or getattr(getattr(e, "response", None), "status_code", None)
            if status is not None and 400 <= status < 500 and status not in (408, 429):
                raise HandshakeRefused(status) from e
            raise ConnectionError(f"no connection to {url}: {e}") from e

    async def greet(self, params: Mapping[str, object]) -> Hello:
        """Says hello and waits for the answer. Errors: a ServerError, or an OSError where the connection broke."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._ws.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "hello", "params": params}))
                while (got := json.loads(await self._ws.recv())).get("id") != 0:
                    pass
        except ConnectionClosed as e:
            raise ConnectionError(f"the connection broke at its hello: {e}") from e
        if "error" in got:
            raise server_error("hello", got["error"])
        hello: Hello = got["result"]
        self._heartbeat = float(hello["heartbeat_seconds"]) or self._heartbeat
        return hello

    def send(self, frame: str | bytes) -> None:
        """Has the frame sent behind those before it. On a line that is lost it is lost too."""
        self._out.put_nowait(frame)

    async def serve(self, text: Callable[[dict[str, Any]], None], binary: Callable[[bytes], None]) -> Exception:
        """Sends, and hands on what comes, until the line is lost; returns why."""
        own = [asyncio.create_task(self._write()), asyncio.create_task(self._watch())]
        try:
            while True:
                message = await self._ws.recv()
                self._heard += 1
                if isinstance(message, str):
                    text(json.loads(message))
                else:
                    binary(message)
        except ConnectionClosed as e:
            self.taken_over = e.rcvd is not None and e.rcvd.code == _TAKEN_OVER
            return e
        finally:
            self.cut()
            for task in own:
                task.cancel()
            await asyncio.gather(*own, return_exceptions=True)

    def cut(self) -> None:
        """Ends the connection without a word. A closed one stays as it is."""
        self._ws.transport.abort()

    async def close(self) -> None:
        """Ends the connection in order."""
        await self._ws.close()

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionClosed):  # serve sees it
            while True:
                await self._ws.send(await self._out.get())

    async def _watch(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(self._heartbeat)
                before = self._heard
                try:
                    async with asyncio.timeout(2 * self._heartbeat):
                        await (await self._ws.ping())
                except TimeoutError:
                    if self._heard == before:
                        self.cut()
                        return


def endpoint(url: str) -> str:
    """The agents' endpoint of a server's address."""
    for http, ws in (("http://", "ws://"), ("https://", "wss://"), ("ws://", "ws://"), ("wss://", "wss://")):
        if url.startswith(http):
            rest = ws + url.removeprefix(http).rstrip("/")
            return rest if rest.endswith("/api/v1/agent") else rest + "/api/v1/agent"
    raise SandkeeperError(f"{url!r} is no address of a server: it begins with http:// or https://")
