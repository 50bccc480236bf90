"""The gRPC health service for the service names that Envoys and gateways check.

Each message has a single field, so this module decodes and encodes the messages itself: `service` is field 1 of the
request, and `status` is field 1 of the response.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import grpc

LIVENESS, READINESS, PROCESSOR = "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"
_SERVICE = "grpc.health.v1.Health"
_NAMES = ("", LIVENESS, READINESS, PROCESSOR)
_SERVING, _NOT_SERVING, _UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
_FIELD = b"\x0a"


class PickerHealth:
    """The gRPC health service. `ready` returns whether replicas can be picked; liveness does not depend on it."""

    def __init__(self, ready: Callable[[], bool], changed: Callable[[], AsyncIterator[None]]) -> None:
        """`changed` yields when the result of `ready` may have changed, for `Watch` streams."""
        self.ready = ready
        self._changed = changed

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the service's handler."""
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, methods)

    async def _check(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        name = _name(request)
        if name not in _NAMES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._status(name)

    async def _watch(self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        del context
        name = _name(request)
        status = self._status(name) if name in _NAMES else _UNKNOWN
        yield status
        async for _ in self._changed():
            before, status = status, self._status(name) if name in _NAMES else _UNKNOWN
            if status != before:
                yield status

    def _status(self, name: str) -> bytes:
        return _SERVING if name == LIVENESS or self.ready() else _NOT_SERVING


def _name(request: bytes) -> str:
    """Return the service name in a request. Names of 128 bytes or more are treated as unknown."""
    if not request:
        return ""
    if request[:1] != _FIELD or len(request) != 2 + request[1]:
        return "?"
    return request[2:].decode("utf-8", "replace")
