"""Drives a toy proxy: writes its file, which the proxy reloads by itself.

The driver fails while `<config>.broken` exists.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from lbctl.apply.permit import Permit
from lbctl.ir.proxies import Proxy
from lbctl.serve.drivers.base import DriverStatus, Ejected
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.targets.prepare import prepare
from tests.support.fourth_proxy import TARGET


class ToyDriver:
    """Driver of one proxy with `config`."""

    def __init__(self, proxy: Proxy, ejected: Ejected, permit: Permit) -> None:
        del ejected, permit
        assert proxy.config is not None
        self.proxy = proxy
        self.status = DriverStatus()
        self.composed = None
        self.accepted = None
        self._config = Path(proxy.config)
        self._queue: asyncio.Queue[PublishedFleet] = asyncio.Queue()

    def update(self, served: PublishedFleet) -> None:
        self._queue.put_nowait(served)

    def checks_changed(self) -> None:
        """Ignore active checks, which the toy does not support: it keeps sending requests to replicas that fail
        them."""

    async def run(self) -> None:
        while True:
            served = await self._queue.get()
            if self._config.with_name(f"{self._config.name}.broken").exists():
                raise RuntimeError("secret words of an error")
            prepared = prepare(TARGET, served.loaded.compiled, self.proxy, served.composed.snapshot)
            beside = self._config.with_name(f".{self._config.name}")
            beside.write_text(TARGET.render(prepared.view).main.text)
            beside.replace(self._config)
            self.status = DriverStatus("SYNCED", served.cached_snapshot.version, at=time.time())
