"""Active checks by lbctl itself, for proxies that have none (nginx): every replica of the pools that it is told of.

Each replica is asked at its own time, from this machine, as the pool's `health.active` says; who is out gets nothing
new (`Snapshot.drained`). There is no limit for how many of a pool may be out, as with the checks of the proxies that
have them. A slow replica delays nobody; no more than `MOST_AT_ONCE` probes run at the same time.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from lbctl.ir.pools import ActiveCheck, Pool, PoolTls, Replica
from lbctl.serve.probe_fetch import Locate, Probe, fetch, probe_of, speaks_h2, tls_of
from lbctl.serve.probe_state import Probed, Result, begun, probed
from lbctl.serve.scrape_net import session

MOST_AT_ONCE = 256
_SPREAD = 1.0
"""Seconds within which the first probes of all replicas are sent."""
Key = tuple[str, str]
"""Pool and replica."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A replica and how to ask it; `probe`: None where that could not be prepared."""

    replica: Replica
    told: tuple[ActiveCheck, PoolTls | None, str]
    probe: Probe | None


class Prober:
    """`changed`: called in the loop when a replica goes out or comes in. `locate` finds the files of TLS."""

    def __init__(
        self, changed: Callable[[Key, Probed], None], locate: Locate, now: Callable[[], float] = time.time
    ) -> None:
        self.states: dict[Key, Probed] = {}
        self.troubles: dict[str, str] = {}
        """Pool → why its checks cannot be done; its replicas stay as they are."""
        self._changed = changed
        self._locate = locate
        self._now = now
        self._targets: dict[Key, _Target] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._looked = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None
        self._broken: asyncio.Future[None] | None = None

    @property
    def out(self) -> dict[str, frozenset[str]]:
        """Pool → replicas that are to get nothing new; pools of which none is out are left out."""
        found: dict[str, set[str]] = {}
        for (pool, replica), state in self.states.items():
            if state.out:
                found.setdefault(pool, set()).add(replica)
        return {pool: frozenset(names) for pool, names in sorted(found.items())}

    def follow(self, pools: Iterable[Pool]) -> None:
        """These are checked from now on, as far as they say how; also to be called when certificates have changed. A
        replica that joins a pool that was checked before is out until its first good probe."""
        before = {pool for pool, _ in self._targets}
        targets: dict[Key, _Target] = {}
        self.troubles = {}
        for pool in sorted(pools, key=lambda item: item.name):
            if pool.active is not None:
                targets |= self._prepared(pool, pool.active)
        for key, target in targets.items():
            known = self._targets.get(key)
            if known is None or known.replica.address != target.replica.address:
                self.states[key] = begun(self._now(), trusted=key[0] not in before)
        for key in self.states.keys() - targets.keys():
            del self.states[key]
        self._restart(targets)
        self._looked.set()

    async def first(self, patience: float) -> None:
        """Until every replica that can be checked has been, at most `patience` seconds."""
        deadline = time.monotonic() + patience
        while any(self.states[key].at is None for key, item in self._targets.items() if item.probe is not None):
            self._looked.clear()
            try:
                await asyncio.wait_for(self._looked.wait(), deadline - time.monotonic())
            except TimeoutError:
                return

    async def run(self) -> None:
        """Until it is cancelled."""
        self._broken = asyncio.get_running_loop().create_future()
        async with session() as self._session:
            try:
                for key in self._targets:
                    self._start(key)
                await self._broken
            finally:
                tasks = list(self._tasks.values())
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._tasks.clear()
                self._session = None

    def _prepared(self, pool: Pool, check: ActiveCheck) -> Mapping[Key, _Target]:
        told = (check, pool.tls, pool.protocol)
        context: ssl.SSLContext | None = None
        if pool.tls is not None and check.port is None:
            try:
                context = tls_of(pool.tls, speaks_h2(pool, check), self._locate)
            except OSError as error:
                self.troubles[pool.name] = f"{error.filename or 'TLS'}: {error.strerror or error}"
                return {(pool.name, item.name): _Target(item, told, None) for item in pool.replicas}
        return {
            (pool.name, item.name): _Target(item, told, probe_of(pool, check, item.address, context))
            for item in pool.replicas
        }

    def _restart(self, targets: dict[Key, _Target]) -> None:
        """A task whose replica is asked as before goes on, with the newest certificates."""
        before, self._targets = self._targets, targets
        for key in list(self._tasks):
            now = targets.get(key)
            if now is None or (now.replica.address, now.told) != (before[key].replica.address, before[key].told):
                self._tasks.pop(key).cancel()
        if self._session is not None:
            for key in targets.keys() - self._tasks.keys():
                self._start(key)

    def _start(self, key: Key) -> None:
        task = asyncio.get_running_loop().create_task(self._ask_again_and_again(key), name=f"check {'/'.join(key)}")
        task.add_done_callback(self._ended)
        self._tasks[key] = task

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _ask_again_and_again(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        check = self._targets[key].told[0]
        await asyncio.sleep(random.uniform(0, min(_SPREAD, check.interval / 1000)))
        while True:
            started = loop.time()
            probe = self._targets[key].probe
            if probe is not None and self._session is not None:
                async with self._slots:
                    result = await fetch(probe, self._session)
                if result is not None:
                    self._take(key, check, result)
            pause = check.interval / 1000 * (1 + random.uniform(0, check.jitter / 100))
            await asyncio.sleep(max(0.0, started + pause - loop.time()))

    def _take(self, key: Key, check: ActiveCheck, result: Result) -> None:
        was = self.states[key]
        self.states[key] = probed(was, check, result, self._now())
        self._looked.set()
        if self.states[key].out != was.out:
            self._changed(key, self.states[key])
