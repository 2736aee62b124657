"""Hands notifications to the callbacks, one at a time and in order, so that a callback may take its time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .changed import Changed

Callback = Callable[[Any], Awaitable[object] | None]

# So many wait in full. Beyond it only the latest state of each environment does.
_MERGE_FROM = 256

log = logging.getLogger("sandkeeper")


@dataclass(eq=False)
class _Note:
    callback: Callback
    about: Any
    env: str | None


class Notes:
    def __init__(self) -> None:
        self._queue: deque[_Note] = deque()
        self._states: dict[str, _Note] = {}  # by environment: the last state that waits
        self._changed = Changed()
        self._stopped = False

    def stop(self) -> None:
        """Has run return once the callback under way has."""
        self._stopped = True
        self._changed.tell()

    def put(self, callback: Callback | None, about: Any, *, env: str | None = None) -> None:
        """Has the callback called. A state of an environment is given with its id."""
        if callback is None:
            return
        if env is not None and len(self._queue) >= _MERGE_FROM and env in self._states:
            self._states[env].about = about
            return
        note = _Note(callback, about, env)
        self._queue.append(note)
        if env is not None:
            self._states[env] = note
        self._changed.tell()

    async def run(self) -> None:
        """Calls them. A callback that fails is logged."""
        while True:
            await self._changed.until(lambda: bool(self._queue) or self._stopped)
            if self._stopped:
                return
            note = self._queue.popleft()
            if note.env is not None and self._states.get(note.env) is note:
                del self._states[note.env]
            try:
                wanted = note.callback(note.about)
                if wanted is not None:
                    await wanted
            except Exception:
                log.exception("a callback failed")
