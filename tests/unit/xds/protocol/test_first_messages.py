"""Few calls wait for their first message at the same time, and unfinished messages of a client do not delay others for
long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lbctl.xds.protocol.first_messages import CrowdedError, FirstMessages


class _Call:
    """A call whose message comes with `arrive`; ended by the server, its read fails."""

    def __init__(self) -> None:
        self.message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.reads = False

    async def read(self) -> bytes:
        self.reads = True
        return await self.message

    def end(self, *_: object) -> None:
        if not self.message.done():
            self.message.set_exception(ConnectionError())


def _start(first: FirstMessages, client: str, call: Any) -> asyncio.Task[bytes]:
    return asyncio.create_task(first.read(client, call, call.read))


async def _turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_call_waits_until_another_has_its_message() -> None:
    async def run() -> None:
        first, one, two = FirstMessages(1), _Call(), _Call()
        tasks = [_start(first, "a", one), _start(first, "a", two)]
        await _turn()
        assert (one.reads, two.reads) == (True, False)
        one.message.set_result(b"1")
        await _turn()
        assert two.reads
        two.message.set_result(b"2")
        assert await asyncio.gather(*tasks) == [b"1", b"2"]

    asyncio.run(run())


def test_silent_calls_end_while_others_wait() -> None:
    async def run() -> None:
        first, silent, honest = FirstMessages(2), [_Call(), _Call()], _Call()
        held = [_start(first, "silent", call) for call in silent]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in held)
        honest.message.set_result(b"here")
        async with asyncio.timeout(30):
            assert await _start(first, "honest", honest) == b"here"
            assert [type(item) for item in await asyncio.gather(*held, return_exceptions=True)] == [ConnectionError] * 2

    asyncio.run(run())


@pytest.mark.slow
def test_client_with_most_calls_gives_way() -> None:
    async def run() -> None:
        first, silent = FirstMessages(1, waiting=10), [_Call() for _ in range(30)]
        held = [_start(first, "silent", call) for call in silent]
        await _turn()
        assert [type(task.exception()) for task in held if task.done()] == [CrowdedError] * 19
        honest = _Call()
        honest.message.set_result(b"here")
        waits = _start(first, "honest", honest)
        await _turn()
        silent[0].end()
        async with asyncio.timeout(30):
            assert await waits == b"here"
        for call in silent:
            call.end()
        async with asyncio.timeout(30):
            await asyncio.gather(*held, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("has_turn", [False, True])
def test_cancelled_call_leaves_its_place(has_turn: bool) -> None:
    async def run() -> None:
        first, one, two, three = FirstMessages(1), _Call(), _Call(), _Call()
        tasks = [_start(first, "a", call) for call in (one, two, three)]
        await _turn()
        if has_turn:
            one.message.set_result(b"1")
            await asyncio.sleep(0)
        tasks[1].cancel()
        await _turn()
        if not has_turn:
            one.message.set_result(b"1")
        three.message.set_result(b"3")
        async with asyncio.timeout(30):
            assert await tasks[2] == b"3"

    asyncio.run(run())
