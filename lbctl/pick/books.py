"""The work in flight of each replica: prompt tokens that were sent there and not yet computed, and requests.

The books are exact and current as far as this picker's own requests go: `started`, `first_token` and `finished` change
them at once. They are corrected by what engines report (`reconcile`) and by the counts of other pickers (`merge`), and
requests whose end was never reported are removed by age. Counts never go below zero, and nothing that still runs is
ever forgotten because of a report. Times are seconds on one clock and are arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

REQUEST_TOKENS = 30
"""What a request counts beside its unread prompt, in tokens: it takes part of every step of the engine."""
MAX_AGE = 900.0
"""Seconds after which a request without an end is removed."""
PEER_TTL = 2.0
"""Seconds after which the counts of a picker that was not heard of are removed."""
_SETTLED = 5.0
"""A request younger than this many seconds may be missing from an engine's report."""
Counts = Mapping[str, Mapping[str, tuple[int, int]]]
"""Pool → replica → (requests, unread tokens) of one picker."""


@dataclass(slots=True)
class _Flight:
    load: Load
    tokens: int
    began: float
    read: bool = False


@dataclass(slots=True)
class Load:
    """The work at one replica."""

    requests: int = 0
    """Requests of this picker that have not ended."""
    unread: int = 0
    """Their prompt tokens that the engine has not computed yet, as far as is known."""
    others: float = 0.0
    """The work of other pickers' requests and of unknown clients, in tokens."""
    others_requests: float = 0.0
    """The number of those requests."""
    _peers: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    _peer_requests: int = 0
    _peer_unread: int = 0
    _unknown: float = 0.0
    _flights: dict[str, _Flight] = field(default_factory=dict)
    _waiting: deque[_Flight] = field(default_factory=deque)
    _counted: float | None = None
    _credit: int = 0
    _excess: int = 0

    @property
    def work(self) -> float:
        """All the work here, in tokens."""
        return self.unread + REQUEST_TOKENS * self.requests + self.others

    def _refresh_others(self) -> None:
        self.others_requests = self._peer_requests + self._unknown
        self.others = self._peer_unread + REQUEST_TOKENS * self.others_requests

    def _report(self, peer: str, now: float, requests: int, unread: int) -> None:
        self._withdraw(peer)
        self._peers[peer] = (now, requests, unread)
        self._peer_requests += requests
        self._peer_unread += unread
        self._refresh_others()

    def _withdraw(self, peer: str) -> None:
        _, requests, unread = self._peers.pop(peer, (0.0, 0, 0))
        self._peer_requests -= requests
        self._peer_unread -= unread
        self._refresh_others()


class Books:
    """The work in flight of every replica, by pool and name."""

    def __init__(self) -> None:
        self._loads: dict[str, dict[str, Load]] = {}
        self._flights: dict[str, _Flight] = {}

    def __len__(self) -> int:
        """The number of requests in flight of this picker."""
        return len(self._flights)

    def __contains__(self, request: str) -> bool:
        """Return whether a request of this picker is in flight."""
        return request in self._flights

    def loads(self, pool: str) -> dict[str, Load]:
        """Return the loads of a pool's replicas by name; a replica without any load may be absent."""
        return self._loads.setdefault(pool, {})

    def load(self, pool: str, replica: str) -> Load:
        """Return the load of a replica; the object stays the same as long as the replica is kept."""
        loads = self.loads(pool)
        load_of_replica = loads.get(replica)
        if load_of_replica is None:
            load_of_replica = loads[replica] = Load()
        return load_of_replica

    def started(self, request: str, pool: str, replica: str, tokens: float, now: float) -> None:
        """Count a request that was sent to a replica, with the prompt tokens that the engine has to compute."""
        self.finished(request)
        load = self.load(pool, replica)
        flight = _Flight(load, max(0, round(tokens)), now)
        self._flights[request] = flight
        load.requests += 1
        load.unread += flight.tokens
        load._waiting.append(flight)
        load._flights[request] = flight

    def first_token(self, request: str) -> None:
        """Count a prompt as computed, because its answer has begun.

        It is ignored where the engine itself counts first tokens: response headers may come before any token.
        """
        flight = self._flights.get(request)
        if flight is not None and flight.load._counted is None:
            _mark_read(flight)

    def finished(self, request: str) -> None:
        """Remove a request that has ended in whatever way; an unknown one is ignored."""
        flight = self._flights.pop(request, None)
        if flight is None:
            return
        load = flight.load
        load._credit += not flight.read
        _mark_read(flight)
        del load._flights[request]
        load.requests -= 1

    def reconcile(
        self,
        pool: str,
        replica: str,
        running: float | None,
        waiting: float | None,
        first_tokens: float | None,
        now: float,
    ) -> None:
        """Correct a replica's counts by what its engine reports; what is None is not known.

        `first_tokens` is the engine's cumulative count of first tokens: prompts were computed in the order in which
        they were sent. Requests beyond those that the engine reports, twice in a row, have ended.
        """
        load = self.load(pool, replica)
        if first_tokens is not None:
            _read_by_count(load, first_tokens)
        if running is not None and waiting is not None:
            self._compare(load, running + waiting, now)

    def _compare(self, load: Load, reported: float, now: float) -> None:
        load._unknown = max(0.0, reported - load.requests - load._peer_requests)
        load._refresh_others()
        settled = [request for request, flight in load._flights.items() if now - flight.began > _SETTLED]
        excess = max(0, len(settled) - int(reported))
        for request in settled[: min(excess, load._excess)]:
            self.finished(request)
        load._excess = excess

    def expire(self, now: float) -> None:
        """Remove requests that are too old to be still running, and the counts of silent pickers."""
        old = []
        for request, flight in self._flights.items():
            if now - flight.began <= MAX_AGE:
                break
            old.append(request)
        for request in old:
            self.finished(request)
        for load in self._all():
            silent = [peer for peer, (heard, _, _) in load._peers.items() if now - heard > PEER_TTL]
            for peer in silent:
                load._withdraw(peer)

    def snapshot(self) -> dict[str, dict[str, tuple[int, int]]]:
        """Return this picker's own counts, for the others."""
        return {
            pool: {name: (load.requests, load.unread) for name, load in loads.items() if load.requests}
            for pool, loads in self._loads.items()
        }

    def merge(self, peer: str, counts: Counts, now: float) -> None:
        """Replace what is known of another picker's requests."""
        for pool, loads in self._loads.items():
            reported = counts.get(pool, {})
            for name, load in loads.items():
                if name not in reported and peer in load._peers:
                    load._withdraw(peer)
        for pool, replicas in counts.items():
            for name, (requests, unread) in replicas.items():
                self.load(pool, name)._report(peer, now, max(0, requests), max(0, unread))

    def keep(self, pools: Mapping[str, frozenset[str]]) -> None:
        """Remove the loads of replicas that are in no pool any more and have no requests in flight."""
        for pool, loads in list(self._loads.items()):
            names = pools.get(pool, frozenset())
            for name in [name for name, load in loads.items() if name not in names and not load.requests]:
                del loads[name]
            if not loads and pool not in pools:
                del self._loads[pool]

    def _all(self) -> Iterator[Load]:
        return (load for loads in self._loads.values() for load in loads.values())


def _mark_read(flight: _Flight) -> None:
    if not flight.read:
        flight.read = True
        flight.load.unread -= flight.tokens
        waiting = flight.load._waiting
        while waiting and waiting[0].read:
            waiting.popleft()


def _read_by_count(load: Load, count: float) -> None:
    """Mark as many of the oldest prompts as computed as the engine has counted since the last report.

    Requests that have ended in between are among them; `_credit` is their number. What is left of it is halved each
    time, because a request that ended without a first token was never counted.
    """
    before, load._counted = load._counted, count
    if before is None or count < before:
        load._credit = 0
        return
    grown = int(count - before)
    used = min(grown, load._credit)
    load._credit = (load._credit - used) // 2
    for _ in range(grown - used):
        if not load._waiting:
            return
        _mark_read(load._waiting[0])
