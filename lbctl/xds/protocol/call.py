"""The call for one stream: its tasks, and how the server ends it.

No task is cancelled, because a cancelled gRPC operation leaks its buffers. A separate task ends a call; the pending
read then fails and ends the stream. It ends the call between two writes, because gRPC rejects a status while a message
is being written (`GRPC_CALL_ERROR_TOO_MANY_OPERATIONS`) and sends none afterwards, so that the client would wait
forever. If a client does not read a message in time, its connection is closed, which ends the write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress

import grpc

from lbctl.xds.protocol.connection import close_connection
from lbctl.xds.protocol.peer import UNIX, Context, host_and_port

_LOG = logging.getLogger(__name__)

Status = tuple[grpc.StatusCode, str]
"""The status code and reason that end a call."""
INTERNAL_ERROR = "the control plane failed on this stream; its log has the details"


class Call:
    """A client's call with its tasks. It must be used only on the event loop."""

    __slots__ = ("_context", "_on_failure", "_read_within", "_tasks", "_timer", "_turn", "closed", "ending")

    def __init__(self, context: Context, on_failure: Callable[[BaseException], None], read_within: float) -> None:
        """Create the call without starting any tasks. `on_failure` is called with a task's exception.

        `read_within`: time in seconds within which the client must read a message.
        """
        self._context = context
        self._on_failure = on_failure
        self._read_within = read_within
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle
        self.closed = False
        """Whether the stream has ended."""
        self.ending = asyncio.Event()
        """Set when the server begins to end the call."""

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` as a task, and keep a reference to it until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def write(self, message: bytes) -> None:
        """Send a message.

        Raises grpc.aio.BaseError if the call has ended, including when the client does not read.
        """
        async with self._turn:
            self._expect_reading()
            try:
                await self._context.write(message)
            finally:
                self._timer.cancel()

    async def abort(self, code: grpc.StatusCode, reason: str) -> None:
        """End the call with a status when no message is being written. Raises grpc.aio.AbortError."""
        self.ending.set()
        async with self._turn:
            await self._context.abort(code, reason)

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """End the call with a status, unless it has ended."""
        if not self.closed:
            self.ending.set()
            self.start(self._end(code, reason))

    def end_without_request(self, patience: float) -> asyncio.TimerHandle:
        """Return a timer that ends the call after `patience` seconds. The first request cancels the timer."""
        reason = f"no request within {patience:g} seconds"
        return asyncio.get_running_loop().call_later(patience, self.end, grpc.StatusCode.DEADLINE_EXCEEDED, reason)

    def close(self) -> None:
        """Record that the stream has ended. The call is not used after this."""
        self.closed = True

    def _expect_reading(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._read_within, self._give_up)

    def _give_up(self) -> None:
        """Close the connection, and check later whether this has ended the write.

        Clients of the Unix socket have no address and belong to the same user, so their connections are not closed.
        """
        self._expect_reading()
        if not self._context.peer().startswith(UNIX):
            self.start(self._close_connection(*host_and_port(self._context)))

    async def _close_connection(self, host: str, port: int) -> None:
        if await asyncio.to_thread(close_connection, host, port):
            fields = {"peer": f"{host}:{port}", "seconds": f"{self._read_within:g}"}
            _LOG.warning("xds: closed the connection of a client that was not reading", extra={"fields": fields})

    async def _end(self, code: grpc.StatusCode, reason: str) -> None:
        async with self._turn:
            if self.closed:
                return
            with suppress(grpc.aio.BaseError):
                await self._context.abort(code, reason)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(error)


async def await_grpc_tasks() -> None:
    """Wait for gRPC's tasks. The tasks outlive their calls, and print a traceback if the loop is closed first."""
    for _ in range(50):
        if not any(task.get_name() == "rpc_task" for task in asyncio.all_tasks()):
            return
        await asyncio.sleep(0.01)
