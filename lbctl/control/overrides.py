"""Operators' overrides while the control plane is running: drains, weights, frozen pools, and route splits.

An override takes precedence over the files and the control loop's decisions. An override expires after its `--ttl`, or
ends when it is removed. A split also ends when its route's split changes in the files. An override for a replica or a
pool ends when the replica or pool has been missing for `GRACE`. Discovery may briefly lose a replica, which must not
end its drain. An old drain, however, must not apply to a new replica with the same name. The functions are pure. Times
are arguments, in seconds since the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from lbctl.control.splits import Shares, shares_of
from lbctl.ir.topology import Topology
from lbctl.ir.weight import Weight, from_capacity

Kind = Literal["drain", "weight", "freeze", "split"]
KINDS: tuple[Kind, ...] = ("drain", "weight", "freeze", "split")
GRACE = 300.0
"""Seconds that an override waits for its replica or pool to return."""
MAX_WEIGHT = 1_000_000.0
"""The maximum weight, the same as in a fleet file."""
MAX_OVERRIDES = 20_000
"""Maximum number of simultaneous overrides, which allows two per replica in a large fleet."""


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's override of a replica, a pool or a route. Times are in seconds since the epoch."""

    kind: Kind
    """The kind of override."""
    pool: str = ""
    """The pool, or an empty string for `split`, which applies to a route."""
    replica: str = ""
    """The replica, or an empty string for `split`, and for `freeze`, which applies to a pool."""
    value: float | None = None
    """The weight, on the same scale as capacities, or None for the other kinds."""
    reason: str = ""
    """The operator's reason, or an empty string if none was given."""
    since: float = 0.0
    """The time at which the override began."""
    until: float | None = None
    """The time at which the override expires, or None if it applies until it is removed."""
    route: str = ""
    """The route of a `split`, or an empty string for the other kinds."""
    shares: Shares = ()
    """The shares of a `split`."""
    replaced: Shares = ()
    """The shares in the files that the `split` replaces. If they change, the override ends."""
    author: str = ""
    """The name of the operator's token."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The override's target. Each key has at most one override."""
        return self.kind, self.route or self.pool, self.replica

    @property
    def subject(self) -> str:
        """The override's target as a string, which is a route, a pool, or a pool and its replica."""
        return "/".join(part for part in self.key[1:] if part)

    @property
    def summary(self) -> str:
        """The override as a string, with its kind and the weight or the shares."""
        values = [f"{self.value:g}"] if self.value is not None else [f"{pool}={share}" for pool, share in self.shares]
        return " ".join((self.kind, *values))


Overrides = tuple[Override, ...]


def checked_weight(value: object) -> float:
    """Return the weight, on the same scale as capacities, if an operator is allowed to set it.

    Raises ValueError with a message for users.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or value == math.inf:
        hint = ": to stop new requests, drain the replica" if value == 0 else ""
        raise ValueError(f"{value} is not a number above 0{hint}")
    if value > MAX_WEIGHT:
        shown = f"{value:g}" if value < 1e300 else "it"  # a larger integer cannot be a float
        raise ValueError(f"{shown} is too large: the maximum weight is {MAX_WEIGHT:.0f}, as in a fleet file")
    return float(value)


def put(overrides: Overrides, new: Override) -> Overrides:
    """Return the overrides with the new one, which replaces any earlier one with the same key."""
    return tuple(sorted((*removed(overrides, new.key), new), key=lambda item: item.key))


def removed(overrides: Overrides, key: tuple[str, str, str]) -> Overrides:
    """Return the overrides except for the one with this key."""
    return tuple(item for item in overrides if item.key != key)


def current(overrides: Overrides, now: float) -> Overrides:
    """Return the overrides that have not expired."""
    return tuple(item for item in overrides if item.until is None or item.until > now)


def within(overrides: Overrides, topology: Topology) -> Overrides:
    """Return the overrides whose targets exist in the topology, which contains the splits from the files."""
    if not overrides:
        return ()
    subjects = {(pool.name, item.name) for pool in topology.pools for item in pool.replicas}
    subjects |= {(pool.name, "") for pool in topology.pools}
    files = {route.name: shares_of(route) for route in topology.routes} if any(map(_is_split, overrides)) else {}
    return tuple(
        item
        for item in overrides
        if (files.get(item.route) == item.replaced if _is_split(item) else (item.pool, item.replica) in subjects)
    )


def absent(
    before: Mapping[tuple[str, str, str], float], overrides: Overrides, topology: Topology, now: float
) -> dict[tuple[str, str, str], float]:
    """Map the key of each override whose replica or pool is missing to the time since which it has been missing.

    `before` is the result from the previous call. `topology` contains the discovered replicas.
    """
    present = {item.key for item in within(overrides, topology)}
    return {
        item.key: before.get(item.key, now) for item in overrides if not _is_split(item) and item.key not in present
    }


def _is_split(item: Override) -> bool:
    return item.kind == "split"


def splits(overrides: Iterable[Override]) -> dict[str, Shares]:
    """Maps each route to the split set by an operator."""
    return {item.route: item.shares for item in overrides if _is_split(item)}


def drained(overrides: Iterable[Override]) -> dict[str, frozenset[str]]:
    """Maps each pool to the replicas drained by operators."""
    replicas: dict[str, set[str]] = {}
    for item in overrides:
        if item.kind == "drain":
            replicas.setdefault(item.pool, set()).add(item.replica)
    return {pool: frozenset(names) for pool, names in replicas.items()}


def apply_weights(
    overrides: Iterable[Override], weights: Mapping[str, Mapping[str, Weight]]
) -> Mapping[str, Mapping[str, Weight]]:
    """Return `weights`, by pool and replica, with the operators' weights added, each treated as a capacity."""
    after = dict(weights)
    for item in overrides:
        if item.kind == "weight" and item.value is not None:
            after[item.pool] = {**after.get(item.pool, {}), item.replica: from_capacity(item.value)}
    return after


def frozen(overrides: Iterable[Override]) -> dict[str, str]:
    """Maps each pool to the operator's reason for freezing its weights."""
    return {item.pool: item.reason for item in overrides if item.kind == "freeze"}
