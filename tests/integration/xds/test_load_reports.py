"""Streams of load reports with real gRPC clients: who is asked, how often, and what does no harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from lbctl.ir.pools import Pool, Telemetry
from lbctl.ir.proxies import Proxy, ServerTls
from lbctl.xds.protocol import load_reports, report_session
from lbctl.xds.protocol.load_reports import LONGEST, SHORTEST, ClusterLoad, EndpointLoad
from lbctl.xds.protocol.server import Limits
from tests.support.processes.certs import Authority
from tests.support.xds import CachedSnapshot, Running, channel, cluster, running, until

PATH = f"/{load_reports.SERVICE}/{load_reports.METHOD}"
EDGE = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))
BOUND = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",), node_san="spiffe://example.com/edge-*")
Loads = dict[str, list[EndpointLoad]]


class Received:
    """A receiver that keeps all."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, Loads]] = []
        self.streams: set[object] = set()

    def reported(self, stream: object, node_id: str, clusters: Iterator[ClusterLoad]) -> None:
        self.streams.add(stream)
        self.reports.append((node_id, {item.cluster: list(item.endpoints) for item in clusters}))

    def ended(self, stream: object, node_id: str) -> None:
        self.streams.discard(stream)


class Reporter:
    """An Envoy's stream of load reports, spoken by hand."""

    def __init__(self, wire: grpc.aio.Channel) -> None:
        self.call = wire.stream_stream(PATH)()

    async def hello(self, node: str = "edge-1") -> None:
        await self.send(LoadStatsRequest(node={"id": node}))

    async def send(self, message: Any) -> None:
        await self.call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def asked(self, seconds: float = 10.0) -> LoadStatsResponse:
        async with asyncio.timeout(seconds):
            data = await self.call.read()
        assert data is not grpc.aio.EOF, await self.call.code()
        return LoadStatsResponse.FromString(data)

    async def code(self) -> grpc.StatusCode:
        async with asyncio.timeout(10):
            return await self.call.code()


def report(clusters: dict[str, list[tuple[str, int, int, int, int]]]) -> LoadStatsRequest:
    """Cluster → (address, port, issued, failed, in progress)."""
    stats = [
        {
            "cluster_name": name,
            "upstream_locality_stats": [
                {
                    "upstream_endpoint_stats": [
                        {
                            "address": {"socket_address": {"address": address, "port_value": port}},
                            "total_issued_requests": issued,
                            "total_error_requests": failed,
                            "total_requests_in_progress": there,
                        }
                        for address, port, issued, failed, there in endpoints
                    ]
                }
            ],
        }
        for name, endpoints in clusters.items()
    ]
    return LoadStatsRequest(cluster_stats=stats)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_session, "_PACE", 0.01)


@asynccontextmanager
async def served(*proxies: Proxy, **options: Any) -> AsyncIterator[tuple[Running, Received, Reporter]]:
    received = Received()
    async with (
        running(load_receiver=received, **{"secrets_in_clear": True, **options}) as it,
        channel(it.port) as wire,
    ):
        it.publish(CachedSnapshot("e1", cluster("a"), proxies=proxies or (EDGE,)))
        yield it, received, Reporter(wire)


def with_telemetry(version: str, interval: int) -> CachedSnapshot:
    """A snapshot with a pool whose samples are taken so often, in milliseconds."""
    snapshot = CachedSnapshot(version, cluster("a"), proxies=(EDGE,))
    pool = Pool("p", (), telemetry=Telemetry(sources=("any",), interval=interval))  # type: ignore[arg-type]
    object.__setattr__(snapshot.snapshot.topology, "pools", (pool,))
    return snapshot


def test_a_node_is_asked_for_all_clusters_by_endpoint_and_its_reports_are_passed_on() -> None:
    async def talk() -> None:
        async with served() as (it, received, client):
            await client.hello()
            wanted = await client.asked()
            assert (wanted.send_all_clusters, wanted.report_endpoint_granularity) == (True, True)
            assert wanted.load_reporting_interval.ToMilliseconds() == LONGEST * 1000
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)], "idle": []}))
            await client.send(LoadStatsRequest())
            await until(lambda: len(received.reports) == 3)
            loads = {"llama": [EndpointLoad(("10.0.0.1", 8000), 7, 1, 2)], "idle": []}
            assert received.reports == [("edge-1", {}), ("edge-1", loads), ("edge-1", {})]
            assert it.seen.streams == ["load"]
            client.call.cancel()
            await until(lambda: not received.streams and it.server.streams == 0)
            assert it.seen.streams == []

    asyncio.run(talk())


@pytest.mark.parametrize(("interval", "seconds"), [(100, SHORTEST), (2_000, 2.0), (60_000, LONGEST)])
def test_reports_come_as_often_as_samples_within_bounds_and_a_new_fleet_changes_that(
    interval: int, seconds: float
) -> None:
    async def talk() -> None:
        async with served() as (it, _, client):
            await client.hello()
            assert (await client.asked()).load_reporting_interval.ToMilliseconds() == LONGEST * 1000
            it.publish(with_telemetry("e2", interval))
            it.publish(with_telemetry("e3", interval))
            if seconds != LONGEST:
                assert (await client.asked()).load_reporting_interval.ToMilliseconds() == seconds * 1000
            with pytest.raises(TimeoutError):
                await client.asked(0.2)

    asyncio.run(talk())


def test_a_node_that_no_entry_names_is_not_asked_until_one_does() -> None:
    async def talk() -> None:
        async with served() as (it, received, client):
            await client.hello("stray")
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)]}))
            await asyncio.sleep(0.1)
            assert received.reports == []
            named = Proxy("stray", "envoy", (1, 40))
            it.publish(CachedSnapshot("e2", cluster("a"), proxies=(EDGE, named)))
            assert (await client.asked()).send_all_clusters
            await client.send(report({}))
            await until(lambda: received.reports == [("stray", {})])
            it.publish(CachedSnapshot("e3", cluster("a"), proxies=(EDGE,)))
            assert not received.streams
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)]}))
            await asyncio.sleep(0.1)
            assert received.reports == [("stray", {})]

    asyncio.run(talk())


def test_a_node_without_the_certificate_of_its_entry_is_refused() -> None:
    async def talk() -> None:
        async with served(BOUND) as (_, received, client):
            await client.hello()
            assert await client.code() == grpc.StatusCode.PERMISSION_DENIED
            assert "is missing or says no name" in await client.call.details()
            assert received.reports == []

    asyncio.run(talk())


def test_a_client_certificate_of_the_entrys_name_is_enough(tmp_path: Path) -> None:
    servers, clients = Authority(tmp_path / "servers"), Authority(tmp_path / "clients")
    own, edge = servers.issue("control", ["localhost"]), clients.issue("edge", ["spiffe://example.com/edge-1"])
    tls = ServerTls(str(own.certificate), str(own.key), str(clients.ca))
    pair = (edge.key.read_bytes(), edge.certificate.read_bytes())

    async def talk() -> None:
        async with served(BOUND, secrets_in_clear=False, tls=tls) as (it, received, _):
            credentials = grpc.ssl_channel_credentials(servers.ca.read_bytes(), *pair)
            async with channel(it.port, credentials, (("grpc.ssl_target_name_override", "localhost"),)) as wire:
                client = Reporter(wire)
                await client.hello()
                assert (await client.asked()).send_all_clusters
                await until(lambda: received.reports == [("edge-1", {})])

    asyncio.run(talk())


def test_by_tcp_without_a_certificate_nobody_is_asked_and_by_the_socket_its_owner_is(tmp_path: Path) -> None:
    path = tmp_path / "xds.sock"

    async def talk() -> None:
        async with served(secrets_in_clear=False, socket=path) as (it, received, client):
            await client.hello()
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)]}))
            await asyncio.sleep(0.1)
            assert received.reports == []
            async with channel(f"unix:{path}") as wire:
                owner = Reporter(wire)
                await owner.hello()
                assert (await owner.asked()).send_all_clusters
                await until(lambda: received.reports == [("edge-1", {})])
            assert it.rows() == [], "a stream of load reports is no connection of ADS"

    asyncio.run(talk())


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\xff\xff\xffgarbage", id="garbage"),
        pytest.param(report({"llama": []}).SerializeToString(), id="no node"),
        pytest.param(LoadStatsRequest(node={"id": "x" * 300}).SerializeToString(), id="a long id"),
        pytest.param(LoadStatsRequest(node={"id": "a\x1b[2J"}).SerializeToString(), id="an id that is not printable"),
    ],
)
def test_who_breaks_the_protocol_is_cut_off_and_the_others_go_on(message: bytes) -> None:
    async def talk() -> None:
        async with served() as (it, received, client), channel(it.port) as wire:
            await client.hello()
            await client.asked()
            rogue = Reporter(wire)
            await rogue.send(message)
            assert await rogue.code() == grpc.StatusCode.INVALID_ARGUMENT
            await client.send(report({}))
            await until(lambda: len(received.reports) == 2)
            assert it.seen.failures == 0

    asyncio.run(talk())


def test_garbage_after_a_good_start_is_cut_off_too() -> None:
    async def talk() -> None:
        async with served() as (_, received, client):
            await client.hello()
            await client.asked()
            await client.send(b"\xff\xff\xff")
            assert await client.code() == grpc.StatusCode.INVALID_ARGUMENT
            await until(lambda: not received.streams)

    asyncio.run(talk())


def test_a_message_and_the_number_of_streams_have_limits() -> None:
    async def talk() -> None:
        limits = Limits(streams=2, message=10_000, patience=0.3)
        async with served(limits=limits) as (it, _, client), channel(it.port) as wire:
            await client.hello()
            await client.asked()
            second, third = Reporter(wire), Reporter(wire)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED in {await third.code(), await second.code()}
            await until(lambda: it.server.streams == 1)
            await client.send(report({"x" * 20_000: []}))
            assert await client.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: it.server.streams == 0)
            silent = Reporter(wire)
            assert await silent.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(talk())


def test_a_client_that_floods_is_read_at_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_session, "_PACE", 0.2)

    async def talk() -> None:
        async with served() as (_, received, client):
            await client.hello()
            await client.asked()
            begun, flood = asyncio.get_running_loop().time(), asyncio.create_task(_flood(client))
            await until(lambda: len(received.reports) > 4)
            flood.cancel()
            pauses = len(received.reports) - 1
            assert asyncio.get_running_loop().time() - begun > 0.19 * pauses

    asyncio.run(talk())


async def _flood(client: Reporter) -> None:
    while True:
        await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)] * 1000}))


def test_a_receiver_that_fails_ends_its_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        async with served() as (it, received, client):

            def fail(*_: object) -> None:
                raise ValueError

            await client.hello()
            await client.asked()
            monkeypatch.setattr(received, "reported", fail)
            await client.send(report({}))
            assert await client.code() == grpc.StatusCode.INTERNAL
            assert it.seen.failures == 1

    asyncio.run(talk())


def test_stopping_ends_the_streams() -> None:
    async def talk() -> None:
        async with served() as (it, _, client):
            await client.hello()
            await client.asked()
            await it.server.stop(1.0)
            assert await client.code() == grpc.StatusCode.UNAVAILABLE

    asyncio.run(talk())


def test_the_address_of_a_socket_is_its_path() -> None:
    message = LoadStatsRequest(node={"id": "n"})
    stats = message.cluster_stats.add(cluster_name="c").upstream_locality_stats.add().upstream_endpoint_stats.add()
    stats.address.pipe.path = "/run/engine.sock"
    (found,) = load_reports.read(message.SerializeToString()).clusters
    assert list(found.endpoints) == [EndpointLoad(("/run/engine.sock", 0), 0, 0, 0)]
