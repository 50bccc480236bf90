"""What clients may ask for that does not exist: by real gRPC, with what the server keeps of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from lbctl.xds.protocol.budget import SubscriptionLimits
from lbctl.xds.resource import CDS, EDS, Resource
from tests.support.xds import CachedSnapshot, Client, Running, cluster, connected, running, until

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
_KB = 1 << 10


def _used(it: Running) -> int:
    return it.server._context.budget.used


async def _exhausted(client: Client) -> bool:
    return await client.status() == grpc.StatusCode.RESOURCE_EXHAUSTED


@BOTH
def test_one_stream_may_not_keep_names_without_end(delta: bool) -> None:
    async def talk() -> None:
        async with (
            running(subscription_limits=SubscriptionLimits(unknown=100 * _KB)) as it,
            connected(it.port, delta=delta) as client,
        ):
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]
            await client.ask(EDS, *(f"nobody-{number}" for number in range(2000)))
            assert await _exhausted(client)
            assert "do not exist" in await client.call.details()
            await until(lambda: _used(it) == 0)

    asyncio.run(talk())


def test_long_names_count_by_their_bytes(caplog: pytest.LogCaptureFixture) -> None:
    """A delta client adds to what it asks for, request by request."""

    async def talk() -> None:
        async with running() as it, connected(it.port) as client:
            it.publish(CachedSnapshot("e1", cluster("a")))
            try:
                for number in range(250):
                    await client.ask(EDS, f"{number}" + "x" * 3_900_000)
                    assert _used(it) < 13 << 20
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            assert await client.status() != grpc.StatusCode.OK, "the end came in the middle of a write"
            await until(lambda: _used(it) == it.server.streams == 0)
        assert "more than 8192 KiB on this stream" in str([vars(item) for item in caplog.records])

    asyncio.run(talk())


def test_many_streams_may_not_either_and_who_asks_for_what_exists_is_served() -> None:
    async def talk() -> None:
        async with (
            running(subscription_limits=SubscriptionLimits(unknown=100 * _KB, unknown_in_all=250 * _KB)) as it,
            AsyncExitStack() as stack,
        ):
            it.publish(CachedSnapshot("e1", cluster("a")))
            clients = [await stack.enter_async_context(connected(it.port, f"n{number}")) for number in range(8)]
            for client in clients:
                await client.ask(EDS, *(f"nobody-{number}" for number in range(400)))
            await until(lambda: it.server.streams < 8 and _used(it) <= 250 * _KB)
            good = await stack.enter_async_context(connected(it.port, "edge"))
            assert await good.fetch(CDS) == ["a"]
            assert it.server.streams > 1

    asyncio.run(talk())


def test_the_streams_of_one_peer_leave_room_for_another() -> None:
    limits = SubscriptionLimits(unknown=100 * _KB, unknown_of_peer=250 * _KB, unknown_in_all=1000 * _KB)

    async def talk() -> None:
        with TemporaryDirectory() as directory:
            socket = Path(directory) / "xds.sock"
            async with running(socket=socket, subscription_limits=limits) as it, AsyncExitStack() as stack:
                it.publish(CachedSnapshot("e1", cluster("a")))
                greedy = [await stack.enter_async_context(connected(it.port, f"n{number}")) for number in range(8)]
                for client in greedy:
                    await client.ask(EDS, *(f"nobody-{number}" for number in range(400)))
                await until(lambda: it.server.streams == 3 and 240 * _KB < _used(it) <= 250 * _KB)
                other = await stack.enter_async_context(connected(f"unix:{socket}", "edge"))
                assert await other.fetch(CDS) == ["a"]
                await other.ask(EDS, *(f"soon-{number}" for number in range(400)))
                await until(lambda: _used(it) > 250 * _KB)
                assert it.server.streams == 4, "its names count for itself alone"

    asyncio.run(talk())


@BOTH
def test_an_envoy_with_ten_thousand_clusters_takes_nothing_of_it(delta: bool) -> None:
    async def talk() -> None:
        names = [f"pool-{number}" for number in range(10_000)]
        async with (
            running(subscription_limits=SubscriptionLimits(unknown=_KB)) as it,
            connected(it.port, delta=delta) as client,
        ):
            it.publish(CachedSnapshot("e1", cluster("a"), *(Resource(EDS, name, b"x") for name in names)))
            assert await client.fetch(CDS) == ["a"]
            await client.ask(EDS, *names)
            assert len((await client.read()).resources) == len(names)
            assert _used(it) == 0

    asyncio.run(talk())


def test_names_of_a_first_request_are_no_longer_counted_once_they_are_known() -> None:
    async def talk() -> None:
        names = [f"pool-{number}" for number in range(1000)]
        async with running() as it, connected(it.port, only=EDS) as client:
            it.publish(CachedSnapshot("e1", *(Resource(EDS, name, b"x") for name in names)))
            await client.ask(EDS, *names)
            assert len((await client.read()).resources) == len(names)
            assert _used(it) == 0

    asyncio.run(talk())


def test_of_a_stream_that_has_ended_no_names_are_kept() -> None:
    async def talk() -> None:
        async with running() as it:
            it.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(it.port) as client:
                await client.ask(EDS, "nobody", "nobody-2")
                await until(lambda: it.rows() and it.row("edge-1")["types"])
            await until(lambda: it.row("edge-1")["state"] == "GONE")
            (entry,) = it.ledger._disconnected["edge-1", False].ended
            assert [item.names for item in entry.status()] == [()]
            assert it.row("edge-1")["types"][0]["names"] == 2

    asyncio.run(talk())
