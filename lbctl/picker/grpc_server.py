"""The picker's gRPC server: external processing for gateways, health checks, and other modules' services.

Each HTTP request from a gateway is one stream. An invalid message ends its stream with an error, and the gateway then
forwards the request without a picked replica. Other streams continue. Streams above the limit, and all streams while
the picker is not ready, are rejected in the same way. `bounded_calls` limits the number of bytes that streams buffer
until their replica is chosen.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.picker.admission import HEADER, QuestionKey
from lbctl.picker.bounded_calls import MAX_MESSAGE, BoundedCalls, BoundedContext, UnfinishedQuestions
from lbctl.picker.ext_proc import Picking, ProcessorStream
from lbctl.picker.health import PROCESSOR, PickerHealth
from lbctl.xds.protocol.call import await_grpc_tasks
from lbctl.xds.protocol.idle_connections import IdleConnections

if TYPE_CHECKING:
    from lbctl.xds.protocol.credentials import ServerCredentials

MAX_STREAMS = 20_000
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.per_message_decompression", 0),  # proxies do not compress messages, and a small message may become large
    ("grpc.http2.bdp_probe", 0),  # otherwise, the window grows for clients that send quickly
    ("grpc.http2.lookahead_bytes", 16 << 10),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.server.max_pending_requests", MAX_STREAMS),
    ("grpc.server.max_pending_requests_hard_limit", MAX_STREAMS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class CannotBindError(Exception):
    """The picker cannot listen on an address. The message states the reason."""


class GrpcServer:
    """Server for external processing and health checks at one address."""

    def __init__(
        self, picking: Picking, health: PickerHealth, credentials: ServerCredentials | None,
        *more: grpc.GenericRpcHandler, key: QuestionKey | None = None,
    ) -> None:  # fmt: skip
        """`more` contains handlers for other services on the same port.

        `key` is the key for external processing; None if no key is required.
        """
        self._picking = picking
        self._health = health
        self._credentials = credentials
        self._key = key
        self._calls = BoundedCalls()
        self._questions = UnfinishedQuestions()
        self._handlers = tuple(map(self._calls.handler, (self._processor(), health.handler(), *more)))
        self._server: grpc.aio.Server | None = None
        self._watches: list[asyncio.Task[None]] = []
        self.streams = 0
        """Number of open streams."""

    async def start(self, bind: Address, *, shares_port: bool = False) -> int:
        """Start listening and return the port. `shares_port`: whether the parent process has the port bound too.

        Raises CannotBindError.
        """
        options = (*_OPTIONS, ("grpc.so_reuseport", int(shares_port)))
        revoked = self._credentials.interceptors() if self._credentials else ()
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_STREAMS, interceptors=revoked)
        server.add_generic_rpc_handlers(self._handlers)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(str(bind))
            else:
                port = server.add_secure_port(str(bind), self._credentials.server())
        except (RuntimeError, OSError) as error:
            raise CannotBindError(f"the picker cannot listen on {bind}: {reason_of(error)}") from None
        await server.start()
        self._server = server
        works = (IdleConnections(port, self._calls.clients).run(), self._calls.unread.run(port))
        self._watches = [asyncio.create_task(work) for work in works]
        return port

    async def stop(self, grace: float) -> None:
        """Reject new streams, and end open streams within `grace` seconds."""
        for watch in self._watches:
            watch.cancel()
        if self._server is not None:
            await self._server.stop(grace)
            await await_grpc_tasks()

    def _processor(self) -> grpc.GenericRpcHandler:
        method = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=ProcessingRequest.FromString, response_serializer=bytes
        )
        return grpc.method_handlers_generic_handler(PROCESSOR, {"Process": method})

    async def _process(self, _: object, context: BoundedContext) -> None:
        if self._key is not None and not self._key.admits(_key_of(context)):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"the metadata {HEADER} is not this picker's key")
        if not self._health.ready():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the picker does not currently have a table for a pool")
        stream = ProcessorStream(self._picking)
        self.streams += 1
        try:
            while isinstance(request := await context.read(), ProcessingRequest):
                answers = stream.receive(request)
                del request  # the next message may arrive minutes later
                if stream.is_asking:
                    self._questions.add(context.client, context.call, context.last_size)
                else:
                    self._questions.leave(context.client, context.call)
                for answer in answers:
                    await context.write(answer)
        finally:
            self.streams -= 1
            self._questions.leave(context.client, context.call)
            stream.end()


def _key_of(context: BoundedContext) -> str:
    """Return the key in a stream's metadata; empty if there is none."""
    values = (value for name, value in context.invocation_metadata() or () if name == HEADER)
    value = next(values, "")
    return value if isinstance(value, str) else ""
