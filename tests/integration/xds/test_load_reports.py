"""Load reports with real gRPC clients: which nodes are asked, how often, and misbehaving clients."""

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
from lbctl.xds.protocol.load_reports import MAX_INTERVAL, MIN_INTERVAL, ClusterLoad, EndpointLoad
from lbctl.xds.protocol.server import Limits
from tests.support.processes.certs import Authority
from tests.support.xds import CachedSnapshot, Running, channel, cluster, running, until

PATH = f"/{load_reports.SERVICE}/{load_reports.METHOD}"
EDGE = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))
BOUND = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",), node_san="spiffe://example.com/edge-*")
Loads = dict[str, list[EndpointLoad]]


class RecordingReceiver:
    """A receiver that keeps all reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, Loads]] = []
        self.streams: set[object] = set()

    def reported(self, stream: object, node_id: str, clusters: Iterator[ClusterLoad]) -> None:
        self.streams.add(stream)
        self.reports.append((node_id, {item.cluster: list(item.endpoints) for item in clusters}))

    def ended(self, stream: object, node_id: str) -> None:
        self.streams.discard(stream)


class Reporter:
    """A scripted load-report stream of an Envoy."""

    def __init__(self, wire: grpc.aio.Channel) -> None:
        self.call = wire.stream_stream(PATH)()

    async def hello(self, node: str = "edge-1") -> None:
        await self.send(LoadStatsRequest(node={"id": node}))

    async def send(self, message: Any) -> None:
        await self.call.write(message if isinstance(message, bytes) else message.SerializeToString())

    async def read(self, seconds: float = 60.0) -> LoadStatsResponse:
        async with asyncio.timeout(seconds):
            data = await self.call.read()
        assert data is not grpc.aio.EOF, await self.call.code()
        return LoadStatsResponse.FromString(data)

    async def code(self) -> grpc.StatusCode:
        async with asyncio.timeout(60):
            return await self.call.code()


def report(clusters: dict[str, list[tuple[str, int, int, int, int]]]) -> LoadStatsRequest:
    """Return a report; `clusters` maps a cluster to (address, port, issued, failed, in progress) of its endpoints."""
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
                            "total_successful_requests": issued - failed,
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
    monkeypatch.setattr(report_session, "_READ_INTERVAL", 0.01)


@asynccontextmanager
async def served(*proxies: Proxy, **options: Any) -> AsyncIterator[tuple[Running, RecordingReceiver, Reporter]]:
    received = RecordingReceiver()
    async with (
        running(load_receiver=received, **{"secrets_in_clear": True, **options}) as xds,
        channel(xds.port) as wire,
    ):
        xds.publish(CachedSnapshot("e1", cluster("a"), proxies=proxies or (EDGE,)))
        yield xds, received, Reporter(wire)


def snapshot_with_telemetry(version: str, interval: int) -> CachedSnapshot:
    """Return a snapshot with a pool that has this telemetry interval, in milliseconds."""
    snapshot = CachedSnapshot(version, cluster("a"), proxies=(EDGE,))
    pool = Pool("p", (), telemetry=Telemetry(sources=("any",), interval=interval))  # type: ignore[arg-type]
    object.__setattr__(snapshot.snapshot.topology, "pools", (pool,))
    return snapshot


def test_reports_cover_all_clusters_and_reach_the_receiver() -> None:
    async def scenario() -> None:
        async with served() as (xds, received, client):
            await client.hello()
            wanted = await client.read()
            assert (wanted.send_all_clusters, wanted.report_endpoint_granularity) == (True, True)
            assert wanted.load_reporting_interval.ToMilliseconds() == MAX_INTERVAL * 1000
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)], "idle": []}))
            await client.send(LoadStatsRequest())
            await until(lambda: len(received.reports) == 3)
            loads = {"llama": [EndpointLoad(("10.0.0.1", 8000), 7, 1, 2, 6)], "idle": []}
            assert received.reports == [("edge-1", {}), ("edge-1", loads), ("edge-1", {})]
            assert xds.observer.streams == ["load"]
            client.call.cancel()
            await until(lambda: not received.streams and xds.server.streams == 0)
            assert xds.observer.streams == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("interval", "seconds"), [(100, MIN_INTERVAL), (2_000, 2.0), (60_000, MAX_INTERVAL)])
def test_the_report_interval_follows_the_telemetry(interval: int, seconds: float) -> None:
    async def scenario() -> None:
        async with served() as (xds, _, client):
            await client.hello()
            assert (await client.read()).load_reporting_interval.ToMilliseconds() == MAX_INTERVAL * 1000
            xds.publish(snapshot_with_telemetry("e2", interval))
            xds.publish(snapshot_with_telemetry("e3", interval))
            if seconds != MAX_INTERVAL:
                assert (await client.read()).load_reporting_interval.ToMilliseconds() == seconds * 1000
            with pytest.raises(TimeoutError):
                await client.read(0.2)

    asyncio.run(scenario())


def test_an_unmatched_node_is_not_asked_for_reports() -> None:
    async def scenario() -> None:
        async with served() as (xds, received, client):
            await client.hello("stray")
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)]}))
            await asyncio.sleep(0.1)
            assert received.reports == []
            named = Proxy("stray", "envoy", (1, 40))
            xds.publish(CachedSnapshot("e2", cluster("a"), proxies=(EDGE, named)))
            assert (await client.read()).send_all_clusters
            await client.send(report({}))
            await until(lambda: received.reports == [("stray", {})])
            xds.publish(CachedSnapshot("e3", cluster("a"), proxies=(EDGE,)))
            assert not received.streams
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)]}))
            await asyncio.sleep(0.1)
            assert received.reports == [("stray", {})]

    asyncio.run(scenario())


def test_a_node_without_the_required_certificate_is_refused() -> None:
    async def scenario() -> None:
        async with served(BOUND) as (_, received, client):
            await client.hello()
            assert await client.code() == grpc.StatusCode.PERMISSION_DENIED
            assert "is missing or has no name" in await client.call.details()
            assert received.reports == []

    asyncio.run(scenario())


def test_a_matching_client_certificate_is_accepted(tmp_path: Path) -> None:
    servers, clients = Authority(tmp_path / "servers"), Authority(tmp_path / "clients")
    own, edge = servers.issue("control", ["localhost"]), clients.issue("edge", ["spiffe://example.com/edge-1"])
    tls = ServerTls(str(own.certificate), str(own.key), str(clients.ca))
    pair = (edge.key.read_bytes(), edge.certificate.read_bytes())

    async def scenario() -> None:
        async with served(BOUND, secrets_in_clear=False, tls=tls) as (xds, received, _):
            credentials = grpc.ssl_channel_credentials(servers.ca.read_bytes(), *pair)
            async with channel(xds.port, credentials, (("grpc.ssl_target_name_override", "localhost"),)) as wire:
                client = Reporter(wire)
                await client.hello()
                assert (await client.read()).send_all_clusters
                await until(lambda: received.reports == [("edge-1", {})])

    asyncio.run(scenario())


def test_reports_need_a_certificate_or_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "xds.sock"

    async def scenario() -> None:
        async with served(secrets_in_clear=False, socket=path) as (xds, received, client):
            await client.hello()
            await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)]}))
            await asyncio.sleep(0.1)
            assert received.reports == []
            async with channel(f"unix:{path}") as wire:
                owner = Reporter(wire)
                await owner.hello()
                assert (await owner.read()).send_all_clusters
                await until(lambda: received.reports == [("edge-1", {})])
            assert xds.rows() == [], "a load-report stream is not an ADS connection"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\xff\xff\xffgarbage", id="garbage"),
        pytest.param(report({"llama": []}).SerializeToString(), id="no node"),
        pytest.param(LoadStatsRequest(node={"id": "x" * 300}).SerializeToString(), id="a long id"),
        pytest.param(LoadStatsRequest(node={"id": "a\x1b[2J"}).SerializeToString(), id="an id that is not printable"),
    ],
)
def test_a_client_that_breaks_the_protocol_is_disconnected(message: bytes) -> None:
    async def scenario() -> None:
        async with served() as (xds, received, client), channel(xds.port) as wire:
            await client.hello()
            await client.read()
            rogue = Reporter(wire)
            await rogue.send(message)
            assert await rogue.code() == grpc.StatusCode.INVALID_ARGUMENT
            await client.send(report({}))
            await until(lambda: len(received.reports) == 2)
            assert xds.observer.failures == 0

    asyncio.run(scenario())


def test_garbage_after_valid_messages_ends_the_stream() -> None:
    async def scenario() -> None:
        async with served() as (_, received, client):
            await client.hello()
            await client.read()
            await client.send(b"\xff\xff\xff")
            assert await client.code() == grpc.StatusCode.INVALID_ARGUMENT
            await until(lambda: not received.streams)

    asyncio.run(scenario())


@pytest.mark.slow
def test_message_size_and_streams_are_limited() -> None:
    async def scenario() -> None:
        limits = Limits(streams=2, message=10_000, patience=1)
        async with served(limits=limits) as (xds, _, client), channel(xds.port) as wire:
            await client.hello()
            await client.read()
            second, third = Reporter(wire), Reporter(wire)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED in {await third.code(), await second.code()}
            await until(lambda: xds.server.streams == 1)
            await client.send(report({"x" * 20_000: []}))
            assert await client.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: xds.server.streams == 0)
            silent = Reporter(wire)
            assert await silent.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_flooding_client_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_session, "_READ_INTERVAL", 0.2)

    async def scenario() -> None:
        async with served() as (_, received, client):
            await client.hello()
            await client.read()
            begun, flood = asyncio.get_running_loop().time(), asyncio.create_task(_flood(client))
            await until(lambda: len(received.reports) > 4)
            flood.cancel()
            pauses = len(received.reports) - 1
            assert asyncio.get_running_loop().time() - begun > 0.19 * pauses

    asyncio.run(scenario())


async def _flood(client: Reporter) -> None:
    while True:
        await client.send(report({"llama": [("10.0.0.1", 8000, 7, 1, 2)] * 1000}))


def test_a_failing_receiver_ends_only_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with served() as (xds, received, client):

            def fail(*_: object) -> None:
                raise ValueError

            await client.hello()
            await client.read()
            monkeypatch.setattr(received, "reported", fail)
            await client.send(report({}))
            assert await client.code() == grpc.StatusCode.INTERNAL
            assert xds.observer.failures == 1

    asyncio.run(scenario())


def test_stop_ends_all_streams() -> None:
    async def scenario() -> None:
        async with served() as (xds, _, client):
            await client.hello()
            await client.read()
            await xds.server.stop(1.0)
            assert await client.code() == grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_the_address_of_a_pipe_is_its_path() -> None:
    message = LoadStatsRequest(node={"id": "n"})
    stats = message.cluster_stats.add(cluster_name="c").upstream_locality_stats.add().upstream_endpoint_stats.add()
    stats.address.pipe.path = "/run/engine.sock"
    (load,) = load_reports.read(message.SerializeToString()).clusters
    assert list(load.endpoints) == [EndpointLoad(("/run/engine.sock", 0), 0, 0, 0, 0)]
