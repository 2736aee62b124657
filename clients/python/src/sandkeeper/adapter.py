"""What an agent framework's terminal tool needs of an environment. Thread-safe."""

from __future__ import annotations

import threading
from typing import Any

from .aio import Task
from .sync import Client


class Terminal:
    """The environment of one task. It is acquired at the first command of each turn."""

    def __init__(self, client: Client, task: str, *, name: str = "main", persistent: bool = False, **acquire: Any) -> None:
        self.is_persistent = persistent
        self._client, self._ref = client, Task(task, name)
        self._asked = {"name": name, "persistent": persistent} | acquire
        self._mu = threading.Lock()  # guards _acquired
        self._acquired = False

    def execute(self, command: str, cwd: str | None = None, timeout: int | None = None) -> dict[str, Any]:
        """Runs shell text: {"output": stdout, then stderr, "returncode": 124 for a timeout}."""
        with self._mu:
            if not self._acquired:
                self._client.acquire(self._ref.task, **self._asked)
                self._acquired = True
        params: dict[str, Any] = {}
        if cwd is not None:
            params["cwd"] = cwd
        if timeout is not None:
            params["timeout_seconds"] = timeout
        got = self._client.run(self._ref, command, **params)
        return {"output": (got.stdout + got.stderr).decode(errors="replace"), "returncode": got.exit_code}

    def end_turn(self, outcome: str | None = None) -> dict[str, Any]:
        """An environment that is not persistent is torn down; the next command gets a new one."""
        with self._mu:
            self._acquired = False
        return self._client.end_turn(self._ref.task, outcome=outcome)

    def cleanup(self) -> None:
        """The end of the tool's use: what is persistent is kept."""
        self.end_turn("done")
