"""What an operator holds by hand, over the files and over what the loop decides: drains, weights, pools held still.

Each has an end (`--ttl`) or stands until it is taken back, and ends with the replica that it is about. Pure: times are
seconds since the epoch, and are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, plain

Kind = Literal["drain", "weight", "freeze"]
KINDS: tuple[Kind, ...] = ("drain", "weight", "freeze")
MOST_WEIGHT = 1_000_000.0
"""As in a fleet file."""


@dataclass(frozen=True, slots=True)
class Override:
    """`replica`: empty for `freeze`, which is about a pool. `value`: the weight, on the scale of capacity. Times are
    seconds since the epoch; `until` is None where somebody has to take it back."""

    kind: Kind
    pool: str
    replica: str = ""
    value: float | None = None
    reason: str = ""
    since: float = 0.0
    until: float | None = None

    @property
    def about(self) -> tuple[str, str, str]:
        return self.kind, self.pool, self.replica


Overrides = tuple[Override, ...]


def held_weight(value: object) -> float:
    """One that a replica may be given by hand, on the scale of capacity. ValueError with words for people"""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or value == math.inf:
        raise ValueError(f"{value} is not a number above 0")
    if value > MOST_WEIGHT:
        raise ValueError(f"{value:g} is too much: a weight is at most {MOST_WEIGHT:.0f}, as in a fleet file")
    return float(value)


def put(overrides: Overrides, new: Override) -> Overrides:
    """In the place of an earlier one about the same."""
    return tuple(sorted((*(item for item in overrides if item.about != new.about), new), key=lambda item: item.about))


def removed(overrides: Overrides, about: tuple[str, str, str]) -> Overrides:
    return tuple(item for item in overrides if item.about != about)


def current(overrides: Overrides, now: float) -> Overrides:
    """Those that have not ended."""
    return tuple(item for item in overrides if item.until is None or item.until > now)


def within(overrides: Overrides, topology: Topology) -> Overrides:
    """Those about what this fleet has."""
    there = {(pool.name, item.name) for pool in topology.pools for item in pool.replicas}
    there |= {(pool.name, "") for pool in topology.pools}
    return tuple(item for item in overrides if (item.pool, item.replica) in there)


def next_end(overrides: Iterable[Override]) -> float | None:
    return min((item.until for item in overrides if item.until is not None), default=None)


def drained(overrides: Iterable[Override]) -> dict[str, frozenset[str]]:
    """Pool → replicas."""
    found: dict[str, set[str]] = {}
    for item in overrides:
        if item.kind == "drain":
            found.setdefault(item.pool, set()).add(item.replica)
    return {pool: frozenset(names) for pool, names in found.items()}


def weighted(
    overrides: Iterable[Override], weights: Mapping[str, Mapping[str, Weight]]
) -> Mapping[str, Mapping[str, Weight]]:
    """`weights` (pool → replica → weight) with those that are held by hand, each as if it were the capacity."""
    found = dict(weights)
    for item in overrides:
        if item.kind == "weight" and item.value is not None:
            found[item.pool] = {**found.get(item.pool, {}), item.replica: plain(item.value)}
    return found


def frozen(overrides: Iterable[Override]) -> dict[str, str]:
    """Pool → why it is held."""
    return {item.pool: item.reason for item in overrides if item.kind == "freeze"}
