"""A command whose streams are joined.

After a loss of the connection it is joined anew, behind the bytes that had come:
a reader sees each byte once, or a GapError in the place of those that the server
no longer has. At most a window of unread bytes is held; then the command waits,
as behind any full pipe.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from .errors import Closed, GapError

if TYPE_CHECKING:
    from .aio import AsyncClient

WINDOW = 1 << 20
_MOST_STDIN = 64 << 10  # bytes of one frame
_STDIN, _STDOUT, _STDERR, _CREDIT = 0, 1, 2, 3
_NAMES = {_STDOUT: "stdout", _STDERR: "stderr"}


class Process:
    """Iterate over it for (stream, bytes), with stream "stdout" or "stderr"."""

    def __init__(self, client: AsyncClient, window: int = WINDOW) -> None:
        self.exec = ""
        self.pid: int | None = None
        self.notice: dict[str, Any] | None = None
        self.offsets = {"stdout": 0, "stderr": 0}  # bytes that came, or are known to be lost
        self._client = client
        self._window = window
        self._parts: deque[tuple[str, bytes | int]] = deque()  # an int is a gap
        self._changed = asyncio.Condition()
        self._ws: Any = None  # None while no channel is open
        self._channel = 0
        self._unread = 0
        self._owed = 0  # bytes read that the server was not granted again
        self._exit: dict[str, Any] | None = None
        self._error: BaseException | None = None
        self._closed = False
        self._credit = 0  # bytes of stdin that may be sent
        self._pending = bytearray()  # bytes of stdin that the sandbox has not taken
        self._sent = 0  # of those, bytes on their way
        self._taken = 0
        self._closing = False
        self._ended = False
        self._feeder: asyncio.Task[None] | None = None

    def __aiter__(self) -> Process:
        return self

    async def __anext__(self) -> tuple[str, bytes]:
        async with self._changed:
            await self._changed.wait_for(lambda: self._parts or self._exit or self._error)
        if not self._parts:
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        stream, data = self._parts.popleft()
        if isinstance(data, int):
            raise GapError(stream, data)
        self._read(len(data))
        return stream, data

    async def wait(self) -> dict[str, Any]:
        """The end of the command, told behind its last byte: unread output may hold it up.

        An environment that went before the end is no error: `env_lost` says why.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._exit or self._error)
        if self._exit is not None:
            return self._exit
        assert self._error is not None
        raise self._error

    async def output(self) -> tuple[bytes, bytes, dict[str, Any]]:
        """Reads to the end: stdout, stderr, and the exit."""
        got = {"stdout": bytearray(), "stderr": bytearray()}
        async for stream, data in self:
            got[stream] += data
        return bytes(got["stdout"]), bytes(got["stderr"]), await self.wait()

    async def write(self, data: bytes) -> None:
        """Writes stdin; waits while the command does not read.

        What the sandbox did not get before a loss of the connection is sent again.
        """
        view = memoryview(data)
        while view:
            async with self._changed:
                await self._changed.wait_for(lambda: self._over() or len(self._pending) < self._window)
            if self._error is not None:
                raise self._error
            if self._over():
                raise BrokenPipeError("the command takes no more input")
            n = min(len(view), self._window - len(self._pending))
            self._pending += view[:n]
            view = view[n:]
            self._feed()

    async def close_stdin(self) -> None:
        """Ends stdin behind what was written."""
        self._closing = True
        self._feed()

    async def signal(self, name: str, *, tree: bool = True) -> int:
        """Signals the command and what it started; returns how many still live."""
        return await self._client.signal(self.exec, name, tree=tree)

    async def resize(self, cols: int, rows: int) -> None:
        await self._client.resize(self.exec, cols, rows)

    def close(self) -> None:
        """Leaves the command alone: it goes on, and its output is kept for a while."""
        self._closed = True
        self._parts.clear()
        self._read(self._unread)
        self._fail(Closed("the process was closed"))

    # What follows is the client's side.

    def _over(self) -> bool:
        return self._exit is not None or self._error is not None or self._closing

    def _attach_params(self) -> dict[str, Any]:
        return {"exec": self.exec, "from": dict(self.offsets), "window": self._grant()}

    def _grant(self) -> int:
        """The credit that a channel opened now begins with: unread bytes keep their room."""
        return max(self._window - self._unread, 4 << 10)

    def _opened(self, ws: Any, got: dict[str, Any], window: int) -> None:
        self.exec = got["exec"]
        self._ws, self._channel = ws, got["channel"]
        # What was read since the call was sent is owed beyond the grant it carried.
        self._owed, self._credit = max(0, self._grant() - window), window
        self._skipped(got.get("skipped") or {})
        if "stdin_taken" in got:
            self._took(got["stdin_taken"] - self._taken)
        self._sent, self._ended = 0, False
        self._notify()
        self._read(0)
        if self._pending or self._closing:
            self._feed()

    def _skipped(self, skipped: dict[str, int]) -> None:
        for stream, n in skipped.items():
            if n > 0 and stream in self.offsets:
                self.offsets[stream] += n
                if not self._closed:
                    self._parts.append((stream, n))
        self._notify()

    def _frame(self, stream: int, payload: bytes) -> None:
        if stream == _CREDIT and len(payload) == 4:
            n = int.from_bytes(payload, "big")
            self._credit += n
            self._took(n)
            self._notify()
        elif stream in _NAMES and payload:
            self.offsets[_NAMES[stream]] += len(payload)
            self._unread += len(payload)
            if self._closed:
                self._read(self._unread)
            else:
                self._parts.append((_NAMES[stream], payload))
            self._notify()

    def _took(self, n: int) -> None:
        n = min(max(n, 0), len(self._pending))
        del self._pending[:n]
        self._taken += n
        self._sent = max(0, self._sent - n)

    def _read(self, n: int) -> None:
        self._unread -= n
        self._owed += n
        if self._ws is not None and self._owed >= self._window // 4:
            grant, self._owed = self._owed, 0
            self._client._send_soon(self._ws, self._head(_CREDIT) + struct.pack(">I", grant))

    def _head(self, stream: int) -> bytes:
        return struct.pack(">IB", self._channel, stream)

    def _exited(self, told: dict[str, Any]) -> None:
        self._exit, self._ws = told, None
        self._notify()

    def _dropped(self) -> bool:
        """Notes that the connection is gone; reports whether to join anew."""
        self._ws = None
        self._notify()
        return self._exit is None and self._error is None

    def _fail(self, e: BaseException) -> None:
        if self._error is None:
            self._error = e
        self._notify()

    def _notify(self) -> None:
        self._client._spawn(self._wake())

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _feed(self) -> None:
        if self._feeder is None or self._feeder.done():
            self._feeder = self._client._spawn(self._feed_all())
        else:
            self._notify()

    def _ready(self) -> bool:
        rest = len(self._pending) - self._sent
        can = self._ws is not None and ((rest > 0 and self._credit > 0) or (rest == 0 and self._closing and not self._ended))
        return can or self._exit is not None or self._error is not None

    async def _feed_all(self) -> None:
        """Sends what is pending as the server grants it, until the end."""
        while True:
            async with self._changed:
                await self._changed.wait_for(self._ready)
            if self._exit is not None or self._error is not None:
                return
            n = min(len(self._pending) - self._sent, self._credit, _MOST_STDIN)
            frame = self._head(_STDIN) + bytes(self._pending[self._sent : self._sent + n])
            self._sent += n
            self._credit -= n
            self._ended = n == 0
            await self._client._send(self._ws, frame)
