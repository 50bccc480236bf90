"""The picker in a simulation: the decisions of `lbctl.pick`, with one state for all proxies.

Like the real picker, it learns of a refused connection when the response begins (Envoy) or when the request ends
(HAProxy and nginx). Until then it counts the request at the replica that it picked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

from lbctl.ir.pools import PickPolicy
from lbctl.ir.weight import Weight
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import Books
from lbctl.pick.decide import pick
from lbctl.pick.features import Features
from lbctl.pick.suspects import Suspects
from lbctl.pick.table import Candidate, PoolTable
from lbctl.simulate.balancing import NONE
from lbctl.simulate.setup import Setup
from lbctl.simulate.trace import Trace


class SimulatedPicker:
    """Chooses a replica for each request of a trace."""

    def __init__(self, setup: Setup, trace: Trace, rng: Random) -> None:
        self._pool = pool = setup.pool
        self._has_alternatives = setup.policy.has_alternatives
        self._trace = trace
        self._rng = rng
        self._books = Books()
        self._affinity = AffinityMemory()
        self._suspects = Suspects()
        self._picks: dict[int, tuple[str, ...]] = {}
        """Maps a request in flight to the chosen replica and the replicas for retries."""
        self._unreached: set[int] = set()
        """Requests in flight whose first replica refused the connection."""
        self._places = {replica.name: index for index, replica in enumerate(pool.replicas)}
        limit = pool.circuit_breaker.replica_max_requests
        candidates = tuple(Candidate(item.name, item.name, item.capacity, limit=limit) for item in pool.replicas)
        policy = pool.balance.pick or PickPolicy(())
        self._table = PoolTable(pool.name, policy, candidates, slow_start=pool.slow_start)

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None:
        """Use these weights from now on.

        A weight of None excludes the replica. `began`: times at which replicas joined or restarted.
        """
        candidates = tuple(
            _with(item, weight is not None, weight.rate if weight else item.weight, began.get(at))
            for at, (item, weight) in enumerate(zip(self._table.candidates, weights, strict=True))
        )
        self._table = replace(self._table, candidates=candidates)

    def choose(self, request: int, now: float) -> int:
        """Return the replica for a request; NONE if none is available."""
        features, table = self._features(request), self._suspects.without(self._table, now)
        result = pick(features, table, self._books, self._affinity, now, self._rng)
        if not result.ordered:
            return NONE
        name = result.ordered[0].name
        self._books.started(str(request), self._pool.name, name, result.tokens, now)
        self._affinity.remember(features, name, now)
        self._picks[request] = tuple(item.name for item in result.ordered)
        return self._places[name]

    def unreached(self, request: int, replica: int) -> None:
        """Record that a replica refused the connection of a request, or aborted a request that is retried."""
        if request in self._picks and self._places[self._picks[request][0]] == replica:
            self._unreached.add(request)

    def alternative(self, request: int, tried: Collection[int]) -> int:
        """Return the replica for a retry after the tried replicas, or NONE if the proxy chooses itself."""
        if not self._has_alternatives:
            return NONE
        ordered = (self._places[name] for name in self._picks.get(request, ()))
        return next((place for place in ordered if place not in tried), NONE)

    def first_token(self, request: int, now: float) -> None:
        """Record the first token of a request."""
        self._books.first_token(str(request))
        if self._has_alternatives and request in self._picks:
            if request in self._unreached:
                self._suspect(request, now)
            else:
                self._suspects.answered(self._pool.name, self._picks[request][0])

    def finished(self, request: int, now: float) -> None:
        """Record the end of a request."""
        self._books.finished(str(request))
        if request in self._unreached:
            self._suspect(request, now)
        self._picks.pop(request, None)

    def _suspect(self, request: int, now: float) -> None:
        self._unreached.discard(request)
        self._suspects.failed(self._pool.name, self._picks[request][0], now)

    def _features(self, request: int) -> Features:
        trace = self._trace
        session = str(trace.keys[request]) if trace.keys and not trace.blocks else None
        blocks = trace.blocks[request] if trace.blocks else ()
        chain = tuple(accumulate(blocks, lambda before, block: hash((before, block))))
        return Features(self._pool.name, session, chain, prompt_tokens=float(trace.prompts[request]))


def _with(item: Candidate, fit: bool, weight: float, started: float | None) -> Candidate:
    """Return the candidate with these values, or the same object if the values are unchanged."""
    if (item.fit, item.weight, item.started) == (fit, weight, started):
        return item
    return replace(item, fit=fit, weight=weight, started=started)
