"""Limits for the calls of all gRPC services of the picker.

Each service is registered as if its calls were bidirectional streams, which makes no difference to clients. Therefore,
a call's messages are read only when it has its turn, and a client that does not read its responses is disconnected.

`UnfinishedQuestions` limits the number of gateway queries that wait for their body, and the bytes that they buffer. At
a limit, it ends the oldest query of the connection with the most queries. If a query ends without a response, the
gateway forwards the request as if there were no picker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from lbctl.runtime import log
from lbctl.xds.protocol.call import Call, Status
from lbctl.xds.protocol.connection import Client
from lbctl.xds.protocol.first_messages import CrowdedError, FirstMessages
from lbctl.xds.protocol.peer import client_of
from lbctl.xds.protocol.shares import Shares
from lbctl.xds.protocol.unread_messages import UnreadMessages

MAX_MESSAGE = 5 << 18
"""Upper bound on a message, in bytes: a proxy buffers at most 1 MiB of a body, and slightly more while the body
arrives."""
MAX_READING = 12
"""Maximum number of calls that wait for their first message at once."""
_MAX_WAITING = 4_096
"""Maximum number of calls that wait for their turn, which allows for bursts from gateways. `unread` limits their
bytes."""
FIRST_TIMEOUT = 5.0
"""Seconds from the start of a call to the end of its first message."""
_READ_TIMEOUT = 30.0
"""Seconds within which a client must read a message sent to it."""
MAX_QUESTIONS = 1_024
"""Maximum number of queries that wait for their body at once, because gRPC buffers a part of a message for each."""
MAX_HELD_BYTES = 16 << 20
BODY_TIMEOUT = 60.0
"""Seconds within which the part of a query's body that the picker reads must arrive."""


class BoundedContext:
    """The context of a call, with bounded reads and writes. The context decodes messages for the service."""

    def __init__(
        self, context: Any, client: Client, call: Call, calls: BoundedCalls, decode: Callable[[bytes], Any] | None
    ) -> None:
        self.client = client
        """The connection of the call."""
        self.call = call
        self.last_size = 0
        """The length of the last message, in bytes."""
        self._context = context
        self._calls = calls
        self._decode = decode or bytes
        self._timer = call.end_without_request(FIRST_TIMEOUT)
        self._has_read = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """Return the next message, or gRPC's EOF marker."""
        if self._has_read:
            message = await self._context.read()
        else:
            message = await self._calls.first.read(self.client, self.call, self._context.read)
            self._has_read = True
            self._timer.cancel()
        if not isinstance(message, bytes):
            return message
        self.last_size = len(message)
        self._calls.unread.note_read(self.client, len(message))
        return _decoded(message, self._decode)

    async def write(self, message: bytes) -> None:
        """Send a message."""
        await self.call.write(message)

    async def messages(self) -> AsyncIterator[Any]:
        """Yield the messages of the client.

        The generator keeps no reference to a message while it waits for the next one.
        """
        while True:
            message = await self.read()
            if message is grpc.aio.EOF:
                return
            yield message
            del message

    def close(self) -> None:
        """Record that the call has ended."""
        self._timer.cancel()
        self.call.close()


class BoundedCalls:
    """The calls of a server. `handler` wraps the handler of a service, so that its calls are bounded."""

    def __init__(self, reading: int = MAX_READING) -> None:
        self.first = FirstMessages(reading, _MAX_WAITING)
        self._clients: Counter[Client] = Counter()
        """Maps each client to its open calls."""
        self.unread = UnreadMessages(self.clients)

    def clients(self) -> Collection[Client]:
        """Return the clients that have open calls."""
        return self._clients.keys()

    def handler(self, service: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        """Return a handler that bounds the calls of the service."""
        return _BoundedService(service, self._serve)

    async def _serve(self, method: Any, _: object, context: Any) -> None:
        client = client_of(context) or ("", 0)
        self._clients[client] += 1
        self.unread.begin(client)
        call = Call(context, _failed, _READ_TIMEOUT)
        bounded = BoundedContext(context, client, call, self, method.request_deserializer)
        try:
            status = await _answered(method, bounded)
            if status is not None:
                await call.abort(*status)
        finally:
            bounded.close()
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]


class _BoundedService(grpc.GenericRpcHandler):
    def __init__(self, service: grpc.GenericRpcHandler, serve: Callable[..., Any]) -> None:
        self._service = service
        self._serve = serve

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method; None if the service does not have the method."""
        method = self._service.service(handler_call_details)
        return None if method is None else grpc.stream_stream_rpc_method_handler(partial(self._serve, method))


class _MalformedError(Exception):
    """A message cannot be decoded as a message of the service."""


def _decoded(message: bytes, decode: Callable[[bytes], Any]) -> Any:
    """Return the decoded message. Raises _MalformedError, which keeps no reference to the message."""
    with suppress(DecodeError):
        return decode(message)
    del message
    raise _MalformedError


async def _answered(method: Any, context: BoundedContext) -> Status | None:
    """Serve a call. Return the status with which to end the call; None if it ended normally."""
    try:
        await _answer(method, context)
    except _MalformedError:
        return grpc.StatusCode.INVALID_ARGUMENT, "not a message of this service"
    except CrowdedError as error:
        return grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    return None


async def _answer(method: Any, context: BoundedContext) -> None:
    """Serve a call with its service's method."""
    encode = method.response_serializer or bytes
    if method.stream_stream is not None:
        await method.stream_stream(context.messages(), context)
        return
    if method.stream_unary is not None:
        await context.write(encode(await method.stream_unary(context.messages(), context)))
        return
    request = await context.read()
    if request is grpc.aio.EOF:
        return
    if method.unary_unary is not None:
        await context.write(encode(await method.unary_unary(request, context)))
        return
    async for answer in method.unary_stream(request, context):
        await context.write(encode(answer))


def _failed(error: BaseException) -> None:
    """Log the exception of a task of a call. The call itself does not depend on the task."""
    log.warn("a call to the picker could not be closed", why=error)


class UnfinishedQuestions:
    """The calls whose query has begun but is not complete."""

    def __init__(self, most: int = MAX_QUESTIONS, held: int = MAX_HELD_BYTES) -> None:
        self._max_questions, self._max_held = most, held
        self._calls: Shares[Call] = Shares()
        self._held: dict[Call, int] = {}
        """Maps each call to the bytes of its query."""
        self._held_bytes = 0
        self._timers: dict[Call, asyncio.TimerHandle] = {}

    def add(self, client: Hashable, call: Call, size: int) -> None:
        """Add bytes to the query of a client's call. The first bytes begin the query."""
        if call not in self._held:
            if len(self._calls) >= self._max_questions:
                self._end_one(f"more than {self._max_questions} picker requests are waiting for their body")
            self._calls.add(client, call)
            self._held[call] = 0
            reason = f"no body within {BODY_TIMEOUT:g} seconds"
            self._timers[call] = asyncio.get_running_loop().call_later(BODY_TIMEOUT, self._end, client, call, reason)
        self._held[call] += size
        self._held_bytes += size
        while self._held_bytes > self._max_held:
            self._end_one(f"picker requests waiting for their body take more than {self._max_held >> 20} MiB")

    def leave(self, client: Hashable, call: Call) -> None:
        """Record that the query of a call is complete, or that the call has ended."""
        if self._calls.discard(client, call):
            self._held_bytes -= self._held.pop(call)
            self._timers.pop(call).cancel()

    def _end_one(self, reason: str) -> None:
        client = self._calls.largest()
        self._end(client, self._calls.items(client)[0], reason)

    def _end(self, client: Hashable, call: Call, reason: str) -> None:
        self.leave(client, call)
        call.end(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
