"""What the tests share: the server that they run against, and a way to it that breaks."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import sandkeeper

URL = os.environ["SANDKEEPER_URL"]
TOKEN = os.environ["SANDKEEPER_TOKEN"]
PATIENCE = 180  # seconds for what comes at once


def new_task() -> sandkeeper.Task:
    return sandkeeper.Task("py-" + uuid.uuid4().hex[:10])


class Flaky:
    """A proxy to a server. drop() breaks every connection through it; while it is deaf nothing passes."""

    def __init__(self, url: str) -> None:
        self._to = urlsplit(url)
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._copying: set[asyncio.Task[None]] = set()
        self.hears = asyncio.Event()
        self.hears.set()
        self.url = ""
        self.dials = 0
        self.refuses = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = "http://127.0.0.1:%d" % self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        for task in self._copying:
            task.cancel()
        await asyncio.gather(*self._copying, return_exceptions=True)

    def drop(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dials += 1
        if self.refuses:
            writer.transport.abort()
            return
        up, down = await asyncio.open_connection(self._to.hostname, self._to.port)
        for a, b in ((reader, down), (up, writer)):
            self._open.add(b)
            task = asyncio.create_task(self._copy(a, b))
            self._copying.add(task)
            task.add_done_callback(self._copying.discard)

    async def _copy(self, a: asyncio.StreamReader, b: asyncio.StreamWriter) -> None:
        try:
            while data := await a.read(64 << 10):
                await self.hears.wait()
                b.write(data)
                await b.drain()
        except OSError:
            pass
        finally:
            b.transport.abort()
            self._open.discard(b)


@asynccontextmanager
async def flaky(url: str = URL) -> AsyncIterator[Flaky]:
    proxy = Flaky(url)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
