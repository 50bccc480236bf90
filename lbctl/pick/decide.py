"""The decision: which replica gets a request.

Of the replicas that may be picked, the one with the least expected wait is taken: the prompt tokens that it has not
computed yet and the request's own, less what its cache holds of them, divided by what it can do. What a cache holds
counts only as long as the replica's work and its requests in flight stay within `bound` times the mean, and as long as
its engine has no queue and no full KV cache while others have room. docs/develop/picking-study.md has the measurements
behind this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import REQUEST_TOKENS, Books
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable, Tier

Reason = Literal["session", "prefix", "load", "session_busy", "prefix_busy", "session_gone", "none"]
ALTERNATIVES = 3
"""The most replicas of an answer: the choice, and those that a proxy may retry on."""
DELAY = 7.0
"""How many times, at most, tokens in a cache count beside the wait that they save: elsewhere they delay all there."""
SLACK = 2.0
"""How many prompts like this one a replica may be above the bound and still get it for the sake of its cache.

Without it the bound drives requests away from their caches at every small fluctuation.
"""
SESSION_TOKENS = 1000.0
"""The least that a session counts in tokens, in the guard and for its cache: a short one stays where it is, too."""
SLACK_REQUESTS = 8.0
"""How many requests in flight a replica may be above the bound: their prompts may all be cached, and none unread."""
ADAPTER_TOKENS = 2000.0
"""What loading an adapter costs, in tokens, where another replica may have it."""


class RandomSource(Protocol):
    """What decides between equal replicas, as `random.Random` does."""

    def random(self) -> float:
        """Return a number from 0 up to, but not, 1."""


class PickResult(NamedTuple):
    """The result of a decision."""

    ordered: tuple[Candidate, ...]
    """The choice, then where to retry; empty: no replica is fit."""
    reason: Reason
    """Why the first one was chosen.

    `session`, `prefix`: its cache holds the session or the prompt's beginning. `load`: no cache does, and it has the
    least expected wait. `session_busy`, `prefix_busy`: the load of the replica with the cache outweighed the cache.
    `session_gone`: that replica is not fit any more, and no other one has the prompt's beginning. `none`: no replica is
    fit.
    """
    scores: tuple[float, ...]
    """The expected wait at each of `ordered`: tokens divided by the replica's rate."""
    tokens: float
    """The prompt tokens that the choice has to compute: what the books count."""


@dataclass(slots=True)
class Consideration:
    """The fit replicas with what speaks for and against each, in parallel sequences."""

    tier: Tier
    """The replicas."""
    works: list[float]
    """The work in flight at each, in tokens."""
    rates: list[float]
    """What each can do, slow start included."""
    waits: list[float]
    """The expected wait at each without any cache: tokens divided by the rate, the request's own by the whole one.

    So slow start limits the work in flight at a replica, and an idle one gets requests from its first moment on: were
    the request's own divided too, no request would go there under light load before its slow start has ended.
    """
    in_flight: list[float]
    """The requests in flight at each; empty where no cache is known to help."""
    saved: dict[int, float]
    """Place → the request's tokens that the replica's cache may hold."""
    credited: list[int]
    """The places whose cache counts; the others of `saved` have too much load."""
    home: str | None
    """The replica that had the request's session last, whether or not it is among these."""

    @property
    def total_rate(self) -> float:
        """What all of them can do."""
        return self.tier.total_rate if self.rates is self.tier.rates else sum(self.rates)

    def scores(self) -> list[float]:
        """Return what is compared: the waits, less what caches are worth."""
        if not self.credited:
            return self.waits
        scores, elsewhere = self.waits.copy(), self.waits.index(min(self.waits))
        for index in self.credited:
            scores[index] -= self._worth(index, elsewhere)
        return scores

    def _worth(self, index: int, elsewhere: int) -> float:
        """Return what a replica's cache is worth, where the request would go `elsewhere` without any.

        A saved token saves its wait here and a delay elsewhere: what an average replica takes for it, for each
        request there, in the proportion in which this replica takes requests already. A session goes on where its last
        request was, so its cache counts the whole delay. Any other prompt may have a beginning that many share: once it
        is computed elsewhere, that replica can take others like it. So the fewer requests there are elsewhere for each
        one here, the less the cache counts: by the square, chosen by simulation (docs/develop/decisions/0067).
        """
        tokens, delayed = self._at_least(index, self.saved[index]), DELAY
        if self.tier.names[index] != self.home:
            share = min(1.0, self._occupancy(elsewhere) / self._occupancy(index))
            tokens, delayed = tokens * share * share, min(DELAY, self.in_flight[elsewhere])
        ramp = self.rates[index] / self.tier.rates[index]
        return tokens * (1 / self.tier.rates[index] + delayed * ramp * len(self.rates) / self.total_rate)

    def _occupancy(self, index: int) -> float:
        return (self.in_flight[index] + 1) / self.rates[index]

    def slack(self, index: int, own: float) -> float:
        """Return how many tokens of work above the bound a replica may have; `own`: the size of the request."""
        return SLACK * self._at_least(index, own)

    def _at_least(self, index: int, tokens: float) -> float:
        return max(tokens, SESSION_TOKENS) if self.tier.names[index] == self.home else tokens


def pick(
    features: Features, table: PoolTable, books: Books, affinity: AffinityMemory, now: float, random: RandomSource
) -> PickResult:
    """Choose a replica. Nothing is recorded: that is for `books.started` and `affinity.remember`."""
    tier = eligible(features, table, books)
    if tier is None:
        return PickResult((), "none", (), 0.0)
    view = consider(features, table, tier, books, affinity, now)
    order = _ordered(view.scores(), random)
    first = order[0]
    tokens = features.prompt_tokens - view.saved.get(first, 0.0)
    candidates = tuple([tier.candidates[index] for index in order])
    return PickResult(candidates, _reason(view, first), tuple([view.waits[index] for index in order]), tokens)


def eligible(features: Features, table: PoolTable, books: Books) -> Tier | None:
    """Return the replicas among which the request's is chosen; None if there is none."""
    for tier in table.tiers(features.place, features.regions):
        excluded = _excluded(tier, features, books)
        if not excluded:
            return tier
        if len(excluded) < len(tier.candidates):
            return Tier([item for place, item in enumerate(tier.candidates) if place not in excluded])
    return None


def _excluded(tier: Tier, features: Features, books: Books) -> set[int]:
    """Return the places of the replicas that cannot get this request."""
    if features.subset is not None:
        return {place for place, item in enumerate(tier.candidates) if why_not(item, features, books)}
    loads = books.row(features.pool, tier.names)
    return {place for place, limit in tier.limits if loads[place].in_flight >= limit}


def why_not(candidate: Candidate, features: Features, books: Books) -> str:
    """Return why a fit replica cannot get this request; an empty string if it can."""
    if features.subset is not None and candidate.address not in features.subset:
        return "not among the addresses that the proxy asks for"
    load = books.loads(features.pool).get(candidate.name)
    if candidate.limit is not None and (load.in_flight if load else 0) >= candidate.limit:
        return f"at its limit of {candidate.limit} requests"
    return ""


def consider(
    features: Features, table: PoolTable, tier: Tier, books: Books, affinity: AffinityMemory, now: float
) -> Consideration:
    """Return what speaks for and against each replica of the tier."""
    loads = books.row(features.pool, tier.names)
    works = [load.work for load in loads]
    rates = _ramped(tier, table, now) if tier.ramping and table.slow_start else tier.rates
    own = features.prompt_tokens + REQUEST_TOKENS
    if rates is tier.rates:
        waits = [(work + own) / rate for work, rate in zip(works, rates, strict=True)]
    else:
        waits = [work / rate + own / whole for work, rate, whole in zip(works, rates, tier.rates, strict=True)]
    loaded = affinity.with_adapter(features, now)
    if loaded:
        waits = [
            wait if name in loaded else wait + ADAPTER_TOKENS / rate
            for name, wait, rate in zip(tier.names, waits, tier.rates, strict=True)
        ]
    places, home = tier.places, affinity.home(features, now)
    memory = (home,) if home and home.replica in places else affinity.holders(features, now)
    saved = {places[item.replica]: item.tokens for item in memory if item.replica in places}
    requests = [load.in_flight for load in loads] if saved else []
    view = Consideration(tier, works, rates, waits, requests, saved, [], home.replica if home else None)
    if saved:
        view.credited.extend(_within_bound(view, own, table.policy.bound))
    return view


def _within_bound(view: Consideration, own: float, bound: float) -> Iterator[int]:
    """Yield the places that may get a request of the size `own` for the sake of their caches."""
    share = bound / view.total_rate
    work, in_flight = share * (sum(view.works) + own), share * (sum(view.in_flight) + 1)
    for index in view.saved:
        rate, candidate = view.rates[index], view.tier.candidates[index]
        is_busy = (
            view.works[index] > work * rate + view.slack(index, own)
            or view.in_flight[index] >= in_flight * rate + SLACK_REQUESTS
        )
        if not is_busy and not (candidate.is_congested and view.tier.some_have_room):
            yield index


def _ramped(tier: Tier, table: PoolTable, now: float) -> list[float]:
    rates = tier.rates.copy()
    for index in tier.ramping:
        rates[index] *= table.ramp(tier.candidates[index], now)
    return rates


def _ordered(scores: list[float], random: RandomSource) -> list[int]:
    """Return the places of the lowest scores, equal ones in random order."""
    order: list[int] = []
    ascending, length = sorted(scores), min(ALTERNATIVES, len(scores))
    while (chosen := len(order)) < length:
        least = ascending[chosen]
        is_alone = ascending[chosen + 1 : chosen + 2] != [least]
        equal = [scores.index(least)] if is_alone else [place for place, score in enumerate(scores) if score == least]
        order += [equal.pop(int(random.random() * len(equal))) for _ in range(min(length - chosen, len(equal)))]
    return order


def _reason(view: Consideration, first: int) -> Reason:
    if first in view.saved:
        return "session" if view.tier.names[first] == view.home else "prefix"
    if view.home is not None:
        return "session_busy" if view.home in view.tier.places else "session_gone"
    return "prefix_busy" if view.saved else "load"
