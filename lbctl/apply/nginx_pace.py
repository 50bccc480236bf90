"""When nginx may be reloaded: each reload leaves a generation of workers that finishes what it has, so they are paced.

Weights wait for the fleet's `min_interval`; all else (health, drains, removals, another fleet) goes at once, but for a
short pause that also gathers what belongs together. Only the newest configuration is ever loaded. Pure: times are
seconds on one clock that never goes back, and are handed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight

Reason = Literal["weights", "health", "drain", "removal", "files"]
PAUSE = 5.0
"""The least time between two reloads that cannot wait."""
_FIRST_RETRY = 30.0
_LONGEST_RETRY = 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Of one proxy. `min_interval` in seconds; `wanted`: why the next reload is wanted, the most urgent reason."""

    min_interval: float
    last: float = -math.inf
    wanted: Reason | None = None

    def want(self, reason: Reason) -> Pace:
        if reason == "weights" and self.wanted is not None:
            return self
        return replace(self, wanted=reason)

    def due(self) -> float | None:
        """When it may be done; None: nothing is wanted."""
        if self.wanted is None:
            return None
        pause = self.min_interval if self.wanted == "weights" else min(PAUSE, self.min_interval)
        return self.last + pause

    def done(self, now: float, *, reloaded: bool) -> Pace:
        """What was wanted has been seen to; it cost a reload, or turned out to be what runs already."""
        return replace(self, wanted=None, last=now if reloaded else self.last)


def retry_after(refusals: int) -> float:
    """Seconds until what nginx has refused so many times is tried again: what stood in its way may have gone."""
    return min(_LONGEST_RETRY, _FIRST_RETRY * 2.0 ** min(refusals - 1, 10))


def reason(before: View | None, after: View) -> Reason:
    """Why the second is worth a reload after the first. Where only files outside the views may have changed: files."""
    if before is None or _shape(before) != _shape(after):
        return "files"
    if before.drained != after.drained:
        return "health"
    return "files" if before.weights == after.weights else "weights"


def same_shape(one: View, other: View) -> bool:
    """Whether they differ at most in what moves by itself: weights, and who gets nothing new."""
    return _shape(one) == _shape(other)


def carried(good: View, wanted: View) -> View:
    """`good` with the weights and drains of `wanted`, for as long as nginx refuses `wanted`: a fleet that cannot be
    loaded must not keep health from being acted upon. A replica that only one of the two knows stays as it was."""
    weights, drained = dict(good.weights), dict(good.drained)
    for name in good.pools.keys() & wanted.pools.keys():
        weights[name], drained[name] = _live(good, wanted, name)
    return replace(good, weights=weights, drained=drained)


def _shape(view: View) -> View:
    return replace(view, weights={}, drained={}, out={})


def _live(good: View, wanted: View, name: str) -> tuple[tuple[Weight, ...], frozenset[str]]:
    """Another address is another replica."""
    pairs = zip(wanted.pools[name].replicas, wanted.weights[name], strict=True)
    live = {(item.name, item.address): weight for item, weight in pairs}
    members = good.pools[name].replicas
    known = {item.name for item in members if (item.name, item.address) in live}
    weights = tuple(
        live.get((item.name, item.address), was) for item, was in zip(members, good.weights[name], strict=True)
    )
    return weights, (good.drained[name] - known) | (wanted.drained[name] & known)
