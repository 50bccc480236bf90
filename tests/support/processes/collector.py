"""A collector of OpenTelemetry traces: OTLP by gRPC, on a free port. It stores the received spans.

The messages are decoded with the descriptors in xds-protos. These are older than the field's current name
(`scope_spans`), and have the same wire format. The package opentelemetry-proto must not be installed with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from lbctl.apply.reserved_ports import port_of, reserve
from tests.support.processes import background
from tests.support.processes.ports import HOST

_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Ids are in hexadecimal, `kind` is its name (SPAN_KIND_SERVER), and `service` the resource's service."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    service: str


class Collector:
    """Listens within `with collecting()`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._held = reserve()
        self.port = port_of(self._held)
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """Address for a fleet file: host:port."""
        return f"{HOST}:{self.port}"

    async def export(self, request: bytes, _: Any) -> bytes:
        """Implement TraceService/Export. The response is an empty message."""
        self.spans.extend(_spans(request))
        return b""

    async def start(self) -> None:
        """Start listening."""
        self._server = grpc.aio.server(handlers=[_Only(self)], options=[("grpc.so_reuseport", 1)])
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Drop all connections."""
        if self._server is not None:
            await self._server.stop(None)
        self._held.close()


class _Only(grpc.GenericRpcHandler):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def service(self, details: Any) -> Any:
        if details.method != _EXPORT:
            return None
        return grpc.unary_unary_rpc_method_handler(self._collector.export)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector: `with collecting() as collector:`."""
    collector = Collector()
    background.wait(collector.start())
    try:
        yield collector
    finally:
        background.wait(_stop(collector))


async def _stop(collector: Collector) -> None:
    async with asyncio.timeout(10):
        await collector.stop()


def _spans(request: bytes) -> Iterator[Span]:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

    message = trace_service_pb2.ExportTraceServiceRequest.FromString(request)
    for group in message.resource_spans:
        service = {item.key: item.value.string_value for item in group.resource.attributes}.get("service.name", "")
        for scope in group.instrumentation_library_spans:
            yield from (_span(item, service) for item in scope.spans)


def _span(item: Any, service: str) -> Span:
    kind = item.SpanKind.Name(item.kind)
    return Span(item.name, kind, item.trace_id.hex(), item.span_id.hex(), item.parent_span_id.hex(), service)
