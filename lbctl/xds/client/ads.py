"""Reads one ADS stream from any control plane, for the commands that show a proxy's resources."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from lbctl.xds.client.decode import DecodeError
from lbctl.xds.client.reader import Reader, ResponseChange

_METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
MAX_MESSAGE_BYTES = 64 << 20
"""Maximum size of a message in bytes; a message contains all resources of one type."""
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 300_000),  # servers other than lbctl may disconnect a client that sends more pings
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
    ("Socket closed", " (it may need TLS or a client certificate)"),
    ("WRONG_VERSION_NUMBER", " (it does not use TLS)"),
)
_CONNECTION_CUT = "Internal error from Core"
"""Details that gRPC reports if a connection ends during a write."""
_CLOSE_TIMEOUT = 0.5
"""Seconds to wait for the server to end a half-closed stream."""

_Call = Any
"""A `StreamStreamCall` for bytes, because grpc's type annotations have no call without a serialiser."""


class UnreachableError(Exception):
    """No control plane is responding at the address, or the connection to it has been lost."""


class RefusedError(Exception):
    """The control plane responds but does not serve this node."""


@dataclass(frozen=True, slots=True)
class XdsAddress:
    """A control plane's address in gRPC's format.

    `ca`, `certificate` and `key` are file paths. TLS requires `ca`.
    """

    address: str
    ca: str = ""
    certificate: str = ""
    key: str = ""


async def read(server: XdsAddress, reader: Reader, patience: float = 5.0) -> AsyncGenerator[list[ResponseChange], None]:
    """Yield the changes made by each response on an ADS stream until it ends; an empty list means no changes.

    `patience` is the connection timeout in seconds. Raises UnreachableError or RefusedError when the stream ends, and
    OSError if a file of `server` cannot be read.
    """
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
            raise UnreachableError(f"{server.address} responds, but not as an ADS server: {error}") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        except GeneratorExit:
            await _close(call)
            raise
        finally:
            call.cancel()
        raise _stream_error(server, *await _final_status(channel, call, reader.open()[:1]))


async def _connect(server: XdsAddress, channel: grpc.aio.Channel, patience: float) -> None:
    """Wait until the channel is connected or has failed; after a failure the call reports the reason."""
    try:
        async with asyncio.timeout(patience):
            state = channel.get_state(try_to_connect=True)
            while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        raise UnreachableError(f"{server.address}: no gRPC connection within {patience:g} s") from None


async def _final_status(
    channel: grpc.aio.Channel, call: _Call, first: Iterable[bytes]
) -> tuple[grpc.StatusCode, str | None]:
    """Return the status code and details of a call that has ended.

    If the call ended during a write, it does not report the reason. To find the reason, a second call is then made with
    fewer requests.
    """
    for requests in ((), first):
        code, details = await call.code(), await call.details()
        if details != _CONNECTION_CUT:
            return code, details
        other: _Call = channel.stream_stream(_METHOD)()
        with suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await _write(other, requests)
                if await other.read() is grpc.aio.EOF:
                    return await other.code(), await other.details()
        if other.done() and not other.cancelled():
            return await other.code(), await other.details()
        other.cancel()
    return code, details


async def _close(call: _Call) -> None:
    """Half-close the stream and wait for the server to end it, so that the last requests are read."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT):
            await call.done_writing()
            await call.code()
    except (TimeoutError, asyncio.InvalidStateError):
        return


async def _write(call: _Call, requests: Iterable[bytes]) -> None:
    for request in requests:
        await call.write(request)


def _channel(server: XdsAddress) -> grpc.aio.Channel:
    if not server.ca:
        return grpc.aio.insecure_channel(server.address, _OPTIONS)
    ca, key, certificate = (
        Path(name).read_bytes() if name else None for name in (server.ca, server.key, server.certificate)
    )
    return grpc.aio.secure_channel(server.address, grpc.ssl_channel_credentials(ca, key, certificate), _OPTIONS)


def _stream_error(server: XdsAddress, code: grpc.StatusCode, details: str | None) -> Exception:
    if details == _CONNECTION_CUT:
        return UnreachableError(f"{server.address} closed the connection")
    reason = _PREAMBLE.sub("", details or "") or code.name.lower().replace("_", " ")
    if code in _REFUSALS:
        return RefusedError(f"{server.address} rejects this node: {reason}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return UnreachableError(f"{server.address} responds but does not serve ADS: {reason}")
    if code is grpc.StatusCode.OK:
        return UnreachableError(f"{server.address} ended the stream")
    hint = next((hint for pattern, hint in _HINTS if pattern in reason), "")
    return UnreachableError(f"{server.address}: {reason}{hint}")
