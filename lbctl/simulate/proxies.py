"""How each proxy really balances, as far as a weight matters. Each instance knows only its own requests.

What each makes of a weight is what the targets write for it. A replica with None gets nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from lbctl.ir.weight import Weight
from lbctl.targets import weighing

Weights = Sequence[float | None]


class Proxy(Protocol):
    """`active`: its own requests in flight, replica by replica."""

    active: list[int]

    def follow(self, weights: Weights) -> None: ...

    def pick(self) -> int: ...


class RoundRobin:
    """Smooth weighted round robin: nginx and HAProxy; Envoy's queue gives the same shares."""

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.active = [0] * replicas
        self._weights: Weights = [1.0] * replicas
        self._current = [rng.random() for _ in range(replicas)]

    def follow(self, weights: Weights) -> None:
        self._weights = weights

    def pick(self) -> int:
        total, best = 0.0, -1
        for place, weight in enumerate(self._weights):
            if weight is None:
                continue
            total += weight
            self._current[place] += weight
            if best < 0 or self._current[place] > self._current[best]:
                best = place
        self._current[best] -= total
        return best


class LeastConn:
    """nginx least_conn, HAProxy leastconn: the fewest requests in flight for the weight; ties in turn."""

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.active = [0] * replicas
        self._weights: Weights = [1.0] * replicas
        self._turn = rng.randrange(replicas)

    def follow(self, weights: Weights) -> None:
        self._weights = weights

    def pick(self) -> int:
        replicas = len(self.active)
        best, least = -1, float("inf")
        for ahead in range(replicas):
            place = (self._turn + 1 + ahead) % replicas
            weight = self._weights[place]
            if weight is not None and self.active[place] / weight < least:
                best, least = place, self.active[place] / weight
        self._turn = best
        return best


class Edf:
    """Envoy's LEAST_REQUEST: of two at random the idler where weights are equal, else earliest deadline first with
    weight ÷ (active + 1), the phases at random after every change of a weight."""

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.active = [0] * replicas
        self._rng = rng
        self._now = 0.0
        self.follow([1.0] * replicas)

    def follow(self, weights: Weights) -> None:
        self._weights = weights
        self._there = [place for place, weight in enumerate(weights) if weight is not None]
        self._equal = len({weights[place] for place in self._there}) <= 1
        self._due = [self._now + self._rng.random() / (weight or 1.0) for weight in self._weights]

    def pick(self) -> int:
        if self._equal:
            first, second = self._rng.choice(self._there), self._rng.choice(self._there)
            return second if self.active[second] < self.active[first] else first
        best = min(self._there, key=self._due.__getitem__)
        self._now = self._due[best]
        weight = self._weights[best] or 1.0
        self._due[best] = self._now + (self.active[best] + 1) / weight
        return best


class Kind(NamedTuple):
    """`meant`: weights → what such a proxy is told."""

    make: Callable[[int, random.Random], Proxy]
    meant: Callable[[Sequence[Weight]], Sequence[float]]

    def told(self, weights: Sequence[Weight | None]) -> Weights:
        there = iter(self.meant([item for item in weights if item is not None]))
        return [None if item is None else next(there) for item in weights]


PROXIES: Mapping[str, Kind] = {
    "round_robin": Kind(RoundRobin, weighing.rates),
    "least_conn": Kind(LeastConn, partial(weighing.in_flight, few_slots=False)),
    "envoy_w": Kind(Edf, partial(weighing.deadlines, few_slots=True)),
    "envoy_w2": Kind(Edf, partial(weighing.deadlines, few_slots=False)),
}
"""Least request of Envoy is `envoy_w` for a pool with few slots, `envoy_w2` for every other."""
