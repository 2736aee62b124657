"""The owner's events, in order and each once, across losses of the connection.

At most 1024 events wait for the reader. Beyond that nothing more is taken, and
once the reader has caught up the rest is asked for from the server's log. What
the log no longer has is an EventsLost in its place.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .changed import Changed
from .errors import Closed, EventsLost
from .wire import Event

if TYPE_CHECKING:
    from .aio import AsyncClient

_MOST = 1024


class Events:
    """Made by AsyncClient.events(). Iterate over it; `last` numbers the event that was had last."""

    def __init__(self, client: AsyncClient, after: int | None) -> None:
        self.last = after or 0
        self._client = client
        self._seen = after  # the last that came; None: the first answer says
        self._queue: deque[Event | None] = deque()  # None: the log did not reach back
        self._changed = Changed()
        self._open = False  # what comes is taken
        self._behind = False  # the reader is: the rest is asked for later
        self._error: BaseException | None = None

    async def __aenter__(self) -> Events:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event:
        while not self._queue:
            if self._error is not None:
                raise self._error
            if self._behind:
                await self._client._subscribe(self)
            await self._changed.until(lambda: bool(self._queue) or self._behind or self._error is not None)
        event = self._queue.popleft()
        if event is None:
            raise EventsLost("the log no longer reaches back to where the reader was")
        self.last = event["seq"]
        return event

    def close(self) -> None:
        self._fail(Closed("the subscription was closed"))

    # What follows is for the client.

    def _params(self) -> dict[str, int]:
        return {} if self._seen is None else {"after": self._seen}

    def _opened(self, last: int) -> None:
        if self._seen is None:
            self._seen = self.last = last
        self._open, self._behind = True, False

    def _came(self, event: Event | None) -> None:
        if not self._open or (event is not None and self._seen is not None and event["seq"] <= self._seen):
            return
        if len(self._queue) >= _MOST:
            self._open, self._behind = False, True
        else:
            self._queue.append(event)
            self._seen = self._seen if event is None else event["seq"]
        self._changed.tell()

    def _ended(self) -> bool:
        """The server tells no more; reports whether to subscribe anew."""
        again, self._open = self._open, False
        return again

    def _fail(self, e: BaseException) -> None:
        self._open = False
        if self._error is None:
            self._error = e
        self._changed.tell()
