"""Streams of commands against a real server."""

from __future__ import annotations

import asyncio
import unittest

import sandkeeper
from sandkeeper import AsyncClient, Process

from flaky import PATIENCE, TOKEN, URL, flaky, new_task


async def read_until(p: Process, text: bytes) -> bytes:
    """Reads until the text has come."""
    got = b""
    while text not in got:
        got += (await p.__anext__())[1]
    return got


class Streams(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.t = new_task()
        patience = asyncio.timeout(PATIENCE)
        await self.enterAsyncContext(patience)
        self.way = await self.enterAsyncContext(flaky())
        self.c = await self.enterAsyncContext(AsyncClient(self.way.url, TOKEN))
        self.other = await self.enterAsyncContext(AsyncClient(URL, TOKEN))
        await self.c.acquire(self.t.task)

    async def asyncTearDown(self) -> None:
        await self.other.end_turn(self.t.task)

    async def exists(self, path: str) -> None:
        while (await self.other.run(self.t, ["test", "-e", path])).exit_code:
            pass

    async def test_both_streams_come_apart_and_the_end_behind_them(self) -> None:
        async with await self.c.start(self.t, "echo out; echo err >&2; exit 3") as p:
            got = await p.output()
            self.assertEqual((got.stdout, got.stderr, got.exit["exit_code"]), (b"out\n", b"err\n", 3))
            self.assertEqual(p.offsets, {"stdout": 4, "stderr": 4})
            with self.assertRaises(BrokenPipeError):
                await p.write(b"its input is empty")

    async def test_input_goes_to_its_end_of_file(self) -> None:
        data = b"0123456789abcdef" * 200_000  # more than every buffer on the way
        p = await self.c.start(self.t, ["sh", "-c", "cat; echo end"], stdin=True)

        async def give() -> None:
            await p.write(data)
            await p.close_stdin()

        giving = asyncio.create_task(give())
        got = await p.output()
        await giving
        self.assertEqual((got.stdout == data + b"end\n", got.exit["exit_code"]), (True, 0))
        with self.assertRaises(BrokenPipeError):
            await p.write(b"more")

    async def test_a_stream_is_whole_and_in_order_across_dropped_connections(self) -> None:
        last, ends = 100_000, 0  # less than is kept of what nobody reads
        p = await self.c.start(self.t, f"seq 1 {last}", window=64 << 10)
        want, rest = 1, b""
        async for stream, data in p:
            self.assertEqual(stream, "stdout")
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                self.assertEqual(line, b"%d" % want)
                want += 1
            if want // 10_000 > ends:
                ends = want // 10_000
                self.way.drop()
        self.assertEqual((want, rest, (await p.wait())["exit_code"]), (last + 1, b"", 0))
        self.assertGreater(self.way.dials, 5)

    async def test_what_nobody_kept_is_told_as_a_gap_exactly(self) -> None:
        size = 4_000_000
        p = await self.c.start(self.t, f"echo begin; while [ ! -e go ]; do sleep 0.05; done; head -c {size} /dev/zero; echo err >&2; echo -n end")
        await read_until(p, b"begin\n")
        self.way.refuses = True
        self.way.drop()
        await self.other.write_file(self.t, "go", b"")
        self.assertEqual((await self.other.wait(p.exec))["state"], "exited")
        self.way.refuses = False
        came, gaps, tail, errs = 0, 0, b"", b""
        while True:
            try:
                stream, data = await p.__anext__()
            except sandkeeper.GapError as gap:
                self.assertEqual((gap.stream, came), ("stdout", 0))
                gaps += gap.size
            except StopAsyncIteration:
                break
            else:
                if stream == "stderr":
                    errs += data
                else:
                    came, tail = came + len(data), data[-3:]
        self.assertEqual((came + gaps, tail, errs), (size + 3, b"end", b"err\n"))
        self.assertGreater(gaps, 0)
        self.assertEqual(p.offsets, {"stdout": 6 + size + 3, "stderr": 4})

    async def test_large_input_comes_whole_across_dropped_connections(self) -> None:
        data = b"".join(b"%07d\n" % i for i in range(200_000))
        p = await self.c.start(self.t, "cat > f; cat f | cksum", stdin=True)
        for at in range(0, len(data), len(data) // 8):
            await p.write(data[at : at + len(data) // 8])
            self.way.drop()
        await p.close_stdin()
        self.way.drop()
        summed = (await self.other.run(self.t, ["cksum"], stdin=data[:100].decode())).stdout.split()[1]
        self.assertEqual(summed, b"100")
        self.assertEqual((await p.output()).stdout.split()[1], b"%d" % len(data))
        self.assertEqual(await self.other.read_file(self.t, "f"), data)

    async def test_input_behind_an_earlier_client_s_comes_whole_across_dropped_connections(self) -> None:
        first = await self.other.start(self.t, "cat > f", stdin=True)
        await first.write(b"a" * 300_000)
        while (await self.other.run(self.t, "wc -c < f")).stdout.strip() != b"300000":
            pass
        p = await self.c.attach(first.exec)
        for _ in range(4):
            await p.write(b"b" * 300_000)
            self.way.drop()
        await p.close_stdin()
        await p.wait()
        self.assertTrue(await self.other.read_file(self.t, "f") == b"a" * 300_000 + b"b" * 1_200_000)

    async def test_who_does_not_read_slows_its_own_command_alone(self) -> None:
        size, window = 3_000_000, 64 << 10
        p = await self.c.start(self.t, f"head -c {size} /dev/zero; touch done", window=window)
        while p.offsets["stdout"] < window:
            await asyncio.sleep(0.01)
        got = await (await self.c.start(self.t, "seq 100000; test -e done")).output()
        self.assertEqual((len(got.stdout), got.exit["exit_code"]), (588_895, 1))
        read = 0
        async for _, data in p:
            read += len(data)
            self.assertLessEqual(p.offsets["stdout"] - read + len(data), window)
        self.assertEqual(read, size)

    async def test_what_is_closed_goes_on_and_is_found_again(self) -> None:
        p = await self.c.start(self.t, "seq 1000000; touch done; while [ ! -e go ]; do sleep 0.05; done; echo bye", window=64 << 10)
        p.close()
        with self.assertRaises(sandkeeper.Closed):
            await p.wait()
        await self.exists("done")
        size = sum(len(str(i)) + 1 for i in range(1, 1_000_001))
        again = await self.c.attach(p.exec, offsets={"stdout": size - 8})
        self.assertEqual(await read_until(again, b"\n"), b"1000000\n")
        await self.other.write_file(self.t, "go", b"")
        self.assertEqual((await again.output()).stdout, b"bye\n")

    async def test_a_start_that_is_cancelled_blocks_no_command(self) -> None:
        starting = asyncio.create_task(self.c.start(self.t, "head -c 5000000 /dev/zero; touch done", window=4096))
        await asyncio.sleep(0)
        starting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await starting
        await self.exists("done")

    async def test_a_known_id_joins_its_command(self) -> None:
        p = await self.c.start(self.t, "echo one; sleep 600", id="x")
        q = await self.other.start(self.t, "echo one; sleep 600", id="x")
        self.assertEqual(p.exec, q.exec)
        self.assertEqual([await p.__anext__(), await q.__anext__()], [("stdout", b"one\n")] * 2)
        with self.assertRaises(sandkeeper.Conflict):
            await self.c.start(self.t, "echo two", id="x")
        self.assertEqual(await q.signal("KILL"), 0)
        for each in (p, q):
            end = await each.wait()
            self.assertEqual((end["exit_code"], end["signal"]), (137, "KILL"))
        waited = await self.c.wait(p.exec)
        self.assertEqual((waited["state"], waited["exit_code"]), ("exited", 137))

    async def test_two_may_attach_and_the_last_has_the_input(self) -> None:
        p = await self.c.start(self.t, "cat", stdin=True)
        await p.write(b"one\n")
        self.assertEqual(await p.__anext__(), ("stdout", b"one\n"))
        looks = await self.other.attach(p.exec, stdin=False)
        self.assertEqual(await looks.__anext__(), ("stdout", b"one\n"))
        with self.assertRaises(BrokenPipeError):
            await looks.write(b"it only looks\n")
        await p.write(b"two\n")
        self.assertEqual([await p.__anext__(), await looks.__anext__()], [("stdout", b"two\n")] * 2)
        last = await self.other.attach(p.exec, offsets=looks.offsets)
        await last.write(b"three\n")
        await last.close_stdin()
        for each in (p, looks, last):
            got = await each.output()
            self.assertEqual((got.stdout, got.exit["exit_code"]), (b"three\n", 0))

    async def test_a_terminal_has_a_size_and_keys(self) -> None:
        p = await self.c.start(self.t, "stty size; read x; stty size; trap : INT; sh -c 'echo got $0; exec sleep 600' $x; echo int $?; exit 5", tty=(80, 24))
        await read_until(p, b"24 80\r\n")
        await p.resize(120, 40)
        await p.write(b"a\n")
        await read_until(p, b"40 120\r\ngot a\r\n")
        self.way.drop()
        await p.write(b"\x03")
        await read_until(p, b"int 130\r\n")
        self.assertEqual((await p.wait())["exit_code"], 5)
        self.assertEqual(p.offsets["stderr"], 0)

    async def test_waiting_needs_no_stream(self) -> None:
        p = await self.c.start(self.t, "sleep 600")
        self.assertEqual((await self.c.wait(p.exec, timeout_seconds=0))["state"], "running")
        waiting = asyncio.create_task(self.c.wait(p.exec))
        self.way.drop()
        await self.other.signal(p.exec, "TERM")
        end = await waiting
        self.assertEqual((end["state"], end["exit_code"]), ("exited", 143))

    async def test_an_environment_that_goes_first_is_told(self) -> None:
        p = await self.c.start(self.t, "sleep 600", background=True)
        await self.c.release(self.t)
        end = await p.wait()
        self.assertIsNone(end["exit_code"])
        self.assertTrue(end["env_lost"]["reason"])

    async def test_a_stream_without_an_end_is_an_error(self) -> None:
        p = await self.c.start(self.t, "sleep 600")
        await self.c.close()
        with self.assertRaises(sandkeeper.Closed):
            await p.output()


if __name__ == "__main__":
    unittest.main()
