"""gRPC replicas on cleartext h2, with plain bytes: any method path is served, without generated code.

A method whose name ends in `Stream` answers the request `count` times, `gap` seconds apart (request metadata); every
other method echoes it once. `x-replica` is in the initial metadata. grpc.health.v1 is implemented manually.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from lbctl.apply.reserved_ports import port_of, reserve
from tests.support.processes import background
from tests.support.processes.certs import Pair
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Log

_HEALTH = "/grpc.health.v1.Health/"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse: field 1, an enum


@dataclass(frozen=True, slots=True)
class GrpcBehaviour:
    """The handling of calls from now on; `code` is a gRPC status name, `delay` is in seconds."""

    delay: float = 0.0
    code: str = "OK"
    serving: bool = True


@dataclass(frozen=True, slots=True)
class Call:
    """A call as received by the replica."""

    method: str
    metadata: tuple[tuple[str, str | bytes], ...]
    payload: bytes
    at: float
    peer: str
    """The peer of the connection."""


class GrpcReplica:
    """One gRPC server on a free port. It listens within `with`; with `tls`, only over TLS."""

    def __init__(self, name: str, tls: Pair | None = None) -> None:
        self.name = name
        self._tls = tls
        self.behaviour = GrpcBehaviour()
        self.requests = 0
        self.checks = 0
        self.in_flight = 0
        self.seen: Log[Call] = Log(maxlen=2000)
        self.asked: Log[bytes] = Log(maxlen=2000)
        """Requests of health checks in their wire format."""
        self.check_metadata: Log[tuple[tuple[str, str | bytes], ...]] = Log(maxlen=2000)
        """Metadata of the health checks."""
        self._held = reserve()
        self.port = port_of(self._held)
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """Address for a fleet file: host:port."""
        return f"{HOST}:{self.port}"

    def behave(self, **changes: Any) -> None:
        """Change the named fields of `GrpcBehaviour`, for calls that arrive from now on."""
        self.behaviour = dataclasses.replace(self.behaviour, **changes)

    def refuse(self) -> None:
        """Stop listening and drop all connections. The port stays reserved."""
        background.wait(self._stop())

    def accept(self) -> None:
        """Listen again on the same port."""
        background.wait(self._start())

    def __enter__(self) -> GrpcReplica:
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._held.close()

    async def _start(self) -> None:
        self._server = grpc.aio.server(handlers=[_AnyMethod(self)], options=[("grpc.so_reuseport", 1)])
        if self._tls is None:
            self._server.add_insecure_port(self.address)
        else:
            pair = (self._tls.key.read_bytes(), self._tls.certificate.read_bytes())
            self._server.add_secure_port(self.address, grpc.ssl_server_credentials([pair]))
        await self._server.start()

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def serve(self, method: str, payload: bytes, context: Any) -> AsyncIterator[bytes]:
        """Yield the replies to one call of any method except the methods of grpc.health.v1."""
        behaviour, metadata = self.behaviour, tuple(context.invocation_metadata() or ())
        self.requests += 1
        self.in_flight += 1
        self.seen.append(Call(method, metadata, payload, time.monotonic(), context.peer()))
        try:
            await asyncio.sleep(behaviour.delay)
            await context.send_initial_metadata((("x-replica", self.name),))
            if behaviour.code != "OK":
                await context.abort(grpc.StatusCode[behaviour.code], f"told to by the test, at {self.name}")
            wanted = {key: str(value) for key, value in metadata}
            for number in range(int(wanted.get("count", 1)) if method.endswith("Stream") else 1):
                await asyncio.sleep(float(wanted.get("gap", 0)) if number else 0)
                yield payload
        finally:
            self.in_flight -= 1

    async def check(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Implement grpc.health.v1.Health, with the same response for every service."""
        self.checks += 1
        self.asked.append(request)
        self.check_metadata.append(tuple(context.invocation_metadata() or ()))
        yield _SERVING if self.behaviour.serving else _NOT_SERVING


class _AnyMethod(grpc.GenericRpcHandler):
    def __init__(self, replica: GrpcReplica) -> None:
        self._replica = replica

    def service(self, details: Any) -> Any:
        method: str = details.method

        async def serve(payload: bytes, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._replica.serve(method, payload, context):
                yield reply

        return grpc.unary_stream_rpc_method_handler(self._replica.check if method.startswith(_HEALTH) else serve)


@contextmanager
def grpc_replicas(*names: str, tls: Pair | None = None) -> Iterator[list[GrpcReplica]]:
    """Start one gRPC replica for each name: `with grpc_replicas("a", "b") as (a, b):`."""
    with ExitStack() as stack:
        yield [stack.enter_context(GrpcReplica(name, tls)) for name in names]
