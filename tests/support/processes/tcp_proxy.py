"""A TCP proxy between a process and a server that can be cut: then no data passes, and no connection is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.processes import background
from tests.support.processes.ports import HOST, free_port


class TcpProxy:
    """Forwards bytes to `target`, a port on this machine, unless it is `cut`."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.cut = False
        self._target = target
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            upstream_reader, upstream_writer = await asyncio.open_connection(HOST, self._target)
            try:
                await asyncio.gather(self._pass(reader, upstream_writer), self._pass(upstream_reader, writer))
            finally:
                upstream_writer.close()
                writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                while self.cut:
                    await asyncio.sleep(0.02)
                writer.write(data)
                await writer.drain()
        writer.close()


@contextmanager
def tcp_proxy(target: int) -> Iterator[TcpProxy]:
    """Run a proxy to this port on this machine."""
    proxy = TcpProxy(target)
    background.wait(proxy.start())
    try:
        yield proxy
    finally:
        background.wait(proxy.stop())
