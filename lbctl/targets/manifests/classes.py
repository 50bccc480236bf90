"""Classes of replicas with equal weight.

EndpointSlices have no weights, but the backends of a rule do. Each class is therefore a backend, whose weight is the
sum of its replicas' weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lbctl.ir.pools import Replica
from lbctl.ir.weight import Weight
from lbctl.targets.replica_weights import quantise

MAX_WEIGHT = 1_000_000
"""Maximum weight of a backend."""


@dataclass(frozen=True, slots=True)
class WeightClass:
    """Replicas that get equal shares of the requests to their class."""

    weight: int
    """Weight of the class; 0 if all of its replicas are drained."""
    replicas: tuple[Replica, ...]
    """Replicas, by name, including the drained ones."""


@dataclass(frozen=True, slots=True)
class WeightClasses:
    """The classes of a pool, sorted by kind, then by descending weight per replica."""

    classes: tuple[WeightClass, ...]
    error: float
    """Largest relative error of a replica's share caused by joining classes: 0.02 is 2 %."""


def _same(replica: Replica) -> tuple[()]:  # noqa: ARG001 -- all replicas may share a class
    return ()


def weight_classes(
    replicas: Sequence[tuple[Replica, Weight]],
    drained: Collection[str],
    max_classes: int,
    kind: Callable[[Replica], tuple[bool, ...]] = _same,
) -> WeightClasses:
    """Group the replicas into at most `max_classes` classes. Classes with the nearest weights are joined.

    Replicas share a class only if they are of the same `kind`, which is also the first sort key of the classes. Each
    kind therefore has at least one class, even if this exceeds `max_classes`. The result is never empty. `max_classes`
    must be at least 1.
    """
    by_key: dict[tuple[tuple[bool, ...], float], list[Replica]] = {}
    for replica, weight in replicas:
        by_key.setdefault((kind(replica), -weight.rate), []).append(replica)
    groups = [[(-negative, replica) for replica in by_key[key, negative]] for key, negative in sorted(by_key)] or [[]]
    while len(groups) > max_classes:
        ratios = [
            (_mean(first) / _mean(second), index)
            for index, (first, second) in enumerate(pairwise(groups))
            if kind(first[0][1]) == kind(second[0][1])
        ]
        if not ratios:
            break
        _, nearest = min(ratios)
        groups[nearest : nearest + 2] = [groups[nearest] + groups[nearest + 1]]
    totals = [sum(rate for rate, replica in group if replica.name not in drained) for group in groups]
    quantised = iter(quantise([total for total in totals if total], MAX_WEIGHT))
    weights = [next(quantised) if total else 0 for total in totals]
    return WeightClasses(
        tuple(
            WeightClass(weight, tuple(sorted((replica for _, replica in group), key=lambda item: item.name)))
            for weight, group in zip(weights, groups, strict=True)
        ),
        max((abs(_mean(group) / rate - 1) for group in groups for rate, _ in group), default=0.0),
    )


def _mean(group: Sequence[tuple[float, Replica]]) -> float:
    return sum(rate for rate, _ in group) / len(group)


def limits(counts: Sequence[int], most: int) -> list[int]:
    """Return the maximum number of classes per pool, so that all pools of a rule together have at most `most` classes.

    `counts` contains the number of classes that each pool would have without a limit. Pools with the most classes are
    reduced first. There must be at most `most` pools.
    """
    allowed = list(counts)
    while sum(allowed) > most:
        allowed[allowed.index(max(allowed))] -= 1
    return allowed
