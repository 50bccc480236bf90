"""Two pickers exchange their requests in flight over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from lbctl.ir.address import Address
from lbctl.pick.books import Count, Counts
from lbctl.picker.exchange import Exchange, parse
from lbctl.picker.grpc_server import GrpcServer
from lbctl.picker.health import PickerHealth
from lbctl.picker.service import PickService
from lbctl.runtime.guard import Guard
from tests.support.processes.ports import HOST, free_port


class _Picker:
    """The exchange of a picker, its own counts, and the counts that it received."""

    def __init__(self, name: str) -> None:
        self.own: Counts = {}
        self.received: dict[str, Counts] = {}
        self.failures: list[str] = []
        guard = Guard(self.failures.append, first_pause=0.01)
        self.exchange = Exchange(name, lambda: self.own, self.received.__setitem__, None, guard)

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """Listen, and yield the address."""
        health = PickerHealth(lambda: True, self._never)
        server = GrpcServer(PickService(), health, None, self.exchange.handler())
        port = await server.start(Address(HOST, port))
        try:
            yield f"{HOST}:{port}"
        finally:
            self.exchange.close()
            await server.stop(0.1)

    async def _never(self) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def test_each_picker_receives_only_the_counts_of_the_other() -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with first.listening() as here, second.listening() as there:
            peers = {"first": here, "second": there}
            first.exchange.follow(peers)
            second.exchange.follow(peers)
            first.own = {"chat": {"a": Count(3, 500)}}
            await _until(lambda: second.received.get("first") == {"chat": {"a": Count(3, 500)}})
            first.own = {"chat": {"a": Count(2, 0), "b": Count(1, 40)}}
            await _until(lambda: second.received["first"] == {"chat": {"a": Count(2, 0), "b": Count(1, 40)}})
            await _until(lambda: "second" in first.received)
        assert (first.received.keys(), second.received.keys()) == ({"second"}, {"first"})

    asyncio.run(run())


def test_picker_that_joins_later_receives_counts() -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        first.own = {"chat": {"a": Count(1, 1)}}
        there = f"{HOST}:{free_port()}"
        first.exchange.follow({"second": there})
        await asyncio.sleep(0.1)
        second = _Picker("second")
        second.exchange.follow({"first": there})
        async with second.listening() as again:
            first.exchange.follow({"second": again})
            await _until(lambda: second.received.get("first") == first.own)
        first.exchange.close()

    asyncio.run(run())


def test_failure_to_send_counts_is_logged_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with first.listening() as here, second.listening() as there:
            second.exchange.follow({"first": here})
            first.own = {"chat": {"a": object()}}  # type: ignore[dict-item]
            first.exchange.follow({"second": there})
            await _until(lambda: first.failures != [])
            first.own = {"chat": {"a": Count(1, 1)}}
            await _until(lambda: second.received.get("first") == first.own)
        assert set(first.failures) == {"counts for another picker"}

    asyncio.run(run())
    record = next(item for item in caplog.records if "a task failed" in item.getMessage())
    assert record.exc_info
    assert record.__dict__["fields"]["task"] == "counts for another picker"


def test_unfollowed_picker_leaves_no_task() -> None:
    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        async with second.listening() as there:
            second.exchange.follow({"first": "127.0.0.1:1"})
            first.exchange.follow({"second": there})
            await _until(lambda: "first" in second.received)
            first.exchange.close()
            second.exchange.close()
            await _until(lambda: not any("counts for" in task.get_name() for task in asyncio.all_tasks()))
        assert (first.failures, second.failures) == ([], [])

    asyncio.run(run())


def test_counts_of_an_unknown_picker_are_ignored() -> None:
    async def run() -> None:
        known, stranger, here = _Picker("known"), _Picker("stranger"), _Picker("here")
        known.own = stranger.own = {"chat": {"a": Count(1, 1)}}
        async with here.listening() as address, known.listening() as other:
            here.exchange.follow({"known": other})
            stranger.exchange.follow({"here": address})
            await asyncio.sleep(0.2)
            known.exchange.follow({"here": address})
            await _until(lambda: "known" in here.received)
            stranger.exchange.close()
            known.exchange.close()
        assert here.received.keys() == {"known"}

    asyncio.run(run())


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\xff", b"{}", b"[" * 100_000, b'{"from": 1, "counts": {}}', b'{"from": "x", "counts": []}',
        b'{"from": "x", "counts": {"p": {"r": [1, 1]}}}', b'{"from": "x", "counts": {"p": {"r": [1e999, 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1e300, 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1, 1, 1, 1e16]}}}',
        b'{"from": "x", "counts": {"p": {"r": [1, NaN, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [-1, 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": ["1", 1, 1, 1]}}}',
        b'{"from": "x", "counts": {"p": {"r": [true, 1, 1, 1]}}}',
        b'{"from": "' + b"x" * 65 + b'", "counts": {}}',
    ],
)  # fmt: skip
def test_invalid_message_is_rejected(message: bytes) -> None:
    assert parse(message) is None


def test_each_outage_of_another_picker_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def logged() -> int:
        return sum("another picker cannot be reached" in record.getMessage() for record in caplog.records)

    async def come_and_go(first: _Picker, second: _Picker, port: int, times: int) -> None:
        async with second.listening(port) as address:
            second.exchange.follow({"first": address})
            first.own = {"chat": {"a": Count(times, 1)}}
            first.exchange.follow({"second": address})
            await _until(lambda: second.received.get("first") == first.own)
        await _until(lambda: logged() == times)

    async def run() -> None:
        first, second = _Picker("first"), _Picker("second")
        port = free_port()
        await come_and_go(first, second, port, 1)
        await come_and_go(first, second, port, 2)
        first.exchange.close()

    asyncio.run(run())
