"""Operators' overrides: validated against the published fleet, saved for a restart, and removed when they expire.

A drain set by an override has the same effect as a drain in the files, including `drain_deadline`. Removing it also
ends the replica's ejection by the deep health check.
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
from lbctl.control.overrides import Override, Overrides, checked_weight
from lbctl.control.splits import Shares, checked, shares_of
from lbctl.ir.routes import Route
from lbctl.runtime import log
from lbctl.runtime.errors import BadRequestError, NotSavedError
from lbctl.serve.fleet.live import LiveFleet
from lbctl.store.audit import CONTROL_PLANE, AuditLog
from lbctl.store.interface import StoreError
from lbctl.store.saved import SavedState

_MAX_REASON = 200
"""Maximum length of a saved reason in characters."""
_MAX_SECONDS = 1e12
"""Maximum duration of an override in seconds."""
_EXPIRY_INTERVAL = 1.0
"""Seconds between checks for expired overrides."""


class WeightControl(Protocol):
    """The part of the control loop that operators can influence."""

    def readmit(self, pool: str, replica: str) -> None:
        """End an ejection by the deep health check."""


class OverrideService:
    """Sets and removes overrides. `now` returns the time in seconds since the epoch."""

    def __init__(
        self,
        live: LiveFleet,
        weight_control: WeightControl,
        state: SavedState,
        audit: AuditLog,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._live = live
        self._weight_control = weight_control
        self._state = state
        self._audit = audit
        self._now = now
        self._lock = asyncio.Lock()
        self._failure = log.LastingFailure("overrides are saved again")
        self._absent: Mapping[tuple[str, str, str], float] = {}
        """Maps each override's key to the time at which its replica or pool disappeared."""
        self._unrecorded: dict[Override, str] = {}
        """Overrides that have ended but whose end could not be recorded yet, with the reason."""
        self._unsaved = False
        """Whether any overrides have ended but could not be saved yet."""

    async def put(self, wanted: Override, shares: Mapping[str, int] | None, ttl: float | None, author: str) -> Override:
        """Set an override and return it. `author` is the operator's name.

        `wanted` contains the override's kind, subject, value (for a weight) and reason. `shares` contains a split's
        shares. `ttl` is in seconds. Raises BadRequestError, and NotSavedError if a restart would lose the override.
        """
        new = replace(self._checked(wanted, shares, ttl), author=author)
        async with self._lock:
            updated = overrides.put(self._live.inputs.overrides, new)
            if len(updated) > overrides.MAX_OVERRIDES:
                raise BadRequestError(
                    f"the limit of {overrides.MAX_OVERRIDES:,} overrides has been reached: remove overrides that are "
                    "no longer needed"
                )
            await self._audit.record(author, new.summary, new.subject, new.reason)
            await self._save(updated)
            log.event("override set", kind=new.kind, subject=new.subject, author=author, reason=new.reason or None)
            await self._apply(updated)
        return new

    async def remove(self, identity: Override, author: str) -> bool:
        """Remove the override with this kind and subject, and return whether it existed.

        `author` is the operator's name.

        Raises BadRequestError, and NotSavedError if a restart would restore the override.
        """
        async with self._lock:
            exists = any(item.key == identity.key for item in self._live.inputs.overrides)
            if not exists:
                self._check(identity)
            updated = overrides.removed(self._live.inputs.overrides, identity.key)
            if exists or identity.kind == "drain":
                await self._audit.record(author, f"end {identity.kind}", identity.subject)
            if exists:
                await self._save(updated)
            if identity.kind == "drain":
                self._weight_control.readmit(identity.pool, identity.replica)
            if exists:
                log.event("override removed", kind=identity.kind, subject=identity.subject, author=author)
                await self._apply(updated)
        return exists

    def adopt(self) -> None:
        """Record that the active overrides have been saved by another process.

        Overrides that have ended in the meantime have no effect; they are kept until `run` records and removes them.
        """
        self._unrecorded, self._unsaved = {}, False

    async def save(self) -> None:
        """Save the active overrides. Raises NotSavedError."""
        await self._save(self._live.inputs.overrides)

    async def run(self) -> None:
        """Remove overrides that have ended, even while this process was not running, until the task is cancelled."""
        while True:
            await asyncio.sleep(_EXPIRY_INTERVAL)
            async with self._lock:
                self._update_absent()
                await self._expire()

    async def _expire(self) -> None:
        """Remove overrides that have ended.

        They are removed even if this cannot be recorded and saved, which is retried.
        """
        before = self._live.inputs.overrides
        ended = {item: reason for item in before if (reason := self._end_of(item))}
        if not ended and not self._unsaved:
            return
        for item, reason in ended.items():
            log.event(f"override ended: {reason}", kind=item.kind, subject=item.subject)
        current = tuple(item for item in before if item not in ended)
        self._unrecorded |= ended
        self._unsaved = True
        with suppress(NotSavedError):
            await self._record_ends()
            await self._save(current)
            self._unsaved = False
        if ended:
            await self._apply(current)

    async def _record_ends(self) -> None:
        """Record that overrides have ended. Raises NotSavedError."""
        for item, reason in tuple(self._unrecorded.items()):
            await self._audit.record(CONTROL_PLANE, f"end {item.kind}", item.subject, reason)
            del self._unrecorded[item]

    def _end_of(self, item: Override) -> str:
        """Return the reason why the override has ended; empty if it is still active."""
        if item not in overrides.current((item,), self._now()):
            return "expired"
        if item.key in self._absent and self._now() - self._absent[item.key] >= overrides.GRACE:
            return "its replica was removed" if item.replica else "its pool was removed"
        served = self._live.served
        if item.kind == "split" and served and not overrides.within((item,), served.loaded.compiled.topology):
            return "the split in the files has changed"
        return ""

    def _update_absent(self) -> None:
        served = self._live.served
        if served is not None:
            self._absent = overrides.absent(
                self._absent, self._live.inputs.overrides, served.composed.whole.topology, self._now()
            )

    async def _save(self, updated: Overrides) -> None:
        try:
            await self._state.save_overrides(updated)
        except StoreError as error:
            self._failure.failed(f"overrides cannot be saved: {error}")
            raise NotSavedError(f"nothing was changed, because the override cannot be saved: {error}") from error
        self._failure.succeeded()

    async def _apply(self, updated: Overrides) -> None:
        await self._live.apply(replace(self._live.inputs, overrides=updated), "an override")

    def _checked(self, wanted: Override, shares: Mapping[str, int] | None, ttl: float | None) -> Override:
        """Return the override with its start and end times. Raises BadRequestError."""
        route, now = self._check(wanted), self._now()
        if ttl is not None and not 0 < ttl < _MAX_SECONDS:
            raise BadRequestError("ttl must be a positive number")
        return replace(
            wanted,
            value=_weight(wanted.value) if wanted.kind == "weight" else None,
            shares=_shares(shares, route) if route else (),
            replaced=shares_of(route) if route else (),
            reason=wanted.reason[:_MAX_REASON],
            since=now,
            until=None if ttl is None else now + ttl,
        )

    def _check(self, identity: Override) -> Route | None:
        """Return a split's route as defined in the files; None for other kinds of overrides. Raises BadRequestError."""
        kind, pool, replica = identity.kind, identity.pool, identity.replica
        served = self._live.served
        if kind == "split":
            routes = {item.name: item for item in served.loaded.compiled.topology.routes} if served else {}
            if identity.route not in routes:
                raise BadRequestError(
                    f"the fleet has no route {show(identity.route)}{_suggestion(identity.route, routes)}"
                )
            return routes[identity.route]
        pools = {item.name: item for item in served.composed.whole.topology.pools} if served else {}
        if pool not in pools:
            raise BadRequestError(f"the fleet has no pool {show(pool)}{_suggestion(pool, pools)}")
        names = [item.name for item in pools[pool].replicas]
        if kind == "freeze" and replica:
            raise BadRequestError("only a whole pool can be frozen")
        if kind != "freeze" and replica not in names:
            raise BadRequestError(f"the pool {pool} has no replica {show(replica)}{_suggestion(replica, names)}")
        return None


def _suggestion(name: str, candidates: Any) -> str:
    near = did_you_mean(name, tuple(candidates))
    return f" ({near})" if near else ""


def _shares(value: object, route: Route) -> Shares:
    try:
        return checked(value, route)
    except ValueError as error:
        raise BadRequestError(str(error)) from None


def _weight(value: object) -> float:
    if value is None:
        raise BadRequestError(
            "a weight override needs a positive value, on the same scale as capacities; to send no requests, drain "
            "the replica"
        )
    try:
        return checked_weight(value)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
