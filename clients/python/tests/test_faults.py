"""What a real server seldom does, by one that is made up for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import unittest
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import websockets
import websockets.exceptions

import sandkeeper
from sandkeeper import AsyncClient

from flaky import PATIENCE, TOKEN, flaky


class Fake:
    """Answers hello itself, and hands every other call to the test, which answers."""

    def __init__(self, heartbeat: float = 20) -> None:
        self.calls: asyncio.Queue[tuple[Any, dict[str, Any]]] = asyncio.Queue()
        self._heartbeat = heartbeat
        self.url = ""

    async def serve(self, ws: Any) -> None:
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            while True:
                message = await ws.recv()
                if isinstance(message, bytes):
                    continue
                call = json.loads(message)
                if call["method"] == "hello":
                    hello = {"session": "s", "resumed": "session" in call["params"], "heartbeat_seconds": self._heartbeat}
                    await self.answer(ws, call, hello | {"limits": {"max_frame_bytes": 1 << 20}})
                else:
                    self.calls.put_nowait((ws, call))

    async def called(self, method: str) -> tuple[Any, dict[str, Any]]:
        ws, call = await self.calls.get()
        assert call["method"] == method, call
        return ws, call

    async def answer(self, ws: Any, call: dict[str, Any], result: Any) -> None:
        await ws.send(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}))

    async def refuse(self, ws: Any, call: dict[str, Any], kind: str, **data: object) -> None:
        error = {"code": -32000, "message": kind, "data": {"kind": kind} | data}
        await ws.send(json.dumps({"jsonrpc": "2.0", "id": call["id"], "error": error}))

    async def tell(self, ws: Any, method: str, **params: object) -> None:
        await ws.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))

    async def event(self, ws: Any, *numbers: int) -> None:
        for seq in numbers:
            await self.tell(ws, "event", seq=seq)


@asynccontextmanager
async def fake(heartbeat: float = 20) -> AsyncIterator[Fake]:
    f = Fake(heartbeat)
    async with websockets.serve(f.serve, "127.0.0.1", 0, subprotocols=["sandkeeper.v1"], ping_interval=None) as server:  # type: ignore
        f.url = "http://127.0.0.1:%d" % next(iter(server.sockets)).getsockname()[1]
        yield f


class Faults(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        await self.enterAsyncContext(asyncio.timeout(PATIENCE))

    async def test_a_server_that_says_nothing_for_two_heartbeats_is_dialled_anew(self) -> None:
        dropped = asyncio.Event()
        async with fake(heartbeat=0.1) as f, flaky(f.url) as way:
            async with AsyncClient(way.url, TOKEN, on_dropped=lambda _: dropped.set()) as c:
                listing = asyncio.create_task(c.list_envs())
                ws, call = await f.called("env.list")
                way.hears.clear()
                await dropped.wait()
                way.hears.set()
                ws, call = await f.called("env.list")
                await f.answer(ws, call, {"envs": []})
                self.assertEqual(await listing, [])
                self.assertTrue(c.hello["resumed"])

    async def test_a_broken_channel_is_joined_anew_behind_what_came(self) -> None:
        async with fake() as f, AsyncClient(f.url, TOKEN) as c:
            starting = asyncio.create_task(c.start("e", "x"))
            ws, call = await f.called("exec.start")
            await f.answer(ws, call, {"exec": "x1", "channel": 1, "pid": 7})
            await ws.send(b"\0\0\0\1\1abc")
            await f.tell(ws, "exec.detached", exec="x1", channel=1, error={})
            p = await starting
            self.assertEqual(p.pid, 7)
            for kind in ("engine_unavailable", "draining"):  # away for a time
                ws, call = await f.called("exec.attach")
                self.assertEqual((call["params"]["from"], call["params"]["stdin"]), ({"stdout": 3, "stderr": 0}, False))
                await f.refuse(ws, call, kind, retry_after_ms=1)
            ws, call = await f.called("exec.attach")
            await f.answer(ws, call, {"exec": "x1", "channel": 2, "state": "running", "skipped": {"stdout": 2, "stderr": 0}, "stdin_taken": 0})
            await ws.send(b"\0\0\0\2\1f")
            await f.tell(ws, "exec.gap", exec="x1", channel=2, skipped={"stdout": 0, "stderr": 4})
            await ws.send(b"\0\0\0\2\2k")
            await f.tell(ws, "exec.exit", exec="x1", channel=2, exit_code=0)
            self.assertEqual(await p.__anext__(), ("stdout", b"abc"))
            for stream, size, then in (("stdout", 2, b"f"), ("stderr", 4, b"k")):
                with self.assertRaises(sandkeeper.GapError) as gap:
                    await p.__anext__()
                self.assertEqual((gap.exception.stream, gap.exception.size), (stream, size))
                self.assertEqual(await p.__anext__(), (stream, then))
            self.assertEqual((await p.wait())["exit_code"], 0)

    async def test_a_command_that_is_gone_ends_its_stream_with_the_reason(self) -> None:
        async with fake() as f, AsyncClient(f.url, TOKEN) as c:
            starting = asyncio.create_task(c.start("e", "x"))
            ws, call = await f.called("exec.start")
            await f.answer(ws, call, {"exec": "x1", "channel": 1, "pid": 7})
            p = await starting
            await ws.close()
            ws, call = await f.called("exec.attach")
            await f.refuse(ws, call, "not_found")
            with self.assertRaises(sandkeeper.NotFound):
                await p.output()

    async def test_events_resume_behind_the_last_that_came(self) -> None:
        async with fake() as f, AsyncClient(f.url, TOKEN) as c:
            subscribing = asyncio.create_task(c.events())
            ws, call = await f.called("events.subscribe")
            self.assertEqual(call["params"], {})
            await f.answer(ws, call, {"last": 7})
            events = await subscribing
            self.assertEqual(events.last, 7)
            await f.event(ws, 8, 9)
            self.assertEqual(((await events.__anext__())["seq"], events.last), (8, 8))
            await ws.close()
            ws, call = await f.called("events.subscribe")
            self.assertEqual(call["params"], {"after": 9})
            await f.answer(ws, call, {"last": 20})
            await f.event(ws, 9, 10)  # no repeat
            await f.tell(ws, "events.reset")
            await f.event(ws, 15)
            await f.tell(ws, "events.ended", error={})
            ws, call = await f.called("events.subscribe")
            self.assertEqual(call["params"], {"after": 15})
            await f.answer(ws, call, {"last": 20})
            await f.event(ws, 16)
            self.assertEqual([(await events.__anext__())["seq"] for _ in range(2)], [9, 10])
            with self.assertRaises(sandkeeper.EventsLost):
                await events.__anext__()
            self.assertEqual([(await events.__anext__())["seq"] for _ in range(2)], [15, 16])
            events.close()
            with self.assertRaises(sandkeeper.Closed):
                await events.__anext__()

    async def test_a_slow_reader_of_events_gets_them_later(self) -> None:
        async with fake() as f, AsyncClient(f.url, TOKEN) as c:
            subscribing = asyncio.create_task(c.events(after=0))
            ws, call = await f.called("events.subscribe")
            await f.answer(ws, call, {"last": 0})
            events = await subscribing
            await f.event(ws, *range(1, 1101))
            listing = asyncio.create_task(c.list_envs())  # all of them have come once this is answered
            ws, call = await f.called("env.list")
            await f.answer(ws, call, {"envs": []})
            await listing
            for seq in range(1, 1025):
                self.assertEqual((await events.__anext__())["seq"], seq)
            later = asyncio.ensure_future(events.__anext__())
            ws, call = await f.called("events.subscribe")
            self.assertEqual(call["params"], {"after": 1024})
            await f.answer(ws, call, {"last": 1100})
            await f.event(ws, 1025)
            self.assertEqual((await later)["seq"], 1025)

    async def test_states_of_one_environment_are_skipped_where_a_callback_is_slow(self) -> None:
        go, told = asyncio.Event(), []

        async def state(env: Any) -> None:
            await go.wait()
            told.append((env["id"], env["generation"]))

        async with fake() as f, AsyncClient(f.url, TOKEN, on_env_state=state) as c:
            listing = asyncio.create_task(c.list_envs())
            ws, call = await f.called("env.list")
            for n in range(1000):
                await f.tell(ws, "env.state", env={"id": "ab"[n % 2], "generation": n})
            await f.answer(ws, call, {"envs": []})
            await listing
            go.set()
            while not {("a", 998), ("b", 999)} <= set(told):
                await asyncio.sleep(0)
            self.assertEqual(set(told[-2:]), {("a", 998), ("b", 999)})
            self.assertLess(len(told), 300)

    async def test_a_greeting_that_cannot_be_taken_is_not_repeated(self) -> None:
        async def refuse(ws: Any) -> None:
            call = json.loads(await ws.recv())
            await Fake().refuse(ws, call, "invalid_params", field="agent")

        async with websockets.serve(refuse, "127.0.0.1", 0, subprotocols=["sandkeeper.v1"]) as server:  # type: ignore
            url = "http://127.0.0.1:%d" % next(iter(server.sockets)).getsockname()[1]
            with self.assertRaises(sandkeeper.InvalidParams):
                await AsyncClient(url, TOKEN, agent="").__aenter__()


if __name__ == "__main__":
    unittest.main()
