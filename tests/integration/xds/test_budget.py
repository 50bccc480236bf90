"""Limits on subscriptions to resources that do not exist, with real gRPC clients."""

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


def used_budget(xds: Running) -> int:
    return xds.server._context.budget.used


async def is_exhausted(client: Client) -> bool:
    return await client.status() == grpc.StatusCode.RESOURCE_EXHAUSTED


@BOTH
def test_unknown_names_of_one_stream_are_limited(delta: bool) -> None:
    async def scenario() -> None:
        async with (
            running(subscription_limits=SubscriptionLimits(unknown=100 * _KB)) as xds,
            connected(xds.port, delta=delta) as client,
        ):
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]
            await client.ask(EDS, *(f"nobody-{number}" for number in range(2000)))
            assert await is_exhausted(client)
            assert "unknown resource names" in await client.call.details()
            await until(lambda: used_budget(xds) == 0)

    asyncio.run(scenario())


def test_long_names_count_in_bytes(caplog: pytest.LogCaptureFixture) -> None:
    """A delta client adds names with every request."""

    async def scenario() -> None:
        async with running() as xds, connected(xds.port) as client:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            try:
                for number in range(250):
                    await client.ask(EDS, f"{number}" + "x" * 3_900_000)
                    assert used_budget(xds) < 13 << 20
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            assert await client.status() != grpc.StatusCode.OK, "the stream ended during a write"
            await until(lambda: used_budget(xds) == xds.server.streams == 0)
        assert "more than 8192 KiB on this stream" in str([vars(item) for item in caplog.records])

    asyncio.run(scenario())


def test_unknown_names_of_all_streams_are_limited() -> None:
    async def scenario() -> None:
        async with (
            running(subscription_limits=SubscriptionLimits(unknown=100 * _KB, unknown_in_all=250 * _KB)) as xds,
            AsyncExitStack() as stack,
        ):
            xds.publish(CachedSnapshot("e1", cluster("a")))
            clients = [await stack.enter_async_context(connected(xds.port, f"n{number}")) for number in range(8)]
            for client in clients:
                await client.ask(EDS, *(f"nobody-{number}" for number in range(400)))
            await until(lambda: xds.server.streams < 8 and used_budget(xds) <= 250 * _KB)
            good = await stack.enter_async_context(connected(xds.port, "edge"))
            assert await good.fetch(CDS) == ["a"]
            assert xds.server.streams > 1

    asyncio.run(scenario())


def test_unknown_names_of_one_peer_are_limited() -> None:
    limits = SubscriptionLimits(unknown=100 * _KB, unknown_of_peer=250 * _KB, unknown_in_all=1000 * _KB)

    async def scenario() -> None:
        with TemporaryDirectory() as directory:
            socket = Path(directory) / "xds.sock"
            async with running(socket=socket, subscription_limits=limits) as xds, AsyncExitStack() as stack:
                xds.publish(CachedSnapshot("e1", cluster("a")))
                greedy = [await stack.enter_async_context(connected(xds.port, f"n{number}")) for number in range(8)]
                for client in greedy:
                    await client.ask(EDS, *(f"nobody-{number}" for number in range(400)))
                await until(lambda: xds.server.streams == 3 and 240 * _KB < used_budget(xds) <= 250 * _KB)
                other = await stack.enter_async_context(connected(f"unix:{socket}", "edge"))
                assert await other.fetch(CDS) == ["a"]
                await other.ask(EDS, *(f"soon-{number}" for number in range(400)))
                await until(lambda: used_budget(xds) > 250 * _KB)
                assert xds.server.streams == 4, "the names of a peer count for that peer alone"

    asyncio.run(scenario())


@BOTH
def test_known_names_do_not_use_the_budget(delta: bool) -> None:
    async def scenario() -> None:
        names = [f"pool-{number}" for number in range(10_000)]
        async with (
            running(subscription_limits=SubscriptionLimits(unknown=_KB)) as xds,
            connected(xds.port, delta=delta) as client,
        ):
            xds.publish(CachedSnapshot("e1", cluster("a"), *(Resource(EDS, name, b"x") for name in names)))
            assert await client.fetch(CDS) == ["a"]
            await client.ask(EDS, *names)
            assert len((await client.read()).resources) == len(names)
            assert used_budget(xds) == 0

    asyncio.run(scenario())


def test_names_leave_the_budget_once_they_are_known() -> None:
    async def scenario() -> None:
        names = [f"pool-{number}" for number in range(1000)]
        async with running() as xds, connected(xds.port, only=EDS) as client:
            xds.publish(CachedSnapshot("e1", *(Resource(EDS, name, b"x") for name in names)))
            await client.ask(EDS, *names)
            assert len((await client.read()).resources) == len(names)
            assert used_budget(xds) == 0

    asyncio.run(scenario())


def test_an_ended_stream_keeps_no_names() -> None:
    async def scenario() -> None:
        async with running() as xds:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            async with connected(xds.port) as client:
                await client.ask(EDS, "nobody", "nobody-2")
                await until(lambda: xds.rows() and xds.row("edge-1").types)
            await until(lambda: xds.row("edge-1").state == "GONE")
            (entry,) = xds.ledger._disconnected["edge-1", False].ended
            assert [item.names for item in entry.status()] == [()]
            assert xds.row("edge-1").types[0].names == 2

    asyncio.run(scenario())
