"""The same client for synchronous code. Its methods may be called by any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from .aio import AsyncClient, Ref, connect
from .process import Process

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(f: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(f(self._async, *args, **kwargs))

    call.__doc__ = f.__doc__
    return call


class Client:
    """Connects when made; a context manager. See AsyncClient for what the methods do."""

    def __init__(self, url: str, token: str, *, agent: str = "python", session: str | None = None, owner: str | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandkeeper", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._async = self._do(connect(url, token, agent=agent, session=session, owner=owner))
        except BaseException:
            self._end()
            raise

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def session(self) -> str | None:
        return self._async.session

    @property
    def hello(self) -> dict[str, Any]:
        return self._async.hello

    def close(self) -> None:
        if not self._closed:
            self._do(self._async.close())
            self._end()

    acquire = _blocking(AsyncClient.acquire)
    get_env = _blocking(AsyncClient.get_env)
    list_envs = _blocking(AsyncClient.list_envs)
    touch = _blocking(AsyncClient.touch)
    release = _blocking(AsyncClient.release)
    begin_turn = _blocking(AsyncClient.begin_turn)
    end_turn = _blocking(AsyncClient.end_turn)
    run = _blocking(AsyncClient.run)
    wait = _blocking(AsyncClient.wait)
    list_execs = _blocking(AsyncClient.list_execs)
    signal = _blocking(AsyncClient.signal)
    read_file = _blocking(AsyncClient.read_file)
    write_file = _blocking(AsyncClient.write_file)
    list_files = _blocking(AsyncClient.list_files)
    stat_file = _blocking(AsyncClient.stat_file)
    remove_file = _blocking(AsyncClient.remove_file)
    mkdir = _blocking(AsyncClient.mkdir)

    def start(self, ref: Ref, command: str | list[str], **params: Any) -> SyncProcess:
        return SyncProcess(self, self._do(self._async.start(ref, command, **params)))


class SyncProcess:
    """Iterate over it for (stream, bytes)."""

    def __init__(self, client: Client, process: Process) -> None:
        self._client, self._process = client, process
        self.exec = process.exec

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self

    def __next__(self) -> tuple[str, bytes]:
        got = self._client._do(self._next())
        if got is None:
            raise StopIteration
        return got

    async def _next(self) -> tuple[str, bytes] | None:
        try:
            return await self._process.__anext__()
        except StopAsyncIteration:
            return None

    def write(self, data: bytes) -> None:
        self._client._do(self._process.write(data))

    def close_stdin(self) -> None:
        self._client._do(self._process.close_stdin())

    def signal(self, name: str) -> int:
        return self._client._do(self._process.signal(name))

    def wait(self) -> dict[str, Any]:
        return self._client._do(self._process.wait())
