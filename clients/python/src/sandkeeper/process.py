"""A command whose streams are joined.

After a loss of the connection it is joined anew, behind the bytes that had come:
a reader sees each byte once, or a GapError in the place of those that the server
no longer has. At most a window of unread bytes is held; then the command waits,
as behind any full pipe. Input is kept until the sandbox has it, and what it had
not got before a loss is sent again.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from .changed import Changed
from .errors import Closed, GapError
from .wire import Exit, Notice, Stream

if TYPE_CHECKING:
    from .aio import AsyncClient
    from .line import Line

WINDOW = 1 << 20
_MOST_STDIN = 64 << 10  # bytes of one frame
_STDIN, _STDOUT, _STDERR, _CREDIT = 0, 1, 2, 3
_NAMES: dict[int, Stream] = {_STDOUT: "stdout", _STDERR: "stderr"}


class Output(NamedTuple):
    """All that a command wrote, and how it ended."""

    stdout: bytes
    stderr: bytes
    exit: Exit


class Process:
    """Made by AsyncClient.start() and attach().

    Iterate over it for (stream, bytes), with stream "stdout" or "stderr" (a
    terminal has "stdout" alone), to the end of the command. A GapError stands in
    the place of what is no longer kept; iterating goes on behind it. As an async
    context manager it is closed at the end.
    """

    def __init__(self, client: AsyncClient, exec: str, *, offsets: dict[Stream, int] | None = None, window: int = WINDOW, stdin: bool = True) -> None:
        self.exec = exec
        self.pid: int | None = None
        self.notice: Notice | None = None
        self.offsets: dict[Stream, int] = {"stdout": 0, "stderr": 0}  # bytes that came, or are known to be lost
        self.offsets.update(offsets or {})
        self._client = client
        self._window = window
        self._changed = Changed()
        self._line: Line | None = None  # None while no channel is open
        self._channel = 0
        self._parts: deque[tuple[Stream, bytes | int]] = deque()  # an int is a gap
        self._unread = 0
        self._owed = 0  # bytes read that the server was not granted again
        self._broke = 0  # times that the channel broke since its last byte
        self._exit: Exit | None = None
        self._error: BaseException | None = None
        self._closed = False  # nobody reads

        self._stdin = stdin
        self._before: int | None = None  # bytes of stdin that others gave before us; None: not joined yet
        self._pending = bytearray()  # bytes of stdin that the sandbox has not taken
        self._sent = 0  # of those, bytes on their way
        self._taken = 0
        self._credit = 0  # bytes of stdin that may be sent
        self._closing = False  # stdin ends behind what is pending
        self._ended = False  # that was sent on this channel

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Process:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        await self._changed.until(lambda: bool(self._parts) or self._over())
        if not self._parts:
            if self._error is not None:
                raise self._error
            raise StopAsyncIteration
        stream, data = self._parts.popleft()
        if isinstance(data, int):
            raise GapError(stream, data)
        self._read(len(data))
        return stream, data

    async def output(self) -> Output:
        """Reads what comes to the end, all of it into memory."""
        got: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        async for stream, data in self:
            got[stream] += data
        return Output(bytes(got["stdout"]), bytes(got["stderr"]), await self.wait())

    async def wait(self) -> Exit:
        """The end of the command, told behind its last byte: unread output may hold it up.

        An environment that went before the end is no error: `env_lost` says why.
        """
        await self._changed.until(self._over)
        if self._exit is not None:
            return self._exit
        assert self._error is not None
        raise self._error

    async def write(self, data: bytes) -> None:
        """Writes stdin; waits while the command does not read. BrokenPipeError: nobody takes it any more."""
        if not self._stdin:
            raise BrokenPipeError("the command was joined without its input")
        view = memoryview(data)
        while view:
            await self._changed.until(lambda: self._over() or self._closing or len(self._pending) < self._window)
            if self._error is not None:
                raise self._error
            if self._exit is not None or self._closing:
                raise BrokenPipeError("the command takes no more input")
            n = min(len(view), self._window - len(self._pending))
            self._pending += view[:n]
            view = view[n:]
            self._feed()

    async def close_stdin(self) -> None:
        """Ends stdin behind what was written."""
        self._closing = True
        self._feed()
        self._changed.tell()

    async def signal(self, name: str, *, tree: bool = True) -> int:
        """Signals the command ("TERM", "KILL", ...), with tree what it started too; returns how many still live."""
        return await self._client.signal(self.exec, name, tree=tree)

    async def resize(self, cols: int, rows: int) -> None:
        """Sets the size of its terminal."""
        await self._client.resize(self.exec, cols, rows)

    def close(self) -> None:
        """Leaves the command alone: it goes on, and what it writes is kept for a while."""
        # The channel is open for as long as the line: what comes on it is granted
        # again at once, since a command must not wait for nobody.
        self._closed = True
        self._parts.clear()
        self._read(self._unread)
        self._fail(Closed("the process was closed"))

    # What follows is for the client.

    def _over(self) -> bool:
        return self._exit is not None or self._error is not None

    def _attach_params(self) -> dict[str, Any]:
        return {"exec": self.exec, "from": dict(self.offsets), "window": self._grant(), "stdin": self._stdin}

    def _grant(self) -> int:
        """The credit that a channel opened now begins with: unread bytes keep their room."""
        return max(self._window - self._unread, 1)

    def _opened(self, line: Line, got: dict[str, Any], window: int) -> None:
        """A channel was opened with that window; what was read since it was asked for is owed beyond it."""
        self.exec = got["exec"]
        self._line, self._channel = line, got["channel"]
        self._owed, self._credit = max(0, self._grant() - window), window
        for stream, n in (got.get("skipped") or {}).items():
            self._skipped(stream, n)
        had = got.get("stdin_taken", 0)
        if self._before is None:
            self._before = had
        else:
            self._took(had - self._before - self._taken)
        self._sent, self._ended = 0, False  # the rest is sent again
        self._read(0)
        self._feed()
        self._changed.tell()

    def _skipped(self, stream: Stream, n: int) -> None:
        if n > 0 and stream in self.offsets:
            self.offsets[stream] += n
            if not self._closed:
                self._parts.append((stream, n))
            self._changed.tell()

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == _CREDIT and len(payload) == 4:
            n = int.from_bytes(payload, "big")
            self._credit += n
            self._took(n)
            self._feed()
        elif kind in _NAMES and payload:
            self._broke = 0
            self.offsets[_NAMES[kind]] += len(payload)
            self._unread += len(payload)
            if self._closed:
                self._read(self._unread)
            else:
                self._parts.append((_NAMES[kind], payload))
        self._changed.tell()

    def _read(self, n: int) -> None:
        """The reader took n bytes more. They are granted again once they are worth a frame."""
        self._unread -= n
        self._owed += n
        if self._line is not None and self._owed > 0 and self._owed >= self._window // 4:
            self._line.send(self._head(_CREDIT) + struct.pack(">I", self._owed))
            self._owed = 0

    def _took(self, n: int) -> None:
        """The sandbox has n bytes of stdin more."""
        n = min(max(n, 0), len(self._pending))
        del self._pending[:n]
        self._taken += n
        self._sent = max(0, self._sent - n)

    def _feed(self) -> None:
        """Sends stdin as far as the server's credit reaches."""
        while self._line is not None and not self._over():
            n = min(len(self._pending) - self._sent, self._credit, _MOST_STDIN)
            if n > 0:
                self._line.send(self._head(_STDIN) + bytes(self._pending[self._sent : self._sent + n]))
                self._sent += n
                self._credit -= n
                continue
            if self._closing and not self._ended and self._sent == len(self._pending):
                self._line.send(self._head(_STDIN))
                self._ended = True
            return

    def _head(self, stream: int) -> bytes:
        return struct.pack(">IB", self._channel, stream)

    def _exited(self, told: Exit) -> None:
        self._exit, self._line = told, None
        self._changed.tell()

    def _detached(self) -> None:
        """The channel is gone, and the command goes on."""
        self._line = None

    def _fail(self, e: BaseException) -> None:
        if not self._over():
            self._error = e
        self._changed.tell()
