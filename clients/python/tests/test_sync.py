"""The client for synchronous code, and the adapter, against a real server."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import queue
import re
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import sandkeeper
from sandkeeper import Client
from sandkeeper.adapter import Terminal
from sandkeeper.wire import Hello

from flaky import PATIENCE, TOKEN, URL, Flaky, new_task


class Synchronous(unittest.TestCase):
    def test_streams_and_events(self) -> None:
        t = new_task()
        with Client(URL, TOKEN, agent="sync") as c:
            events = c.events()
            c.acquire(t.task)
            with c.start(t, "stty size; read x; stty size; echo got $x", tty=(80, 24)) as p:
                first = b""
                while not first.endswith(b"\n"):
                    first += next(p)[1]
                self.assertEqual(first, b"24 80\r\n")
                p.resize(100, 50)
                p.write(b"a\n")
                rest = b"".join(data for _, data in p)
                self.assertEqual(rest, b"a\r\n50 100\r\ngot a\r\n")
                self.assertEqual(p.wait()["exit_code"], 0)
            p = c.start(t, ["cat"], stdin=True)
            p.write(b"in")
            p.close_stdin()
            self.assertEqual(p.output().stdout, b"in")
            with c.attach(p.exec) as again:
                self.assertEqual(again.output().stdout, b"in")
            p = c.start(t, "sleep 600", background=True)
            self.assertEqual(p.signal("KILL"), 0)
            self.assertEqual(c.wait(p.exec)["exit_code"], 137)
            c.end_turn(t.task)
            kinds = []
            for event in events:
                if event["task"] == t.task:
                    kinds.append(event["kind"])
                    if event["kind"] == "env.removed":
                        break
            self.assertEqual(kinds[:2], ["turn.began", "env.starting"])
            self.assertEqual(events.last, event["seq"])
            events.close()

    def test_close_ends_the_calls_of_other_threads(self) -> None:
        t = new_task()
        c = Client(URL, TOKEN)
        c.acquire(t.task)
        p = c.start(t, "echo on; sleep 600")
        self.assertEqual(next(p), ("stdout", b"on\n"))
        with ThreadPoolExecutor() as pool:
            waits = [pool.submit(lambda: p.wait()["exec"]), pool.submit(lambda: c.wait(p.exec)["exec"])]
            c.close()
            for each in waits:
                with self.assertRaises(sandkeeper.Closed):
                    each.result(PATIENCE)
        with self.assertRaises(sandkeeper.Closed):
            c.list_envs()
        p.close()
        with Client(URL, TOKEN) as other:
            other.end_turn(t.task)
        with self.assertRaises(sandkeeper.HandshakeRefused):
            Client(URL, "wrong")

    def test_a_callback_may_use_and_close_the_client(self) -> None:
        told: queue.Queue[object] = queue.Queue()
        made = threading.Event()

        def connected(_: Hello) -> None:
            made.wait(PATIENCE)
            told.put(len(c.list_envs()))
            c.close()
            told.put("closed")

        c = Client(URL, TOKEN, on_connected=connected)
        made.set()
        self.assertIsInstance(told.get(timeout=PATIENCE), int)
        self.assertEqual(told.get(timeout=PATIENCE), "closed")


class Adapter(unittest.TestCase):
    def test_a_terminal_keeps_its_shell_and_ends_its_turn(self) -> None:
        with Client(URL, TOKEN) as c:
            terminal = Terminal(c, new_task().task)
            self.assertFalse(terminal.is_persistent)
            output, exit_code = terminal.execute("echo hi; echo err >&2; echo ho; exit 2", cwd="/", timeout=30.5)
            self.assertEqual((output, exit_code), ("hi\nerr\nho\n", 2))
            terminal.execute("mkdir d; cd d; export A=1")
            self.assertEqual(terminal.execute("cat; echo $A $(basename $PWD)", stdin="in\n").output, "in\n1 d\n")
            self.assertEqual(terminal.execute("sleep 60", timeout=1).exit_code, 124)
            self.assertIn("syntax error", terminal.execute("if").output)
            self.assertRegex(terminal.execute("yes | head -c 60000").output, r"\[10000 bytes were left out of the middle of this output.\]\n$")
            with self.assertRaises(sandkeeper.NotFound):
                terminal.execute("pwd", cwd="/nowhere")
            self.assertEqual(terminal.end_turn()["decisions"][0]["decision"], "removed")
            self.assertRegex(terminal.execute("echo $A").output, r"^\[The sandbox is a new one since the last command\. .*\]\n\n$")
            terminal.cleanup()

    def test_a_persistent_one_is_kept_and_says_what_it_lost(self) -> None:
        t = new_task()
        with Client(URL, TOKEN) as c:
            terminal = Terminal(c, t.task, persistent=True, lifetime_seconds=60)
            self.assertTrue(terminal.is_persistent)
            terminal.execute("echo kept > f")
            terminal.cleanup()
            self.assertEqual(terminal.execute("cat f").output, "kept\n")
            c.release(t)
            output, exit_code = terminal.execute("cat f")
            self.assertRegex(output, r"^\[The sandbox is a new one since the last command\. Lost: .*\]\nkept\n$")
            self.assertEqual(exit_code, 0)
            terminal.cleanup()
            c.release(t, purge=True)

    def test_an_environment_that_goes_under_a_command_is_told_and_the_next_gets_another(self) -> None:
        t = new_task()
        with Client(URL, TOKEN) as c, ThreadPoolExecutor() as pool:
            terminal = Terminal(c, t.task)
            terminal.execute("true")
            running = pool.submit(terminal.execute, "sleep 600")
            while not any(x["state"] == "running" for x in c.list_execs(t)):
                pass
            c.release(t)
            with self.assertRaises(sandkeeper.GenerationGone):
                running.result(PATIENCE)
            self.assertEqual(terminal.execute("echo on").exit_code, 0)
            terminal.cleanup()

    def test_many_threads_share_it_and_no_command_runs_twice_over_a_reconnect(self) -> None:
        t = new_task()
        with Client(URL, TOKEN) as direct:
            way = Flaky(URL)
            direct._do(way.start())
            with Client(way.url, TOKEN) as c, ThreadPoolExecutor(8) as pool:
                terminal = Terminal(c, t.task)
                terminal.execute("true")
                work = [pool.submit(terminal.execute, f"echo {i} >> n; while [ ! -e go ]; do sleep 0.05; done") for i in range(8)]
                while direct.run(t, "cat n").stdout.count(b"\n") < 8:
                    pass
                for _ in range(3):
                    direct._loop.call_soon_threadsafe(way.drop)
                    terminal.execute("true")
                direct.write_file(t, "go", b"")
                self.assertEqual({each.result(PATIENCE) for each in work}, {("", 0)})
                lines = sorted(direct.read_file(t, "n").split())
                self.assertEqual(lines, [b"%d" % i for i in range(8)])
                self.assertEqual(len(direct.list_envs(t.task)), 1)
                terminal.cleanup()
            direct._do(way.stop())


class Readme(unittest.TestCase):
    def test_its_examples_do_what_it_says(self) -> None:
        text = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
        examples = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", text, re.S)
        self.assertGreater(len(examples), 1)
        for code, says in examples:
            with self.subTest(code):
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    exec(compile(code, "README.md", "exec"), {"os": os})
                self.assertEqual(said.getvalue(), says)


if __name__ == "__main__":
    unittest.main()
