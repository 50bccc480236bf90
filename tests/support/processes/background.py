"""One event loop in a daemon thread for the replicas and clients of this process; tests wait on futures.

Replicas and clients share the loop, so `time.monotonic()` is one clock for both sides of a proxy.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
TIMEOUT = 200.0
"""Default timeout of a wait in a test, in seconds: below the time limit of a test."""
_TURNS_OF_AN_ABORT = 2
"""Turns of the event loop until an aborted connection is closed."""


@functools.cache
def _running() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="e2e", daemon=True)
    thread.start()
    return loop, thread


def start(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start `work`; cancelling the future cancels it."""
    return asyncio.run_coroutine_threadsafe(work, _running()[0])


def wait(work: Coroutine[Any, Any, T], timeout: float = TIMEOUT) -> T:
    """Return the result of `work`, which is cancelled after `timeout` seconds."""
    future = start(work)
    try:
        return future.result(timeout)
    finally:
        future.cancel()


def abort_connections(host: str, port: int) -> None:
    """Abort the open client connections to this address on this loop.

    A server that ends during a TLS handshake does not know of the connection and would not close it.
    """
    loop: Any = asyncio.get_running_loop()
    for transport in list(loop._transports.values()):
        is_open = transport.get_extra_info("socket").fileno() >= 0
        if is_open and transport.get_extra_info("sockname") == (host, port):
            transport.abort()


def close() -> None:
    """End all running work, and the thread. The next call starts another thread."""
    if not _running.cache_info().currsize:
        return
    loop, thread = _running()
    _running.cache_clear()
    asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop: Any = asyncio.get_running_loop()
    for transport in list(loop._transports.values()):
        transport.abort()
    for _ in range(_TURNS_OF_AN_ABORT):
        await asyncio.sleep(0)
    await loop.shutdown_asyncgens()
