"""The API of a fake control plane, in a thread, for tests that run commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lbctl.ir.address import Address
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.interface import Serving
from lbctl.serve.api.server import ApiServer


@contextmanager
def serving(fleet: Serving, token: Path | None = None, port: int = 0) -> Iterator[str]:
    """Serve the API of `fleet` on loopback, and yield its URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    api = ApiServer(fleet, ApiAccess(Address("127.0.0.1", port), token))
    try:
        bound = asyncio.run_coroutine_threadsafe(api.start(), loop).result(60)
        yield f"http://127.0.0.1:{bound}"
        asyncio.run_coroutine_threadsafe(api.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()
