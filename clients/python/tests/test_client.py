"""Against a real server: SANDKEEPER_URL and SANDKEEPER_TOKEN name it."""

import asyncio
import os
import unittest
import uuid

import sandkeeper
from sandkeeper.adapter import Terminal

URL = os.environ["SANDKEEPER_URL"]
TOKEN = os.environ["SANDKEEPER_TOKEN"]


def task() -> str:
    return "py-" + uuid.uuid4().hex[:8]


class Core(unittest.IsolatedAsyncioTestCase):
    async def test_files_and_commands(self) -> None:
        t = sandkeeper.Task(task())
        async with await sandkeeper.connect(URL, TOKEN) as c:
            await c.acquire(t.task)
            await c.write_file(t, "f", b"\xff\x00x")
            self.assertEqual(await c.read_file(t, "f"), b"\xff\x00x")
            got = await c.run(t, "cat f; echo e >&2; exit 3")
            self.assertEqual((got.stdout, got.stderr, got.exit_code), (b"\xff\x00x", b"e\n", 3))
            self.assertEqual((await c.end_turn(t.task))["decisions"][0]["decision"], "removed")

    async def test_errors_are_of_their_kind(self) -> None:
        async with await sandkeeper.connect(URL, TOKEN) as c:
            with self.assertRaises(sandkeeper.NotFound):
                await c.get_env("nothing")
            with self.assertRaises(sandkeeper.InvalidParams):
                await c.acquire(task(), typo=1)
            t = sandkeeper.Task(task())
            await c.acquire(t.task)
            await c.run(t, "true", id="one" + t.task)
            with self.assertRaises(sandkeeper.Conflict):
                await c.run(t, "false", id="one" + t.task)
            await c.end_turn(t.task)
            with self.assertRaises(sandkeeper.GenerationGone) as gone:
                await c.run(t, "true")
            self.assertIsNotNone(gone.exception.tombstone)
        with self.assertRaises(sandkeeper.HandshakeRefused):
            await sandkeeper.connect(URL, "wrong")

    async def test_a_command_under_a_dropped_connection_runs_once(self) -> None:
        t = sandkeeper.Task(task())
        async with await sandkeeper.connect(URL, TOKEN) as c:
            await c.acquire(t.task)
            session = c.session
            running = asyncio.create_task(c.run(t, "echo x >> n; while [ ! -e go ]; do sleep 0.05; done; cat n"))
            while (await c.run(t, ["test", "-e", "n"])).exit_code:
                pass
            c._ws.transport.abort()
            await c.write_file(t, "go", b"")
            self.assertEqual((await running).stdout, b"x\n")
            self.assertEqual(c.session, session)
            self.assertTrue(c.hello["resumed"])
            await c.end_turn(t.task)

    async def test_streams(self) -> None:
        t = sandkeeper.Task(task())
        async with await sandkeeper.connect(URL, TOKEN) as c:
            if "exec.start" not in c.hello["features"]:
                self.skipTest("the server has no exec.start")
            await c.acquire(t.task)
            p = await c.start(t, ["cat"])
            await p.write(b"a" * 3_000_00)
            await p.close_stdin()
            out, _, end = await p.output()
            self.assertEqual((out, end["exit_code"]), (b"a" * 3_000_00, 0))
            await c.end_turn(t.task)


class Adapter(unittest.TestCase):
    def test_terminal(self) -> None:
        with sandkeeper.Client(URL, TOKEN) as c:
            terminal = Terminal(c, task())
            self.assertEqual(terminal.execute("echo hi; exit 2", cwd="/", timeout=30), {"output": "hi\n", "returncode": 2})
            terminal.end_turn()
            self.assertEqual(terminal.execute("pwd")["returncode"], 0)  # a new one
            terminal.cleanup()


if __name__ == "__main__":
    unittest.main()
