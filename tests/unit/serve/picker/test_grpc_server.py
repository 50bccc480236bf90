"""The gRPC server answers streams and health checks, and invalid streams do not affect others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.pick.table import Candidate, PoolTable
from lbctl.serve.picker.grpc_server import CannotBindError, GrpcServer
from lbctl.serve.picker.health import PickerHealth
from lbctl.serve.picker.question import Caller, PickerQuestion
from lbctl.serve.picker.service import PickService

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


async def _ask(
    channel: grpc.aio.Channel, session: bytes, *later: ProcessingRequest, **metadata: str
) -> ProcessingResponse:
    headers = [{"key": "x-session-id", "raw_value": session}]
    request = ProcessingRequest(request_headers={"headers": {"headers": headers}, "end_of_stream": True})
    call = channel.stream_stream(PROCESS)(
        metadata=tuple((key.replace("_", "-"), value) for key, value in metadata.items())
    )
    await call.write(request.SerializeToString())
    answer = await call.read()
    for message in later:
        await call.write(message.SerializeToString())
        await call.read()
    await call.done_writing()
    await call.read()
    assert isinstance(answer, bytes)
    return ProcessingResponse.FromString(answer)


def _destination(answer: ProcessingResponse) -> str:
    lb = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    return str(lb.fields["x-gateway-destination-endpoint"].string_value)


def test_metadata_of_a_stream_reports_busy_replicas() -> None:
    moved = ProcessingRequest(response_headers={})
    moved.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.2:80"})

    async def reasons(**metadata: str) -> set[str]:
        async with _server() as (service, _, channel):
            await _ask(channel, b"s", moved, x_lbctl_pool="chat", **metadata)
            explained = service.explain(PickerQuestion(Caller("chat"), {}, b"", 0))
            return {item.reason for item in explained.candidates} if explained else set()

    assert asyncio.run(reasons(x_lbctl_busy="1")) == {"it was busy, or a proxy could not reach it"}
    assert asyncio.run(reasons()) == {"a proxy could not reach it"}


def test_metadata_of_a_stream_sets_pool_and_regions() -> None:
    async def run() -> None:
        async with _server() as (service, _, channel):
            assert _destination(await _ask(channel, b"s", x_lbctl_pool="chat")) == "10.0.0.1:80"
            assert _destination(await _ask(channel, b"s", x_lbctl_pool="chat", x_lbctl_regions="us,asia")) == ""
            assert _destination(await _ask(channel, b"s", x_lbctl_pool="other")) == ""
            assert (await _ask(channel, b"s", x_lbctl_regions="us")).immediate_response.status.code == 503
            async with asyncio.timeout(60):
                while service.open_picks:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_invalid_streams_do_not_affect_others() -> None:
    async def run() -> None:
        async with _server() as (_, server, channel):
            calls = [channel.stream_stream(PROCESS)() for _ in range(20)]
            for call in calls:
                await call.write(b"\xff\xffgarbage")
                assert await call.code() is not grpc.StatusCode.OK
            for session in (b"k" * 1_000_000, b"\x00\n\xff", b""):
                assert _destination(await _ask(channel, session, x_lbctl_pool="chat")) == "10.0.0.1:80"
            async with asyncio.timeout(60):
                while server.streams:
                    await asyncio.sleep(0.01)

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
