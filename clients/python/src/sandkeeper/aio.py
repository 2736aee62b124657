"""The asyncio client."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from websockets.exceptions import ConnectionClosed

from .errors import Closed, Dropped, HandshakeRefused, NotificationsLost, SandkeeperError, TakenOver, server_error
from .process import WINDOW, Process
from .socket import TAKEN_OVER, close_code, dial, endpoint

Json = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Names an environment by its task; a plain str is an environment's id."""

    task: str
    name: str = "main"


Ref = str | Task


def _ref(ref: Ref) -> Json:
    return {"env": ref} if isinstance(ref, str) else {"task": ref.task, "name": ref.name}


def _given(**params: Any) -> Json:
    return {k: v for k, v in params.items() if v is not None}


def _what(command: str | list[str]) -> Json:
    return {"command": command} if isinstance(command, str) else {"argv": command}


@dataclass(frozen=True)
class RunResult:
    exec: str
    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    raw: Json  # everything that the server answered


def _run_result(got: Json) -> RunResult:
    def stream(name: str) -> bytes:
        if name + "_base64" in got:
            return base64.b64decode(got[name + "_base64"])
        return str(got.get(name, "")).encode()

    return RunResult(got["exec"], got["exit_code"], stream("stdout"), stream("stderr"), bool(got.get("timed_out")), got)


@dataclass
class _Call:
    method: str
    frame: str
    repeat: bool
    answer: asyncio.Future[Any]
    accept: Callable[[Any, Json], None] | None
    sent: bool = False


class AsyncClient:
    """Made by connect(); an async context manager."""

    def __init__(self, url: str, token: str, *, agent: str, session: str | None = None, owner: str | None = None) -> None:
        self.hello: Json = {}
        self._url, self._agent, self._session = endpoint(url), agent, session
        self._headers = {"Authorization": f"Bearer {token}"} | ({"Sandkeeper-Owner": owner} if owner else {})
        self._ws: Any = None
        self._calls: dict[int, _Call] = {}
        self._channels: dict[int, Process] = {}
        self._turns: dict[str, int] = {}
        self._next = 0
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._readers: set[asyncio.Queue[tuple[str, Json] | None]] = set()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def session(self) -> str | None:
        return self._session

    async def close(self) -> None:
        """Ends the connection; the session and its turns last for the disconnect grace."""
        self._fail(Closed("the client was closed"))
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._ws is not None:
            await self._ws.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def call(self, method: str, params: Json, *, repeat: bool = False, accept: Callable[[Any, Json], None] | None = None) -> Any:
        """Makes any request of the protocol. repeat says that it may be asked twice."""
        if self._failure is not None:
            raise self._failure
        self._next += 1
        number = self._next
        frame = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        call = _Call(method, frame, repeat, asyncio.get_running_loop().create_future(), accept)
        self._calls[number] = call
        try:
            if self._ws is not None:
                call.sent = True
                await self._send(self._ws, frame)
            return await call.answer
        finally:
            self._calls.pop(number, None)

    async def notifications(self) -> AsyncIterator[tuple[str, Json]]:
        """Every notification but those of streams, as (method, params)."""
        queue: asyncio.Queue[tuple[str, Json] | None] = asyncio.Queue(1024)
        self._readers.add(queue)
        try:
            while queue in self._readers or not queue.empty():
                got = await queue.get()
                if got is None:
                    return
                yield got
            raise NotificationsLost("more than 1024 notifications were not read")
        finally:
            self._readers.discard(queue)

    async def acquire(self, /, task: str, **params: Any) -> Json:
        """env.acquire; params are the protocol's (name, persistent, image, ...)."""
        got: Json = await self.call("env.acquire", {"task": task} | params, repeat=True)
        return got

    async def get_env(self, ref: Ref) -> Json:
        got: Json = (await self.call("env.get", _ref(ref), repeat=True))["env"]
        return got

    async def list_envs(self, task: str | None = None) -> list[Json]:
        got: list[Json] = (await self.call("env.list", _given(task=task), repeat=True))["envs"]
        return got

    async def touch(self, ref: Ref) -> Json:
        got: Json = (await self.call("env.touch", _ref(ref), repeat=True))["env"]
        return got

    async def release(self, ref: Ref, *, purge: bool = False) -> Json:
        got: Json = (await self.call("env.release", _ref(ref) | {"purge": purge}))["env"]
        return got

    async def begin_turn(self, task: str) -> Json:
        got: Json = await self.call("turn.begin", {"task": task}, repeat=True)
        self._turns[task] = got["turn"]
        return got

    async def end_turn(self, task: str, *, turn: int | None = None, outcome: str | None = None) -> Json:
        """Ends the turn that this client began, or the one given. Only with a number may it be repeated."""
        turn = self._turns.get(task) if turn is None else turn
        got: Json = await self.call("turn.end", _given(task=task, turn=turn, outcome=outcome), repeat=turn is not None)
        if self._turns.get(task) == turn:
            self._turns.pop(task, None)
        return got

    async def run(self, /, ref: Ref, command: str | list[str], *, id: str | None = None, **params: Any) -> RunResult:
        """exec.run: shell text, or a list for argv. It never runs twice."""
        asked = _ref(ref) | _what(command) | {"id": id or secrets.token_hex(16)} | params
        return _run_result(await self.call("exec.run", asked, repeat=True))

    async def start(self, ref: Ref, command: str | list[str], *, id: str | None = None, window: int = WINDOW, **params: Any) -> Process:
        """exec.start: a command whose streams are joined. It never starts twice."""
        p = Process(self, window)
        asked = _ref(ref) | _what(command) | {"id": id or secrets.token_hex(16), "window": window} | params
        got = await self._join(p, "exec.start", asked)
        p.pid, p.notice = got.get("pid"), got.get("notice")
        return p

    async def attach(self, exec: str, *, offsets: dict[str, int] | None = None) -> Process:
        """exec.attach, behind the bytes that are already had."""
        p = Process(self)
        p.exec = exec
        p.offsets.update(offsets or {})
        await self._join(p, "exec.attach", p._attach_params())
        return p

    async def wait(self, exec: str, *, timeout_seconds: int | None = None) -> Json:
        got: Json = await self.call("exec.wait", _given(exec=exec, timeout_seconds=timeout_seconds), repeat=True)
        return got

    async def list_execs(self, ref: Ref) -> list[Json]:
        got: list[Json] = (await self.call("exec.list", _ref(ref), repeat=True))["execs"]
        return got

    async def signal(self, exec: str, name: str, *, tree: bool = True) -> int:
        return int((await self.call("exec.signal", {"exec": exec, "signal": name, "tree": tree}))["survivors"])

    async def resize(self, exec: str, cols: int, rows: int) -> None:
        await self.call("exec.resize", {"exec": exec, "cols": cols, "rows": rows}, repeat=True)

    async def close_stdin(self, exec: str) -> None:
        await self.call("exec.close_stdin", {"exec": exec}, repeat=True)

    async def read_file(self, ref: Ref, path: str) -> bytes:
        """The whole file, in as many calls as it needs."""
        data = bytearray()
        while True:
            got = await self.call("file.read", _ref(ref) | {"path": path, "offset": len(data)}, repeat=True)
            piece = base64.b64decode(got["data"])
            data += piece
            if got["eof"] or not piece:
                return bytes(data)

    async def write_file(self, /, ref: Ref, path: str, data: bytes, *, append: bool = False, **params: Any) -> int:
        asked = _ref(ref) | {"path": path, "data": base64.b64encode(data).decode(), "append": append} | params
        return int((await self.call("file.write", asked, repeat=not append))["size"])

    async def list_files(self, ref: Ref, path: str) -> list[Json]:
        got: list[Json] = (await self.call("file.list", _ref(ref) | {"path": path}, repeat=True))["entries"]
        return got

    async def stat_file(self, ref: Ref, path: str) -> Json:
        got: Json = await self.call("file.stat", _ref(ref) | {"path": path}, repeat=True)
        return got

    async def remove_file(self, ref: Ref, path: str, *, recursive: bool = False) -> None:
        await self.call("file.remove", _ref(ref) | {"path": path, "recursive": recursive})

    async def mkdir(self, ref: Ref, path: str, *, recursive: bool = False) -> None:
        await self.call("file.mkdir", _ref(ref) | {"path": path, "recursive": recursive})

    # What follows keeps the connection.

    async def _join(self, p: Process, method: str, params: Json) -> Json:
        def opened(ws: Any, got: Json) -> None:
            self._channels[got["channel"]] = p
            p._opened(ws, got, params["window"])

        try:
            got: Json = await self.call(method, params, repeat=True, accept=opened)
        except SandkeeperError as e:
            p._fail(e)
            raise
        return got

    async def _rejoin(self, p: Process) -> None:
        try:
            await self._join(p, "exec.attach", p._attach_params())
        except SandkeeperError:
            pass  # the process has it

    async def _connect(self) -> Any:
        ws = await dial(self._url, self._headers)
        try:
            params = _given(agent=self._agent, session=self._session)
            await ws.send(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "hello", "params": params}))
            got = json.loads(await ws.recv())
            if "error" in got:
                raise server_error("hello", got["error"])
        except BaseException:
            await ws.close()
            raise
        self.hello = got["result"]
        self._session = self.hello["session"]
        return ws

    async def _keep(self, ws: Any) -> None:
        try:
            while True:
                code = await self._serve(ws)
                if code == TAKEN_OVER:
                    raise TakenOver("a newer connection has the session")
                self._lost()
                pause = 0.05
                while True:
                    await asyncio.sleep(pause / 2 + random.random() * pause)
                    try:
                        ws = await self._connect()
                        break
                    except (OSError, ConnectionClosed, TimeoutError):
                        pause = min(2 * pause, 5.0)
        except (SandkeeperError, HandshakeRefused) as e:
            self._fail(e)

    async def _serve(self, ws: Any) -> int | None:
        self._ws = ws
        for call in list(self._calls.values()):
            call.sent = True
            self._send_soon(ws, call.frame)
        try:
            while True:
                message = await ws.recv()
                if isinstance(message, str):
                    self._receive(ws, json.loads(message))
                elif len(message) >= 5 and (p := self._channels.get(int.from_bytes(message[:4], "big"))):
                    p._frame(message[4], message[5:])
        except ConnectionClosed as e:
            return close_code(e)

    def _receive(self, ws: Any, m: Json) -> None:
        method = m.get("method")
        if method in ("exec.exit", "exec.gap"):
            p = self._channels.get(m["params"].get("channel"))
            if p is not None and method == "exec.gap":
                p._skipped(m["params"]["skipped"])
            elif p is not None:
                del self._channels[m["params"]["channel"]]
                p._exited(m["params"])
            return
        if method is not None:
            for queue in list(self._readers):
                if queue.full():
                    self._readers.discard(queue)
                else:
                    queue.put_nowait((method, m.get("params") or {}))
            return
        call = self._calls.pop(m.get("id") or 0, None)
        if call is None or call.answer.done():
            return
        if "error" in m:
            call.answer.set_exception(server_error(call.method, m["error"]))
            return
        if call.accept is not None:
            call.accept(ws, m["result"])
        call.answer.set_result(m["result"])

    def _lost(self) -> None:
        self._ws = None
        for call in self._calls.values():
            if call.sent and not call.repeat and not call.answer.done():
                call.answer.set_exception(Dropped(f"{call.method}: the connection dropped"))
        self._calls = {n: c for n, c in self._calls.items() if not c.answer.done()}
        channels, self._channels = self._channels, {}
        for p in channels.values():
            if p._dropped():
                self._spawn(self._rejoin(p))

    def _fail(self, e: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = e
        for call in self._calls.values():
            if not call.answer.done():
                call.answer.set_exception(e)
        for p in self._channels.values():
            p._fail(e)
        for queue in self._readers:
            if not queue.full():
                queue.put_nowait(None)

    async def _send(self, ws: Any, frame: str | bytes) -> None:
        try:
            await ws.send(frame)
        except ConnectionClosed:
            pass  # the keeper sees it, and decides about the calls

    def _send_soon(self, ws: Any, frame: str | bytes) -> None:
        self._spawn(self._send(ws, frame))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def connect(url: str, token: str, *, agent: str = "python", session: str | None = None, owner: str | None = None) -> AsyncClient:
    """Connects and says hello; `session` resumes one within its grace."""
    client = AsyncClient(url, token, agent=agent, session=session, owner=owner)
    ws = await client._connect()
    client._ws = ws
    client._keeper = asyncio.get_running_loop().create_task(client._keep(ws))
    return client
