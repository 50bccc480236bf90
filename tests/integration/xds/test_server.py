"""The xDS server with real gRPC clients over loopback: responses, their timing, and the recorded status."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from statistics import median

import grpc
import pytest

from lbctl.ir.address import Address
from lbctl.ir.proxies import Proxy
from lbctl.xds.protocol.connection import close_connection
from lbctl.xds.protocol.private_socket import BindError
from lbctl.xds.protocol.server import Limits
from lbctl.xds.resource import CDS, EDS, LDS, RDS, SDS, Resource, Resources
from tests.support.xds import CachedSnapshot, Client, channel, cluster, connected, content, route, running, until

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


def resident_bytes() -> int:
    """Return the resident memory of this process, which runs client and server."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@BOTH
def test_nothing_is_answered_before_the_first_publish(delta: bool) -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, delta=delta) as client:
            await client.ask(CDS)
            waiting = asyncio.create_task(client.read())
            await asyncio.sleep(0.2)
            assert not waiting.done()
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert client.names(await waiting) == ["a"]

    asyncio.run(scenario())


@BOTH
@pytest.mark.parametrize("only", [None, CDS, EDS, LDS, RDS, SDS])
def test_every_service_answers_in_both_variants(delta: bool, only: str | None) -> None:
    kind = only or CDS
    item = Resource(kind, "a", b"")

    async def scenario() -> None:
        async with running() as xds, connected(xds.port, delta=delta, only=only) as client:
            xds.publish(CachedSnapshot("e1", item))
            names = () if kind in (CDS, LDS) else ("a",)
            await client.ask("" if only else kind, *names)
            response = await client.read()
            assert response.type_url == kind
            assert len(response.resources) == 1
            assert xds.observer.streams == ["delta" if delta else "sotw"]

    asyncio.run(scenario())


@BOTH
def test_only_changes_reach_the_streams(delta: bool) -> None:
    async def scenario() -> None:
        async with running() as xds, channel(xds.port) as wire:
            a = cluster("a")
            xds.publish(CachedSnapshot("e1", a))
            clients = [Client(wire, f"edge-{number}", delta=delta, only=None) for number in range(5)]
            assert [await client.fetch(CDS) for client in clients] == [["a"]] * 5
            await until(lambda: all(row.state == "SYNCED" for row in xds.rows()))
            xds.publish(CachedSnapshot("e2", a))
            await asyncio.sleep(0.1)
            assert len(xds.observer.pushes) == 5
            xds.publish(CachedSnapshot("e3", a, cluster("b")))
            fresh = ["b"] if delta else ["a", "b"]
            assert [await client.take() for client in clients] == [fresh] * 5
            await until(lambda: {row.last_good for row in xds.rows()} == {"e3"})

    asyncio.run(scenario())


@BOTH
def test_retry_rejected_offers_content_again(delta: bool) -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, delta=delta) as client:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            await client.ask(CDS)
            await client.ack(await client.read(), error="the port is taken")
            await until(lambda: xds.row("edge-1").state == "NACKED")
            assert xds.server.retry_rejected() == 1
            assert await client.take() == ["a"]
            await until(lambda: xds.row("edge-1").state == "SYNCED")
            assert xds.row("edge-1").last_good == "e1"
            assert xds.server.retry_rejected() == 0

    asyncio.run(scenario())


@BOTH
def test_a_slow_client_gets_only_the_newest_content(delta: bool) -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, delta=delta) as client:
            xds.publish(CachedSnapshot("e0", cluster("a", "0")))
            await client.ask(CDS)
            first = await client.read()
            for number in range(1, 50):
                xds.publish(CachedSnapshot(f"e{number}", cluster("a", str(number))))
            await asyncio.sleep(0.1)
            assert len(xds.observer.pushes) == 1
            assert xds.row("edge-1").state == "STALE"
            await client.ack(first)
            second = await client.read()
            assert b"49" in second.SerializeToString()
            await client.ack(second)
            await until(lambda: xds.row("edge-1").last_good == "e49")
            assert len(xds.observer.pushes) == 2

    asyncio.run(scenario())


@BOTH
@pytest.mark.slow
def test_a_client_that_does_not_read_affects_no_other(delta: bool) -> None:
    size = 8 * 1024 * 1024

    async def scenario() -> None:
        async with (
            running(limits=Limits(first_messages=20)) as xds,
            connected(xds.port, "stuck", delta=delta) as stuck,
            channel(xds.port) as wire,
        ):
            xds.publish(CachedSnapshot("e0", cluster("a")))
            clients = [Client(wire, f"edge-{number}", delta=delta, only=None) for number in range(10)]
            for client in (stuck, *clients):
                await client.fetch(CDS)
            small = [cluster("a", str(number)) for number in range(40)]

            async def round_trip(number: int, proxy: str) -> float:
                start = asyncio.get_running_loop().time()
                big = Resource(CDS, "big", bytes([number]) * size)
                xds.publish(
                    CachedSnapshot(
                        f"e{number + 1}", small[number], proxies=(Proxy(proxy, "envoy", (1, 40)), EDGES),
                        parts={proxy: content(cluster("a"), big)},
                    )
                )  # fmt: skip
                await asyncio.gather(*(client.take() for client in clients))
                return asyncio.get_running_loop().time() - start

            for number in range(11):
                await round_trip(number, "stuck")
            before = resident_bytes()
            times = [await round_trip(number, "stuck") for number in range(11, 40)]
            assert resident_bytes() - before < 6 * size, "one message waits for the client, not thirty"
            assert median(times) < 1, "other clients do not wait for it"
            await until(lambda: xds.row("edge-3").state == "SYNCED")
            assert xds.row("stuck").state == "STALE"
            newest = await stuck.read()
            await stuck.ack(newest)
            while b"\x27" * 100 not in newest.SerializeToString():
                newest = await stuck.read()
                await stuck.ack(newest)
            await until(lambda: xds.row("stuck").last_good == "e40")

    asyncio.run(scenario())


EDGES = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))


@BOTH
def test_a_nack_is_recorded_and_not_resent(delta: bool) -> None:
    async def scenario() -> None:
        async with running() as xds, channel(xds.port) as wire:
            one, two = (Client(wire, name, delta=delta, only=None) for name in ("edge-1", "two"))
            xds.publish(CachedSnapshot("e1", cluster("a")))
            for client in (one, two):
                await client.fetch(CDS)
            await until(lambda: xds.row("edge-1").last_good == "e1")
            xds.publish(CachedSnapshot("e2", cluster("a", "bad")))
            await one.ack(await one.read(), error="cluster a: no s3cret")
            assert await two.take() == ["a"]
            await until(lambda: xds.observer.nacks == ["cds"])
            await asyncio.sleep(0.2)
            assert len(xds.observer.pushes) == 4, "no resends"
            row = xds.row("edge-1")
            assert (row.state, row.last_good, row.version) == ("NACKED", "e1", "e2")
            (nack,) = row.nacks
            assert (nack.type, nack.message, nack.names) == ("cds", "cluster a: no …", ("a",))
            assert nack.findings == ("fleet.yaml:7:0: error LB999 pools.a: cluster a: no …",)
            assert row.types[0].message == "cluster a: no …"
            assert xds.row("two").last_good == "e2"
            xds.publish(CachedSnapshot("e3", cluster("a", "good")))
            assert await one.take() == ["a"]
            await until(lambda: xds.row("edge-1").last_good == "e3")
            assert xds.row("edge-1").state == "SYNCED"

    asyncio.run(scenario())


def test_ack_times_are_measured_by_type() -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port) as client:
            xds.publish(CachedSnapshot("e1", cluster("a"), route("r")))
            clock = asyncio.get_running_loop().time
            asked = clock()
            await client.ask(CDS)
            response = await client.read()
            await asyncio.sleep(0.1)
            await client.ack(response)
            await until(lambda: len(xds.observer.acks) == 1)
            between = clock()
            await client.fetch(RDS, "r")
            await until(lambda: len(xds.observer.acks) == 2)
            (first, slow), (second, fast) = xds.observer.acks
            assert (first, second) == ("cds", "rds")
            assert 0.1 <= slow <= between - asked
            assert fast <= clock() - between
            assert [(kind, count) for kind, count, _ in xds.observer.pushes] == [("cds", 1), ("rds", 1)]
            assert all(size > 0 for _, _, size in xds.observer.pushes)
            row = xds.row("edge-1")
            assert [item.acked_at >= item.pushed_at for item in row.types] == [True, True]

    asyncio.run(scenario())


def test_resources_are_built_once_per_proxy() -> None:
    proxies = (Proxy("edge", "envoy", (1, 40), nodes=("edge-*",)), Proxy("core", "envoy", (1, 40), nodes=("core-*",)))
    edition = CachedSnapshot("e1", cluster("a"), proxies=proxies, parts={"core": content(cluster("c"))})

    async def scenario() -> None:
        async with running() as xds, channel(xds.port) as wire:
            xds.publish(edition)
            nodes = ["edge-1", "core-1", "edge-2", "core-2"]
            clients = [Client(wire, node, delta=True, only=None) for node in nodes]
            assert [await client.fetch(CDS) for client in clients] == [["a"], ["c"], ["a"], ["c"]]
            assert [item.name for item in edition.built_for] == ["edge", "core"]
            assert [row.proxy for row in xds.rows()] == ["core", "core", "edge", "edge"]

    asyncio.run(scenario())


def test_an_unmatched_node_waits_until_it_has_an_entry() -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, "stray") as client:
            xds.publish(CachedSnapshot("e1", cluster("a"), proxies=(EDGES,)))
            await client.ask(CDS)
            await until(lambda: xds.observer.unmatched_ids == ["stray"])
            row = xds.row("stray")
            assert (row.state, row.proxy) == ("REFUSED", None)
            assert "'stray'" in row.reason
            xds.publish(CachedSnapshot("e2", cluster("a"), proxies=(EDGES,)))
            assert xds.observer.unmatched_ids == ["stray"], "reported once"
            xds.publish(CachedSnapshot("e3", cluster("a"), proxies=(EDGES, Proxy("stray", "envoy", (1, 40)))))
            assert await client.take() == ["a"]
            assert (xds.row("stray").proxy, xds.row("stray").reason) == ("stray", "")

    asyncio.run(scenario())


def test_a_node_keeps_its_resources_if_its_entry_is_removed() -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port) as client:
            xds.publish(CachedSnapshot("e1", cluster("a"), proxies=(EDGES,)))
            assert await client.fetch(CDS) == ["a"]
            other = Proxy("other", "envoy", (1, 40))
            xds.publish(CachedSnapshot("e2", cluster("b"), proxies=(other,)))
            assert await client.silent(), "neither an empty response nor resources of another entry"
            await until(lambda: xds.row("edge-1").state == "REFUSED")

    asyncio.run(scenario())


def test_a_reconnecting_node_keeps_clusters_its_routes_use() -> None:
    async def scenario() -> None:
        async with running(settle=0.2) as xds:
            xds.publish(CachedSnapshot("e1", cluster("a"), cluster("b"), route("r", "to-b")))
            async with connected(xds.port, delta=False) as client:
                assert await client.fetch(CDS) == ["a", "b"]
                assert await client.fetch(RDS, "r") == ["r"]
                await until(lambda: xds.row("edge-1").last_good == "e1")
            await until(lambda: xds.server.streams == 0)
            assert xds.row("edge-1").state == "GONE"
            xds.publish(CachedSnapshot("e2", cluster("a"), route("r", "to-a")))
            async with connected(xds.port, delta=False) as client:
                assert await client.fetch(CDS) == ["a", "b"]
                assert await client.fetch(RDS, "r") == ["r"]
                assert client.names(await client.read()) == ["a"]

    asyncio.run(scenario())


@pytest.mark.parametrize("junk", [b"\xff\xff\xff", b""])
def test_undecodable_bytes_end_the_stream(junk: bytes) -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port) as client:
            await client.call.write(junk)
            assert await client.status() == grpc.StatusCode.INVALID_ARGUMENT
            await until(lambda: xds.server.streams == 0)
            assert xds.observer.streams == []

    asyncio.run(scenario())


@pytest.mark.parametrize("node", ["", "a\nb", "x" * 254])
def test_a_node_id_must_be_short_and_printable(node: str) -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, node) as client:
            await client.ask(CDS)
            assert await client.status() == grpc.StatusCode.INVALID_ARGUMENT
            assert xds.rows() == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_stream_without_a_request_times_out() -> None:
    async def scenario() -> None:
        async with running(limits=Limits(patience=1)) as xds, channel(xds.port) as wire:
            asked, silent = (Client(wire, name, delta=True, only=None) for name in ("asked", "silent"))
            await asked.ask(CDS)
            assert await silent.status() == grpc.StatusCode.DEADLINE_EXCEEDED
            await asyncio.sleep(0.2)
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert await asked.take() == ["a"]

    asyncio.run(scenario())


def test_message_size_and_streams_are_limited() -> None:
    async def scenario() -> None:
        limits = Limits(streams=2, message=10_000)
        async with running(limits=limits) as xds, channel(xds.port) as wire:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            first, second = (Client(wire, name, delta=True, only=None) for name in ("first", "second"))
            assert await first.fetch(CDS) == ["a"]
            assert await second.fetch(CDS) == ["a"]
            third = Client(wire, "third", delta=True, only=None)
            assert await third.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await second.ask(EDS, "x" * 20_000)
            assert await second.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: xds.server.streams == 1)
            assert await Client(wire, "n3", delta=True, only=None).fetch(CDS) == ["a"]

    asyncio.run(scenario())


def test_frequent_pings_are_allowed() -> None:
    ping, goaway, acknowledged = 6, 7, 1

    async def scenario() -> None:
        async with running() as xds:
            reader, writer = await asyncio.open_connection("127.0.0.1", xds.port)
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            answered = 0
            while answered < 30:
                writer.write(b"\0\0\x08" + bytes([ping]) + bytes(5) + b"8 octets")
                kind, flags = -1, 0
                while (kind, flags) != (ping, acknowledged):
                    head = await asyncio.wait_for(reader.readexactly(9), 30)
                    kind, flags = head[3], head[4]
                    await reader.readexactly(int.from_bytes(head[:3], "big"))
                    assert kind != goaway, "too_many_pings"
                answered += 1
            writer.close()

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 150])
def test_stop_ends_every_stream_within_the_grace_period(streams: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with running() as xds, channel(xds.port) as wire:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            clients = [Client(wire, f"n{number}", delta=True, only=None) for number in range(streams)]
            await asyncio.gather(*(client.fetch(CDS) for client in clients))
            start = loop.time()
            ends: list[float] = []

            async def ended(client: Client) -> grpc.StatusCode:
                code = await client.status()
                ends.append(loop.time() - start)
                return code

            codes = asyncio.gather(*(ended(client) for client in clients))
            grace = 10.0 if streams == 1 else 3.0
            await xds.server.stop(grace)
            assert loop.time() - start < grace + 5
            assert set(await codes) == {grpc.StatusCode.UNAVAILABLE}
            if streams == 1:
                assert ends[0] < grace / 2, "a single stream is ended at once"
            else:
                assert max(ends) - min(ends) > 1, "many streams are ended one after the other"
            assert xds.server.streams == 0
            assert xds.observer.streams == []

    asyncio.run(scenario())


@pytest.mark.slow
def test_stop_does_not_wait_for_a_client_that_does_not_read() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with running() as xds, connected(xds.port) as client:
            xds.publish(CachedSnapshot("e1", Resource(CDS, "big", bytes(16 * 1024 * 1024))))
            await client.ask(CDS)
            await until(lambda: len(xds.observer.pushes) == 1)
            start = loop.time()
            await xds.server.stop(0.5)
            assert loop.time() - start < 10

    asyncio.run(scenario())


def not_reading(port: int) -> AbstractAsyncContextManager[Client]:
    """Open a stream whose client has a window that does not grow: on a slow machine gRPC's can grow to 16 MiB."""
    return connected(port, options=(("grpc.http2.bdp_probe", 0),))


def test_a_client_that_does_not_read_is_disconnected() -> None:
    limits = Limits(read_within=0.3, ping=0.1, ping_answer=5.0)

    async def scenario() -> None:
        async with (
            running(limits=limits) as xds,
            not_reading(xds.port) as stuck,
            connected(xds.port, "edge-2") as other,
        ):
            xds.publish(CachedSnapshot("e1", Resource(CDS, "big", bytes(16 * 1024 * 1024)), route("r")))
            assert await other.fetch(RDS, "r") == ["r"]
            await stuck.ask(CDS)
            await until(lambda: len(xds.observer.pushes) == 2)
            await until(lambda: xds.server.streams == 1)
            assert xds.row("edge-1").connected is False
            xds.publish(CachedSnapshot("e2", route("r", "changed")))
            assert await other.take("r") == ["r"]
            assert await stuck.status() == grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


@pytest.mark.slow
def test_closing_a_connection_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def fails_once(host: str, port: int) -> bool:
        tries.append(port)
        return len(tries) > 1 and close_connection(host, port)

    monkeypatch.setattr("lbctl.xds.protocol.call.close_connection", fails_once)
    limits = Limits(read_within=0.3, ping=0.1, ping_answer=5.0)

    async def scenario() -> None:
        async with running(limits=limits) as xds, not_reading(xds.port) as stuck:
            xds.publish(CachedSnapshot("e1", Resource(CDS, "big", bytes(16 * 1024 * 1024))))
            await stuck.ask(CDS)
            await until(lambda: len(tries) > 1 and xds.server.streams == 0)

    asyncio.run(scenario())


def test_a_port_in_use_is_reported() -> None:
    async def scenario() -> None:
        async with running() as xds:
            with pytest.raises(BindError, match=f"127.0.0.1:{xds.port}: Address already in use"):
                async with running(bind=Address("127.0.0.1", xds.port)):
                    pass

    asyncio.run(scenario())


def test_the_server_can_listen_on_a_unix_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = str(tmp_path / "xds.sock")
        async with running(bind=Address(path=path)) as xds, connected(f"unix:{path}") as client:
            assert xds.port == 0
            xds.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]

    asyncio.run(scenario())


@pytest.mark.slow
def test_ended_streams_leave_no_state() -> None:
    async def scenario() -> None:
        async with running() as xds, channel(xds.port) as wire:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            for number in range(300):
                client = Client(wire, f"n{number % 7}", delta=bool(number % 2), only=None)
                assert await client.fetch(CDS) == ["a"]
                client.call.cancel() if number % 3 else await client.call.done_writing()
            await until(lambda: xds.server.streams == 0)
            assert xds.observer.streams == []
            assert len(asyncio.all_tasks()) < 10
            assert xds.server._context.newest == {}

    asyncio.run(scenario())


class FailsOnce(CachedSnapshot):
    """A snapshot that raises an error for the first stream."""

    def resources(self, proxy: Proxy) -> Resources:
        if not self.built_for:
            self.built_for.append(proxy)
            raise RuntimeError("no content")
        return super().resources(proxy)


@BOTH
def test_a_failing_stream_is_closed_and_others_continue(delta: bool) -> None:
    async def scenario() -> None:
        async with running() as xds, channel(xds.port) as wire:
            xds.publish(CachedSnapshot("e1", cluster("a")))
            clients = [Client(wire, f"edge-{number}", delta=delta, only=None) for number in range(3)]
            assert [await client.fetch(CDS) for client in clients] == [["a"]] * 3
            xds.publish(FailsOnce("e2", cluster("a"), cluster("b")))
            fresh = ["b"] if delta else ["a", "b"]
            outcomes = await asyncio.gather(*(client.take() for client in clients), return_exceptions=True)
            assert sum(outcome == fresh for outcome in outcomes) == 2
            assert xds.observer.failures == 1
            closed = next(client for client, outcome in zip(clients, outcomes, strict=True) if outcome != fresh)
            assert await closed.call.code() is grpc.StatusCode.INTERNAL
            again = Client(wire, "edge-again", delta=delta, only=None)
            assert await again.fetch(CDS) == ["a", "b"]

    asyncio.run(scenario())


@BOTH
def test_a_failing_write_closes_the_stream(delta: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running() as xds, connected(xds.port, delta=delta) as client:
            monkeypatch.setattr(xds.observer, "pushed", lambda *_: 1 / 0)
            xds.publish(CachedSnapshot("e1", cluster("a")))
            await client.ask(CDS)
            with pytest.raises(grpc.aio.AioRpcError):
                await client.read()
            assert await client.call.code() is grpc.StatusCode.INTERNAL
            assert xds.observer.failures == 1

    asyncio.run(scenario())
