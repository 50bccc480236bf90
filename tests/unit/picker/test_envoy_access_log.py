"""An Envoy's access log ends its picks, reports which replicas could not be reached, and that the Envoy has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from lbctl.ir.address import Address
from lbctl.picker import envoy_access_log
from lbctl.picker.envoy_access_log import EnvoyEnds
from lbctl.picker.grpc_server import GrpcServer
from lbctl.picker.health import PickerHealth
from lbctl.picker.messages import ResponseStart
from lbctl.picker.service import PickService

HOST = "127.0.0.1"
METHOD = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"
REFUSED = "upstream_reset_before_response_started{remote_connection_failure|connection_refused}"


class _Recorder:
    """Records the calls as tuples."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def proxy_of(self, pick: str) -> str:
        return "edge" if pick == "1" else ""

    def answered(self, pick: str, answer: ResponseStart) -> None:
        self.calls.append(("answered", pick, answer))

    def finished(self, pick: str) -> None:
        self.calls.append(("finished", pick))

    def proxy_left(self, proxy: str) -> None:
        self.calls.append(("left", proxy))


def _message(*entries: dict[str, Any], node: str = "") -> bytes:
    identifier = {"identifier": {"node": {"id": node}, "log_name": "lbctl-picks"}} if node else {}
    return StreamAccessLogsMessage(http_logs={"log_entry": entries}, **identifier).SerializeToString()


def _entry(pick: str, details: str = "via_upstream", **common: Any) -> dict[str, Any]:
    tags = {"custom_tags": {"x-lbctl-pick-id": pick}} if pick else {}
    return {"common_properties": {**tags, **common}, "response": {"response_code_details": details}}


async def _never() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


def _server(recorder: _Recorder) -> GrpcServer:
    return GrpcServer(PickService(), PickerHealth(lambda: True, _never), None, EnvoyEnds(recorder).handler())


@asynccontextmanager
async def _reported(recorder: _Recorder) -> AsyncIterator[grpc.aio.Channel]:
    server = _server(recorder)
    port = await server.start(Address(HOST, 0))
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        yield channel
    await server.stop(0.1)


async def _calls(recorder: _Recorder, count: int) -> list[tuple[object, ...]]:
    async with asyncio.timeout(60):
        while len(recorder.calls) < count:
            await asyncio.sleep(0.01)
    return recorder.calls


async def _sent(*messages: bytes) -> list[tuple[object, ...]]:
    recorder = _Recorder()
    async with _reported(recorder) as channel:
        call = channel.stream_unary(METHOD)()
        for message in messages:
            await call.write(message)
        await call.done_writing()
        await call
    return recorder.calls


def test_each_entry_ends_a_pick() -> None:
    replica = {"socket_address": {"address": "2001:db8::1", "port_value": 80}}
    served = _entry("1", upstream_remote_address=replica, time_to_first_upstream_rx_byte={"nanos": 5})
    unreached, left, foreign = _entry("2", REFUSED), _entry("3", "downstream_remote_disconnect"), _entry("")
    calls = asyncio.run(_sent(_message(served, unreached, node="edge"), _message(left, foreign)))
    assert calls == [
        ("answered", "1", ResponseStart("[2001:db8::1]:80")),
        ("finished", "1"),
        ("answered", "2", ResponseStart(by_replica=False)),
        ("finished", "2"),
        ("finished", "3"),
    ]


def test_picker_that_ends_with_open_streams_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        recorder = _Recorder()
        server = _server(recorder)
        channel = grpc.aio.insecure_channel(f"{HOST}:{await server.start(Address(HOST, 0))}")
        call = channel.stream_unary(METHOD)()
        await call.write(_message(_entry("1"), node="edge"))
        await _calls(recorder, 1)
        await server.stop(0.1)

    asyncio.run(run())
    assert caplog.text == ""


def test_envoy_has_left_once_all_its_streams_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envoy_access_log, "_GRACE", 0.05)

    async def run() -> None:
        recorder = _Recorder()
        async with _reported(recorder) as channel:
            one, other = (channel.stream_unary(METHOD)() for _ in range(2))
            for call in (one, other):
                await call.write(_message(_entry("1"), node="edge"))
            await _calls(recorder, 2)
            one.cancel()
            await asyncio.sleep(0.2)
            assert ("left", "edge") not in recorder.calls
            other.cancel()
            assert (await _calls(recorder, 3))[-1] == ("left", "edge")

    asyncio.run(run())


@pytest.mark.parametrize("entry", [_entry(""), _entry("2")])
def test_stream_without_a_pick_of_its_node_ends_nothing(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client of the port can name the node of an Envoy."""
    monkeypatch.setattr(envoy_access_log, "_GRACE", 0.0)

    async def run() -> None:
        recorder = _Recorder()
        async with _reported(recorder) as channel:
            call = channel.stream_unary(METHOD)()
            await call.write(_message(entry, node="edge"))
            await call.done_writing()
            await call
            await asyncio.sleep(0.1)
        assert ("left", "edge") not in recorder.calls

    asyncio.run(run())
