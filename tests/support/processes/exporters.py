"""Metrics pages next to an engine: the engine's page from another process, which can be killed while the engine works
and can be delayed; a constant page; and a page with one gauge."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress

from aiohttp import web
from aiohttp.web import BaseRequest

from tests.support.processes.engines import Engine
from tests.support.processes.replicas import Replica

_OFTEN = 0.5


class Exporter(Replica):
    """`late`: it shows the engine's page from this many seconds ago (before that, the first page)."""

    def __init__(self, engine: Engine, *, late: float = 0.0) -> None:
        super().__init__(engine.name)
        self._engine = engine
        self._late = late
        self._pages: deque[tuple[float, str]] = deque()
        self._keeping: asyncio.Task[None] | None = None

    async def _start(self) -> None:
        await super()._start()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
        await super()._stop()

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        return web.Response(text=self._pages[0][1] if self._late else self._engine.page())

    async def _keep(self) -> None:
        while self._late:
            now = time.monotonic()
            self._pages.append((now, self._engine.page()))
            while len(self._pages) > 1 and self._pages[1][0] <= now - self._late:
                self._pages.popleft()
            await asyncio.sleep(_OFTEN)


class Page(Replica):
    """Shows `text` to every client."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self._text = text

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        return web.Response(text=self._text)


class Gauge(Replica):
    """A gauge `work` with a label `pool`."""

    def __init__(self, pool: str) -> None:
        super().__init__(pool)
        self.value = 1.0

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        return web.Response(text=f'work{{pool="{self.name}"}} {self.value}\n')
