"""The picker in a simulation: the decisions of `lbctl.pick`, with one set of books for all proxies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random

from lbctl.ir.pools import PickPolicy, Pool
from lbctl.ir.weight import Weight
from lbctl.pick.affinity import Affinity
from lbctl.pick.books import Books
from lbctl.pick.decide import pick
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable
from lbctl.simulate.choosers import NONE
from lbctl.simulate.trace import Trace


class SimulatedPicker:
    """Chooses a replica for each request of a trace. `reads_prompts`: whether the proxy lets it see the prompt."""

    def __init__(self, pool: Pool, trace: Trace, rng: Random, *, reads_prompts: bool) -> None:
        self._pool = pool
        self._trace = trace
        self._reads_prompts = reads_prompts
        self._rng = rng
        self._books = Books()
        self._affinity = Affinity()
        self._places = {replica.name: index for index, replica in enumerate(pool.replicas)}
        candidates = tuple(Candidate(item.name, item.name, item.capacity, item.capacity) for item in pool.replicas)
        self._table = PoolTable(pool.name, pool.balance.pick or PickPolicy(()), candidates)

    def follow(self, weights: Sequence[Weight | None]) -> None:
        """Use these weights from now on; None: the replica is not fit."""
        candidates = tuple(
            replace(item, fit=weight is not None, weight=weight.rate if weight else item.weight)
            for item, weight in zip(self._table.candidates, weights, strict=True)
        )
        self._table = replace(self._table, candidates=candidates)

    def choose(self, request: int, now: float) -> int:
        """Return the replica for a request, NONE where none is fit."""
        features = self._features(request)
        result = pick(features, self._table, self._books, self._affinity, now, self._rng)
        if not result.ordered:
            return NONE
        name = result.ordered[0].name
        self._books.started(str(request), self._pool.name, name, result.tokens, now)
        self._affinity.remember(features, name, now)
        return self._places[name]

    def first_token(self, request: int) -> None:
        """Note that the answer to a request has begun."""
        self._books.first_token(str(request))

    def finished(self, request: int) -> None:
        """Note that a request has ended."""
        self._books.finished(str(request))

    def _features(self, request: int) -> Features:
        trace = self._trace
        session = str(trace.keys[request]) if trace.keys and not trace.blocks else None
        if not self._reads_prompts:
            return Features(self._pool.name, session)
        blocks = trace.blocks[request] if trace.blocks else ()
        chain = tuple(accumulate(blocks, lambda before, block: hash((before, block))))
        return Features(self._pool.name, session, chain, prompt_tokens=float(trace.prompts[request]))
