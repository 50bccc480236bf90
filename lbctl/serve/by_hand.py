"""Overrides as operators ask for them: checked against what is served, kept over a restart, ended when time is up.

A drain is that of the files in all but where it stands: `drain_deadline` counts for it. `undrain` also ends what deep
health holds against a replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from lbctl.base.diagnostics import did_you_mean, show
from lbctl.control import overrides
from lbctl.control.overrides import KINDS, Kind, Override, Overrides, held_weight
from lbctl.serve import log
from lbctl.serve.api import WrongError
from lbctl.serve.changes import Changes
from lbctl.serve.publisher import Publisher
from lbctl.serve.store import Store, StoreError
from lbctl.serve.telemetry import Telemetry

_LONGEST_REASON = 200
_KEYS = frozenset({"kind", "pool", "replica", "value", "reason", "ttl"})
_PAUSE = 1.0


class ByHand:
    """`store`: None where nothing is kept. `now`: seconds since the epoch."""

    def __init__(
        self,
        publisher: Publisher,
        changes: Changes,
        telemetry: Telemetry,
        store: Store | None,
        kept: Overrides = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._publisher = publisher
        self._changes = changes
        self._telemetry = telemetry
        self._store = store
        self._now = now
        publisher.overrides = overrides.current(kept, now())
        telemetry.loop.freeze(overrides.frozen(publisher.overrides))

    async def put(self, asked: Mapping[str, Any]) -> Override:
        """`kind`, `pool`, `replica` (not for freeze), `value` (for weight), `reason`, `ttl` in seconds. WrongError"""
        new = self._asked(asked)
        log.event("held by hand", kind=new.kind, pool=new.pool, replica=new.replica or None, reason=new.reason or None)
        await self._become(overrides.put(self._publisher.overrides, new))
        return new

    async def remove(self, asked: Mapping[str, Any]) -> bool:
        """Whether there was one. WrongError"""
        about = kind, pool, replica = _about(asked)
        there = any(item.about == about for item in self._publisher.overrides)
        if not there:
            self._check(*about)
        if kind == "drain":
            self._telemetry.loop.let_in(pool, replica)
        if there:
            log.event("no longer held by hand", kind=kind, pool=pool, replica=replica or None)
            await self._become(overrides.removed(self._publisher.overrides, about))
        return there

    async def run(self) -> None:
        """Ends those whose time is up, until it is cancelled."""
        while True:
            await asyncio.sleep(_PAUSE)
            known = self._publisher.overrides
            left = overrides.current(known, self._now())
            for item in known:
                if item not in left:
                    log.event("its time is up", kind=item.kind, pool=item.pool, replica=item.replica or None)
            if left != known:
                await self._become(left)

    async def _become(self, wanted: Overrides) -> None:
        self._publisher.overrides = wanted
        self._telemetry.loop.freeze(overrides.frozen(wanted))
        if self._store is not None:
            try:
                await asyncio.to_thread(self._store.keep_overrides, wanted)
            except StoreError as error:
                log.error(f"not kept for a restart: {error}")
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
        pools = {item.name: item for item in served.whole.topology.pools} if served else {}
        if pool not in pools:
            raise WrongError(f"there is no pool {show(pool)}{_hint(pool, pools)}")
        names = [item.name for item in pools[pool].replicas]
        if kind == "freeze" and replica:
            raise WrongError("a pool is frozen as a whole")
        if kind != "freeze" and replica not in names:
            raise WrongError(f"the pool {pool} has no replica {show(replica)}{_hint(replica, names)}")


def _about(asked: Mapping[str, Any]) -> tuple[Kind, str, str]:
    unknown = sorted(asked.keys() - _KEYS)
    if unknown:
        raise WrongError(f"unknown key {show(unknown[0])}: the keys are {', '.join(sorted(_KEYS))}")
    kind = asked.get("kind")
    if kind not in KINDS:
        raise WrongError(f"kind is one of {', '.join(KINDS)}")
    return kind, str(asked.get("pool", "")), str(asked.get("replica") or "")


def _hint(word: str, known: Any) -> str:
    near = did_you_mean(word, tuple(known))
    return f" ({near})" if near else ""


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise WrongError(f"{name} is a number above 0")
    return float(value)


def _weight(value: object) -> float:
    if value is None:
        raise WrongError("a weight needs its value, above 0 on the scale of capacity; for none at all, drain")
    try:
        return held_weight(value)
    except ValueError as error:
        raise WrongError(str(error)) from None
