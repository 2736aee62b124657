"""The same client for synchronous code. Its methods may be called by any thread."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from .aio import AsyncClient, Command, Ref
from .errors import Closed
from .events import Events
from .process import WINDOW, Output, Process
from .wire import Env, Event, Exit, Expiring, Hello, Notice, Stream

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(method(self._async, *args, **kwargs))

    return call


def _in_thread(callback: Callable[[T], object] | None) -> Callable[[T], Awaitable[object]] | None:
    """Has a callback called outside of the event loop, so that it may use the client."""
    return None if callback is None else functools.partial(asyncio.to_thread, callback)


class Client:
    """Connects when made; a context manager. AsyncClient says what the arguments and the methods do.

    An event loop of its own runs in a thread. Callbacks are called by another
    thread, one at a time. A call that is interrupted (KeyboardInterrupt) may have
    been done.
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
        on_env_state: Callable[[Env], object] | None = None,
        on_env_expiring: Callable[[Expiring], object] | None = None,
        on_draining: Callable[[int], object] | None = None,
        on_connected: Callable[[Hello], object] | None = None,
        on_dropped: Callable[[Exception], object] | None = None,
    ) -> None:
        self._async = AsyncClient(
            url,
            token,
            agent=agent,
            version=version,
            owner=owner,
            session=session,
            disconnect_grace_seconds=disconnect_grace_seconds,
            reconnect_timeout=reconnect_timeout,
            on_env_state=_in_thread(on_env_state),
            on_env_expiring=_in_thread(on_env_expiring),
            on_draining=_in_thread(on_draining),
            on_connected=_in_thread(on_connected),
            on_dropped=_in_thread(on_dropped),
        )
        self._loop = asyncio.new_event_loop()
        self._mu = threading.Lock()  # guards _closed
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sandkeeper", daemon=True)
        self._thread.start()
        try:
            self._do(self._async.__aenter__())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def session(self) -> str | None:
        """The session's id, by which another client may resume it."""
        return self._async.session

    @property
    def hello(self) -> Hello:
        """What the server said last of itself and of the session."""
        return self._async.hello

    def close(self) -> None:
        """Ends the connection. Calls of other threads fail with Closed."""
        with self._mu:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    call = _blocking(AsyncClient.call)
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
    resize = _blocking(AsyncClient.resize)
    close_stdin = _blocking(AsyncClient.close_stdin)
    read_file = _blocking(AsyncClient.read_file)
    write_file = _blocking(AsyncClient.write_file)
    list_files = _blocking(AsyncClient.list_files)
    stat_file = _blocking(AsyncClient.stat_file)
    remove_file = _blocking(AsyncClient.remove_file)
    mkdir = _blocking(AsyncClient.mkdir)
    _start = _blocking(AsyncClient.start)
    _attach = _blocking(AsyncClient.attach)
    _events = _blocking(AsyncClient.events)

    def start(
        self,
        ref: Ref,
        command: Command,
        *,
        cwd: str | None = None,
        variables: dict[str, str] | None = None,
        stdin: bool = False,
        tty: tuple[int, int] | None = None,
        background: bool = False,
        timeout_seconds: int | None = None,
        id: str | None = None,
        generation: int | None = None,
        window: int = WINDOW,
    ) -> SyncProcess:
        """Starts a command and joins its streams."""
        process = self._start(
            ref,
            command,
            cwd=cwd,
            variables=variables,
            stdin=stdin,
            tty=tty,
            background=background,
            timeout_seconds=timeout_seconds,
            id=id,
            generation=generation,
            window=window,
        )
        return SyncProcess(self, process)

    def attach(self, exec: str, *, offsets: dict[Stream, int] | None = None, stdin: bool = True, window: int = WINDOW) -> SyncProcess:
        """Joins the streams of a command, behind the bytes that are already had."""
        return SyncProcess(self, self._attach(exec, offsets=offsets, stdin=stdin, window=window))

    def events(self, *, after: int | None = None) -> SyncEvents:
        """Subscribes to the owner's events behind the number `after`, or from now on."""
        return SyncEvents(self, self._events(after=after))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        with self._mu:
            if self._closed:
                work.close()
                raise Closed("the client was closed")
            doing = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return doing.result()
        except BaseException:
            doing.cancel()
            raise

    def _run(self) -> None:
        """Runs the loop until close(), and then has every call end."""
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        await self._async.close()
        own = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not own]
        await asyncio.gather(*rest, return_exceptions=True)


class SyncProcess:
    """A command whose streams are joined: a Process for synchronous code.

    Iterate over it for (stream, bytes). A context manager.
    """

    def __init__(self, client: Client, process: Process) -> None:
        self._client, self._process = client, process
        self.exec = process.exec
        self.pid: int | None = process.pid
        self.notice: Notice | None = process.notice

    def __enter__(self) -> SyncProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Stream, bytes]]:
        return self

    def __next__(self) -> tuple[Stream, bytes]:
        got = self._client._do(self._next())
        if got is None:
            raise StopIteration
        return got

    async def _next(self) -> tuple[Stream, bytes] | None:
        try:
            return await self._process.__anext__()
        except StopAsyncIteration:
            return None

    @property
    def offsets(self) -> dict[Stream, int]:
        """Bytes of each stream that came, for an attach by a later client."""
        return dict(self._process.offsets)

    def output(self) -> Output:
        """Reads what comes to the end, all of it into memory."""
        return self._client._do(self._process.output())

    def wait(self) -> Exit:
        """The end of the command, told behind its last byte: unread output may hold it up."""
        return self._client._do(self._process.wait())

    def write(self, data: bytes) -> None:
        """Writes stdin; waits while the command does not read."""
        self._client._do(self._process.write(data))

    def close_stdin(self) -> None:
        """Ends stdin behind what was written."""
        self._client._do(self._process.close_stdin())

    def signal(self, name: str, *, tree: bool = True) -> int:
        """Signals the command, with tree what it started too; returns how many still live."""
        return self._client._do(self._process.signal(name, tree=tree))

    def resize(self, cols: int, rows: int) -> None:
        """Sets the size of its terminal."""
        self._client._do(self._process.resize(cols, rows))

    def close(self) -> None:
        """Leaves the command alone: it goes on, and what it writes is kept for a while."""
        _closed(self._client, self._process)


class SyncEvents:
    """The owner's events: Events for synchronous code. A context manager."""

    def __init__(self, client: Client, events: Events) -> None:
        self._client, self._events = client, events

    def __enter__(self) -> SyncEvents:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return self._client._do(self._events.__anext__())

    @property
    def last(self) -> int:
        """The number of the event that was had last."""
        return self._events.last

    def close(self) -> None:
        _closed(self._client, self._events)


def _closed(client: Client, thing: Process | Events) -> None:
    async def close() -> None:
        thing.close()

    try:
        client._do(close())
    except Closed:
        pass  # with its client
