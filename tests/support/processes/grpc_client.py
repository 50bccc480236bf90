"""gRPC calls with plain bytes: any method path, no generated code, no retry."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from tests.support.processes.ports import HOST

_ONCE = [
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # no connection, and no delay after a failed one, from an earlier call
]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a call: the name of the status code, messages with their times, and the replica's name from the
    metadata."""

    code: str
    details: str
    messages: tuple[bytes, ...]
    at: tuple[float, ...]
    replica: str | None

    @property
    def ok(self) -> bool:
        """Whether the call ended with OK."""
        return self.code == "OK"


@dataclass(frozen=True, slots=True)
class Where:
    """A port on loopback. With `tls`, a call trusts that context's CAs, and `server_name` is sent as SNI."""

    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    def channel(self) -> grpc.aio.Channel:
        """Open a connection for this client only."""
        address = f"{HOST}:{self.port}"
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=_ONCE)
        trusted = "".join(ssl.DER_cert_to_PEM_cert(each) for each in self.tls.get_ca_certs(binary_form=True))
        name = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(trusted.encode()), options=[*_ONCE, *name])


async def call(
    where: Where, method: str, payload: bytes, metadata: tuple[tuple[str, str], ...], timeout: float
) -> Reply:
    """Make one call on a separate connection.

    Every call is made as a stream of replies, which includes single replies.
    """
    messages, at = [], []
    async with where.channel() as channel:
        method_of: Any = channel.unary_stream(method)
        started = method_of(payload, metadata=metadata, timeout=timeout)
        try:
            async for message in started:
                messages.append(message)
                at.append(time.monotonic())
        except grpc.aio.AioRpcError:
            pass  # its code is read below
        code, details = await started.code(), await started.details()
        replica = dict(await started.initial_metadata() or ()).get("x-replica")
    return Reply(code.name, details or "", tuple(messages), tuple(at), replica if isinstance(replica, str) else None)
