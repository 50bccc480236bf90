"""Overrides as operators ask for them: checked against what is served, kept over a restart, ended when time is up.

A drain is that of the files in all but where it stands: `drain_deadline` counts for it. `undrain` also ends what deep
health holds against a replica.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from lbctl.base.diagnostics import did_you_mean, show
from lbctl.control import overrides
from lbctl.control.overrides import KINDS, Override, Overrides, checked_weight
from lbctl.control.splits import Shares, checked, shares_of
from lbctl.ir.routes import Route
from lbctl.serve import log
from lbctl.serve.errors import BadRequestError, NotSavedError
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.fleet.reconciler import Reconciler
from lbctl.serve.state.interface import StoreError
from lbctl.serve.state.saved import SavedState

_LONGEST_REASON = 200
_KEYS = frozenset({"kind", "pool", "replica", "value", "route", "shares", "reason", "ttl"})
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
        """Store an override and apply it.

        The keys of `asked`: `kind`; `pool`, `replica` (not for freeze) and `value` (for weight), or `route` and
        `shares` (for split); `reason`; `ttl` in seconds. Raises BadRequestError, and NotSavedError where a restart
        would forget it.
        """
        new = self._asked(asked)
        async with self._turn:
            wanted = overrides.put(self._publisher.overrides, new)
            await self._save(wanted)
            log.event("held by hand", kind=new.kind, subject=new.subject, reason=new.reason or None)
            await self._apply(wanted)
        return new

    async def remove(self, asked: Mapping[str, Any]) -> bool:
        """Whether there was one. Raises BadRequestError, and NotSavedError where a restart would bring it back."""
        about = _about(asked)
        async with self._turn:
            there = any(item.key == about.key for item in self._publisher.overrides)
            if not there:
                self._check(about)
            wanted = overrides.removed(self._publisher.overrides, about.key)
            if there:
                await self._save(wanted)
            if about.kind == "drain":
                self._weight_control.readmit(about.pool, about.replica)
            if there:
                log.event("no longer held by hand", kind=about.kind, subject=about.subject)
                await self._apply(wanted)
        return there

    async def run(self) -> None:
        """Ends those whose time is up, until it is cancelled."""
        while True:
            await asyncio.sleep(_PAUSE)
            async with self._turn:
                await self._expire()

    async def _expire(self) -> None:
        """End the overrides whose time is up, and the splits whose route has another split in the files.

        They end whether or not that can be saved: a restart sees the time and the files as well.
        """
        known = self._publisher.overrides
        left = overrides.current(known, self._now())
        for item in known:
            if item not in left:
                log.event("its time is up", kind=item.kind, subject=item.subject)
        served = self._publisher.served
        if served is not None:
            valid = overrides.within(left, served.loaded.compiled.topology)
            for item in left:
                if item.kind == "split" and item not in valid:
                    log.event("the files have another split now", kind=item.kind, subject=item.subject)
            left = tuple(item for item in left if item.kind != "split" or item in valid)
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
        about = _about(asked)
        route = self._check(about)
        ttl, now = _number(asked.get("ttl"), "ttl"), self._now()
        return replace(
            about,
            value=_weight(asked.get("value")) if about.kind == "weight" else None,
            shares=_shares(asked.get("shares"), route) if route else (),
            replaced=shares_of(route) if route else (),
            reason=str(asked.get("reason") or "")[:_LONGEST_REASON],
            since=now,
            until=None if ttl is None else now + ttl,
        )

    def _check(self, about: Override) -> Route | None:
        """Return the route of a split, as the files have it; None for the other kinds. Raises BadRequestError."""
        kind, pool, replica = about.kind, about.pool, about.replica
        served = self._publisher.served
        if kind == "split":
            routes = {item.name: item for item in served.loaded.compiled.topology.routes} if served else {}
            if about.route not in routes:
                raise BadRequestError(f"there is no route {show(about.route)}{_hint(about.route, routes)}")
            return routes[about.route]
        pools = {item.name: item for item in served.composed.whole.topology.pools} if served else {}
        if pool not in pools:
            raise BadRequestError(f"there is no pool {show(pool)}{_hint(pool, pools)}")
        names = [item.name for item in pools[pool].replicas]
        if kind == "freeze" and replica:
            raise BadRequestError("a pool is frozen as a whole")
        if kind != "freeze" and replica not in names:
            raise BadRequestError(f"the pool {pool} has no replica {show(replica)}{_hint(replica, names)}")
        return None


def _about(asked: Mapping[str, Any]) -> Override:
    """Return an override with its kind and its subject alone. Raises BadRequestError."""
    unknown = sorted(asked.keys() - _KEYS)
    if unknown:
        raise BadRequestError(f"unknown key {show(unknown[0])}: the keys are {', '.join(sorted(_KEYS))}")
    kind = asked.get("kind")
    if kind not in KINDS:
        raise BadRequestError(f"kind is one of {', '.join(KINDS)}")
    if kind == "split":
        return Override(kind, route=str(asked.get("route") or ""))
    return Override(kind, str(asked.get("pool") or ""), str(asked.get("replica") or ""))


def _hint(word: str, known: Any) -> str:
    near = did_you_mean(word, tuple(known))
    return f" ({near})" if near else ""


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
        raise BadRequestError(f"{name} is a number above 0")
    return float(value)


def _shares(value: object, route: Route) -> Shares:
    try:
        return checked(value, route)
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def _weight(value: object) -> float:
    if value is None:
        raise BadRequestError("a weight needs its value, above 0 on the scale of capacity; for none at all, drain")
    try:
        return checked_weight(value)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
