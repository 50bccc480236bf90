"""The picker in a simulation: the decisions and the queue of `lbctl.pick`, with one state for all proxies.

Like the real picker, it learns of a refused connection when the response begins (Envoy) or the request ends (HAProxy
and nginx). Until then, it counts the request at the replica that it picked.

A request's tenant in the trace is its flow in the queue, unless the queue has only one flow. The priority in the trace
is the effective one: the route's, or the one chosen by a tenant that may choose it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from random import Random

from lbctl.ir.locality import NOWHERE
from lbctl.ir.pools import PickPolicy
from lbctl.ir.weight import Weight
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import REQUEST_TOKENS, Books
from lbctl.pick.decide import fullness, pick
from lbctl.pick.features import Features
from lbctl.pick.suspects import Suspects
from lbctl.pick.table import KV_FULL, Candidate, PoolTable
from lbctl.pick.waiting import PRIORITIES, FairQueue, WaitingRequest
from lbctl.simulate.balancing import NONE
from lbctl.simulate.control import EngineReport
from lbctl.simulate.setup import Setup
from lbctl.simulate.trace import Trace

WAITS = -2
"""Returned if all available replicas are full, so that the request waits at the picker."""
_NORMAL = PRIORITIES.index("normal")


@dataclass(slots=True)
class QueueOutcomes:
    """The requests in a run that the queue held or rejected."""

    waits: dict[int, float] = field(default_factory=dict)
    """Maps each request that left the queue for a replica to the seconds that it waited."""
    rejected: dict[int, float] = field(default_factory=dict)
    """Maps each rejected request to the seconds that it waited."""
    left: set[int] = field(default_factory=set)
    """Requests whose clients left while waiting."""
    has_engine_limits: bool = False
    """Whether an engine's report has limited its requests."""


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
        self._policy = policy.queue
        self._shares = dict(policy.queue.weights) if policy.queue else {}
        self._queue = FairQueue()
        self._rejected: list[int] = []
        self.outcomes = QueueOutcomes() if policy.queue else None
        """The queue's outcomes; None without a queue."""

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return len(self._queue)

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None:
        """From now on, use these weights.

        A weight of None excludes the replica. `began`: the times at which replicas joined or restarted.
        """
        candidates = tuple(
            _with(item, weight is not None, weight.rate if weight else item.weight, began.get(at))
            for at, (item, weight) in enumerate(zip(self._table.candidates, weights, strict=True))
        )
        self._table = replace(self._table, candidates=candidates)

    def choose(self, request: int, now: float) -> int:
        """Return the replica for a request; NONE if none is available; WAITS if all of them are full.

        If too many requests are waiting, this one or another is rejected: see `take_rejected`.
        """
        may_go = not self.waiting or self._queue.goes_at_once(self._flow(request), self._priority(request), now)
        replica = self._pick(request, now) if may_go else WAITS
        if replica != WAITS:
            if self.waiting:
                self._queue.pass_by(self._waiting(request, now), self._shares.get(self._flow(request), 1.0))
            return replica
        assert self._policy is not None
        flow, priority = self._flow(request), self._priority(request)
        if self.waiting >= self._policy.max_requests:
            displaced = self._queue.displaced(flow, priority, self._shares)
            if displaced is None:
                self._reject(request, 0.0)
                return WAITS
            self._reject(int(displaced.id), now - displaced.since)
        self._queue.add(self._waiting(request, now))
        return WAITS

    def release(self, now: float) -> tuple[int, int] | None:
        """Remove the next request from the queue if it can proceed.

        Return it with its replica; None if none can proceed.
        """

        def decide(item: WaitingRequest, leaves_reserve: bool) -> int | None:
            replica = self._pick(int(item.id), now, leaves_reserve=leaves_reserve)
            return None if replica == WAITS else replica

        found = self._queue.next(decide, now)
        if found is None:
            return None
        head, replica = found
        request = int(head.id)
        if replica == NONE:
            self._queue.remove(head.id)
        else:
            assert self.outcomes is not None
            self._queue.take(head, self._shares.get(head.flow, 1.0))
            self.outcomes.waits[request] = now - head.since
        return request, replica

    def expire(self, now: float) -> None:
        """Reject the requests that have waited too long."""
        if self._policy is not None:
            for item in self._queue.overdue(now - self._policy.max_wait / 1000):
                self._reject(int(item.id), now - item.since)

    def take_rejected(self) -> list[int]:
        """Return the requests rejected since the last call."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def reported(self, reports: Mapping[str, EngineReport], taken: float) -> None:
        """Learn from the engines' reports at the time `taken` how many requests each engine runs at once."""
        if self._policy is None:
            return
        for name, report in reports.items():
            self._books.learn_limit(
                self._pool.name, name, report.running, report.waiting, taken, has_full_cache=report.kv >= KV_FULL
            )
            if self.outcomes is not None and self._books.load(self._pool.name, name).engine_limit is not None:
                self.outcomes.has_engine_limits = True

    def unreached(self, request: int, replica: int) -> None:
        """Record that a replica refused a request's connection, or aborted a request that is retried."""
        if request in self._picks and self._places[self._picks[request][0]] == replica:
            self._unreached.add(request)

    def alternative(self, request: int, tried: Collection[int]) -> int:
        """Return the replica for the retry that follows the tried replicas; NONE if the proxy chooses itself."""
        if not self._has_alternatives:
            return NONE
        ordered = (self._places[name] for name in self._picks.get(request, ()))
        return next((place for place in ordered if place not in tried), NONE)

    def first_token(self, request: int, now: float) -> None:
        """Record the first token of a request."""
        self._books.first_byte(str(request), now)
        if self._has_alternatives and request in self._picks:
            if request in self._unreached:
                self._suspect(request, now)
            else:
                self._suspects.answered(self._pool.name, self._picks[request][0])

    def finished(self, request: int, now: float) -> None:
        """Record the end of a request."""
        if self._queue.remove(str(request)) is not None:
            assert self.outcomes is not None
            self.outcomes.left.add(request)
            return
        self._books.finished(str(request))
        if request in self._unreached:
            self._suspect(request, now)
        self._picks.pop(request, None)

    def _pick(self, request: int, now: float, *, leaves_reserve: bool = False) -> int:
        """Pick the replica for a request; NONE if none is available; WAITS if the request can wait for one."""
        features, table = self._features(request), self._suspects.without(self._table, now)
        result = pick(features, table, self._books, self._affinity, now, self._rng, leaves_reserve=leaves_reserve)
        if not result.ordered:
            is_full = result.reason == "full" or self._is_full(table, leaves_reserve)
            return WAITS if self._policy and is_full else NONE
        name = result.ordered[0].name
        self._books.started(str(request), self._pool.name, name, result.tokens, now)
        self._affinity.remember(features, name, now)
        self._picks[request] = tuple(item.name for item in result.ordered)
        return self._places[name]

    def _is_full(self, table: PoolTable, leaves_reserve: bool) -> bool:
        candidates = (item for tier in table.tiers(NOWHERE, frozenset()) for item in tier.candidates)
        return any(fullness(item, table, self._books, leaves_reserve=leaves_reserve) for item in candidates)

    def _waiting(self, request: int, now: float) -> WaitingRequest:
        cost = float(self._trace.prompts[request]) + REQUEST_TOKENS
        return WaitingRequest(str(request), self._flow(request), self._priority(request), cost, now)

    def _reject(self, request: int, waited: float) -> None:
        assert self.outcomes is not None
        self._queue.remove(str(request))
        self._rejected.append(request)
        self.outcomes.rejected[request] = waited

    def _flow(self, request: int) -> str:
        assert self._policy is not None
        has_flows = self._policy.order == "fair" and self._policy.by != "all" and self._trace.tenants
        return self._trace.tenants[request] if has_flows else ""

    def _priority(self, request: int) -> int:
        return self._trace.priorities[request] if self._trace.priorities else _NORMAL

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
