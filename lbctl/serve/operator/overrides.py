"""Overrides as operators ask for them: checked against what is served, kept over a restart, ended when time is up.

A drain is that of the files in all but where it stands: `drain_deadline` counts for it. `undrain` also ends what deep
health holds against a replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from lbctl.base.diagnostics import did_you_mean, show
from lbctl.control import overrides
from lbctl.control.overrides import KINDS, Kind, Override, Overrides, checked_weight
from lbctl.serve import log
from lbctl.serve.errors import BadRequestError, NotSavedError
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.state.interface import StoreError
from lbctl.serve.state.saved import SavedState

_LONGEST_REASON = 200
_KEYS = frozenset({"kind", "pool", "replica", "value", "reason", "ttl"})
_PAUSE = 1.0


class WeightControl(Protocol):
    """The part of the control loop that operators act on."""

    def freeze(self, pools: Mapping[str, str]) -> None:
        """Keep the weights of these pools (pool → reason), and of no others."""

    def readmit(self, pool: str, replica: str) -> None:
        """End an ejection by deep health."""


class OverrideService:
    """`now`: seconds since the epoch."""

    def __init__(
        self,
        publisher: Publisher,
        changes: Reconciler,
        weight_control: WeightControl,
        state: SavedState,
        kept: Overrides = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._publisher = publisher
        self._changes = changes
        self._weight_control = weight_control
        self._state = state
        self._now = now
        self._turn = asyncio.Lock()
        publisher.hold(overrides.current(kept, now()))
        weight_control.freeze(overrides.frozen(publisher.overrides))

    async def put(self, asked: Mapping[str, Any]) -> Override:
        """Store an override of these keys: `kind`, `pool`, `replica` (not for freeze), `value` (for weight), `reason`,
        `ttl` in seconds. Raises BadRequestError, and NotSavedError where a restart would forget it."""
        new = self._asked(asked)
        async with self._turn:
            wanted = overrides.put(self._publisher.overrides, new)
            await self._save(wanted)
            reason = new.reason or None
            log.event("held by hand", kind=new.kind, pool=new.pool, replica=new.replica or None, reason=reason)
            await self._apply(wanted)
        return new

    async def remove(self, asked: Mapping[str, Any]) -> bool:
        """Whether there was one. Raises BadRequestError, and NotSavedError where a restart would bring it back."""
        about = kind, pool, replica = _about(asked)
        async with self._turn:
            there = any(item.key == about for item in self._publisher.overrides)
            if not there:
                self._check(*about)
            wanted = overrides.removed(self._publisher.overrides, about)
            if there:
                await self._save(wanted)
            if kind == "drain":
                self._weight_control.readmit(pool, replica)
            if there:
                log.event("no longer held by hand", kind=kind, pool=pool, replica=replica or None)
                await self._apply(wanted)
        return there

    async def run(self) -> None:
        """Ends those whose time is up, until it is cancelled."""
        while True:
            await asyncio.sleep(_PAUSE)
            async with self._turn:
                await self._expire()

    async def _expire(self) -> None:
        """An override whose time is up ends whether or not that can be saved: a restart sees its time as well."""
        known = self._publisher.overrides
        left = overrides.current(known, self._now())
        for item in known:
            if item not in left:
                log.event("its time is up", kind=item.kind, pool=item.pool, replica=item.replica or None)
        if left != known:
            with suppress(NotSavedError):
                await self._save(left)
            await self._apply(left)

    async def _save(self, wanted: Overrides) -> None:
        try:
            await self._state.save_overrides(wanted)
        except StoreError as error:
            log.error(f"overrides cannot be saved: {error}")
            raise NotSavedError(f"the override cannot be saved, and nothing was changed: {error}") from error

    async def _apply(self, wanted: Overrides) -> None:
        self._publisher.hold(wanted)
        self._weight_control.freeze(overrides.frozen(wanted))
        await self._changes.refresh("an override")

    def _asked(self, asked: Mapping[str, Any]) -> Override:
        kind, pool, replica = _about(asked)
        self._check(kind, pool, replica)
        ttl, now = _number(asked.get("ttl"), "ttl"), self._now()
        return Override(
            kind=kind,
            pool=pool,
            replica=replica,
            value=_weight(asked.get("value")) if kind == "weight" else None,
            reason=str(asked.get("reason") or "")[:_LONGEST_REASON],
            since=now,
            until=None if ttl is None else now + ttl,
        )

    def _check(self, kind: Kind, pool: str, replica: str) -> None:
        served = self._publisher.served
        pools = {item.name: item for item in served.composed.whole.topology.pools} if served else {}
        if pool not in pools:
            raise BadRequestError(f"there is no pool {show(pool)}{_hint(pool, pools)}")
        names = [item.name for item in pools[pool].replicas]
        if kind == "freeze" and replica:
            raise BadRequestError("a pool is frozen as a whole")
        if kind != "freeze" and replica not in names:
            raise BadRequestError(f"the pool {pool} has no replica {show(replica)}{_hint(replica, names)}")


def _about(asked: Mapping[str, Any]) -> tuple[Kind, str, str]:
    unknown = sorted(asked.keys() - _KEYS)
    if unknown:
        raise BadRequestError(f"unknown key {show(unknown[0])}: the keys are {', '.join(sorted(_KEYS))}")
    kind = asked.get("kind")
    if kind not in KINDS:
        raise BadRequestError(f"kind is one of {', '.join(KINDS)}")
    return kind, str(asked.get("pool", "")), str(asked.get("replica") or "")


def _hint(word: str, known: Any) -> str:
    near = did_you_mean(word, tuple(known))
    return f" ({near})" if near else ""


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise BadRequestError(f"{name} is a number above 0")
    return float(value)


def _weight(value: object) -> float:
    if value is None:
        raise BadRequestError("a weight needs its value, above 0 on the scale of capacity; for none at all, drain")
    try:
        return checked_weight(value)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
