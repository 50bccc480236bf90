"""Slow start for proxies that have none: a factor on the weight of a replica that is new. Envoy's own formula.

It is kept apart from the weights: a proxy that ramps by itself must not get it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lbctl.control.state import Track
from lbctl.ir.pools import SlowStart

RESOLUTION = 0.05
"""Smaller changes of a factor are not told."""


def factor(rules: SlowStart, age: float) -> float:
    """`age` in seconds since it joined; 1 when it is up."""
    part = age * 1000 / rules.window if rules.window else 1.0
    if part >= 1.0:
        return 1.0
    risen: float = max(part, 0.0) ** (1.0 / rules.aggression)
    return max(rules.min_weight / 100, risen)


def factors(rules: SlowStart | None, tracks: Iterable[Track], now: float) -> dict[str, float]:
    """Replica → factor < 1, of those that are not yet up."""
    if rules is None:
        return {}
    ages = {item.replica.name: now - item.joined_at for item in tracks if item.joined_at is not None}
    found = {name: factor(rules, age) for name, age in ages.items()}
    return {name: value for name, value in found.items() if value < 1.0}


def worth_telling(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    return before.keys() != after.keys() or any(abs(after[name] - before[name]) >= RESOLUTION for name in after)
