"""The gRPC server of the picker: external processing for gateways, health checks, and services of other modules.

Each HTTP request of a gateway is a stream. What is no message of the protocol ends its stream with an error, which lets
the request pass at the proxy; the other streams go on. More streams than allowed are refused the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from lbctl.base.errors import reason_of
from lbctl.ir.address import Address
from lbctl.serve.picker.ext_proc import Picking, ProcessorStream
from lbctl.serve.picker.health import PROCESSOR, PickerHealth

if TYPE_CHECKING:
    from lbctl.xds.protocol.credentials import ServerCredentials

MOST_STREAMS = 20_000
_MOST_MESSAGE = 8 << 20
"""Bytes of a message: Envoy holds at most 1 MiB of a body, and a little more while it arrives."""
_OPTIONS = (
    ("grpc.max_receive_message_length", _MOST_MESSAGE),
    ("grpc.max_concurrent_streams", MOST_STREAMS),
    ("grpc.server.max_pending_requests", MOST_STREAMS),
    ("grpc.server.max_pending_requests_hard_limit", MOST_STREAMS),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)


class CannotBindError(Exception):
    """The address cannot be listened on. The message says why."""


class GrpcServer:
    """Serves external processing and health on one address."""

    def __init__(
        self, picking: Picking, health: PickerHealth, credentials: ServerCredentials | None,
        *more: grpc.GenericRpcHandler,
    ) -> None:  # fmt: skip
        """`more`: handlers of other services on the same port."""
        self._picking = picking
        self._credentials = credentials
        self._handlers = (self._processor(), health.handler(), *more)
        self._server: grpc.aio.Server | None = None
        self.streams = 0
        """The number of open streams."""

    async def start(self, bind: Address) -> int:
        """Listen, and return the port. Raises CannotBindError."""
        revoked = self._credentials.interceptors() if self._credentials else ()
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MOST_STREAMS, interceptors=revoked)
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
        return port

    async def stop(self, grace: float) -> None:
        """Accept nothing new, and end the streams within `grace` seconds."""
        if self._server is not None:
            await self._server.stop(grace)

    def _processor(self) -> grpc.GenericRpcHandler:
        method = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=ProcessingRequest.FromString, response_serializer=bytes
        )
        return grpc.method_handlers_generic_handler(PROCESSOR, {"Process": method})

    async def _process(self, _: object, context: grpc.aio.ServicerContext[ProcessingRequest, bytes]) -> None:
        stream = ProcessorStream(self._picking)
        self.streams += 1
        try:
            while isinstance(request := await context.read(), ProcessingRequest):
                for answer in stream.receive(request):
                    await context.write(answer)
        finally:
            self.streams -= 1
            stream.end()
