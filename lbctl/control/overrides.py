"""What operators override while the control plane runs: drains, weights, and pools whose weights are frozen.

An override applies over the files and over the control loop's decisions. It ends after its `--ttl` or when it is
removed, and with the replica that it is about. This is pure: times are arguments, in seconds since the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, from_capacity

Kind = Literal["drain", "weight", "freeze"]
KINDS: tuple[Kind, ...] = ("drain", "weight", "freeze")
MAX_WEIGHT = 1_000_000.0
"""The same limit as in a fleet file."""


@dataclass(frozen=True, slots=True)
class Override:
    """One operator's override of a replica or a pool. Times are seconds since the epoch."""

    kind: Kind
    pool: str
    replica: str = ""
    """Empty for `freeze`, which is about a pool."""
    value: float | None = None
    """The weight, on the scale of capacity; None for the other kinds."""
    reason: str = ""
    since: float = 0.0
    until: float | None = None
    """When it ends; None where it applies until it is removed."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What the override is about; there is at most one override for each key."""
        return self.kind, self.pool, self.replica


Overrides = tuple[Override, ...]


def checked_weight(value: object) -> float:
    """Return a weight that an operator may set, on the scale of capacity. Raises ValueError for users."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or value == math.inf:
        raise ValueError(f"{value} is not a number above 0")
    if value > MAX_WEIGHT:
        raise ValueError(f"{value:g} is too much: a weight is at most {MAX_WEIGHT:.0f}, as in a fleet file")
    return float(value)


def put(overrides: Overrides, new: Override) -> Overrides:
    """Return the overrides with the new one, which replaces an earlier one with the same key."""
    return tuple(sorted((*removed(overrides, new.key), new), key=lambda item: item.key))


def removed(overrides: Overrides, key: tuple[str, str, str]) -> Overrides:
    """Return the overrides without the one that has this key."""
    return tuple(item for item in overrides if item.key != key)


def current(overrides: Overrides, now: float) -> Overrides:
    """Return the overrides that have not ended."""
    return tuple(item for item in overrides if item.until is None or item.until > now)


def within(overrides: Overrides, topology: Topology) -> Overrides:
    """Return the overrides of replicas and pools that the topology has."""
    subjects = {(pool.name, item.name) for pool in topology.pools for item in pool.replicas}
    subjects |= {(pool.name, "") for pool in topology.pools}
    return tuple(item for item in overrides if (item.pool, item.replica) in subjects)


def drained(overrides: Iterable[Override]) -> dict[str, frozenset[str]]:
    """Pool → the replicas that operators drain."""
    replicas: dict[str, set[str]] = {}
    for item in overrides:
        if item.kind == "drain":
            replicas.setdefault(item.pool, set()).add(item.replica)
    return {pool: frozenset(names) for pool, names in replicas.items()}


def apply_weights(
    overrides: Iterable[Override], weights: Mapping[str, Mapping[str, Weight]]
) -> Mapping[str, Mapping[str, Weight]]:
    """Return `weights` (pool → replica → weight) with the operators' weights, each as if it were the capacity."""
    after = dict(weights)
    for item in overrides:
        if item.kind == "weight" and item.value is not None:
            after[item.pool] = {**after.get(item.pool, {}), item.replica: from_capacity(item.value)}
    return after


def frozen(overrides: Iterable[Override]) -> dict[str, str]:
    """Pool → why an operator has frozen its weights."""
    return {item.pool: item.reason for item in overrides if item.kind == "freeze"}
