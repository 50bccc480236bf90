"""Schedules nginx reloads. Reloads are spaced out, because each one leaves old workers to finish their requests.

Changed weights wait for the fleet's `min_interval`. If only the evidence has changed the weights, they also wait until
the change has lasted long enough (`lbctl.control.reload_patience`), and multiple nginx instances reload at different
times. All other changes (health, drains, removals, a new fleet) are applied after a short pause, so that related
changes are batched. Only the newest configuration is loaded. This module does no I/O. Times are passed as arguments, in
seconds on a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal
from zlib import crc32

from lbctl.control.reload_patience import ReloadPatience
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight

Reason = Literal["evidence", "weights", "health", "drain", "removal", "files"]
PAUSE = 5.0
"""Minimum time between two urgent reloads, in seconds."""
_FIRST_RETRY = 30.0
_MAX_RETRY_INTERVAL = 300.0


@dataclass(frozen=True, slots=True)
class ReloadSchedule:
    """A proxy's schedule. `min_interval` is in seconds, and `wanted` is the most urgent reason for a reload."""

    min_interval: float
    offset: float = 0.0
    """Delay before a reload for evidence, in seconds, so that multiple nginx instances reload at different times."""
    last: float = -math.inf
    """Time of the last reload, in seconds."""
    wanted: Reason | None = None
    patience: ReloadPatience = field(default_factory=ReloadPatience)
    """Time for which the desired weights have differed from the running weights."""

    def want(self, reason: Reason) -> ReloadSchedule:
        """Return the schedule with a reload requested for this reason, unless a more urgent one is pending."""
        if reason == "evidence" and self.wanted is not None:
            return self
        if reason == "weights" and self.wanted not in (None, "evidence"):
            return self
        return replace(self, wanted=reason)

    def observe(self, running: View | None, wanted: View, now: float) -> ReloadSchedule:
        """Return the schedule after comparing the running and desired weights."""
        return replace(self, patience=self.patience.observe(_weight_pairs(running, wanted), now))

    def due(self) -> float | None:
        """Return the earliest time for the reload, or None if no reload has been requested."""
        if self.wanted is None:
            return None
        if self.wanted == "evidence":
            earliest = self.last + self.min_interval
            lasted = self.patience.due(self.min_interval)
            return earliest if lasted is None else max(lasted + self.offset, earliest)
        pause = self.min_interval if self.wanted == "weights" else min(PAUSE, self.min_interval)
        return self.last + pause

    def done(self, now: float, *, reloaded: bool) -> ReloadSchedule:
        """Return the schedule after an attempt. `reloaded` is false if the configuration was already running."""
        if not reloaded:
            return replace(self, wanted=None)
        return replace(self, wanted=None, last=now, patience=ReloadPatience())


def _weight_pairs(running: View | None, wanted: View) -> Iterator[tuple[Weight, Weight]]:
    """Yield the running and desired weight of each replica that gets requests in both views."""
    if running is None:
        return
    for name in wanted.pools.keys() & running.pools.keys():
        before = dict(zip((item.name for item in running.pools[name].replicas), running.weights[name], strict=True))
        drained = running.drained[name] | wanted.drained[name]
        for item, weight in zip(wanted.pools[name].replicas, wanted.weights[name], strict=True):
            if item.name in before and item.name not in drained:
                yield before[item.name], weight


def offset_of(proxy: Proxy, proxies: Iterable[Proxy], host: str, min_interval: float) -> float:
    """Return this nginx's reload offset on this host, which is below `min_interval` seconds, or 0 for the only nginx.

    All nginx instances get new weights at the same time. If all of them reloaded at once, none would know about the
    requests in flight.
    """
    count = sum(item.instances for item in proxies if item.kind == proxy.kind)
    return crc32(f"{proxy.name} {host}".encode()) / 2**32 * min_interval if count > 1 else 0.0


def retry_after(refusals: int) -> float:
    """Return the seconds before retrying a configuration that nginx has rejected this many times."""
    return min(_MAX_RETRY_INTERVAL, _FIRST_RETRY * 2.0 ** min(refusals - 1, 10))


def reason(before: View | None, after: View) -> Reason:
    """Return the reason for a reload. The result is `files` if only files outside the views may have changed."""
    if before is None or _shape(before) != _shape(after):
        return "files"
    if before.drained != after.drained:
        return "health"
    return "files" if before.weights == after.weights else "weights"


def same_shape(one: View, other: View) -> bool:
    """Return whether the views differ at most in live state: weights, drains and excluded replicas."""
    return _shape(one) == _shape(other)


def with_live_state(good: View, wanted: View) -> View:
    """Return `good` with the weights and drains of `wanted`, for use while nginx rejects `wanted`.

    Health changes must take effect even if the newest fleet cannot be loaded. A replica that is only in `good` remains
    unchanged.
    """
    weights, drained = dict(good.weights), dict(good.drained)
    for name in good.pools.keys() & wanted.pools.keys():
        weights[name], drained[name] = _live_state(good, wanted, name)
    return replace(good, weights=weights, drained=drained)


def _shape(view: View) -> View:
    return replace(view, weights={}, drained={}, out={})


def _live_state(good: View, wanted: View, name: str) -> tuple[tuple[Weight, ...], frozenset[str]]:
    """Return a pool's weights and drains. A replica with a different address is a different replica."""
    pairs = zip(wanted.pools[name].replicas, wanted.weights[name], strict=True)
    live = {(item.name, item.address): weight for item, weight in pairs}
    members = good.pools[name].replicas
    shared = {item.name for item in members if (item.name, item.address) in live}
    weights = tuple(
        live.get((item.name, item.address), weight_before)
        for item, weight_before in zip(members, good.weights[name], strict=True)
    )
    return weights, (good.drained[name] - shared) | (wanted.drained[name] & shared)
