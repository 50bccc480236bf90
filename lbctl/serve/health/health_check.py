"""lbctl's own active health checks, for proxies without active checks (nginx) and for pools that use the picker.

Replicas are checked from this machine, each at a different time, according to the pool's `health.active`. Ejected
replicas get no new requests (`Snapshot.drained`). As with other proxies' active checks, there is no limit on the number
of a pool's replicas that may be ejected. A slow replica does not delay other checks; at most `MAX_CONCURRENT` checks
run at the same time.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import aiohttp

from lbctl.base.errors import reason_of
from lbctl.control.check_thresholds import CheckResult, CheckState, initial_state, next_state
from lbctl.ir.pools import ActiveCheck, Pool, PoolTls, Replica
from lbctl.ir.secrets import Secrets
from lbctl.ir.snapshot import key_of
from lbctl.runtime.guard import Guard, end_tasks
from lbctl.runtime.net.http_client import session
from lbctl.serve.health.fetch import HealthCheck, Locate, fetch, probe_of, speaks_h2, tls_of

MAX_CONCURRENT = 256
_SPREAD = 1.0
"""Seconds over which the first checks of all replicas are distributed."""
Key = tuple[str, str]
"""Pool and replica."""
_NO_SECRETS = Secrets()


@dataclass(frozen=True, slots=True)
class _Target:
    """A replica and its check."""

    replica: Replica
    settings: tuple[ActiveCheck, PoolTls | None, str]
    """The pool's check, TLS settings and protocol."""
    probe: HealthCheck | None
    """The prepared check; None if it could not be prepared."""

    @property
    def subject(self) -> tuple[object, ...]:
        """The target and the check's settings. As long as they are unchanged, its task continues."""
        return self.replica.address, self.replica.agent_port, self.settings


class HealthChecker:
    """Checks replicas. `changed` is called in the event loop when a replica has been ejected or readmitted."""

    def __init__(
        self,
        changed: Callable[[Key, CheckState], None],
        locate: Locate,
        guard: Guard | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.states: dict[Key, CheckState] = {}
        self.problems: dict[str, str] = {}
        """Maps each pool whose checks cannot be run to the reason; its replicas keep their states."""
        self._changed = changed
        self._locate = locate
        self._guard = guard or Guard()
        self._now = now
        self._targets: dict[Key, _Target] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._checked = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None

    @property
    def out(self) -> dict[str, frozenset[str]]:
        """Maps each pool to the ejected replicas; pools without ejected replicas are absent."""
        ejected: dict[str, set[str]] = {}
        for (pool, replica), state in self.states.items():
            if state.out:
                ejected.setdefault(pool, set()).add(replica)
        return {pool: frozenset(names) for pool, names in sorted(ejected.items())}

    def use_pools(self, pools: Iterable[Pool], secrets: Secrets = _NO_SECRETS) -> None:
        """From now on, check the replicas of these pools, if the pools have active checks.

        Call this method again when certificates or `secrets` have changed. A replica that joins a pool that is already
        being checked is ejected until its first good result.
        """
        before = {pool for pool, _ in self._targets}
        targets: dict[Key, _Target] = {}
        self.problems = {}
        for pool in sorted(pools, key=lambda item: item.name):
            if pool.active is not None:
                key_sent = key_of(pool, secrets) if pool.agent is None else None
                targets |= self._prepare(pool, pool.active, key_sent)
        for key, target in targets.items():
            earlier = self._targets.get(key)
            if earlier is None or earlier.replica.address != target.replica.address:
                self.states[key] = initial_state(self._now(), trusted=key[0] not in before)
        for key in self.states.keys() - targets.keys():
            del self.states[key]
        self._restart(targets)
        self._checked.set()

    async def first(self, timeout: float) -> None:
        """Wait until every replica that can be checked has a result, for at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while any(self.states[key].at is None for key, item in self._targets.items() if item.probe is not None):
            self._checked.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._checked.wait()
            except TimeoutError:
                return

    async def run(self) -> None:
        """Run the checks until the task is cancelled."""
        async with session() as self._session:
            try:
                for key in self._targets:
                    self._start(key)
                await asyncio.Event().wait()
            finally:
                await end_tasks(self._tasks.values())
                self._tasks.clear()
                self._session = None

    def _prepare(self, pool: Pool, check: ActiveCheck, sent: tuple[str, str] | None) -> Mapping[Key, _Target]:
        settings = (check, pool.tls, pool.protocol)
        context: ssl.SSLContext | None = None
        if pool.tls is not None and check.port is None:
            try:
                context = tls_of(pool.tls, speaks_h2(pool, check), self._locate)
            except OSError as error:
                self.problems[pool.name] = f"{error.filename or 'TLS'}: {reason_of(error)}"
                return {(pool.name, item.name): _Target(item, settings, None) for item in pool.replicas}
        return {
            (pool.name, item.name): _Target(item, settings, probe_of(pool, check, item, context, sent))
            for item in pool.replicas
        }

    def _restart(self, targets: dict[Key, _Target]) -> None:
        """Restart the tasks of checks that have changed. An unchanged check continues with the newest certificates."""
        before, self._targets = self._targets, targets
        for key in list(self._tasks):
            new, old = targets.get(key), before[key]
            if new is None or new.subject != old.subject:
                self._tasks.pop(key).cancel()
        if self._session is not None:
            for key in targets.keys() - self._tasks.keys():
                self._start(key)

    def _start(self, key: Key) -> None:
        pool, replica = key
        work = partial(self._check_periodically, key)
        self._tasks[key] = self._guard.start("health check", work, pool=pool, replica=replica)

    async def _check_periodically(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        check = self._targets[key].settings[0]
        await asyncio.sleep(random.uniform(0, min(_SPREAD, check.interval / 1000)))
        while True:
            started = loop.time()
            probe = self._targets[key].probe
            if probe is not None and self._session is not None:
                async with self._slots:
                    result = await fetch(probe, self._session)
                if result is not None:
                    self._record(key, check, result)
            pause = check.interval / 1000 * (1 + random.uniform(0, check.jitter / 100))
            await asyncio.sleep(max(0.0, started + pause - loop.time()))

    def _record(self, key: Key, check: ActiveCheck, result: CheckResult) -> None:
        before = self.states[key]
        self.states[key] = next_state(before, check, result, self._now())
        self._checked.set()
        if self.states[key].out != before.out:
            self._changed(key, self.states[key])
