"""Request logs with real gRPC clients: accepted entries and nodes, and misbehaving clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from lbctl.ir.proxies import Proxy
from lbctl.xds.protocol import report_session, request_logs
from lbctl.xds.protocol.request_logs import OwnError, RequestLatency
from tests.support.xds import CachedSnapshot, Running, channel, cluster, running, until

PATH = f"/{request_logs.SERVICE}/{request_logs.METHOD}"
PLACE = ("10.0.0.1", 8000)
EDGE = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))


class RecordingReceiver:
    """A receiver that keeps all latencies."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, RequestLatency | OwnError]] = []

    def observed(self, node_id: str, requests: Iterator[RequestLatency | OwnError]) -> None:
        self.requests.extend((node_id, each) for each in requests)


def milliseconds(value: float) -> dict[str, int]:
    return {"seconds": int(value // 1000), "nanos": int(value % 1000 * 1_000_000)}


def entry(status: int, cluster_name: str = "llama", *, left: bool = False, **times: float) -> dict[str, Any]:
    """Return the log entry of a request of 5 ms; `times` are milliseconds since its first byte."""
    common = {name: milliseconds(value) for name, value in times.items()}
    return {
        "common_properties": {
            "upstream_cluster": cluster_name,
            "upstream_remote_address": {"socket_address": {"address": PLACE[0], "port_value": PLACE[1]}},
            "time_to_last_rx_byte": milliseconds(5),
            "response_flags": {"downstream_connection_termination": left},
            **common,
        },
        "response": {"response_code": {"value": status}},
    }


def message(*entries: dict[str, Any], node: str = "", log: str = "lbctl") -> bytes:
    identifier = {"node": {"id": node}, "log_name": log} if node else None
    logs = StreamAccessLogsMessage(identifier=identifier, http_logs={"log_entry": entries})  # type: ignore[arg-type]
    return logs.SerializeToString()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_session, "_READ_INTERVAL", 0.01)


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Running, RecordingReceiver, Any]]:
    received = RecordingReceiver()
    async with (
        running(latency_receiver=received, **{"secrets_in_clear": True, **options}) as xds,
        channel(xds.port) as wire,
    ):
        xds.publish(CachedSnapshot("e1", cluster("a"), proxies=(EDGE,)))
        yield xds, received, wire.stream_unary(PATH)()


def test_only_answered_requests_have_a_latency() -> None:
    async def scenario() -> None:
        async with served() as (xds, received, call):
            good = entry(200, time_to_first_upstream_rx_byte=105, time_to_last_upstream_rx_byte=1505, duration=1506)
            early = entry(200, time_to_first_upstream_rx_byte=2, time_to_last_upstream_rx_byte=3, duration=9)
            left = entry(0, left=True, duration=905)
            await call.write(message(good, early, left, entry(503, duration=9), entry(429, duration=9), node="edge-1"))
            await call.write(message(entry(200, "", duration=9), entry(0, duration=9)))
            await call.write(message(good))
            await until(lambda: len(received.requests) == 4)
            expected = [RequestLatency("llama", PLACE, 100, 1500), RequestLatency("llama", PLACE, 0, 0)]
            expected += [RequestLatency("llama", PLACE, 900, 900, answered=False), expected[0]]
            assert received.requests == [("edge-1", each) for each in expected]
            assert xds.observer.streams == ["requests"]
            call.cancel()
            await until(lambda: xds.server.streams == 0)

    asyncio.run(scenario())


def test_log_of_own_errors_counts_for_its_pool() -> None:
    async def scenario() -> None:
        async with served() as (_, received, call):
            await call.write(message(entry(503, ""), node="edge-1", log="lbctl-errors/llama"))
            await call.write(message(entry(503, ""), entry(503, "")))
            await until(lambda: len(received.requests) == 3)
            assert received.requests == [("edge-1", OwnError("llama"))] * 3

    asyncio.run(scenario())


def test_logs_need_a_certificate_or_the_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        socket = tmp_path / "xds.sock"
        logs = message(entry(200, time_to_first_upstream_rx_byte=15, duration=20), node="edge-1")
        async with served(secrets_in_clear=False, socket=socket) as (_, received, call):
            await call.write(logs)
            async with grpc.aio.insecure_channel(f"unix:{socket}") as wire:
                own = wire.stream_unary(PATH)()
                await own.write(logs)
                await until(lambda: bool(received.requests))
                await call.write(logs)
                await asyncio.sleep(0.1)
                assert len(received.requests) == 1

    asyncio.run(scenario())


def test_unmatched_nodes_and_garbage_are_ignored() -> None:
    async def scenario() -> None:
        async with served() as (_, received, call):
            await call.write(message(entry(200, duration=20), node="stray"))
            await call.write(message(entry(200, duration=20)))
            await asyncio.sleep(0.1)
            assert received.requests == []
        async with served() as (_, received, call):
            await call.write(b"\xff")
            assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_flooding_client_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.xds.protocol.request_log_session._MIN_PAUSE", 0.2)

    async def scenario() -> None:
        async with served() as (_, received, call):
            await call.write(message(node="edge-1"))
            begun = asyncio.get_running_loop().time()
            for _ in range(50):
                await call.write(message(entry(200, duration=20)))
            await until(lambda: len(received.requests) > 1)
            await asyncio.sleep(0.3)
            taken = asyncio.get_running_loop().time() - begun
            assert len(received.requests) <= 2 + taken / 0.2

    asyncio.run(scenario())
