"""What an agent framework's terminal tool needs of an environment."""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

from .aio import Task
from .errors import GenerationGone
from .sync import Client
from .wire import Notice, Outcome, TurnEnded


class Executed(NamedTuple):
    output: str
    exit_code: int


class Terminal:
    """The environment of one task, for use by many threads.

    It is acquired at the first command of each turn, as `acquire` (the arguments
    of Client.acquire) says. At the end of a turn a persistent one is kept, and the
    next command finds it as it was; any other is torn down, and the next command
    gets a new one.

    A command never runs twice: what a lost connection left open is asked again by
    its id. Where the environment goes under a command, execute() raises
    GenerationGone, and the next command acquires anew.
    """

    def __init__(self, client: Client, task: str, *, name: str = "main", persistent: bool = False, **acquire: Any) -> None:
        self.is_persistent = persistent
        self._client = client
        self._task = task
        self._asked: dict[str, Any] = {"name": name, "persistent": persistent} | acquire
        self._ref = Task(task, name)
        self._mu = threading.Lock()  # guards _acquired
        self._acquired = False

    def execute(self, command: str, cwd: str | None = None, timeout: float | None = None, *, stdin: str | None = None) -> Executed:
        """Runs shell text. The working directory and exported variables carry over to the next.

        `output` is stdout and stderr as a terminal shows them, its middle left out
        where it is long. The exit code is 124 after the timeout (in seconds).
        What became of the sandbox meanwhile, and what was left out, is told in
        lines of their own in brackets. NotFound: cwd does not exist.
        """
        self._acquire()
        try:
            got = self._client.run(
                self._ref,
                # One stream, so that errors stand where they came. A command that
                # the shell cannot read fails before that takes effect.
                "exec 2>&1; " + command,
                cwd=cwd or None,
                stdin=stdin,
                timeout_seconds=None if timeout is None else max(1, math.ceil(timeout)),
            )
        except GenerationGone:
            with self._mu:
                self._acquired = False
            raise
        output = (got.stdout + got.stderr).decode(errors="replace")
        if got.output_lost:
            output += "[The output is no longer kept.]\n"
        if omitted := got.omitted_stdout + got.omitted_stderr:
            output += f"\n[{omitted} bytes were left out of the middle of this output.]\n"
        if got.notice is not None:
            output = _told(got.notice) + output
        return Executed(output, got.exit_code)

    def end_turn(self, outcome: Outcome | None = None) -> TurnEnded:
        """Ends the turn: what is not persistent is torn down."""
        with self._mu:
            self._acquired = False
        return self._client.end_turn(self._task, outcome=outcome)

    def cleanup(self) -> None:
        """The end of the tool's use. What is persistent is kept until it was idle for its lifetime."""
        self.end_turn("done")

    def _acquire(self) -> None:
        with self._mu:
            if not self._acquired:
                self._client.acquire(self._task, **self._asked)
                self._acquired = True


def _told(notice: Notice) -> str:
    lost, kept = (", ".join(what) or "nothing" for what in (notice["lost"], notice["kept"]))
    return f"[The sandbox is a new one since the last command. Lost: {lost}. Kept: {kept}.]\n"
