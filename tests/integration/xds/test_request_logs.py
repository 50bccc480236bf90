"""Streams of request logs with real gRPC clients: what is taken, of whom, and what does no harm."""

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
from lbctl.xds.protocol.request_logs import RequestLatency
from tests.support.xds import CachedSnapshot, Running, channel, cluster, running, until

PATH = f"/{request_logs.SERVICE}/{request_logs.METHOD}"
EDGE = Proxy("edge", "envoy", (1, 40), nodes=("edge-*",))


class Received:
    """A receiver that keeps all."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, RequestLatency]] = []

    def observed(self, node_id: str, requests: Iterator[RequestLatency]) -> None:
        self.requests.extend((node_id, each) for each in requests)


def milliseconds(value: float) -> dict[str, int]:
    return {"seconds": int(value // 1000), "nanos": int(value % 1000 * 1_000_000)}


def entry(status: int, cluster_name: str = "llama", *, left: bool = False, **times: float) -> dict[str, Any]:
    """A request whose last byte came after 5 ms; `times` are in milliseconds since its first."""
    common = {name: milliseconds(value) for name, value in times.items()}
    return {
        "common_properties": {
            "upstream_cluster": cluster_name,
            "time_to_last_rx_byte": milliseconds(5),
            "response_flags": {"downstream_connection_termination": left},
            **common,
        },
        "response": {"response_code": {"value": status}},
    }


def message(*entries: dict[str, Any], node: str = "") -> bytes:
    identifier = {"node": {"id": node}, "log_name": "lbctl"} if node else None
    logs = StreamAccessLogsMessage(identifier=identifier, http_logs={"log_entry": entries})  # type: ignore[arg-type]
    return logs.SerializeToString()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_session, "_PACE", 0.01)


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[Running, Received, Any]]:
    received = Received()
    async with (
        running(latency_receiver=received, **{"secrets_in_clear": True, **options}) as it,
        channel(it.port) as wire,
    ):
        it.publish(CachedSnapshot("e1", cluster("a"), proxies=(EDGE,)))
        yield it, received, wire.stream_unary(PATH)()


def test_answers_have_their_latency_since_the_end_of_the_request_and_failures_have_none() -> None:
    async def talk() -> None:
        async with served() as (it, received, call):
            good = entry(200, time_to_first_upstream_rx_byte=105, time_to_last_upstream_rx_byte=1505, duration=1506)
            early = entry(200, time_to_first_upstream_rx_byte=2, time_to_last_upstream_rx_byte=3, duration=9)
            left = entry(0, left=True, duration=905)
            await call.write(message(good, early, left, entry(503, duration=9), entry(429, duration=9), node="edge-1"))
            await call.write(message(entry(200, "", duration=9), entry(0, duration=9)))
            await call.write(message(good))
            await until(lambda: len(received.requests) == 4)
            expected = [RequestLatency("llama", 100, 1500), RequestLatency("llama", 0, 0)]
            expected += [RequestLatency("llama", 900, 900), expected[0]]
            assert received.requests == [("edge-1", each) for each in expected]
            assert it.seen.streams == ["requests"]
            call.cancel()
            await until(lambda: it.server.streams == 0)

    asyncio.run(talk())


def test_by_tcp_without_a_certificate_nothing_is_taken_and_by_the_socket_it_is(tmp_path: Path) -> None:
    async def talk() -> None:
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

    asyncio.run(talk())


def test_a_node_that_no_entry_names_counts_for_nothing_and_garbage_is_cut_off() -> None:
    async def talk() -> None:
        async with served() as (_, received, call):
            await call.write(message(entry(200, duration=20), node="stray"))
            await call.write(message(entry(200, duration=20)))
            await asyncio.sleep(0.1)
            assert received.requests == []
        async with served() as (_, received, call):
            await call.write(b"\xff")
            assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(talk())


def test_a_client_that_floods_is_read_in_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.xds.protocol.request_log_session._SHORTEST", 0.2)

    async def talk() -> None:
        async with served() as (_, received, call):
            await call.write(message(node="edge-1"))
            for _ in range(50):
                await call.write(message(entry(200, duration=20)))
            await asyncio.sleep(0.5)
            assert 1 <= len(received.requests) <= 4

    asyncio.run(talk())
