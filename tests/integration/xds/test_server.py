"""The server with real gRPC clients over loopback: who is answered with what, when, and what is known of it after."""

from __future__ import annotations

import asyncio
import resource
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


def resident() -> int:
    """Bytes of this process, client and server."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@BOTH
def test_nothing_is_answered_before_the_first_publish(delta: bool) -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, delta=delta) as client:
            await client.ask(CDS)
            waiting = asyncio.create_task(client.read())
            await asyncio.sleep(0.2)
            assert not waiting.done()
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert client.names(await waiting) == ["a"]

    asyncio.run(talk())


@BOTH
@pytest.mark.parametrize("only", [None, CDS, EDS, LDS, RDS, SDS])
def test_every_service_answers_in_both_variants(delta: bool, only: str | None) -> None:
    kind = only or CDS
    made = Resource(kind, "a", b"")

    async def talk() -> None:
        async with running() as it, connected(it.port, delta=delta, only=only) as client:
            it.publish(CachedSnapshot("e1", made))
            names = () if kind in (CDS, LDS) else ("a",)
            await client.ask("" if only else kind, *names)
            response = await client.read()
            assert response.type_url == kind
            assert len(response.resources) == 1
            assert it.seen.streams == ["delta" if delta else "sotw"]

    asyncio.run(talk())


@BOTH
def test_a_change_reaches_every_stream_and_what_is_equal_is_not_sent(delta: bool) -> None:
    async def talk() -> None:
        async with running() as it, channel(it.port) as wire:
            a = cluster("a")
            it.publish(CachedSnapshot("e1", a))
            clients = [Client(wire, f"edge-{number}", delta=delta, only=None) for number in range(5)]
            assert [await client.fetch(CDS) for client in clients] == [["a"]] * 5
            await until(lambda: all(row["state"] == "SYNCED" for row in it.rows()))
            it.publish(CachedSnapshot("e2", a))
            await asyncio.sleep(0.1)
            assert len(it.seen.pushes) == 5
            it.publish(CachedSnapshot("e3", a, cluster("b")))
            fresh = ["b"] if delta else ["a", "b"]
            assert [await client.take() for client in clients] == [fresh] * 5
            await until(lambda: {row["last_good"] for row in it.rows()} == {"e3"})

    asyncio.run(talk())


@BOTH
def test_what_was_refused_is_offered_again_when_that_is_asked_for(delta: bool) -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, delta=delta) as client:
            it.publish(CachedSnapshot("e1", cluster("a")))
            await client.ask(CDS)
            await client.ack(await client.read(), error="the port is taken")
            await until(lambda: it.row("edge-1")["state"] == "NACKED")
            assert it.server.retry_rejected() == 1
            assert await client.take() == ["a"]
            await until(lambda: it.row("edge-1")["state"] == "SYNCED")
            assert it.row("edge-1")["last_good"] == "e1"
            assert it.server.retry_rejected() == 0

    asyncio.run(talk())


@BOTH
def test_a_client_that_has_not_answered_yet_gets_the_newest_only(delta: bool) -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, delta=delta) as client:
            it.publish(CachedSnapshot("e0", cluster("a", "0")))
            await client.ask(CDS)
            first = await client.read()
            for number in range(1, 50):
                it.publish(CachedSnapshot(f"e{number}", cluster("a", str(number))))
            await asyncio.sleep(0.1)
            assert len(it.seen.pushes) == 1
            assert it.row("edge-1")["state"] == "STALE"
            await client.ack(first)
            second = await client.read()
            assert b"49" in second.SerializeToString()
            await client.ack(second)
            await until(lambda: it.row("edge-1")["last_good"] == "e49")
            assert len(it.seen.pushes) == 2

    asyncio.run(talk())


@BOTH
def test_a_client_that_does_not_read_holds_up_nobody_and_costs_no_memory(delta: bool) -> None:
    size = 8 * 1024 * 1024

    async def talk() -> None:
        async with running() as it, connected(it.port, "stuck", delta=delta) as stuck, channel(it.port) as wire:
            it.publish(CachedSnapshot("e0", cluster("a")))
            clients = [Client(wire, f"edge-{number}", delta=delta, only=None) for number in range(10)]
            for client in (stuck, *clients):
                await client.fetch(CDS)
            small = [cluster("a", str(number)) for number in range(40)]

            async def round_trip(number: int, proxy: str) -> float:
                start = asyncio.get_running_loop().time()
                big = Resource(CDS, "big", bytes([number]) * size)
                it.publish(
                    CachedSnapshot(
                        f"e{number + 1}", small[number], proxies=(Proxy(proxy, "envoy", (1, 40)), EDGES),
                        parts={proxy: content(cluster("a"), big)},
                    )
                )  # fmt: skip
                await asyncio.gather(*(client.take() for client in clients))
                return asyncio.get_running_loop().time() - start

            alone = [await round_trip(number, "nobody") for number in range(10)]
            await round_trip(10, "stuck")
            before = resident()
            times = [await round_trip(number, "stuck") for number in range(11, 40)]
            assert resident() - before < 6 * size, "one message waits for it, not thirty"
            assert median(times) < 5 * median(alone), "as long as without it"
            await until(lambda: it.row("edge-3")["state"] == "SYNCED")
            assert it.row("stuck")["state"] == "STALE"
            newest = await stuck.read()
            await stuck.ack(newest)
            while b"\x27" * 100 not in newest.SerializeToString():
                newest = await stuck.read()
                await stuck.ack(newest)
            await until(lambda: it.row("stuck")["last_good"] == "e40")

    asyncio.run(talk())


EDGES = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))


@BOTH
def test_a_refusal_is_recorded_with_words_and_place_and_nothing_is_sent_again(delta: bool) -> None:
    async def talk() -> None:
        async with running() as it, channel(it.port) as wire:
            one, two = (Client(wire, name, delta=delta, only=None) for name in ("edge-1", "two"))
            it.publish(CachedSnapshot("e1", cluster("a")))
            for client in (one, two):
                await client.fetch(CDS)
            await until(lambda: it.row("edge-1")["last_good"] == "e1")
            it.publish(CachedSnapshot("e2", cluster("a", "bad")))
            await one.ack(await one.read(), error="cluster a: no s3cret")
            assert await two.take() == ["a"]
            await until(lambda: it.seen.nacks == ["cds"])
            await asyncio.sleep(0.2)
            assert len(it.seen.pushes) == 4, "no resends"
            row = it.row("edge-1")
            assert (row["state"], row["last_good"], row["version"]) == ("NACKED", "e1", "e2")
            (nack,) = row["nacks"]
            assert (nack["type"], nack["message"], nack["names"]) == ("cds", "cluster a: no …", ["a"])
            assert nack["findings"] == ["fleet.yaml:7:0: error LB999 pools.a: cluster a: no …"]
            assert row["types"][0]["message"] == "cluster a: no …"
            assert it.row("two")["last_good"] == "e2"
            it.publish(CachedSnapshot("e3", cluster("a", "good")))
            assert await one.take() == ["a"]
            await until(lambda: it.row("edge-1")["last_good"] == "e3")
            assert it.row("edge-1")["state"] == "SYNCED"

    asyncio.run(talk())


def test_the_time_of_an_answer_is_measured_type_by_type() -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port) as client:
            it.publish(CachedSnapshot("e1", cluster("a"), route("r")))
            await client.ask(CDS)
            response = await client.read()
            await asyncio.sleep(0.1)
            await client.ack(response)
            await client.fetch(RDS, "r")
            await until(lambda: len(it.seen.acks) == 2)
            (first, slow), (second, fast) = it.seen.acks
            assert (first, second) == ("cds", "rds")
            assert 0.1 <= slow < 1
            assert fast < 0.1
            assert [(kind, count) for kind, count, _ in it.seen.pushes] == [("cds", 1), ("rds", 1)]
            assert all(size > 0 for _, _, size in it.seen.pushes)
            row = it.row("edge-1")
            assert [item["acked_at"] >= item["pushed_at"] for item in row["types"]] == [True, True]

    asyncio.run(talk())


def test_each_proxy_gets_its_own_part_and_equal_proxies_are_asked_for_once() -> None:
    proxies = (Proxy("edge", "envoy", (1, 40), nodes=("edge-*",)), Proxy("core", "envoy", (1, 40), nodes=("core-*",)))
    edition = CachedSnapshot("e1", cluster("a"), proxies=proxies, parts={"core": content(cluster("c"))})

    async def talk() -> None:
        async with running() as it, channel(it.port) as wire:
            it.publish(edition)
            nodes = ["edge-1", "core-1", "edge-2", "core-2"]
            clients = [Client(wire, node, delta=True, only=None) for node in nodes]
            assert [await client.fetch(CDS) for client in clients] == [["a"], ["c"], ["a"], ["c"]]
            assert [item.name for item in edition.asked] == ["edge", "core"]
            assert [row["proxy"] for row in it.rows()] == ["core", "core", "edge", "edge"]

    asyncio.run(talk())


def test_a_node_that_nothing_names_waits_is_named_and_is_served_as_soon_as_it_is_named() -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, "stray") as client:
            it.publish(CachedSnapshot("e1", cluster("a"), proxies=(EDGES,)))
            await client.ask(CDS)
            await until(lambda: it.seen.strays == ["stray"])
            row = it.row("stray")
            assert (row["state"], row["proxy"]) == ("REFUSED", None)
            assert "'stray'" in row["reason"]
            it.publish(CachedSnapshot("e2", cluster("a"), proxies=(EDGES,)))
            assert it.seen.strays == ["stray"], "said once"
            it.publish(CachedSnapshot("e3", cluster("a"), proxies=(EDGES, Proxy("stray", "envoy", (1, 40)))))
            assert await client.take() == ["a"]
            assert (it.row("stray")["proxy"], it.row("stray")["reason"]) == ("stray", "")

    asyncio.run(talk())


def test_a_node_whose_entry_goes_keeps_what_it_has() -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port) as client:
            it.publish(CachedSnapshot("e1", cluster("a"), proxies=(EDGES,)))
            assert await client.fetch(CDS) == ["a"]
            other = Proxy("other", "envoy", (1, 40))
            it.publish(CachedSnapshot("e2", cluster("b"), proxies=(other,)))
            assert await client.silent(), "no emptiness, and nothing of what is not for it"
            assert it.row("edge-1")["state"] == "REFUSED"

    asyncio.run(talk())


def test_a_node_that_comes_back_is_not_robbed_of_a_cluster_that_its_routes_still_use() -> None:
    async def talk() -> None:
        async with running(settle=0.2) as it:
            it.publish(CachedSnapshot("e1", cluster("a"), cluster("b"), route("r", "to-b")))
            async with connected(it.port, delta=False) as client:
                assert await client.fetch(CDS) == ["a", "b"]
                assert await client.fetch(RDS, "r") == ["r"]
                await until(lambda: it.row("edge-1")["last_good"] == "e1")
            await until(lambda: it.server.streams == 0)
            assert it.row("edge-1")["state"] == "GONE"
            it.publish(CachedSnapshot("e2", cluster("a"), route("r", "to-a")))
            async with connected(it.port, delta=False) as client:
                assert await client.fetch(CDS) == ["a", "b"]
                assert await client.fetch(RDS, "r") == ["r"]
                assert client.names(await client.read()) == ["a"]

    asyncio.run(talk())


@pytest.mark.parametrize("junk", [b"\xff\xff\xff", b""])
def test_what_is_no_request_ends_the_stream(junk: bytes) -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port) as client:
            await client.call.write(junk)
            assert await client.status() == grpc.StatusCode.INVALID_ARGUMENT
            await until(lambda: it.server.streams == 0)
            assert it.seen.streams == []

    asyncio.run(talk())


@pytest.mark.parametrize("node", ["", "a\nb", "x" * 254])
def test_a_node_must_have_a_readable_name(node: str) -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, node) as client:
            await client.ask(CDS)
            assert await client.status() == grpc.StatusCode.INVALID_ARGUMENT
            assert it.rows() == []

    asyncio.run(talk())


def test_a_stream_must_ask_in_time() -> None:
    async def talk() -> None:
        async with running(limits=Limits(patience=0.1)) as it, channel(it.port) as wire:
            asked, silent = (Client(wire, name, delta=True, only=None) for name in ("asked", "silent"))
            await asked.ask(CDS)
            assert await silent.status() == grpc.StatusCode.DEADLINE_EXCEEDED
            await asyncio.sleep(0.2)
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert await asked.take() == ["a"]

    asyncio.run(talk())


def test_streams_and_messages_have_limits() -> None:
    async def talk() -> None:
        limits = Limits(streams=2, message=10_000)
        async with running(limits=limits) as it, channel(it.port) as wire:
            it.publish(CachedSnapshot("e1", cluster("a")))
            first, second = (Client(wire, name, delta=True, only=None) for name in ("first", "second"))
            assert await first.fetch(CDS) == ["a"]
            assert await second.fetch(CDS) == ["a"]
            third = Client(wire, "third", delta=True, only=None)
            assert await third.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await second.ask(EDS, "x" * 20_000)
            assert await second.status() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: it.server.streams == 1)
            assert await Client(wire, "n3", delta=True, only=None).fetch(CDS) == ["a"]

    asyncio.run(talk())


def test_a_proxy_that_pings_often_is_not_thrown_out() -> None:
    ping, goaway, acknowledged = 6, 7, 1

    async def talk() -> None:
        async with running() as it:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
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

    asyncio.run(talk())


@pytest.mark.parametrize("streams", [1, 150])
def test_stopping_ends_every_stream_within_the_grace(streams: int) -> None:
    async def talk() -> None:
        loop = asyncio.get_running_loop()
        async with running() as it, channel(it.port) as wire:
            it.publish(CachedSnapshot("e1", cluster("a")))
            clients = [Client(wire, f"n{number}", delta=True, only=None) for number in range(streams)]
            await asyncio.gather(*(client.fetch(CDS) for client in clients))
            start = loop.time()
            ends: list[float] = []

            async def ended(client: Client) -> grpc.StatusCode:
                code = await client.status()
                ends.append(loop.time() - start)
                return code

            told = asyncio.gather(*(ended(client) for client in clients))
            await it.server.stop(1.0)
            assert loop.time() - start < 1.2
            assert set(await told) == {grpc.StatusCode.UNAVAILABLE}
            if streams == 1:
                assert ends[0] < 0.2, "nobody waits for a crowd that is not there"
            else:
                assert max(ends) - min(ends) > 0.4, "they do not all come back at once"
            assert it.server.streams == 0
            assert it.seen.streams == []

    asyncio.run(talk())


def test_stopping_does_not_wait_for_a_client_that_does_not_read() -> None:
    async def talk() -> None:
        loop = asyncio.get_running_loop()
        async with running() as it, connected(it.port) as client:
            it.publish(CachedSnapshot("e1", Resource(CDS, "big", bytes(16 * 1024 * 1024))))
            await client.ask(CDS)
            await until(lambda: len(it.seen.pushes) == 1)
            start = loop.time()
            await it.server.stop(0.5)
            assert loop.time() - start < 1.5

    asyncio.run(talk())


def test_a_client_that_answers_pings_and_does_not_read_is_disconnected_and_no_other() -> None:
    limits = Limits(read_within=0.3, ping=0.1, ping_answer=5.0)

    async def talk() -> None:
        async with running(limits=limits) as it, connected(it.port) as stuck, connected(it.port, "edge-2") as other:
            it.publish(CachedSnapshot("e1", Resource(CDS, "big", bytes(16 * 1024 * 1024)), route("r")))
            assert await other.fetch(RDS, "r") == ["r"]
            await stuck.ask(CDS)
            await until(lambda: len(it.seen.pushes) == 2)
            await until(lambda: it.server.streams == 1)
            assert it.row("edge-1")["connected"] is False
            it.publish(CachedSnapshot("e2", route("r", "changed")))
            assert await other.take("r") == ["r"]
            assert await stuck.status() == grpc.StatusCode.UNAVAILABLE

    asyncio.run(talk())


def test_a_connection_that_is_not_closed_at_once_is_closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def fails_once(host: str, port: int) -> bool:
        tries.append(port)
        return len(tries) > 1 and close_connection(host, port)

    monkeypatch.setattr("lbctl.xds.protocol.call.close_connection", fails_once)
    limits = Limits(read_within=0.3, ping=0.1, ping_answer=5.0)

    async def talk() -> None:
        async with running(limits=limits) as it, connected(it.port) as stuck:
            it.publish(CachedSnapshot("e1", Resource(CDS, "big", bytes(16 * 1024 * 1024))))
            await stuck.ask(CDS)
            await until(lambda: len(tries) > 1 and it.server.streams == 0)

    asyncio.run(talk())


def test_a_port_that_is_taken_is_said() -> None:
    async def talk() -> None:
        async with running() as it:
            with pytest.raises(BindError, match=f"127.0.0.1:{it.port}: Address already in use"):
                async with running(bind=Address("127.0.0.1", it.port)):
                    pass

    asyncio.run(talk())


def test_a_unix_socket_will_do(tmp_path: Path) -> None:
    async def talk() -> None:
        path = str(tmp_path / "xds.sock")
        async with running(bind=Address(path=path)) as it, connected(f"unix:{path}") as client:
            assert it.port == 0
            it.publish(CachedSnapshot("e1", cluster("a")))
            assert await client.fetch(CDS) == ["a"]

    asyncio.run(talk())


def test_streams_that_come_and_go_leave_nothing_behind() -> None:
    async def talk() -> None:
        async with running() as it, channel(it.port) as wire:
            it.publish(CachedSnapshot("e1", cluster("a")))
            for number in range(300):
                client = Client(wire, f"n{number % 7}", delta=bool(number % 2), only=None)
                assert await client.fetch(CDS) == ["a"]
                client.call.cancel() if number % 3 else await client.call.done_writing()
            await until(lambda: it.server.streams == 0)
            assert it.seen.streams == []
            assert len(asyncio.all_tasks()) < 10
            assert it.server._context.newest == {}

    asyncio.run(talk())


class FailsOnce(CachedSnapshot):
    """Raises for the first stream that asks for its content."""

    def resources(self, proxy: Proxy) -> Resources:
        if not self.asked:
            self.asked.append(proxy)
            raise RuntimeError("no content")
        return super().resources(proxy)


@BOTH
def test_a_stream_that_fails_is_closed_and_counted_and_the_others_go_on(delta: bool) -> None:
    async def talk() -> None:
        async with running() as it, channel(it.port) as wire:
            it.publish(CachedSnapshot("e1", cluster("a")))
            clients = [Client(wire, f"edge-{number}", delta=delta, only=None) for number in range(3)]
            assert [await client.fetch(CDS) for client in clients] == [["a"]] * 3
            it.publish(FailsOnce("e2", cluster("a"), cluster("b")))
            fresh = ["b"] if delta else ["a", "b"]
            outcomes = await asyncio.gather(*(client.take() for client in clients), return_exceptions=True)
            assert sum(outcome == fresh for outcome in outcomes) == 2
            assert it.seen.failures == 1
            closed = next(client for client, outcome in zip(clients, outcomes, strict=True) if outcome != fresh)
            assert await closed.call.code() is grpc.StatusCode.INTERNAL
            again = Client(wire, "edge-again", delta=delta, only=None)
            assert await again.fetch(CDS) == ["a", "b"]

    asyncio.run(talk())


@BOTH
def test_a_stream_whose_writing_fails_is_closed_and_counted(delta: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        async with running() as it, connected(it.port, delta=delta) as client:
            monkeypatch.setattr(it.seen, "pushed", lambda *_: 1 / 0)
            it.publish(CachedSnapshot("e1", cluster("a")))
            await client.ask(CDS)
            with pytest.raises(grpc.aio.AioRpcError):
                await client.read()
            assert await client.call.code() is grpc.StatusCode.INTERNAL
            assert it.seen.failures == 1

    asyncio.run(talk())
