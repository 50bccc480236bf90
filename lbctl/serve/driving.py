"""The HAProxy and nginx of this machine, driven with what the Envoys are served: each by a task of its own, so that one
that hangs or refuses delays nobody else. A proxy of which the fleet does not say how is left alone, and named.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lbctl.compile.files import files_on_disk
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.serve import log
from lbctl.serve.drive_haproxy import HaproxyHand
from lbctl.serve.drive_nginx import NginxHand
from lbctl.serve.driven import BESIDE, undriven
from lbctl.serve.hands import Hand, Standing, row
from lbctl.serve.probe import Key, Prober
from lbctl.serve.probe_state import Probed
from lbctl.serve.publisher import Served

_FIRST_CHECKS = 3.0
"""Seconds that nginx waits for the first results of active checks."""


class Driving:
    """`ejected` is called with pool → replicas that the active checks hold out, when that has changed."""

    def __init__(self, ejected: Callable[[Mapping[str, frozenset[str]]], None], *, dry_run: bool) -> None:
        self._ejected = ejected
        self._dry_run = dry_run
        self._since = time.time()
        self._files: Mapping[str, Path] = {}
        self._prober = Prober(self._checked, lambda path: self._files.get(path))
        self._hands: dict[str, Hand] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._others: dict[str, tuple[Proxy, str]] = {}
        self._served: Served | None = None
        self._news = asyncio.Event()

    def follow(self, served: Served) -> None:
        """What is served from now on."""
        self._served = served
        self._news.set()

    def rows(self) -> list[dict[str, Any]]:
        """How each of them stands, by name."""
        found = {name: row(hand.proxy, hand.standing, self._since) for name, hand in self._hands.items()}
        for name, (proxy, words) in self._others.items():
            found[name] = row(proxy, Standing("NOT DRIVEN", words=words), self._since)
        return [found[name] for name in sorted(found)]

    async def run(self) -> None:
        """Until it is cancelled."""
        probing = asyncio.get_running_loop().create_task(self._prober.run(), name="active checks")
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                if probing.done():
                    probing.result()
                if self._served is not None:
                    await self._take(self._served)
        finally:
            tasks = [probing, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, served: Served) -> None:
        proxies = {item.name: item for item in served.whole.topology.proxies if item.kind in BESIDE}
        why = {name: "this is a dry run" if self._dry_run else undriven(item) for name, item in proxies.items()}
        self._others = {name: (proxies[name], words) for name, words in why.items() if words}
        wanted = {name: item for name, item in proxies.items() if not why[name]}
        for name in [name for name, hand in self._hands.items() if wanted.get(name) != hand.proxy]:
            await self._let_go(name)
        new = wanted.keys() - self._hands.keys()
        for name in sorted(new):
            self._begin(wanted[name])
        unaided = [item for item in wanted.values() if item.kind == "nginx"]
        await self._check(served, unaided, patient=any(item.name in new for item in unaided))
        for name in wanted.keys() & self._hands.keys():
            self._hands[name].want(served)

    async def _check(self, served: Served, proxies: list[Proxy], *, patient: bool) -> None:
        """nginx's active checks, of the pools that it has. `patient`: wait for the first results."""
        pools = _reached(served.edition.snapshot, proxies)
        self._files = files_on_disk(served.loaded.source) if pools else {}
        self._prober.follow(pools)
        if patient:
            await self._prober.first(_FIRST_CHECKS)
        for pool, words in self._prober.troubles.items():
            log.warn("active checks cannot be done; its replicas stay as they are", pool=pool, why=words)

    def _begin(self, proxy: Proxy) -> None:
        hand: Hand = HaproxyHand(proxy) if proxy.kind == "haproxy" else NginxHand(proxy, lambda: self._prober.out)
        self._hands[proxy.name] = hand
        task = asyncio.get_running_loop().create_task(self._drive(hand), name=f"drives {proxy.name}")
        self._tasks[proxy.name] = task

    async def _drive(self, hand: Hand) -> None:
        try:
            await hand.run()
        except Exception:  # noqa: BLE001 -- the others must go on
            log.failure("a proxy is no longer driven, until lbctl is started anew", proxy=hand.proxy.name)
            self._hands.pop(hand.proxy.name, None)
            self._others[hand.proxy.name] = (hand.proxy, "an error in lbctl itself; the log has more")

    async def _let_go(self, name: str) -> None:
        task = self._tasks.pop(name)
        del self._hands[name]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _checked(self, key: Key, state: Probed) -> None:
        pool, replica = key
        words = "a replica fails its active checks" if state.out else "a replica passes its active checks"
        log.event(words, pool=pool, replica=replica, why=state.reason or None)
        self._ejected(self._prober.out)
        for hand in self._hands.values():
            if isinstance(hand, NginxHand):
                hand.look_again()


def _reached(snapshot: Snapshot, proxies: list[Proxy]) -> list[Pool]:
    """The pools that these proxies send to, without names that are still to be looked up."""
    found: dict[str, Pool] = {}
    for proxy in proxies:
        found |= view(snapshot, proxy).pools
    return [found[name] for name in sorted(found)]
