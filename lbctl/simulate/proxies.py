"""How each proxy balances by weights. Each instance knows only its own requests.

The weights are those that the targets write for each proxy. A replica with a weight of None gets no requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from lbctl.ir.weight import Weight
from lbctl.targets import replica_weights

Weights = Sequence[float | None]


class Balancer(Protocol):
    """The balancing algorithm of one proxy instance."""

    active: list[int]
    """The instance's own requests in flight, by replica."""

    def use_weights(self, weights: Weights) -> None:
        """From now on, use these weights."""

    def pick(self) -> int:
        """Return the index of the replica for the next request."""


class RoundRobin:
    """Smooth weighted round robin, as in nginx and HAProxy. Envoy's queue results in the same shares."""

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.active = [0] * replicas
        self._weights: Weights = [1.0] * replicas
        self._current = [rng.random() for _ in range(replicas)]

    def use_weights(self, weights: Weights) -> None:
        """From now on, use these weights."""
        self._weights = weights

    def pick(self) -> int:
        """Return the index of the replica for the next request."""
        total, best = 0.0, -1
        for index, weight in enumerate(self._weights):
            if weight is None:
                continue
            total += weight
            self._current[index] += weight
            if best < 0 or self._current[index] > self._current[best]:
                best = index
        self._current[best] -= total
        return best


class LeastConn:
    """nginx's least_conn and HAProxy's leastconn: the fewest requests in flight relative to the weight.

    Ties are broken in turn.
    """

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.active = [0] * replicas
        self._weights: Weights = [1.0] * replicas
        self._turn = rng.randrange(replicas)

    def use_weights(self, weights: Weights) -> None:
        """From now on, use these weights."""
        self._weights = weights

    def pick(self) -> int:
        """Return the index of the replica for the next request."""
        replicas = len(self.active)
        best, least = -1, float("inf")
        for ahead in range(replicas):
            index = (self._turn + 1 + ahead) % replicas
            weight = self._weights[index]
            if weight is not None and self.active[index] / weight < least:
                best, least = index, self.active[index] / weight
        self._turn = best
        return best


class Edf:
    """Envoy's LEAST_REQUEST.

    With equal weights, the choice is the less busy of two random replicas. Otherwise, the balancer uses earliest
    deadline first with weight ÷ (active + 1), with random phases after every weight change.
    """

    def __init__(self, replicas: int, rng: random.Random) -> None:
        self.active = [0] * replicas
        self._rng = rng
        self._now = 0.0
        self.use_weights([1.0] * replicas)

    def use_weights(self, weights: Weights) -> None:
        """From now on, use these weights."""
        self._weights = weights
        self._candidates = [index for index, weight in enumerate(weights) if weight is not None]
        self._equal = len({weights[index] for index in self._candidates}) <= 1
        self._due = [self._now + self._rng.random() / (weight or 1.0) for weight in self._weights]

    def pick(self) -> int:
        """Return the index of the replica for the next request."""
        if self._equal:
            first, second = self._rng.choice(self._candidates), self._rng.choice(self._candidates)
            return second if self.active[second] < self.active[first] else first
        best = min(self._candidates, key=self._due.__getitem__)
        self._now = self._due[best]
        weight = self._weights[best] or 1.0
        self._due[best] = self._now + (self.active[best] + 1) / weight
        return best


class BalancerKind(NamedTuple):
    """A kind of balancer, and how weights are converted for it."""

    make: Callable[[int, random.Random], Balancer]
    """Returns a balancer for this many replicas."""
    convert: Callable[[Sequence[Weight]], Sequence[float]]
    """Converts published weights to the proxy's weights."""
    reloads: bool = False
    """Whether changing weights requires a reload. New workers do not count the requests that old workers are still
    finishing."""

    def proxy_weights(self, weights: Sequence[Weight | None]) -> Weights:
        """Convert weights to the proxy's own; None remains None."""
        converted = iter(self.convert([weight for weight in weights if weight is not None]))
        return [None if weight is None else next(converted) for weight in weights]


BALANCERS: Mapping[str, BalancerKind] = {
    "round_robin": BalancerKind(RoundRobin, replica_weights.rates),
    "least_conn": BalancerKind(LeastConn, partial(replica_weights.in_flight, few_slots=False)),
    "least_conn_reloaded": BalancerKind(LeastConn, partial(replica_weights.in_flight, few_slots=False), reloads=True),
    "envoy_w": BalancerKind(Edf, partial(replica_weights.deadlines, few_slots=True)),
    "envoy_w2": BalancerKind(Edf, partial(replica_weights.deadlines, few_slots=False)),
}
"""`least_conn` is HAProxy's, `least_conn_reloaded` nginx's. Envoy's LEAST_REQUEST is `envoy_w` for a pool with few
slots and `envoy_w2` for any other."""
