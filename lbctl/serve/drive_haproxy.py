"""Drives a HAProxy of this machine: whatever is served goes to it at once, and every few seconds it is asked again:
it may have been reloaded by somebody else. What fails is tried again, less and less often.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from lbctl.apply.haproxy.applied import Applied
from lbctl.apply.haproxy.driver import HaproxyDriver
from lbctl.ir.proxies import Proxy
from lbctl.serve import log
from lbctl.serve.hands import Standing
from lbctl.serve.publisher import Served
from lbctl.targets import target
from lbctl.targets.prepare import Prepared, prepare

KIND = "haproxy"
_PACE = 0.2
"""Seconds between two tries, at least."""
_LOOK = 5.0
_FIRST_RETRY = 1.0
_LONGEST_RETRY = 15.0


class HaproxyHand:
    """One proxy of the fleet that is `driven`."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.standing = Standing()
        self._driver = HaproxyDriver(proxy)
        self._served: Served | None = None
        self._prepared: tuple[Served, Prepared] | None = None
        self._warned = ""
        self._news = asyncio.Event()
        self._failures = 0

    def want(self, served: Served) -> None:
        self._served = served
        self._news.set()

    async def run(self) -> None:
        pause: float | None = None
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), pause)
                self._news.clear()
                served = self._served
                if served is not None:
                    pause = self._took(served, await self._apply(served))
                await asyncio.sleep(_PACE)
        finally:
            await self._driver.close()

    async def _apply(self, served: Served) -> Applied:
        snapshot = served.edition.snapshot
        if self._prepared is None or self._prepared[0] is not served:
            prepared = await asyncio.to_thread(prepare, target(KIND), served.loaded.compiled, self.proxy, snapshot)
            self._prepared = served, prepared
        cut = frozenset((pool, name) for pool, names in served.out.items() for name in names)
        down = {(pool, name): why[0] for pool, found in served.sick.items() for name, why in found.items() if why}
        try:
            return await self._driver.apply(self._prepared[1], cut, snapshot.addresses, down)
        except OSError as error:
            return Applied(False, failure=f"{error.filename or self.proxy.name}: {error.strerror or error}")
        except Exception:  # noqa: BLE001 -- the other proxies must go on
            log.failure("lbctl itself failed; this proxy stays as it is", proxy=self.proxy.name)
            return Applied(False, failure="an error in lbctl itself; the log has more")

    def _took(self, served: Served, applied: Applied) -> float:
        """Notes what came of it. In how many seconds to look again."""
        before = self.standing
        words = _words(applied)
        self._failures = 0 if applied.done or applied.again is not None else self._failures + 1
        trouble = "" if applied.due and words == applied.due else words
        self.standing = Standing(
            "SYNCED" if applied.done else "FAILING" if applied.failure or applied.refused else "WAITING",
            served.edition.version if applied.done else before.version,
            words,
            before.reloads + applied.reloaded,
            len(applied.leaving),
            time.time(),
        )
        if trouble and trouble != self._warned:
            log.warn("a proxy does not have all of it", proxy=self.proxy.name, why=trouble)
        if applied.done and (not before.version or self._warned):
            log.event("a proxy is driven", proxy=self.proxy.name, version=self.standing.version)
        self._warned = trouble or ("" if applied.done else self._warned)
        if applied.reloaded:
            log.event("a proxy was reloaded", proxy=self.proxy.name)
        if applied.again is not None:
            return applied.again
        return min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** (self._failures - 1)) if self._failures else _LOOK


def _words(applied: Applied) -> str:
    if applied.failure:
        return applied.failure
    if applied.complaints:
        return applied.complaints[0].message
    if applied.refused:
        return f"HAProxy refused {applied.refused[0].command!r}: {applied.refused[0].words}"
    if applied.done:
        return ""
    return applied.wrong or "; ".join(applied.reload) or applied.due
