"""Odd and invalid requests to the picker's servers: they are picked by load or rejected, and no pick is lost."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy, Prefix, SessionKey
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.grpc_server import GrpcServer
from lbctl.picker.health import PickerHealth
from lbctl.picker.http_api import HttpApi
from lbctl.picker.process import connections
from lbctl.picker.service import PickService
from tests.unit.picker.test_grpc_server import HOST, PROCESS

POLICY = PickPolicy((SessionKey(header="x-session-id"), SessionKey(body="$.prompt_cache_key")), Prefix(256, 128))
PICKED_BODIES = {
    "no JSON": b"\x00\xff{",
    "compressed": gzip.compress(json.dumps({"prompt": "x" * 5000}).encode()),
    "nested": b'{"messages":' * 100 + b"1" + b"}" * 100,
    "brackets": b"[" * 100_000,
    "numbers": b'{"prompt_cache_key": ' + b"9" * 10_000 + b', "prompt": 1e999}',
    "half a character": json.dumps({"prompt": "é" * 3000}, ensure_ascii=False).encode()[:4001],
    "surrogates": b'{"prompt": "' + rb"\ud800" * 1000 + b'"}',
    "a long session": json.dumps({"prompt_cache_key": "k" * 200_000}).encode(),
    "a session of control characters": json.dumps({"prompt_cache_key": "\x00\r\n\x1b\x7f"}).encode(),
}
REFUSED = {
    "a long body": (500, b"POST /pick/chat HTTP/1.1\r\ncontent-length: 10485760\r\n\r\n" + b"x" * 100_000),
    "chunks": (500, b'POST /envoy HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"a":\r\n0\r\n\r\n'),
    "a long head": (500, b"POST /pick/chat HTTP/1.1\r\nx-session-id: " + b"k" * 1_000_000),
    "HTTP/2": (500, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "another method": (405, b"DELETE /pick/chat HTTP/1.1\r\n\r\n"),
}
"""Requests and their statuses. An Envoy sends its client a status below 500; it asks by any method at `/envoy`."""
STREAMS = 1_000


def _service() -> PickService:
    service = PickService()
    service.set_table("chat", PoolTable("chat", POLICY, (Candidate("a", "10.0.0.1:80"), Candidate("b", "10.0.0.2:80"))))
    return service


@asynccontextmanager
async def _http(service: PickService) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(connections(HttpApi(service, bytes)), HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def _status(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        async with asyncio.timeout(60):
            return int((await reader.readline()).split(b" ")[1])
    finally:
        writer.close()


def _question(body: bytes, headers: bytes = b"") -> bytes:
    return b"POST /pick/chat HTTP/1.1\r\n%scontent-length: %d\r\n\r\n%s" % (headers, len(body), body)


def test_http_picks_for_odd_bodies_and_rejects_bad_requests() -> None:
    async def run() -> None:
        service = _service()
        async with _http(service) as port:
            for body in PICKED_BODIES.values():
                assert await _status(port, _question(body)) == 200
            assert await _status(port, _question(b"{}", b"x-session-id: \x01\x1b\xff\x00\r\n")) == 200
            for status, request in REFUSED.values():
                assert await _status(port, request) == status
            assert await _status(port, _question(b'{"prompt": "x"}')) == 200
        assert service.open_picks == len(PICKED_BODIES) + 2
        assert not any(reason == "error" for _, reason in service.statistics.reasons)

    asyncio.run(run())


@asynccontextmanager
async def _grpc(service: PickService) -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel]]:
    server = GrpcServer(service, PickerHealth(lambda: True, _never), None)
    port = await server.start(Address(HOST, 0))
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        yield server, channel
    await server.stop(0.1)


async def _never() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


def _messages(body: bytes, session: bytes = b"") -> Iterator[bytes]:
    headers = [{"key": "x-session-id", "raw_value": session}] if session else []
    mode = {"request_body_mode": "BUFFERED_PARTIAL"}
    yield ProcessingRequest(request_headers={"headers": {"headers": headers}}, protocol_config=mode).SerializeToString()
    yield ProcessingRequest(request_body={"body": body, "end_of_stream": True}).SerializeToString()


async def _destination(channel: grpc.aio.Channel, body: bytes, session: bytes = b"") -> str:
    call = channel.stream_stream(PROCESS)()
    for message in _messages(body, session):
        await call.write(message)
        answer = ProcessingResponse.FromString(await call.read())  # type: ignore[arg-type]
    await call.done_writing()
    await call.read()
    return str(answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"])


def test_grpc_picks_for_odd_bodies_and_sessions() -> None:
    async def run() -> None:
        service = _service()
        async with _grpc(service) as (_, channel):
            for body in (*PICKED_BODIES.values(), b"x" * (1 << 20)):
                assert "10.0.0." in await _destination(channel, body)
            for session in (b"k" * 1_000_000, b"\x00\r\n\x1b\xff"):
                assert "10.0.0." in await _destination(channel, b"{}", session)
            async with asyncio.timeout(60):
                while service.open_picks:
                    await asyncio.sleep(0.01)
        assert not any(reason == "error" for _, reason in service.statistics.reasons)

    asyncio.run(run())


@pytest.mark.slow
def test_open_streams_are_counted_and_end_their_picks() -> None:
    async def run() -> None:
        service = _service()
        async with _grpc(service) as (server, channel):
            calls = [channel.stream_stream(PROCESS)() for _ in range(STREAMS)]
            request = {"headers": {"headers": [{"key": "x-session-id", "raw_value": b"s"}]}, "end_of_stream": True}
            text = ProcessingRequest(request_headers=request).SerializeToString()

            async def pick(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
                await call.write(text)
                await call.read()

            async with asyncio.timeout(250):
                await asyncio.gather(*map(pick, calls))
                assert (service.open_picks, server.streams) == (STREAMS, STREAMS)
                for call in calls:
                    call.cancel()
                while service.open_picks or server.streams:
                    await asyncio.sleep(0.01)

    asyncio.run(run())
