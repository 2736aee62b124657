"""The asyncio client against a real server."""

from __future__ import annotations

import asyncio
import unittest
from typing import Any

import sandkeeper
from sandkeeper import AsyncClient
from sandkeeper.wire import Env, Hello

from flaky import PATIENCE, TOKEN, URL, flaky, new_task


class Calls(unittest.IsolatedAsyncioTestCase):
    async def test_files_and_commands(self) -> None:
        t = new_task()
        async with AsyncClient(URL, TOKEN) as c:
            got = await c.acquire(t.task, labels={"a": "b"}, lifetime_seconds=60)
            self.assertEqual((got["outcome"], got["env"]["labels"], got["env"]["lifetime_seconds"]), ("created", {"a": "b"}, 60))
            await c.write_file(t, "d/f", b"\xff\x00x", mode=0o600, mkdirs=True)
            self.assertEqual(await c.read_file(t, "d/f"), b"\xff\x00x")
            self.assertEqual(await c.read_file(t, "d/f", offset=1, length=1), b"\x00")
            self.assertEqual((await c.stat_file(t, "d/f"))["mode"], 0o600)
            await c.mkdir(t, "d/e/g", recursive=True)
            self.assertEqual({f["name"]: f["type"] for f in await c.list_files(t, "d")}, {"e": "dir", "f": "file"})
            ran = await c.run(t, "cat f; echo $V >&2; cat; exit 3", cwd="d", variables={"V": "e"}, stdin="in")
            self.assertEqual((ran.stdout, ran.stderr, ran.exit_code), (b"\xff\x00xin", b"e\n", 3))
            self.assertEqual((await c.list_execs(t))[0]["exit_code"], 3)
            ran = await c.run(t, ["sleep", "60"], timeout_seconds=1)
            self.assertEqual((ran.exit_code, ran.timed_out), (124, True))
            ran = await c.run(t, "head -c 1000 /dev/zero", output_limit=100)
            self.assertEqual((len(ran.stdout), ran.omitted_stdout), (100, 900))
            await c.remove_file(t, "d", recursive=True)
            with self.assertRaises(sandkeeper.NotFound):
                await c.stat_file(t, "d")
            with self.assertRaises(sandkeeper.InvalidParams) as refused:
                await c.read_file(t, "/")
            self.assertEqual(refused.exception.errno, "EISDIR")
            self.assertEqual((await c.touch(t))["last_activity"]["kind"], "touch")
            self.assertEqual((await c.list_envs(t.task))[0]["id"], got["env"]["id"])
            self.assertEqual((await c.end_turn(t.task))["decisions"][0]["decision"], "removed")

    async def test_a_file_larger_than_a_call_goes_in_pieces(self) -> None:
        t = new_task()
        data = bytes(range(256)) * 8000  # 2 MB
        async with AsyncClient(URL, TOKEN) as c:
            await c.acquire(t.task)
            self.assertEqual(await c.write_file(t, "f", data), len(data))
            self.assertEqual(await c.write_file(t, "f", b"end", append=True), len(data) + 3)
            self.assertEqual(await c.read_file(t, "f"), data + b"end")
            await c.end_turn(t.task)

    async def test_errors_are_of_their_kind(self) -> None:
        t = new_task()
        async with AsyncClient(URL, TOKEN) as c:
            with self.assertRaises(sandkeeper.NotFound):
                await c.get_env("nothing")
            with self.assertRaises(sandkeeper.UnknownMethod):
                await c.call("env.teleport")
            with self.assertRaises(sandkeeper.InvalidParams) as typo:
                await c.call("env.acquire", {"task": t.task, "typo": 1})
            self.assertEqual(typo.exception.field, "typo")
            await c.acquire(t.task)
            await c.run(t, "true", id="one")
            with self.assertRaises(sandkeeper.Conflict):
                await c.run(t, "false", id="one")
            with self.assertRaises(sandkeeper.Conflict) as drifts:
                await c.acquire(t.task, on_drift="error", workdir="/elsewhere")
            self.assertEqual(drifts.exception.drift, ["workdir"])
            with self.assertRaises(sandkeeper.TooBig):
                await c.run(t, "cat", stdin="x" * (1 << 20))
            self.assertEqual((await c.run(t, "echo on")).stdout, b"on\n")  # and the connection stands
            await c.end_turn(t.task)
            with self.assertRaises(sandkeeper.GenerationGone) as gone:
                await c.run(t, "true")
            assert gone.exception.tombstone is not None
            self.assertEqual(gone.exception.tombstone["reason"], "turn ended")
        with self.assertRaises(sandkeeper.Closed):
            await c.list_envs()
        with self.assertRaises(sandkeeper.HandshakeRefused) as refused:
            await AsyncClient(URL, "wrong").__aenter__()
        self.assertEqual(refused.exception.status, 401)
        with self.assertRaises(sandkeeper.SandkeeperError):
            AsyncClient("127.0.0.1:7333", TOKEN)

    async def test_a_turn_that_was_seen_may_be_ended_twice(self) -> None:
        t = new_task()
        async with AsyncClient(URL, TOKEN) as c:
            await c.acquire(t.task, persistent=True)
            first = await c.end_turn(t.task, outcome="done")
            self.assertEqual((first["turn"], first["decisions"][0]["decision"]), (1, "kept"))
            self.assertEqual(await c.end_turn(t.task), {"turn": 1, "decisions": []})
            self.assertEqual(await c.begin_turn(t.task), {"turn": 2, "opened": True})
            self.assertEqual((await c.end_turn(t.task, turn=1))["stale"], True)
            await c.release(t, purge=True)


class Connection(unittest.IsolatedAsyncioTestCase):
    async def test_a_command_under_a_dropped_connection_runs_once(self) -> None:
        t = new_task()
        async with asyncio.timeout(PATIENCE), flaky() as way, AsyncClient(way.url, TOKEN) as c, AsyncClient(URL, TOKEN) as other:
            await c.acquire(t.task)
            running = asyncio.create_task(c.run(t, "echo x >> n; while [ ! -e go ]; do sleep 0.05; done; cat n"))
            while (await other.run(t, ["test", "-e", "n"])).exit_code:
                pass
            for _ in range(3):
                session = c.session
                way.drop()
                await c.get_env(t)  # once it is back
                self.assertEqual((c.session, c.hello["resumed"]), (session, True))
            await other.write_file(t, "go", b"")
            self.assertEqual((await running).stdout, b"x\n")
            await c.end_turn(t.task)

    async def test_a_call_that_may_not_be_repeated_fails_with_its_connection(self) -> None:
        async with asyncio.timeout(PATIENCE), flaky() as way, AsyncClient(way.url, TOKEN) as c:
            way.hears.clear()  # no answer comes
            asked = asyncio.create_task(c.call("env.list"))
            repeated = asyncio.create_task(c.call("env.list", repeat=True))
            await asyncio.sleep(0)
            way.drop()
            with self.assertRaises(sandkeeper.Dropped):
                await asked
            way.hears.set()
            self.assertIn("envs", await repeated)

    async def test_calls_wait_for_the_server_for_so_long_as_was_said(self) -> None:
        async with asyncio.timeout(PATIENCE), flaky() as way, AsyncClient(way.url, TOKEN, reconnect_timeout=0) as c:
            way.refuses = True
            way.drop()
            with self.assertRaises(sandkeeper.Dropped):
                await c.call("env.list", repeat=True)
            way.refuses = False
            while True:  # the client is after a connection all the same
                try:
                    self.assertIn("envs", await c.call("env.list", repeat=True))
                    break
                except sandkeeper.Dropped:
                    pass

    async def test_a_session_goes_to_its_newest_connection(self) -> None:
        async with asyncio.timeout(PATIENCE), AsyncClient(URL, TOKEN, disconnect_grace_seconds=30) as c:
            self.assertEqual(c.hello["disconnect_grace_seconds"], 30)
            t = new_task()
            await c.acquire(t.task)
            p = await c.start(t, "sleep 600")
            async with AsyncClient(URL, TOKEN, session=c.session) as newer:
                self.assertEqual((newer.session, newer.hello["resumed"]), (c.session, True))
                with self.assertRaises(sandkeeper.TakenOver):
                    await p.wait()
                with self.assertRaises(sandkeeper.TakenOver):
                    await c.list_envs()
                await newer.end_turn(t.task)

    async def test_callbacks_are_told_what_happens_in_order(self) -> None:
        t = new_task()
        states: list[str] = []
        told: asyncio.Queue[Any] = asyncio.Queue()

        async def state(env: Env) -> None:
            if env["task"] == t.task:
                states.append(env["state"])
                if len(states) == 1:
                    await c.touch(t)  # a callback may use the client
                    raise ValueError("a callback that fails stops nothing")
                told.put_nowait(env["state"])

        async with asyncio.timeout(PATIENCE), flaky() as way:
            c = AsyncClient(way.url, TOKEN, on_env_state=state, on_connected=told.put_nowait, on_dropped=told.put_nowait)
            with self.assertLogs("sandkeeper", "ERROR"):
                async with c:
                    hello: Hello = await told.get()
                    self.assertFalse(hello["resumed"])
                    await c.acquire(t.task)
                    self.assertEqual(await told.get(), "ready")
                    way.drop()
                    self.assertIsInstance(await told.get(), Exception)
                    self.assertTrue((await told.get())["resumed"])
                    await c.end_turn(t.task)
                    while await told.get() != "removed":
                        pass
            self.assertEqual(states[:2], ["starting", "ready"])

    async def test_a_callback_may_close_the_client(self) -> None:
        closed = asyncio.Event()

        async def connected(_: Hello) -> None:
            await c.close()
            closed.set()

        async with asyncio.timeout(PATIENCE):
            c = AsyncClient(URL, TOKEN, on_connected=connected)
            async with c:
                await closed.wait()
                with self.assertRaises(sandkeeper.Closed):
                    await c.list_envs()


if __name__ == "__main__":
    unittest.main()
