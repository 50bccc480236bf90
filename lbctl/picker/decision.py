"""Makes decisions with `lbctl.pick`: passes the books, the affinity memory and the time to its pure functions."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from lbctl.pick import features
from lbctl.pick.affinity import AffinityBatch, AffinityMemory
from lbctl.pick.books import Books, Counts
from lbctl.pick.decide import fullness, pick
from lbctl.pick.explain import Explanation, explain
from lbctl.pick.features import Features
from lbctl.pick.lengths import LearnedLengths
from lbctl.pick.stalls import EngineProgress, Stalls
from lbctl.pick.table import KV_FULL, Candidate, PoolTable
from lbctl.picker.messages import PickerQuestion
from lbctl.picker.wire import EngineSample


class PickerDecision(NamedTuple):
    """The decision for one request."""

    ordered: tuple[Candidate, ...]
    """Replicas in the order in which a proxy should try them; empty if no replica may be picked."""
    reason: str
    """One-word reason; `full` if a request has to wait for one of the replicas."""
    features: Features
    """Features extracted from the request."""
    tokens: float
    """Number of prompt tokens that the first replica in `ordered` must compute."""


class Decider:
    """One process's books and affinity memory. Times are in seconds on one clock."""

    def __init__(self, random: Random, affinity: AffinityMemory) -> None:
        self.books = Books()
        self.lengths = LearnedLengths()
        self.stalls = Stalls()
        self._affinity = affinity
        self._random = random

    def decide(
        self, table: PoolTable, request: Features, now: float, *, leaves_reserve: bool = False, can_wait: bool = True
    ) -> PickerDecision:
        """Return the replicas for a request, in the order in which a proxy should try them.

        `leaves_reserve`: whether the request leaves the reserve of each replica free. `can_wait`: whether it can wait
        for replicas to compute other prompts.
        """
        result = pick(
            request, table, self.books, self._affinity, now, self._random,
            leaves_reserve=leaves_reserve, can_wait=can_wait,
        )  # fmt: skip
        is_full = not result.ordered and self._is_full(table, request, leaves_reserve)
        return PickerDecision(result.ordered, "full" if is_full else result.reason, request, result.tokens)

    def explain(self, table: PoolTable, question: PickerQuestion, now: float) -> Explanation:
        """Explain the decision that the picker would make now, without recording anything."""
        return explain(self.read(table, question), table, self.books, self._affinity, now)

    def started(self, request: str, decision: PickerDecision, now: float) -> None:
        """Record that a request was sent to a decision's first replica."""
        replica, read = decision.ordered[0].name, decision.features
        cached = read.prompt_tokens - decision.tokens
        self.books.started(request, read.pool, replica, decision.tokens, now, cached, read.length)
        self._affinity.remember(read, replica, now)

    def first_token(self, request: str) -> None:
        """Record that the response to a request has started."""
        self.books.first_token(request)

    def first_byte(self, request: str, now: float) -> None:
        """Record that a response's body has started."""
        self.books.first_byte(request, now)

    def finished(self, request: str) -> None:
        """Record that a request has ended."""
        self.books.finished(request)

    def sampled(self, sample: EngineSample, stalled_after: float | None, now: float) -> None:
        """Correct the books using a report from a replica's engine. An engine that has restarted has lost its cache.

        `stalled_after` is the time in seconds without progress after which the deep health check ejects a replica; None
        if it never does.
        """
        if sample.restarted:
            self._affinity.forget(sample.pool, sample.replica)
        pool, replica, taken = sample.pool, sample.replica, now - sample.age
        progress = EngineProgress(taken, sample.progress, _requests(sample), sample.restarted, sample.duration)
        computed = self.books.reconcile(
            pool, replica, sample.running, sample.queue, sample.first_tokens, taken, sample.ttft,
            self.stalls.last_progress(pool, replica, progress), sample.duration,
        )  # fmt: skip
        self.lengths.computed(pool, replica, computed, sample.prompt_tokens)
        load = self.books.load(pool, replica)
        if self.stalls.observe(pool, replica, progress, load, stalled_after):
            load.stopped(now)

    def learn_limit(self, sample: EngineSample, now: float) -> None:
        """Learn from an engine's report how many requests it runs concurrently, for a pool with a queue."""
        waiting, taken = (sample.queue or 0.0) - sample.deferred, now - sample.age
        has_full_cache = (sample.kv or 0.0) >= KV_FULL
        self.books.learn_limit(
            sample.pool, sample.replica, sample.running, waiting, taken, has_full_cache=has_full_cache
        )

    def merge(self, peer: str, counts: Counts, now: float) -> None:
        """Replace another picker's counts."""
        self.books.merge(peer, counts, now)

    def merge_affinity(self, batch: AffinityBatch, now: float, yields: bool) -> None:
        """Accept entries from another picker's affinity memory."""
        self._affinity.merge(batch, now, yields=yields)

    def forget_departed(self, before: PoolTable | None, after: PoolTable | None) -> None:
        """Forget the replicas that have left the pool."""
        kept = {item.name for item in after.candidates} if after else set()
        for item in before.candidates if before else ():
            if item.name not in kept:
                self._affinity.forget(before.pool if before else "", item.name)

    def expire(self, pools: dict[str, PoolTable], now: float) -> None:
        """Remove outdated entries, and the books of replicas that are not in a pool anymore."""
        names = {name: frozenset(item.name for item in table.candidates) for name, table in pools.items()}
        self.books.expire(now)
        self.books.keep(names)
        self.lengths.keep(names)
        self.stalls.expire(names, now)

    def read(self, table: PoolTable, question: PickerQuestion) -> Features:
        """Return a request's features."""
        caller = question.caller
        return features.read(
            table, question.headers, question.body, question.body_length,
            subset=question.subset, regions=caller.regions, place=caller.place, tenant=caller.tenant,
            factors=self.lengths.factors(table.pool),
        )  # fmt: skip

    def _is_full(self, table: PoolTable, request: Features, leaves_reserve: bool) -> bool:
        tiers = table.tiers(request.place, request.regions)
        return any(
            fullness(item, table, self.books, leaves_reserve=leaves_reserve)
            for tier in tiers
            for item in tier.candidates
            if request.subset is None or item.address in request.subset
        )


def _requests(sample: EngineSample) -> float | None:
    """Return the number of requests that an engine reports, excluding deferred ones; None if it reports none."""
    known = [count for count in (sample.running, sample.queue) if count is not None]
    return sum(known) - sample.deferred if known else None
