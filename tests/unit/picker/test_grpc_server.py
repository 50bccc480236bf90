"""The gRPC server answers streams and health checks, and invalid streams do not affect others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.ir.proxies import ServerTls
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.grpc_server import CannotBindError, GrpcServer
from lbctl.picker.health import PickerHealth
from lbctl.picker.service import PickService
from lbctl.xds.protocol.credentials import ServerCredentials
from tests.support.processes.certs import Authority

HOST = "127.0.0.1"
PROCESS, CHECK = "/envoy.service.ext_proc.v3.ExternalProcessor/Process", "/grpc.health.v1.Health/Check"
TABLE = PoolTable(
    "chat", PickPolicy((SessionKey(header="x-session-id"),)), (Candidate("a", "10.0.0.1:80", region="eu"),)
)


async def _never() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[PickService, GrpcServer, grpc.aio.Channel]]:
    service = PickService()
    service.set_table("chat", TABLE)
    server = GrpcServer(service, PickerHealth(lambda: bool(service.tables), _never), None)
    port = await server.start(Address(HOST, 0))
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        yield service, server, channel
    await server.stop(0.1)


async def _ask(channel: grpc.aio.Channel, session: bytes) -> ProcessingResponse:
    headers = [{"key": "x-session-id", "raw_value": session}]
    request = ProcessingRequest(request_headers={"headers": {"headers": headers}, "end_of_stream": True})
    call = channel.stream_stream(PROCESS)()
    await call.write(request.SerializeToString())
    answer = await call.read()
    await call.done_writing()
    await call.read()
    assert isinstance(answer, bytes)
    return ProcessingResponse.FromString(answer)


def _destination(answer: ProcessingResponse) -> str:
    lb = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    return str(lb.fields["x-gateway-destination-endpoint"].string_value)


def test_pick_lasts_until_its_stream_ends() -> None:
    async def run() -> None:
        async with _server() as (service, _, channel):
            assert _destination(await _ask(channel, b"s")) == "10.0.0.1:80"
            async with asyncio.timeout(60):
                while service.open_picks:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_invalid_streams_do_not_affect_others() -> None:
    async def run() -> None:
        async with _server() as (_, server, channel):
            calls = [channel.stream_stream(PROCESS)() for _ in range(10)]
            for call in calls:
                await call.write(b"\xff\xffgarbage")
                assert await call.code() is not grpc.StatusCode.OK
            for session in (b"k" * 1_000_000, b"\x00\n\xff", b""):
                assert _destination(await _ask(channel, session)) == "10.0.0.1:80"
            async with asyncio.timeout(60):
                while server.streams:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_streams_end_with_an_error_while_the_picker_is_not_ready() -> None:
    """After an error, gateways fail open; a response of 503 would reach the client."""

    async def run() -> None:
        async with _server() as (service, _, channel):
            service.set_table("chat", None)
            assert await channel.stream_stream(PROCESS)().code() is grpc.StatusCode.UNAVAILABLE
            service.set_table("chat", TABLE)
            assert _destination(await _ask(channel, b"s")) == "10.0.0.1:80"

    asyncio.run(run())


def test_health_checks_use_the_service_names_of_gateways() -> None:
    async def run() -> None:
        async with _server() as (service, _, channel):

            async def status(name: str) -> object:
                request = b"\x0a" + bytes([len(name)]) + name.encode() if name else b""
                return await channel.unary_unary(CHECK)(request)

            names = ["", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"]
            assert [await status(name) for name in names] == [b"\x08\x01"] * 4
            service.set_table("chat", None)
            assert [await status(name) for name in names] == [b"\x08\x02", b"\x08\x01", b"\x08\x02", b"\x08\x02"]
            with pytest.raises(grpc.RpcError):
                await status("somebody else")

    asyncio.run(run())


def test_address_in_use_is_an_error_with_the_address() -> None:
    async def run() -> None:
        async with _server() as (service, _, _):
            first = GrpcServer(service, PickerHealth(lambda: True, _never), None)
            port = await first.start(Address(HOST, 0))
            second = GrpcServer(service, PickerHealth(lambda: True, _never), None)
            with pytest.raises(CannotBindError, match=f"cannot listen on {HOST}:{port}"):
                await second.start(Address(HOST, port))
            await first.stop(0.1)

    asyncio.run(run())


def test_client_whose_certificate_is_revoked_is_refused(tmp_path: Path) -> None:
    authority, lists = Authority(tmp_path / "pki"), tmp_path / "revoked.crl"
    own, kept, lost = authority.issue("localhost"), authority.issue("edge-1"), authority.issue("edge-2")
    lists.write_bytes(authority.revoke(lost))
    files = (own.certificate, own.key, authority.ca, lists)
    service = PickService()
    service.set_table("chat", TABLE)

    async def run() -> None:
        credentials = ServerCredentials(ServerTls(*map(str, files)))
        server = GrpcServer(service, PickerHealth(lambda: True, _never), credentials)
        port = await server.start(Address(HOST, 0))
        for pair, code in ((kept, grpc.StatusCode.OK), (lost, grpc.StatusCode.UNAUTHENTICATED)):
            shown = (file.read_bytes() for file in (authority.ca, pair.key, pair.certificate))
            async with grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(*shown)) as channel:
                call = channel.unary_unary(CHECK)(b"")
                assert await call.code() == code
                stream = channel.stream_stream(PROCESS)()
                await stream.done_writing()
                assert await stream.code() == code
        await server.stop(0.1)

    asyncio.run(run())


def test_compressed_messages_are_not_inflated() -> None:
    async def run() -> None:
        async with _server() as (_, _, channel):
            call = channel.stream_stream(PROCESS)(compression=grpc.Compression.Gzip)
            await call.write(ProcessingRequest(request_body={"body": bytes(64 << 20)}).SerializeToString())
            assert await call.code() is not grpc.StatusCode.OK
            assert _destination(await _ask(channel, b"s")) == "10.0.0.1:80"

    asyncio.run(run())


def test_silent_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.picker.bounded_calls.FIRST_TIMEOUT", 0.05)

    async def run() -> None:
        async with _server() as (_, _, channel):
            call = channel.stream_stream(PROCESS)()
            async with asyncio.timeout(30):
                assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(run())
