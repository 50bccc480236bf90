"""The decision: which replica gets a request.

The picker chooses the eligible replica with the least expected wait. The wait is the replica's uncomputed prompt tokens
plus the request's own tokens, minus the tokens in its cache, divided by its rate. A cache counts only while the
replica's work and requests in flight stay within `bound` times the mean. It also does not count while the engine has a
queue or a full KV cache but other replicas have room. docs/develop/picking-study.md contains the measurements behind
this.

In a pool with a queue, a request waits while every replica with a free place still has many prompt tokens to compute.
It would not get its first token earlier, but later requests of other tenants would wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import REQUEST_TOKENS, Books, ReplicaLoad
from lbctl.pick.features import Features
from lbctl.pick.table import Candidate, PoolTable, Tier

Reason = Literal["session", "prefix", "load", "session_busy", "prefix_busy", "session_gone", "full", "none"]
ALTERNATIVES = 3
"""Maximum number of replicas in a result: the choice, and replicas for retries."""
DELAY = 7.0
"""Upper bound on the weight of cached tokens beyond the wait that they save: elsewhere, they would delay other
requests."""
SLACK = 2.0
"""Number of prompts of this length by which a replica may exceed the bound and still get the request for its cache.

Without this slack, the bound drives requests away from their caches at every small fluctuation.
"""
SESSION_TOKENS = 1000.0
"""A shorter session counts as this many tokens for the bound and for its cache, so that short sessions do not move
either."""
SLACK_REQUESTS = 8.0
"""Number of requests in flight by which a replica may exceed the bound, because all their prompts may be cached."""
ADAPTER_TOKENS = 2000.0
"""Cost of loading an adapter that another replica may already have, in tokens."""
_RESERVE, _MIN_PLACES = 32, 8
"""One place in this number is the reserve of a replica for requests that go first, and at least one place of a replica
with the second number of places."""
_UNREAD_PER_PLACE = 1000.0 / 64
"""Unread prompt tokens at a replica for each of its places, from which waiting requests are not sent there."""
_MIN_UNREAD, _MAX_UNREAD = 500.0, 4000.0
"""Bounds on this number of tokens for an average replica."""
_UNREAD_SECONDS = 0.13
"""Time in seconds for which an engine may have unread prompts, at its measured speed."""
_PLACES = 64
"""Number of places of a replica whose limit is unknown."""


class RandomSource(Protocol):
    """Source of randomness for choosing between equal replicas, for example `random.Random`."""

    def random(self) -> float:
        """Return a number in the half-open interval [0, 1)."""


class PickResult(NamedTuple):
    """The result of a decision."""

    ordered: tuple[Candidate, ...]
    """The choice, followed by the replicas for retries; empty if no replica is fit."""
    reason: Reason
    """Why the first replica was chosen.

    - `session`, `prefix`: its cache contains the session or a prefix of the prompt.
    - `load`: no cache does, and it has the least expected wait.
    - `session_busy`, `prefix_busy`: the load of the replica with the cache outweighed the cache.
    - `session_gone`: the session's replica is no longer fit, and no other replica has a prefix of the prompt.
    - `full`: every replica with a free place still has many prompt tokens to compute. Only for pools with a queue.
    - `none`: no replica is fit.
    """
    scores: tuple[float, ...]
    """Expected wait at each of `ordered`: tokens divided by the replica's rate."""
    tokens: float
    """Prompt tokens that the chosen replica has to compute, for the books."""


@dataclass(slots=True)
class Consideration:
    """The fit replicas and the factors of the decision for each, in parallel sequences."""

    tier: Tier
    """The replicas."""
    works: list[float]
    """Work in flight at each replica, in tokens."""
    rates: list[float]
    """Rate of each replica, relative to the others, including slow start."""
    waits: list[float]
    """Expected wait at each replica without any cache.

    Tokens in flight are divided by the rate during slow start, and the request's own tokens by the full rate. So slow
    start limits the work in flight at a replica, but an idle replica gets requests immediately. If the request's own
    tokens were divided by the reduced rate, no request would go there under light load before slow start ends.
    """
    in_flight: list[float]
    """Requests in flight at each replica; empty if no cache is known to help."""
    saved: dict[int, float]
    """Maps each replica index to the number of the request's tokens that its cache may contain."""
    credited: list[int]
    """Indexes of the replicas whose cache counts; the other replicas in `saved` are too loaded."""
    home: str | None
    """The replica that last served the request's session, whether or not it is in the tier."""

    @property
    def total_rate(self) -> float:
        """Sum of the rates."""
        return self.tier.total_rate if self.rates is self.tier.rates else sum(self.rates)

    def scores(self) -> list[float]:
        """Return the values that the decision compares: the waits minus the value of caches."""
        if not self.credited:
            return self.waits
        scores, elsewhere = self.waits.copy(), self.waits.index(min(self.waits))
        for index in self.credited:
            scores[index] -= self._worth(index, elsewhere)
        return scores

    def _worth(self, index: int, elsewhere: int) -> float:
        """Return the value of a replica's cache if the request would otherwise go to the replica `elsewhere`.

        A cached token saves its own wait at this replica and a delay at the other one. The delay is the time that an
        average replica needs for the token, for each request at the other replica, scaled by this replica's slow start.
        A session continues where its last request was, so its cache is credited with the whole delay. Any other
        prompt's prefix may be shared by many requests: once the other replica has computed it, it can take similar
        requests. Therefore, the fewer requests the other replica has for each request at this replica, the less the
        cache counts: by the square, chosen by simulation (docs/develop/decisions/0067).
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
        """Return the number of tokens by which a replica's work may exceed the bound. `own` is the request's length."""
        return SLACK * self._at_least(index, own)

    def _at_least(self, index: int, tokens: float) -> float:
        return max(tokens, SESSION_TOKENS) if self.tier.names[index] == self.home else tokens


def pick(
    features: Features, table: PoolTable, books: Books, affinity: AffinityMemory, now: float, random: RandomSource,
    *, leaves_reserve: bool = False, can_wait: bool = True,
) -> PickResult:  # fmt: skip
    """Choose a replica. Nothing is recorded: call `books.started` and `affinity.remember` for that.

    `leaves_reserve`: whether the request leaves the reserve of each replica free. `can_wait`: whether it can wait for
    replicas to compute other prompts.
    """
    view = considered(features, table, books, affinity, now, leaves_reserve=leaves_reserve, can_wait=can_wait)
    if not isinstance(view, Consideration):
        return PickResult((), view, (), 0.0)
    order, tier = _ordered(view.scores(), random), view.tier
    first = order[0]
    tokens = features.prompt_tokens - view.saved.get(first, 0.0)
    candidates = tuple([tier.candidates[index] for index in order])
    return PickResult(candidates, _reason(view, first), tuple([view.waits[index] for index in order]), tokens)


def considered(
    features: Features, table: PoolTable, books: Books, affinity: AffinityMemory, now: float,
    *, leaves_reserve: bool = False, can_wait: bool = True,
) -> Consideration | Literal["full", "none"]:  # fmt: skip
    """Return the replicas that the request may go to now, with the factors of the decision; a reason if none.

    In a pool with a queue, a replica with many unread prompts gets only requests whose prompts are mostly in its cache,
    and only while another replica is ready. Without this exception, sessions would leave their caches.
    """
    tier = _eligible(features, table, books, leaves_reserve=leaves_reserve)
    if tier is None:
        return "none"
    if table.policy.queue is None or not can_wait:
        return consider(features, table, tier, books, affinity, now)
    loads = books.row(features.pool, tier.names)
    ready = [index for index, load in enumerate(loads) if not _reads(tier, index, load, now)]
    if not ready:
        return "full"
    view = consider(features, table, tier, books, affinity, now)
    if len(ready) == len(loads):
        return view
    kept = {*ready, *(index for index in view.credited if view.saved[index] > features.prompt_tokens / 2)}
    now_used = Tier([item for index, item in enumerate(tier.candidates) if index in kept], tier.capacity)
    return consider(features, table, now_used, books, affinity, now)


def _eligible(features: Features, table: PoolTable, books: Books, *, leaves_reserve: bool) -> Tier | None:
    """Return the replicas with a place for the request; None if there are none."""
    for tier in table.tiers(features.place, features.regions):
        excluded = _excluded(tier, features, table, books, leaves_reserve)
        if not excluded:
            return tier
        if len(excluded) < len(tier.candidates):
            return Tier([item for place, item in enumerate(tier.candidates) if place not in excluded], tier.capacity)
    return None


def _reads(tier: Tier, index: int, load: ReplicaLoad, now: float) -> bool:
    """Return whether a replica still has enough prompt tokens to compute, so that requests wait.

    Enough are the tokens that the engine computes in `_UNREAD_SECONDS`. But the measured speed is low if an engine only
    gets short prompts. So they are at least in proportion to the replica's places, because an engine with more places
    computes more prompts at once, and to its rate relative to the others.
    """
    unread = load.reading(now)
    if not unread:
        return False
    known = [limit for limit in (tier.candidates[index].limit, load.engine_limit) if limit is not None]
    places = min(known, default=_PLACES)
    most = min(max(_MIN_UNREAD, _UNREAD_PER_PLACE * places), _MAX_UNREAD)
    least = most * tier.rates[index] * len(tier.rates) / tier.total_rate
    return unread >= max(least, _UNREAD_SECONDS * load.reading_speed)


def why_later(candidate: Candidate, features: Features, table: PoolTable, books: Books, now: float) -> str:
    """Return the reason why a replica with a free place cannot get this request at the moment; empty if it can."""
    for tier in table.tiers(features.place, features.regions) if table.policy.queue is not None else ():
        load, index = books.load(table.pool, candidate.name), tier.places.get(candidate.name)
        if index is not None and _reads(tier, index, load, now):
            return f"still has to compute about {load.reading(now):.0f} prompt tokens"
    return ""


def _excluded(tier: Tier, features: Features, table: PoolTable, books: Books, leaves_reserve: bool) -> set[int]:
    """Return the indexes of the replicas that cannot get this request."""
    if features.subset is not None:
        return {
            place
            for place, item in enumerate(tier.candidates)
            if why_not(item, features, table, books, leaves_reserve=leaves_reserve)
        }
    loads = books.row(features.pool, tier.names)
    if leaves_reserve:
        excluded = {place for place, limit in tier.limits if loads[place].in_flight >= limit - reserve_of(limit)}
    else:
        excluded = {place for place, limit in tier.limits if loads[place].in_flight >= limit}
    if table.policy.queue is not None:
        excluded |= {place for place, load in enumerate(loads) if _engine_is_full(load, leaves_reserve)}
    return excluded


def reserve_of(limit: int) -> int:
    """Return how many of a replica's places are its reserve."""
    return max(1, limit // _RESERVE) if limit >= _MIN_PLACES else 0


def why_not(
    candidate: Candidate, features: Features, table: PoolTable, books: Books, *, leaves_reserve: bool = False
) -> str:
    """Return the reason why a fit replica cannot get this request; empty if it can."""
    if features.subset is not None and candidate.address not in features.subset:
        return "not among the addresses in the proxy's request"
    return fullness(candidate, table, books, leaves_reserve=leaves_reserve)


def fullness(candidate: Candidate, table: PoolTable, books: Books, *, leaves_reserve: bool = False) -> str:
    """Return the reason why a replica is full; empty if it has room. Only requests with a queue wait for engines."""
    load, limit = books.loads(table.pool).get(candidate.name), candidate.limit
    in_flight = load.in_flight if load else 0
    if limit is not None and in_flight >= limit:
        return f"at its limit of {limit} requests"
    if table.policy.queue is None:
        return ""
    if load is not None and _engine_is_full(load, leaves_reserve=False):
        return f"its engine is full with {load.engine_limit} requests"
    is_reserve = limit is not None and in_flight >= limit - reserve_of(limit)
    if leaves_reserve and (is_reserve or (load is not None and _engine_is_full(load, leaves_reserve))):
        return "its free places are a reserve for requests that go first"
    return ""


def _engine_is_full(load: ReplicaLoad, leaves_reserve: bool) -> bool:
    limit = load.engine_limit
    return limit is not None and load.in_flight >= limit - (reserve_of(limit) if leaves_reserve else 0)


def consider(
    features: Features, table: PoolTable, tier: Tier, books: Books, affinity: AffinityMemory, now: float
) -> Consideration:
    """Return the factors of the decision for each replica of the tier."""
    loads = books.row(features.pool, tier.names)
    works = [load.work for load in loads]
    rates = table.rates(tier, now)
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
        view.credited.extend(_within_bound(view, own, table.policy.bound, loads))
    return view


def _within_bound(view: Consideration, own: float, bound: float, loads: Sequence[ReplicaLoad]) -> Iterator[int]:
    """Yield the indexes of the replicas that may get a request of `own` tokens because of their caches."""
    share = bound / view.total_rate
    work, in_flight = share * (sum(view.works) + own), share * (sum(view.in_flight) + 1)
    for index in view.saved:
        rate, candidate = view.rates[index], view.tier.candidates[index]
        is_busy = (
            view.works[index] > work * rate + view.slack(index, own)
            or view.in_flight[index] >= in_flight * rate + SLACK_REQUESTS
        )
        if not is_busy and not (_is_congested(candidate, loads[index]) and _some_have_room(view.tier, loads)):
            yield index


def _is_congested(candidate: Candidate, load: ReplicaLoad) -> bool:
    """Return whether requests are waiting in an engine for capacity, or its KV cache is full.

    Requests sent just before its report may only be waiting for its next step. With long prompts, half of a busy
    engine's reports contain such requests. Prefixes would then move to other replicas, whose caches do not contain
    them.
    """
    return candidate.has_full_cache or (candidate.queue or 0.0) > load.recent


def _some_have_room(tier: Tier, loads: Sequence[ReplicaLoad]) -> bool:
    """Return whether at least one replica is known to have neither a queue nor a full KV cache."""
    return any(
        item.queue is not None and not _is_congested(item, load)
        for item, load in zip(tier.candidates, loads, strict=True)
    )


def _ordered(scores: list[float], random: RandomSource) -> list[int]:
    """Return the indexes of the lowest scores, with ties in random order."""
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
