"""The asyncio client."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .errors import (
    Closed,
    Draining,
    Dropped,
    EngineUnavailable,
    Forbidden,
    InvalidParams,
    InvalidRequest,
    SandkeeperError,
    ServerError,
    TakenOver,
    TooBig,
    server_error,
)
from .events import Events
from .line import Line, endpoint
from .notes import Notes, log
from .process import WINDOW, Process
from .wire import (
    Acquired,
    Env,
    ExecInfo,
    Expiring,
    FileInfo,
    Hello,
    Limits,
    Notice,
    Outcome,
    Stream,
    TurnBegan,
    TurnEnded,
    Waited,
)

Json = dict[str, Any]
Command = str | Sequence[str]  # text for a shell, or a program and its arguments

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 5.0  # between attempts to connect, and to join a stream anew
_PIECE = 512 << 10  # bytes of a file that one call carries


@dataclass(frozen=True)
class Task:
    """Names an environment by its task; a plain str is an environment's id."""

    task: str
    name: str = "main"


Ref = str | Task


@dataclass(frozen=True)
class RunResult:
    """How a command ended, and what it wrote."""

    exec: str  # the server's name for it
    exit_code: int  # 128+N by signal N, 124 timed out, 126 not executable, 127 missing
    stdout: bytes
    stderr: bytes
    omitted_stdout: int  # bytes left out between its head (40 %) and its tail
    omitted_stderr: int
    timed_out: bool
    duration_ms: int
    cwd: str
    signal: str | None  # "KILL", ...
    oom: bool  # the kernel killed a process of it for want of memory
    output_lost: bool  # it ended long ago, its output is no longer kept
    left: int  # processes that it left running
    notice: Notice | None  # what became of the sandbox since the session last used it


def _run_result(got: Json) -> RunResult:
    def stream(name: str) -> bytes:
        if name + "_base64" in got:
            return base64.b64decode(got[name + "_base64"])
        return str(got.get(name, "")).encode()

    return RunResult(
        exec=got["exec"],
        exit_code=got["exit_code"],
        stdout=stream("stdout"),
        stderr=stream("stderr"),
        omitted_stdout=got["truncated"]["stdout"],
        omitted_stderr=got["truncated"]["stderr"],
        timed_out=got["timed_out"],
        duration_ms=got["duration_ms"],
        cwd=got["cwd"],
        signal=got.get("signal"),
        oom=got.get("oom", False),
        output_lost=got.get("output_lost", False),
        left=got.get("left", 0),
        notice=got.get("notice"),
    )


def _given(**params: object) -> Json:
    return {name: value for name, value in params.items() if value is not None}


def _ref(ref: Ref) -> Json:
    return {"env": ref} if isinstance(ref, str) else {"task": ref.task, "name": ref.name}


def _what(command: Command) -> Json:
    return {"command": command} if isinstance(command, str) else {"argv": list(command)}


@dataclass(eq=False)
class _Call:
    method: str
    frame: str
    repeat: bool  # it may be asked twice
    accept: Callable[[Line, Any], None] | None  # takes the result ahead of what follows it on the line
    answer: asyncio.Future[Any]
    sent: bool = False  # perhaps


class AsyncClient:
    """An agent's session, for one event loop. Calls run side by side.

        async with AsyncClient("http://127.0.0.1:7333", token, agent="my-agent") as client:
            ...

    Entering connects: the first attempt must succeed (HandshakeRefused, a
    ServerError, or an OSError). From then on the connection is kept up: calls
    wait for it, and are asked again where that changes nothing. `reconnect_timeout`
    says for how many seconds they wait; then they fail with Dropped. Without it
    they wait until the server is back.

    A call that is cancelled may have been done: a command goes on, and is found
    again by its id.

    The callbacks are called one at a time, in order; they may be coroutine
    functions, and may use the client. States of one environment are skipped
    where a callback is slow.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        agent: str = "python",
        version: str | None = None,
        owner: str | None = None,
        session: str | None = None,
        disconnect_grace_seconds: int | None = None,
        reconnect_timeout: float | None = None,
        on_env_state: Callable[[Env], Awaitable[object] | None] | None = None,
        on_env_expiring: Callable[[Expiring], Awaitable[object] | None] | None = None,
        on_draining: Callable[[int], Awaitable[object] | None] | None = None,
        on_connected: Callable[[Hello], Awaitable[object] | None] | None = None,
        on_dropped: Callable[[Exception], Awaitable[object] | None] | None = None,
    ) -> None:
        """`agent` is the name that operators see. `owner` is for an operator's token: whom to act for.

        `session` resumes the session of an earlier client, within its grace.
        """
        self._url = endpoint(url)
        self._headers = {"Authorization": f"Bearer {token}"} | ({"Sandkeeper-Owner": owner} if owner else {})
        self._greeting = _given(agent=agent, version=version, disconnect_grace_seconds=disconnect_grace_seconds)
        self._session = session
        self._patience = reconnect_timeout
        self._on_env_state, self._on_env_expiring, self._on_draining = on_env_state, on_env_expiring, on_draining
        self._on_connected, self._on_dropped = on_connected, on_dropped

        self._hello: Hello | None = None
        self._line: Line | None = None  # None while there is no connection
        self._calls: dict[int, _Call] = {}
        self._last = 0  # number of the last call
        self._channels: dict[int, Process] = {}  # of the line
        self._events: Events | None = None
        self._turns: dict[str, int] = {}  # by task: the latest turn that we know of
        self._notes = Notes()
        self._failure: BaseException | None = Closed("the client is not connected: enter it first")
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> AsyncClient:
        if self._hello is not None:
            raise RuntimeError("a client is entered once")
        line = await self._connect()
        self._failure = None
        self._spawn(self._notes.run())
        self._spawn(self._keep(line))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def session(self) -> str | None:
        """The session's id, by which another client may resume it."""
        return self._session

    @property
    def hello(self) -> Hello:
        """What the server said last of itself and of the session."""
        if self._hello is None:
            raise Closed("the client is not connected: enter it first")
        return self._hello

    async def close(self) -> None:
        """Ends the connection. Calls under way fail with Closed. The session and its turns last for the grace."""
        self._fail(Closed("the client was closed"))
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        self._notes.stop()
        own = asyncio.current_task()  # a callback may be what closes
        tasks = [task for task in self._tasks if task is not own]
        # A task that has just got what it waited for may lose a cancellation (asyncio.wait_for).
        while tasks:
            for task in tasks:
                task.cancel()
            _, left = await asyncio.wait(tasks, timeout=0.1)
            tasks = list(left)
        if self._line is not None:  # a task has connected in between
            self._line.cut()
            self._line = None

    async def call(self, method: str, params: Mapping[str, object] | None = None, *, repeat: bool = False) -> Any:
        """Makes any request of the protocol. `repeat` says that it may be asked twice, after a loss of the connection."""
        return await self._call(method, params or {}, repeat)

    # Environments and turns.

    async def acquire(
        self,
        task: str,
        *,
        name: str | None = None,
        persistent: bool | None = None,
        image: str | None = None,
        lifetime_seconds: int | None = None,
        max_age_seconds: int | None = None,
        limits: Limits | None = None,
        network: Literal["default", "none"] | None = None,
        variables: Mapping[str, str] | None = None,
        workdir: str | None = None,
        labels: Mapping[str, str] | None = None,
        on_drift: Literal["keep", "recreate", "error"] | None = None,
    ) -> Acquired:
        """Gives the task's environment of that name, made if there is none, once it is ready.

        What is left out keeps what the environment has. It opens a turn where none is open.
        """
        asked = _given(
            task=task,
            name=name,
            persistent=persistent,
            image=image,
            lifetime_seconds=lifetime_seconds,
            max_age_seconds=max_age_seconds,
            limits=limits,
            network=network,
            variables=variables,
            workdir=workdir,
            labels=labels,
            on_drift=on_drift,
        )
        got: Acquired = await self._call("env.acquire", asked, True)
        if (turn := got["env"]["turn"]) is not None:
            self._saw_turn(task, turn["number"])
        return got

    async def get_env(self, ref: Ref) -> Env:
        """Reads an environment. Reading keeps no reaper away."""
        return await self._env("env.get", _ref(ref))

    async def list_envs(self, task: str | None = None) -> list[Env]:
        """The environments of a task, or all of the owner's."""
        got: list[Env] = (await self._call("env.list", _given(task=task), True))["envs"]
        return got

    async def touch(self, ref: Ref) -> Env:
        """Counts as activity: an idle countdown begins anew."""
        return await self._env("env.touch", _ref(ref))

    async def release(self, ref: Ref, *, purge: bool = False) -> Env:
        """Tears it down now. The files of a persistent one stay, unless purge. Conflict: it is pinned."""
        return await self._env("env.release", _ref(ref) | {"purge": purge}, repeat=False)

    async def begin_turn(self, task: str) -> TurnBegan:
        """Opens a turn of the task, or joins the one that is open."""
        got: TurnBegan = await self._call("turn.begin", {"task": task}, True)
        self._saw_turn(task, got["turn"])
        return got

    async def end_turn(self, task: str, *, turn: int | None = None, outcome: Outcome | None = None) -> TurnEnded:
        """Ends the latest turn of the task that this client saw, or the one given.

        Environments that are not persistent go, the others are kept and begin their countdown.
        """
        turn = self._turns.get(task) if turn is None else turn
        got: TurnEnded = await self._call("turn.end", _given(task=task, turn=turn, outcome=outcome), turn is not None)
        return got

    # Commands.

    async def run(
        self,
        ref: Ref,
        command: Command,
        *,
        cwd: str | None = None,
        variables: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout_seconds: int | None = None,
        output_limit: int | None = None,
        id: str | None = None,
        generation: int | None = None,
    ) -> RunResult:
        """Runs shell text, or a list for a program with its arguments, to its end. It never runs twice.

        GenerationGone: the environment went before the command's end.
        """
        asked = _given(
            cwd=cwd,
            variables=variables,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            output_limit=output_limit,
            id=id or secrets.token_hex(16),
            generation=generation,
        )
        return _run_result(await self._call("exec.run", _ref(ref) | _what(command) | asked, True))

    async def start(
        self,
        ref: Ref,
        command: Command,
        *,
        cwd: str | None = None,
        variables: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: tuple[int, int] | None = None,
        background: bool = False,
        timeout_seconds: int | None = None,
        id: str | None = None,
        generation: int | None = None,
        window: int = WINDOW,
    ) -> Process:
        """Starts a command and joins its streams. It never starts twice; a known id joins that command.

        Its input is empty, unless `stdin` is set or `tty` (columns, rows) gives it
        a terminal. In the background it outlives the turn. `window` is how many
        bytes of output are held unread, and of input on their way.
        """
        p = Process(self, "", window=window, stdin=stdin or tty is not None)
        asked = _given(
            cwd=cwd,
            variables=variables,
            stdin=p._stdin,
            tty=None if tty is None else {"cols": tty[0], "rows": tty[1]},
            background=background,
            timeout_seconds=timeout_seconds,
            id=id or secrets.token_hex(16),
            generation=generation,
            window=window,
        )
        got = await self._join(p, "exec.start", _ref(ref) | _what(command) | asked)
        p.pid, p.notice = got.get("pid"), got.get("notice")
        return p

    async def attach(self, exec: str, *, offsets: dict[Stream, int] | None = None, stdin: bool = True, window: int = WINDOW) -> Process:
        """Joins the streams of a command that runs or has lately ended, behind the bytes that are already had.

        Its input is this one's from then on, unless `stdin` is false.
        """
        p = Process(self, exec, offsets=offsets, window=window, stdin=stdin)
        await self._join(p, "exec.attach", p._attach_params())
        return p

    async def wait(self, exec: str, *, timeout_seconds: int | None = None) -> Waited:
        """Waits for the end of a command without its streams."""
        got: Waited = await self._call("exec.wait", _given(exec=exec, timeout_seconds=timeout_seconds), True)
        return got

    async def list_execs(self, ref: Ref) -> list[ExecInfo]:
        """The commands of an environment that run or have lately ended."""
        got: list[ExecInfo] = (await self._call("exec.list", _ref(ref), True))["execs"]
        return got

    async def signal(self, exec: str, name: str, *, tree: bool = True) -> int:
        """Signals a command, with tree all that it started; returns how many of these still live."""
        return int((await self._call("exec.signal", {"exec": exec, "signal": name, "tree": tree}, False))["survivors"])

    async def resize(self, exec: str, cols: int, rows: int) -> None:
        """Sets the size of a command's terminal."""
        await self._call("exec.resize", {"exec": exec, "cols": cols, "rows": rows}, True)

    async def close_stdin(self, exec: str) -> None:
        """Ends a command's input, whoever gives it."""
        await self._call("exec.close_stdin", {"exec": exec}, True)

    # Files.

    async def read_file(self, ref: Ref, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """A file from offset on, or so many bytes of it, in as many calls as that needs."""
        data = bytearray()
        while length is None or len(data) < length:
            n = _PIECE if length is None else min(_PIECE, length - len(data))
            asked = _ref(ref) | {"path": path, "offset": offset + len(data), "length": n}
            got = await self._call("file.read", asked, True)
            piece = base64.b64decode(got["data"])
            data += piece
            if got["eof"] or not piece:
                break
        return bytes(data)

    async def write_file(self, ref: Ref, path: str, data: bytes, *, mode: int | None = None, append: bool = False, mkdirs: bool = False) -> int:
        """Writes a file, or appends to one, and returns its size. Large data goes in several calls.

        Dropped: the connection dropped under an append, and the file's size does not say whether that was done.
        """
        size = 0
        for at in range(0, max(len(data), 1), _PIECE):
            piece = base64.b64encode(data[at : at + _PIECE]).decode()
            asked = _ref(ref) | {"path": path, "data": piece, "append": append or at > 0, "mkdirs": mkdirs} | _given(mode=mode)
            if at > 0:
                size = await self._append(ref, asked, size, min(_PIECE, len(data) - at))
            else:
                size = int((await self._call("file.write", asked, not append))["size"])
        return size

    async def _append(self, ref: Ref, asked: Json, size: int, n: int) -> int:
        """Appends n bytes to a file of that size. Where the connection dropped, the file's size says whether it was done."""
        while True:
            try:
                return int((await self._call("file.write", asked, False))["size"])
            except Dropped:
                if self._failure is not None:
                    raise
                now = (await self.stat_file(ref, asked["path"]))["size"]
                if now == size + n:
                    return now
                if now != size:
                    raise

    async def list_files(self, ref: Ref, path: str) -> list[FileInfo]:
        """What is in a directory."""
        got: list[FileInfo] = (await self._call("file.list", _ref(ref) | {"path": path}, True))["entries"]
        return got

    async def stat_file(self, ref: Ref, path: str) -> FileInfo:
        """Describes a file."""
        got: FileInfo = await self._call("file.stat", _ref(ref) | {"path": path}, True)
        return got

    async def remove_file(self, ref: Ref, path: str, *, recursive: bool = False) -> None:
        """Removes a file, with recursive a directory and all in it."""
        await self._call("file.remove", _ref(ref) | {"path": path, "recursive": recursive}, False)

    async def mkdir(self, ref: Ref, path: str, *, recursive: bool = False) -> None:
        """Makes a directory, with recursive its parents too."""
        await self._call("file.mkdir", _ref(ref) | {"path": path, "recursive": recursive}, recursive)

    # Events.

    async def events(self, *, after: int | None = None) -> Events:
        """Subscribes to the owner's events behind the number `after`, or from now on. A later one takes its place."""
        events = Events(self, after)
        if self._events is not None:
            self._events._fail(Closed("another subscription took its place"))
        self._events = events
        await self._subscribe(events)
        return events

    # What follows keeps the connection, and the streams and events on it.

    async def _call(self, method: str, params: Mapping[str, object], repeat: bool, accept: Callable[[Line, Any], None] | None = None) -> Any:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        self._last += 1
        number = self._last
        frame = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        most = self.hello["limits"]["max_frame_bytes"]
        if len(frame) > most:
            raise TooBig(f"{method} of {len(frame)} bytes, at most {most}")
        call = _Call(method, frame, repeat, accept, asyncio.get_running_loop().create_future())
        self._calls[number] = call
        if self._line is not None:
            call.sent = True
            self._line.send(frame)
        try:
            return await call.answer
        except asyncio.CancelledError:
            if accept is None or not call.sent:
                self._calls.pop(number, None)
            raise

    async def _env(self, method: str, params: Json, *, repeat: bool = True) -> Env:
        got: Env = (await self._call(method, params, repeat))["env"]
        return got

    def _saw_turn(self, task: str, turn: int) -> None:
        self._turns[task] = max(turn, self._turns.get(task, 0))

    async def _join(self, p: Process, method: str, params: Json) -> Json:
        """Makes a call that opens a channel for p. Where its caller is cancelled, the channel that comes is still served."""

        def opened(line: Line, got: Json) -> None:
            self._channels[got["channel"]] = p
            p._opened(line, got, params["window"])

        try:
            got: Json = await self._call(method, params, True, opened)
        except asyncio.CancelledError:
            p.close()
            raise
        return got

    async def _rejoin(self, p: Process, pause: float = 0) -> None:
        try:
            await asyncio.sleep(pause)
            await self._patiently(lambda: self._join(p, "exec.attach", p._attach_params()))
        except SandkeeperError as e:
            p._fail(e)
        except asyncio.CancelledError:
            p.close()
            raise

    async def _patiently(self, work: Callable[[], Awaitable[object]]) -> None:
        """Does the work, as often as it takes while the sandbox or the server is away for a time."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await work()
                return
            except (EngineUnavailable, Draining) as e:
                await asyncio.sleep(e.retry_after or pause)
                pause = min(2 * pause, _LAST_PAUSE)

    async def _subscribe(self, events: Events) -> None:
        def opened(_: Line, got: Json) -> None:
            if events is self._events:
                events._opened(got["last"])

        await self._call("events.subscribe", events._params(), True, opened)

    async def _resubscribe(self, events: Events, pause: float = 0) -> None:
        try:
            await asyncio.sleep(pause)
            await self._patiently(lambda: self._subscribe(events))
        except SandkeeperError as e:
            events._fail(e)

    async def _connect(self) -> Line:
        line = await Line.open(self._url, self._headers)
        try:
            self._hello = await line.greet(self._greeting | _given(session=self._session))
        except BaseException:
            line.cut()
            raise
        self._session = self._hello["session"]
        self._line = line
        for call in self._calls.values():
            call.sent = True
            line.send(call.frame)
        log.info("connected: session %s, resumed %s", self._session, self._hello["resumed"])
        self._notes.put(self._on_connected, self._hello)
        return line

    async def _keep(self, line: Line) -> None:
        """Has a connection, or is after one, until the client is closed or refused."""
        try:
            while True:
                why = await line.serve(self._receive, self._frame)
                if self._failure is not None:  # closed
                    return
                if line.taken_over:
                    raise TakenOver("a newer connection has the session")
                log.info("the connection dropped: %s", why)
                self._lost(why)
                line = await self._redial()
        except Exception as e:
            self._fail(e)

    async def _redial(self) -> Line:
        clock = asyncio.get_running_loop().time
        since, pause = clock(), _FIRST_PAUSE
        while True:
            await asyncio.sleep(pause * (0.5 + random.random()))
            try:
                return await self._connect()
            except (InvalidParams, InvalidRequest, Forbidden):
                raise
            except (OSError, ServerError) as e:
                log.debug("no connection: %s", e)
                if self._patience is not None and clock() - since >= self._patience:
                    self._drop_calls(lambda call: True, f"no connection for {math.floor(clock() - since)} s")
            pause = min(2 * pause, _LAST_PAUSE)

    def _receive(self, m: Json) -> None:
        method = m.get("method")
        params: Any = m.get("params") or {}
        if method is None:
            self._answered(m)
        elif method in ("exec.exit", "exec.gap", "exec.detached"):
            self._told(method, params)
        elif method == "event":
            if self._events is not None:
                self._events._came(params)
        elif method == "events.reset":
            if self._events is not None:
                self._events._came(None)
        elif method == "events.ended":
            if self._events is not None and self._events._ended():
                log.warning("the events ended, and are asked for anew: %s", params.get("error"))
                self._spawn(self._resubscribe(self._events, 1))
        elif method == "env.state":
            self._notes.put(self._on_env_state, params["env"], env=params["env"]["id"])
        elif method == "env.expiring":
            self._notes.put(self._on_env_expiring, params)
        elif method == "server.draining":
            self._notes.put(self._on_draining, params["seconds_left"])

    def _answered(self, m: Json) -> None:
        call = self._calls.pop(m.get("id") or 0, None)
        if call is None:  # its caller did not wait for it
            return
        result = m.get("result")
        if "error" not in m and call.accept is not None and self._line is not None:
            call.accept(self._line, result)
        if call.answer.done():
            return
        if "error" in m:
            call.answer.set_exception(server_error(call.method, m["error"]))
        else:
            call.answer.set_result(result)

    def _told(self, method: str, params: Any) -> None:
        """Takes what is told of a channel."""
        p = self._channels.get(params["channel"])
        if p is None:
            return
        if method == "exec.gap":
            for stream, n in params["skipped"].items():
                p._skipped(stream, n)
            return
        del self._channels[params["channel"]]
        if method == "exec.exit":
            p._exited(params)
            return
        p._detached()
        if not p._over():
            log.warning("the streams of %s broke, and are joined anew: %s", p.exec, params.get("error"))
            p._broke += 1
            self._spawn(self._rejoin(p, min(_FIRST_PAUSE * 2**p._broke, _LAST_PAUSE)))

    def _frame(self, b: bytes) -> None:
        if len(b) >= 5 and (p := self._channels.get(int.from_bytes(b[:4], "big"))) is not None:
            p._frame(b[4], b[5:])

    def _lost(self, why: Exception) -> None:
        """Puts calls back that may be asked again, and fails the others."""
        self._line = None
        self._drop_calls(lambda call: call.sent and not call.repeat, "the connection dropped")
        channels, self._channels = self._channels, {}
        for p in channels.values():
            p._detached()
            if not p._over():
                self._spawn(self._rejoin(p))
        if self._events is not None and self._events._ended():
            self._spawn(self._resubscribe(self._events))
        self._notes.put(self._on_dropped, why)

    def _drop_calls(self, which: Callable[[_Call], bool], why: str) -> None:
        for number, call in list(self._calls.items()):
            if call.answer.done():  # its caller does not wait any more
                del self._calls[number]
            elif which(call):
                del self._calls[number]
                call.answer.set_exception(Dropped(f"{call.method}: {why}"))

    def _fail(self, e: BaseException) -> None:
        """Gives up."""
        if self._failure is not None:
            return
        self._failure = e
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(e)
        self._calls.clear()
        for p in self._channels.values():
            p._fail(e)
        if self._events is not None:
            self._events._fail(e)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
