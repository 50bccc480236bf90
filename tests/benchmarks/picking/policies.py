"""How replicas are chosen: the algorithms of the proxies, the picker, and a dispatcher with complete knowledge."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

from lbctl.ir.pools import PickPolicy, Prefix, SlowStart
from lbctl.ir.weight import Weight, from_capacity
from lbctl.pick.affinity import AffinityMemory, CachedPrefix
from lbctl.pick.books import Books
from lbctl.pick.decide import pick
from lbctl.pick.features import Features
from lbctl.pick.stalls import EngineProgress, Stalls
from lbctl.pick.suspects import Suspects
from lbctl.pick.table import Candidate, PoolTable
from lbctl.simulate.engine import Engine, EngineCounters, SimulatedRequest
from lbctl.simulate.proxies import BALANCERS, Balancer
from tests.benchmarks.picking.traces import Arrival

POOL = "pool"


class Policy(Protocol):
    """The choices of one proxy or one picker."""

    def choose(self, number: int, arrival: Arrival, request: SimulatedRequest, now: float) -> int:
        """Return the index of the replica that gets the request."""

    def first(self, number: int, now: float) -> None:
        """Record that the request has its first token."""

    def ended(self, number: int, place: int, now: float) -> None:
        """Record that the answer of the request has ended."""

    def scraped(self, place: int, engine: EngineCounters, firsts: int, now: float) -> None:
        """Record an engine's report, which is some time old."""

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None:
        """Use these weights from now on. None means no requests. `began`: times at which replicas have returned."""


class Weights:
    """A proxy with the configured capacities or with adaptive weights."""

    def __init__(self, kind: str, capacities: Sequence[float], rng: random.Random) -> None:
        self._kind = BALANCERS[kind]
        self._balancer: Balancer = self._kind.make(len(capacities), rng)
        self.use_weights([from_capacity(item) for item in capacities], {})

    def choose(self, number: int, arrival: Arrival, request: SimulatedRequest, now: float) -> int:
        place = self._balancer.pick()
        self._balancer.active[place] += 1
        return place

    def first(self, number: int, now: float) -> None: ...

    def ended(self, number: int, place: int, now: float) -> None:
        self._balancer.active[place] -= 1

    def scraped(self, place: int, engine: EngineCounters, firsts: int, now: float) -> None: ...

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None:
        self._balancer.use_weights(self._kind.proxy_weights(weights))


class Hashed:
    """A consistent hash of the session, or of the prompt's first blocks, bounded by requests in flight."""

    def __init__(self, capacities: Sequence[float], bound: float, blocks: int) -> None:
        self._capacities, self._bound, self._blocks = capacities, bound, blocks
        self._active = [0] * len(capacities)
        self._ring = sorted(
            (_digest(f"{place}-{turn}"), place)
            for place, capacity in enumerate(capacities)
            for turn in range(round(100 * capacity))
        )

    def choose(self, number: int, arrival: Arrival, request: SimulatedRequest, now: float) -> int:
        key = arrival.session or str(arrival.blocks[: self._blocks] or number)
        at = bisect(self._ring, (_digest(key), -1))
        total = sum(self._active) + 1
        for step in range(len(self._ring)):
            place = self._ring[(at + step) % len(self._ring)][1]
            if self._active[place] + 1 <= self._bound * total * self._capacities[place] / sum(self._capacities) + 1:
                break
        self._active[place] += 1
        return place

    def first(self, number: int, now: float) -> None: ...

    def ended(self, number: int, place: int, now: float) -> None:
        self._active[place] -= 1

    def scraped(self, place: int, engine: EngineCounters, firsts: int, now: float) -> None: ...

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None: ...


class CacheAware:
    """`cache_aware` of vllm-router and of sglang-router, as documented in 2026, with an unbounded tree.

    It picks the shortest queue while the largest and the smallest number of requests in flight differ by more than
    `most` and by more than the factor `factor`. Otherwise it picks the replica with the longest match if that covers
    over half of the prompt, and else the one with the fewest requests.
    """

    def __init__(self, replicas: int, most: int, factor: float, rng: random.Random) -> None:
        self._active, self._seen = [0] * replicas, [set[int]() for _ in range(replicas)]
        self._most, self._factor, self._rng = most, factor, rng

    def choose(self, number: int, arrival: Arrival, request: SimulatedRequest, now: float) -> int:
        place = self._place(arrival)
        self._active[place] += 1
        self._seen[place].update(arrival.blocks)
        return place

    def _place(self, arrival: Arrival) -> int:
        least, largest = min(self._active), max(self._active)
        fewest = self._rng.choice([place for place, count in enumerate(self._active) if count == least])
        if largest - least > self._most and largest > self._factor * least:
            return fewest
        matches = [sum(1 for _ in takewhile(seen.__contains__, arrival.blocks)) for seen in self._seen]
        longest = max(matches)
        return matches.index(longest) if longest > 0.5 * max(1, len(arrival.blocks)) else fewest

    def first(self, number: int, now: float) -> None: ...

    def ended(self, number: int, place: int, now: float) -> None:
        self._active[place] -= 1

    def scraped(self, place: int, engine: EngineCounters, firsts: int, now: float) -> None: ...

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None: ...


class Picker:
    """The real decision with its real accounting and memory."""

    def __init__(
        self, name: str, capacities: Sequence[float], rng: random.Random, *, bound: float = 1.25, memory: bool = True,
        noise: float = 0.3, counting: bool = False,
    ) -> None:  # fmt: skip
        self.name, self._rng, self._memory, self._noise, self._counting = name, rng, memory, noise, counting
        self.books, self.affinity = Books(), AffinityMemory(records_changes=True)
        self.expected: dict[int, float] = {}
        """Number of a request → the tokens that the picker expected in the cache of the chosen replica."""
        self._stalls = Stalls()
        self._suspects = Suspects(self._stalls.avoided)
        self._table = PoolTable(
            POOL,
            PickPolicy((), Prefix(), bound),
            tuple(Candidate(str(place), f"10.0.0.{place}:1", item) for place, item in enumerate(capacities)),
            slow_start=SlowStart(),
        )

    def choose(self, number: int, arrival: Arrival, request: SimulatedRequest, now: float) -> int:
        tokens = 0.0 if self._counting else arrival.prompt * self._rng.lognormvariate(0.0, self._noise)
        features = Features(POOL, arrival.session if self._memory else None, arrival.blocks if self._memory else ())
        features = _with_tokens(features, tokens)
        table = self._suspects.without(self._table, now)
        found = pick(features, table, self.books, self.affinity, now, self._rng)
        choice = found.ordered[0]
        self.expected[number] = features.prompt_tokens - found.tokens
        self.books.started(str(number), POOL, choice.name, found.tokens, now, self.expected[number])
        if self._memory:
            self.affinity.remember(features, choice.name, now)
        return int(choice.name)

    def first(self, number: int, now: float) -> None: ...

    def ended(self, number: int, place: int, now: float) -> None:
        self.books.finished(str(number))

    def scraped(self, place: int, engine: EngineCounters, firsts: int, now: float) -> None:
        name, running, waiting = str(place), engine.running, engine.waiting
        sample = EngineProgress(now, engine.iterations, running + waiting)
        progressed_at = self._stalls.last_progress(POOL, name, sample)
        self.books.reconcile(POOL, name, running, waiting, firsts, now, progressed_at=progressed_at)
        self._stalls.observe(POOL, name, sample, self.books.load(POOL, name), stalled_after=15.0)
        self.books.expire(now)

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None:
        candidates = [
            replace(
                item, fit=weight is not None, weight=weight.rate if weight else item.weight, started=began.get(place)
            )
            for place, (item, weight) in enumerate(zip(self._table.candidates, weights, strict=True))
        ]
        self._table = replace(self._table, candidates=tuple(candidates))


class FirstBytes(Picker):
    """The same, but a proxy reports the first byte of each response's body."""

    def first(self, number: int, now: float) -> None:
        self.books.first_byte(str(number), now)


class Exact(Picker):
    """The same, but it learns of each first token at once, as with an engine that sends its headers with the first
    token."""

    def first(self, number: int, now: float) -> None:
        self.books.first_token(str(number))

    def scraped(self, place: int, engine: EngineCounters, firsts: int, now: float) -> None: ...


class Informed(Picker):
    """The same, but it knows the content of every cache, as if each engine reported all changes at once."""

    def __init__(self, engines: Sequence[Engine], name: str, capacities: Sequence[float], rng: random.Random) -> None:
        super().__init__(name, capacities, rng)
        self.affinity = _Caches(engines)

    def choose(self, number: int, arrival: Arrival, request: SimulatedRequest, now: float) -> int:
        self.affinity.request = request
        return super().choose(number, arrival, request, now)


class _Caches(AffinityMemory):
    """The content of the engines' caches for `request`."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__()
        self._engines = engines
        self.request: SimulatedRequest | None = None

    def home(self, features: Features, now: float) -> CachedPrefix | None:
        home = super().home(features, now)
        tokens = self._cached(int(home.replica)) if home else 0
        return home._replace(tokens=float(tokens)) if home and tokens else None

    def holders(self, features: Features, now: float) -> tuple[CachedPrefix, ...]:
        known = ((str(place), self._cached(place)) for place in range(len(self._engines)))
        found = [CachedPrefix(name, float(tokens)) for name, tokens in known if tokens > 0]
        return tuple(sorted(found, key=lambda item: -item.tokens))

    def _cached(self, place: int) -> int:
        cache = self._engines[place].prefix_cache
        return cache.hits(self.request) if cache and self.request else 0


class AllKnowing:
    """A dispatcher that knows the state and speed of every engine.

    It picks the replica with the earliest first token, which includes its current step and its cache.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    def choose(self, number: int, arrival: Arrival, request: SimulatedRequest, now: float) -> int:
        waits = [engine.wait(request, now) for engine in self._engines]
        return waits.index(min(waits))

    def first(self, number: int, now: float) -> None: ...

    def ended(self, number: int, place: int, now: float) -> None: ...

    def scraped(self, place: int, engine: EngineCounters, firsts: int, now: float) -> None: ...

    def use_weights(self, weights: Sequence[Weight | None], began: Mapping[int, float]) -> None: ...


def _with_tokens(features: Features, tokens: float) -> Features:
    return Features(features.pool, features.session, features.prefix, prompt_tokens=tokens)


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
