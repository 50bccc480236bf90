"""Reads one ADS stream of any control plane, for the commands that show what a proxy would receive."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from lbctl.xds.decode import DecodeError
from lbctl.xds.reader import Change, Reader

_METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 300_000),  # more often, and servers that lbctl did not write throw the client out
    ("grpc.keepalive_timeout_ms", 20_000),
)
_REFUSALS = frozenset(
    (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
    )
)
_PREAMBLE = re.compile(r"failed to connect to all addresses; last error: [A-Z_]+: (?:ipv[46]:\S+: )?")
_HINTS = (
    ("Socket closed", " (it may want TLS, or a client's certificate)"),
    ("WRONG_VERSION_NUMBER", " (it does not speak TLS)"),
)
_CUT = "Internal error from Core"
"""What the library says of a connection that ends while a message is being written."""
_FAREWELL = 0.5
"""Seconds, for a server that does not end what its client has ended."""

_Call = Any
"""A `StreamStreamCall` of bytes: grpc's types know no call without a serialiser."""


class UnreachableError(Exception):
    """No control plane answers there, or it has gone."""


class RefusedError(Exception):
    """The control plane is there and does not serve this node."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where the control plane is, in gRPC's form. `ca`, `certificate`, `key`: files; without `ca` there is no TLS."""

    address: str
    ca: str = ""
    certificate: str = ""
    key: str = ""


async def read(server: Server, reader: Reader, patience: float = 5.0) -> AsyncGenerator[list[Change], None]:
    """One stream, message by message (an empty list: nothing new), until it ends. `patience`: seconds to connect.

    Raises UnreachableError or RefusedError when it does, and OSError where a file of `server` cannot be read."""
    async with _channel(server) as channel:
        await _connect(server, channel, patience)
        call: _Call = channel.stream_stream(_METHOD)()
        try:
            await _write(call, reader.open())
            while (message := await call.read()) is not grpc.aio.EOF:
                changes, requests = reader.take(message)
                await _write(call, requests)
                yield changes
        except DecodeError as error:
            raise UnreachableError(f"{server.address} answers, and this is no ADS: {error}") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        except GeneratorExit:
            await _leave(call)
            raise
        finally:
            call.cancel()
        raise _ended(server, *await _told(channel, call, reader.open()[:1]))


async def _connect(server: Server, channel: grpc.aio.Channel, patience: float) -> None:
    """Until there is a connection, or gRPC knows why there is none: then the call says it."""
    try:
        async with asyncio.timeout(patience):
            state = channel.get_state(try_to_connect=True)
            while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        raise UnreachableError(f"{server.address}: no gRPC connection within {patience:g} s") from None


async def _told(channel: grpc.aio.Channel, call: _Call, first: Iterable[bytes]) -> tuple[grpc.StatusCode, str | None]:
    """How the call has ended. One that ended during a write does not say: then one that says less is asked."""
    for requests in ((), first):
        code, details = await call.code(), await call.details()
        if details != _CUT:
            return code, details
        other: _Call = channel.stream_stream(_METHOD)()
        with suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(_FAREWELL):
                await _write(other, requests)
                if await other.read() is grpc.aio.EOF:
                    return await other.code(), await other.details()
        if other.done() and not other.cancelled():
            return await other.code(), await other.details()
        other.cancel()
    return code, details


async def _leave(call: _Call) -> None:
    """Says that nothing more comes and waits for the server's end: what was said last is heard, no stream breaks."""
    try:
        async with asyncio.timeout(_FAREWELL):
            await call.done_writing()
            await call.code()
    except (TimeoutError, asyncio.InvalidStateError):
        return


async def _write(call: _Call, requests: Iterable[bytes]) -> None:
    for request in requests:
        await call.write(request)


def _channel(server: Server) -> grpc.aio.Channel:
    if not server.ca:
        return grpc.aio.insecure_channel(server.address, _OPTIONS)
    ca, key, certificate = (
        Path(name).read_bytes() if name else None for name in (server.ca, server.key, server.certificate)
    )
    return grpc.aio.secure_channel(server.address, grpc.ssl_channel_credentials(ca, key, certificate), _OPTIONS)


def _ended(server: Server, code: grpc.StatusCode, details: str | None) -> Exception:
    if details == _CUT:
        return UnreachableError(f"{server.address} has ended the connection")
    words = _PREAMBLE.sub("", details or "") or code.name.lower().replace("_", " ")
    if code in _REFUSALS:
        return RefusedError(f"{server.address} refuses this node: {words}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnreachableError(f"{server.address} answers, and does not serve ADS: {words}")
    if code is grpc.StatusCode.OK:
        return UnreachableError(f"{server.address} has ended the stream")
    hint = next((hint for sign, hint in _HINTS if sign in words), "")
    return UnreachableError(f"{server.address}: {words}{hint}")
