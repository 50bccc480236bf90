"""Acquires and renews the lease, and provides at any time whether this member is the leader.

The lease is renewed four times within its duration. The leader measures the lease from just before its request was
sent, and gives the lease up one fifth of its duration before it expires in the store. If the store does not respond by
then, the member becomes isolated: it stops acting as the leader but continues to decide weights and health for its own
proxies.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Literal

from lbctl.base.errors import reason_of
from lbctl.runtime import log
from lbctl.serve.ha.format import check_format
from lbctl.store.interface import FencedError, LeaseHeldError, SharedStore, StoreError
from lbctl.store.lease import Authority
from lbctl.store.saved import SavedState

Role = Literal["leader", "follower", "isolated"]
_POLL = 0.5
"""Seconds between attempts to acquire the lease."""


class Election:
    """This member's lease. `ttl`: the lease's duration in seconds."""

    def __init__(
        self,
        store: SharedStore,
        state: SavedState,
        authority: Authority,
        ttl: float,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_problem` is called with the reason if the store is not usable, and with an empty string when it is."""
        self.role: Role = "follower"
        self.changed = asyncio.Event()
        """Set when the role or epoch changes."""
        self.epoch = 0
        """The epoch in which this member is leading or last led."""
        self.problem = ""
        """Reason why the store is not usable; empty if it is usable."""
        self.latency: float | None = None
        """Duration of the store's last response, in seconds; None before the first response."""
        self.answered = -math.inf
        """Time of the store's last response, on the clock used by `authority`."""
        self._store = store
        self._state = state
        self._authority = authority
        self._on_problem = on_problem
        self.ttl = ttl
        """Duration of the lease, in seconds."""

    async def run(self) -> None:
        """Acquire and renew the lease until the task is cancelled."""
        while True:
            await self.turn()
            await asyncio.sleep(self.ttl / 4 if self.role == "leader" and not self.problem else _POLL)

    async def turn(self) -> None:
        """Query the store once, and act on the response."""
        asked_at, started = self._authority.clock(), time.perf_counter()
        try:
            async with asyncio.timeout(max(0.1, min(self.ttl / 2, self._patience(asked_at)))):
                await (self._renew(asked_at) if self._state.lease is not None else self._acquire(asked_at))
        except (StoreError, TimeoutError) as error:
            self._failed(reason_of(error, f"{self._store.location} did not respond in time"))
        except Exception as error:  # noqa: BLE001 -- the lease ends by the clock, whatever the store answers
            self._failed(f"{self._store.location} returned an unexpected response: {error!r}")
        else:
            if self.problem:
                log.event("the store responds again", store=self._store.location)
                self._on_problem("")
            self.problem, self.answered = "", self._authority.clock()
            self.latency = time.perf_counter() - started

    def _patience(self, now: float) -> float:
        return self._authority.until - now if self._state.lease is not None else self.ttl

    async def _renew(self, asked_at: float) -> None:
        try:
            await self._store.renew()
        except FencedError:
            self._lose("follower", "another member may be the leader")
            return
        self._extend(asked_at)

    async def _acquire(self, asked_at: float) -> None:
        await check_format(self._store)
        try:
            lease = await self._store.acquire()
        except LeaseHeldError:
            self._become("follower")
            return
        self._extend(asked_at)
        self._state.take(lease)
        self.epoch = lease.epoch
        log.event("this member is the leader", epoch=lease.epoch, store=self._store.location)
        self._become("leader", new=True)

    def _extend(self, asked_at: float) -> None:
        self._authority.extend(asked_at + 0.8 * self.ttl)

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            log.error(f"the control plane's store cannot be used: {problem}")
            self._on_problem(problem)
        self.problem = problem
        if self._state.lease is not None and not self._authority.acts:
            self._lose("isolated", problem)

    def _lose(self, role: Role, reason: str) -> None:
        log.warn("this member is no longer the leader", why=reason, epoch=self.epoch)
        self._authority.end()
        self._state.lose()
        self._become(role)

    def _become(self, role: Role, *, new: bool = False) -> None:
        self._authority.set_isolated(role == "isolated")
        if new or role != self.role:
            self.role = role
            self.changed.set()
