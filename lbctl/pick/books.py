"""The work in flight at each replica: requests, and prompt tokens that have been sent but not computed yet.

For this picker's own requests, the books are exact and current: `started`, `first_token`, `first_byte` and `finished`
update them immediately. They are corrected by engine reports (`reconcile`) and other pickers' counts (`merge`), and
requests whose end is never reported are removed once they are too old. Counts never go below zero, and a report never
removes a request that is still running. Times are passed as arguments, in seconds on one clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from lbctl.pick.backlog import Backlog, Prompt
from lbctl.pick.prompt import EMPTY, PromptLength

REQUEST_TOKENS = 30
"""Cost of a request in addition to its uncomputed prompt, in tokens, because the request takes part in every engine
step."""
MAX_AGE = 900.0
"""Seconds after which a request is removed if its end has not been reported."""
PEER_TTL = 2.0
"""Seconds without a message after which another picker's counts are removed."""
_SETTLED = 5.0
"""Age in seconds up to which a request may be missing from an engine's report."""
_MAX_SILENCE = 60.0
"""Seconds without an engine report after which the engine's limit and its unknown requests are discarded."""
_STEP = 0.25
"""A request sent less than this many seconds before a report may simply be waiting for the engine's next step."""
_MAX_ROWS = 64
"""Maximum number of cached rows. A pool has one row for each combination of tier, proxy location and allowed
regions."""
_MAX_PROMPTS = 100
"""Maximum number of prompts that one message can add. If a message contains more, they are counted as this many longer
prompts."""


class Count(NamedTuple):
    """One picker's requests to a replica."""

    requests: int
    """Requests that have not ended."""
    unread: int
    """Prompt tokens in these requests that the engine has not computed yet."""
    sent: int = 0
    """Number of requests sent since the picker started counting."""
    sent_tokens: int = 0
    """Prompt tokens in all `sent` requests that the engine had to compute."""
    cached_tokens: int = 0
    """Prompt tokens in all `sent` requests that the picker expected the engine to have cached."""
    sent_ascii: int = 0
    """Tokens for the ASCII characters in all these prompts, estimated without learned factors."""
    sent_han: int = 0
    """Tokens for the Chinese characters in all these prompts."""
    sent_other: int = 0
    """Tokens for all other characters in these prompts."""
    sent_parts: int = 0
    """Tokens for the non-text parts of all these prompts."""


Counts = Mapping[str, Mapping[str, Count]]
"""Maps each pool and replica to one picker's counts."""
_NOTHING = Count(0, 0)


@dataclass(slots=True)
class _Flight:
    load: ReplicaLoad
    prompt: Prompt


@dataclass(slots=True)
class ReplicaLoad:
    """The work at one replica."""

    requests: int = 0
    """This picker's requests that have not ended."""
    others_requests: float = 0.0
    """Number of requests from other pickers and from unknown clients."""
    in_flight: float = 0.0
    """Total number of requests at the replica."""
    work: float = 0.0
    """Total work at the replica, in tokens."""
    engine_limit: int | None = None
    """Number of requests that the engine runs concurrently; None if it has not reported being full."""
    recent: float = 0.0
    """Requests sent just before the engine's last report, which may simply be waiting for its next step."""
    _backlog: Backlog = field(default_factory=Backlog)
    _sent: int = 0
    _sent_tokens: int = 0
    _cached_tokens: int = 0
    _sent_length: list[float] = field(default_factory=lambda: [0.0] * len(EMPTY))
    _peers: dict[str, Count] = field(default_factory=dict)
    _peer_requests: int = 0
    _peer_unread: int = 0
    _peer_cached_tokens: int = 0
    """Cached tokens that other pickers have expected since this picker first received a message from them."""
    _unknown: float = 0.0
    _reported_at: float = -inf
    """Time of the engine's last report."""
    _flights: dict[str, _Flight] = field(default_factory=dict)
    _excess: int = 0

    @property
    def unread(self) -> int:
        """Prompt tokens that the engine has not computed yet, according to the latest reports."""
        return self._backlog.tokens

    @property
    def expected_cached(self) -> int:
        """Prompt tokens that this and other pickers have so far expected the engine to have cached."""
        return self._cached_tokens + self._peer_cached_tokens

    @property
    def picked(self) -> int:
        """Number of requests in flight that this and other pickers have sent to the replica."""
        return self.requests + self._peer_requests

    @property
    def others_sent(self) -> int:
        """Number of requests that other pickers have so far sent to the replica."""
        return sum(count.sent for count in self._peers.values())

    def oldest(self, now: float) -> float:
        """Return the time at which this picker's oldest request in flight was sent; `now` if none is in flight."""
        flight = next(iter(self._flights.values()), None)
        return now if flight is None else flight.prompt.sent

    def reading(self, now: float) -> float:
        """Return a cautious estimate of the prompt tokens that the engine has not computed yet; it ends by time."""
        return self._backlog.reading(now)

    @property
    def reading_speed(self) -> float:
        """Tokens per second at which the engine is expected to compute prompts; 0 if unknown."""
        return self._backlog.reading_speed

    def unread_before(self, at: float) -> int:
        """Return the number of `unread` tokens sent by the time `at`."""
        return self._backlog.before(at)

    def sent_between(self, begin: float, end: float) -> float:
        """Return an estimate of the number of requests in flight that this and other pickers sent in this interval."""
        own = sum(begin < flight.prompt.sent <= end for flight in self._flights.values())
        return own * self.picked / self.requests if own else 0.0

    def stopped(self, until: float) -> None:
        """Record that the engine had stopped up to this time. Its speed does not depend on the prompts sent before."""
        self._backlog.stopped(until)

    @property
    def speed(self) -> float:
        """Prompt tokens per second before the first token, averaged over the last few minutes; 0 if unknown."""
        return self._backlog.speed

    def count(self) -> Count:
        """Return this picker's counts."""
        return Count(
            self.requests, self.unread, self._sent, self._sent_tokens, self._cached_tokens,
            *map(round, self._sent_length),
        )  # fmt: skip

    def _refresh(self) -> None:
        self.others_requests = self._peer_requests + self._unknown
        self.in_flight = self.requests + self.others_requests
        unread = self._backlog.tokens + (0 if self._backlog.is_counted else self._peer_unread)
        self.work = unread + REQUEST_TOKENS * self.in_flight

    def _report(self, peer: str, now: float, count: Count, *, is_known: bool) -> None:
        """Replace another picker's counts.

        `is_known`: whether this picker has received a message from the other picker before.
        """
        before = self._peers.get(peer)
        if before == count:
            return
        self._withdraw(peer)
        self._peers[peer] = count
        self._peer_requests += count.requests
        self._peer_unread += count.unread
        if before is not None:
            self._peer_cached_tokens += max(0, count.cached_tokens - before.cached_tokens)
            self._add(before, count, now)
        elif is_known and count.sent <= _MAX_PROMPTS:  # its earlier messages did not mention this replica
            self._add(_NOTHING, count, now)
        self._refresh()

    def _add(self, before: Count, count: Count, now: float) -> None:
        """Add the prompts that another picker has sent since `before`, assuming that all have the same length.

        Older picker versions do not send the lengths. Until the engine counts first tokens, the tokens are in
        `_peer_unread`, and the prompts only keep their place in the order.
        """
        number = min(count.sent - before.sent, _MAX_PROMPTS)
        if number > 0:
            _, _, _, tokens, _, *parts = (max(0, after - earlier) for after, earlier in zip(count, before, strict=True))
            length = PromptLength(*(part / number for part in parts)) if any(parts) else None
            each = tokens // number if self._backlog.is_counted else 0
            for _ in range(number):
                self._backlog.add(each, now, is_own=False, length=length)

    def _withdraw(self, peer: str) -> None:
        count = self._peers.pop(peer, _NOTHING)
        self._peer_requests -= count.requests
        self._peer_unread -= count.unread
        self._refresh()


class Books:
    """The work in flight at every replica, keyed by pool and name."""

    def __init__(self) -> None:
        self._loads: dict[str, dict[str, ReplicaLoad]] = {}
        self._flights: dict[str, _Flight] = {}
        self._heard: dict[str, float] = {}
        """Maps each other picker to the time of its last message."""
        self._rows: dict[int, tuple[Sequence[str], list[ReplicaLoad]]] = {}
        """Maps the `id` of a sequence of names to the names and their loads. The `id` stays valid because the names are
        kept alive."""

    def __len__(self) -> int:
        """Return the number of this picker's requests in flight."""
        return len(self._flights)

    def __contains__(self, request: str) -> bool:
        """Return whether one of this picker's requests is in flight."""
        return request in self._flights

    def loads(self, pool: str) -> dict[str, ReplicaLoad]:
        """Return the loads of a pool's replicas by name; replicas without load may be absent."""
        return self._loads.setdefault(pool, {})

    def load(self, pool: str, replica: str) -> ReplicaLoad:
        """Return a replica's load. The same object is returned until the replica is removed."""
        loads = self.loads(pool)
        load_of_replica = loads.get(replica)
        if load_of_replica is None:
            load_of_replica = loads[replica] = ReplicaLoad()
        return load_of_replica

    def row(self, pool: str, names: Sequence[str]) -> list[ReplicaLoad]:
        """Return the loads of these replicas in the given order.

        The list is cached and reused if the next call passes the same object.
        """
        kept = self._rows.get(id(names))
        if kept is None:
            if len(self._rows) >= _MAX_ROWS:
                self._rows.clear()
            kept = self._rows[id(names)] = names, [self.load(pool, name) for name in names]
        return kept[1]

    def started(
        self, request: str, pool: str, replica: str, tokens: float, now: float, cached_tokens: float = 0.0,
        length: PromptLength = EMPTY,
    ) -> None:  # fmt: skip
        """Record a request that was sent to a replica.

        `tokens` and `cached_tokens`: prompt tokens that the engine has to compute, and prompt tokens that it is
        expected to have cached. `length`: length of the entire prompt, without learned factors.
        """
        self.finished(request)
        load, count = self.load(pool, replica), max(0, round(tokens))
        flight = _Flight(load, load._backlog.add(count, now, length=length))
        self._flights[request] = load._flights[request] = flight
        load.requests += 1
        load._sent += 1
        load._sent_tokens += count
        load._cached_tokens += round(cached_tokens)
        for index, part in enumerate(length):
            load._sent_length[index] += part
        load._refresh()

    def first_token(self, request: str) -> None:
        """Record that a prompt has been computed, because its response has begun.

        This has no effect if the engine counts first tokens itself, because response headers may arrive before the
        first token.
        """
        flight = self._flights.get(request)
        if flight is not None and not flight.load._backlog.is_counted:
            flight.load._backlog.remove(flight.prompt)
            flight.load._refresh()

    def first_byte(self, request: str, now: float) -> None:
        """Record that a prompt has been computed, because the response body has begun with the first token."""
        flight = self._flights.get(request)
        if flight is not None:
            flight.load._backlog.first_byte(flight.prompt, now)
            flight.load._refresh()

    def finished(self, request: str) -> None:
        """Remove a request that has ended, for whatever reason. Unknown requests are ignored."""
        flight = self._flights.pop(request, None)
        if flight is None:
            return
        flight.load._backlog.end(flight.prompt)
        del flight.load._flights[request]
        flight.load.requests -= 1
        flight.load._refresh()

    def reconcile(
        self,
        pool: str,
        replica: str,
        running: float | None,
        waiting: float | None,
        first_tokens: float | None,
        taken: float,
        ttft: float | None = None,
        progressed_at: float = inf,
        duration: float = 0.0,
    ) -> list[PromptLength] | None:
        """Correct a replica's counts using its engine's report from the time `taken`.

        None means that a value is unknown. `first_tokens` is the engine's cumulative first-token count, and `ttft` is
        the mean time to first token since the last report, in seconds. `duration` is the time from `taken` until the
        report was complete, in seconds. `progressed_at` is the time of the engine's last progress. `running` and
        `waiting` refer to this time, because an engine does not update them during a long step. If two consecutive
        measurements report fewer requests than counted, the excess requests are treated as ended. Pass each measurement
        only once.

        Return the lengths of the prompts that the engine has computed since the last report; None if unknown.
        """
        load = self.load(pool, replica)
        load._reported_at = taken
        load.recent = load.sent_between(taken - _STEP, taken) if waiting else 0.0
        computed = None if first_tokens is None else load._backlog.count(first_tokens, taken, ttft, duration)
        if running is not None and waiting is not None:
            self._compare(load, running + waiting, min(taken - _SETTLED, progressed_at))
        load._refresh()
        return computed

    def learn_limit(
        self, pool: str, replica: str, running: float | None, waiting: float, taken: float, *, has_full_cache: bool
    ) -> None:
        """Learn from a report how many requests an engine runs concurrently.

        The engine is at its limit if more requests are waiting in it than were sent just before the report. If only its
        cache is full, the number of running requests becomes the initial limit. Some engines count reusable blocks as
        used and therefore always report a full cache. After that, each report at the limit raises it by one, because an
        engine may be able to run more short requests than long ones. If fewer than half of the limit are in flight, the
        limit is discarded. `running`: None if the engine does not report it. `taken`: time of the report.
        docs/develop/picking-study.md has measurements.
        """
        load = self.load(pool, replica)
        if running is None:
            load.engine_limit = None
        elif waiting > load.sent_between(taken - _STEP, taken):
            load.engine_limit = max(1, int(running))
        elif load.engine_limit is None:
            if has_full_cache:
                load.engine_limit = max(1, int(running), int(load.in_flight))
        elif load.in_flight >= load.engine_limit:
            load.engine_limit += 1
        elif load.in_flight < load.engine_limit / 2:
            load.engine_limit = None

    def _compare(self, load: ReplicaLoad, reported: float, before: float) -> None:
        """Correct the counts using the reported number of requests, which includes all requests sent by `before`."""
        load._backlog.limit(int(reported), before)
        load._unknown = max(0.0, reported - load.requests - load._peer_requests)
        settled = [request for request, flight in load._flights.items() if flight.prompt.sent < before]
        excess = max(0, len(settled) - int(reported))
        for request in settled[: min(excess, load._excess)]:
            self.finished(request)
        load._excess = excess

    def expire(self, now: float) -> None:
        """Remove requests that are too old to be still running, and the counts of pickers that no longer send any."""
        old = []
        for request, flight in self._flights.items():
            if now - flight.prompt.sent <= MAX_AGE:
                break
            old.append(request)
        for request in old:
            self.finished(request)
        silent = [peer for peer, heard in self._heard.items() if now - heard > PEER_TTL]
        for peer in silent:
            del self._heard[peer]
        for load in self._all():
            for peer in silent:
                load._withdraw(peer)
            if now - load._reported_at > _MAX_SILENCE:
                load.engine_limit, load._unknown = None, 0.0
            load._backlog.expire(now)
            load._refresh()

    def snapshot(self) -> dict[str, dict[str, Count]]:
        """Return this picker's own counts to send to other pickers."""
        return {
            pool: {name: load.count() for name, load in loads.items() if load._sent}
            for pool, loads in self._loads.items()
        }

    def expected_cached(self) -> dict[str, dict[str, int]]:
        """Map each pool and replica to the prompt tokens that all pickers have so far expected it to have cached."""
        return {
            pool: {name: load.expected_cached for name, load in loads.items() if load.expected_cached}
            for pool, loads in self._loads.items()
        }

    def merge(self, peer: str, counts: Counts, now: float) -> None:
        """Replace another picker's counts."""
        for pool, loads in self._loads.items():
            reported = counts.get(pool, {})
            for name, load in loads.items():
                if name not in reported and peer in load._peers:
                    load._withdraw(peer)
        for pool, replicas in counts.items():
            for name, count in replicas.items():
                self.load(pool, name)._report(peer, now, count, is_known=peer in self._heard)
        self._heard[peer] = now

    def keep(self, pools: Mapping[str, frozenset[str]]) -> None:
        """Remove the loads of replicas that are not in any pool and have no requests in flight."""
        self._rows.clear()
        for pool, loads in list(self._loads.items()):
            names = pools.get(pool, frozenset())
            for name in [name for name, load in loads.items() if name not in names and not load.requests]:
                del loads[name]
            if not loads and pool not in pools:
                del self._loads[pool]

    def _all(self) -> Iterator[ReplicaLoad]:
        return (load for loads in self._loads.values() for load in loads.values())
