"""Decides how several pickers share a pool's replicas when requests are waiting at more than one picker.

A picker learns that another picker's request has freed a slot from that picker's next message. A picker whose own
requests fill the replicas could therefore give every free slot to its own next request, and requests at the other
pickers would wait forever. To prevent this, all pickers sort themselves in the same order, and a free slot belongs to
the first picker in this order. The other pickers leave the slot to it for a short time.

Each picker's share of the slots is determined by the priorities and weights of the flows (for example tenants) waiting
there. The order is based on each picker's number of requests in flight relative to its share, plus its tag. A picker's
tag is the number of slots that it has taken relative to its share, as in start-time fair queueing. This way, a picker
whose share is less than one slot gets a slot from time to time. The tags differ by at most about one slot: a picker
earns no credit while it pauses, and longer requests do not cost it additional slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from lbctl.pick.books import PEER_TTL
from lbctl.pick.waiting import MAX_PASSED

_TURN = 0.15
"""Seconds for which a free slot is left to each picker earlier in the order: three times the message interval."""
_PAUSE, _MAX_PAUSE = 1.0, 8.0
"""Seconds during which no slot is left to the other pickers after they did not use one because their requests need
other replicas.

The pause doubles each time, up to the second value.
"""
ANNOUNCED = 0.055
"""Seconds after which all pickers know that requests are waiting at this one: a message interval plus a margin."""
_MIN_SHARE = 1e-6
_MAX_TAG = 1e12
"""Maximum tag. When a picker's tag reaches this value, it restarts at 0, because other pickers reject tags above
1e15."""
_MAX_LEAD = 0.9
"""Maximum number of slots by which one tag may be ahead of another. The value is less than one, so that a picker whose
requests in flight match its share immediately reuses the slot of a request that ends."""
_DIGITS = 6
"""Number of digits to which pickers compare their order, because they add the same numbers in different sequences."""


class Demand(NamedTuple):
    """The requests waiting for a pool at one picker."""

    weights: tuple[float, ...]
    """Sum of the weights of the waiting flows, for each of `PRIORITIES`."""
    tag: float | None = None
    """Number of slots that the picker has taken relative to its share; None if its version does not send this
    number."""


Demands = Mapping[str, Demand]
"""Maps each pool to the requests waiting for it; pools with an empty queue are absent."""


class _Peer(NamedTuple):
    """Another picker's last message."""

    heard: float
    demands: Demands
    precedes: bool
    """Whether that picker takes precedence in a tie."""
    requests: Mapping[str, int]
    """Maps each pool to the number of the picker's requests in flight."""


class QueueShares:
    """This picker's share of each pool. Times are in seconds on one clock."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        """The other pickers that have waiting requests."""
        self._tags: dict[str, float] = {}
        """Maps each pool to this picker's tag."""
        self._left: dict[str, dict[str, tuple[float, int]]] = {}
        """Maps each pool and replica to the time since which a free slot has been left to the other pickers, and to the
        value of `sent` at that time."""
        self._paused: dict[str, tuple[float, float]] = {}
        """Maps each pool to the end and length of the pause during which no slot is left to the other pickers."""

    def merge(self, peer: str, demands: Demands, now: float, *, precedes: bool) -> None:
        """Replace the requests waiting at another picker. `precedes`: whether that picker takes precedence in a tie."""
        waiting = {pool: demand for pool, demand in demands.items() if any(demand.weights)}
        if waiting:
            self._peers[peer] = _Peer(now, waiting, precedes, {})
        else:
            self._peers.pop(peer, None)

    def merge_requests(self, peer: str, requests: Mapping[str, int]) -> None:
        """Replace another picker's numbers of requests in flight, by pool. Call `merge` first."""
        if peer in self._peers:
            self._peers[peer] = self._peers[peer]._replace(requests=requests)

    def demand(self, pool: str, weights: tuple[float, ...]) -> Demand:
        """Return the requests waiting for a pool at this picker, to send to the other pickers."""
        return Demand(weights, self._tags.get(pool, 0.0))

    def is_contested(self, pool: str, now: float) -> bool:
        """Return whether other pickers may need a free slot in a pool.

        If not, no slot is left to them.
        """
        until, _ = self._paused.get(pool, (0.0, 0.0))
        if now >= until and self._others(pool, now):
            return True
        self._left.pop(pool, None)
        return False

    def takes(self, pool: str, weights: tuple[float, ...], requests: int, replica: str, sent: int, now: float) -> bool:
        """Return whether this picker takes a contested slot. If it does, the slot is recorded as taken.

        `weights` is the sum of the weights of the flows waiting at this picker, by priority. `requests` is the number
        of this picker's requests at the pool's replicas. `replica` has the free slot, and the other pickers have so far
        sent `sent` requests to it.
        """
        others = self._others(pool, now)
        own, *shares = _shares([weights, *(peer.demands[pool].weights for peer in others)])
        reported = [(share, peer.demands[pool].tag) for share, peer in zip(shares, others, strict=True)]
        tags = [(share, each) for share, each in reported if each is not None]
        tag = self._tags[pool] = _bounded(self._tags.get(pool, 0.0), own, tags)
        place = round(tag + (requests + 0.5) / own, _DIGITS)
        earlier = 0
        for peer, share in zip(others, shares, strict=True):
            other = peer.demands[pool].tag
            other = (tag if other is None else other) + (peer.requests.get(pool, 0) + 0.5) / share
            other = round(other, _DIGITS)
            earlier += other < place or (other == place and peer.precedes)
        if earlier and self._leaves(pool, replica, sent, _TURN * earlier, now):
            return False
        if not earlier:
            self._left.pop(pool, None)
        self._tags[pool] = _bounded((tag + 1 / own) % _MAX_TAG, own, tags)
        return True

    def passes(self, pool: str, weights: tuple[float, ...], now: float) -> tuple[float, ...]:
        """Return, for each priority, the number of higher-priority requests after which one of its requests is served.

        Priorities with requests waiting at other pickers are included. `weights` is the sum of the weights of this
        picker's waiting flows, by priority.
        """
        places = _places([weights, *(peer.demands[pool].weights for peer in self._others(pool, now))])
        own = [each * weight for each, weight in zip(places, weights, strict=True)]
        return tuple([sum(own[:index]) / part if part and any(own[:index]) else inf for index, part in enumerate(own)])

    def full(self, pool: str) -> None:
        """Record that no slot is free, for example because another picker took it."""
        if self._left.pop(pool, None) is not None:
            self._paused.pop(pool, None)

    def forget(self, pool: str) -> None:
        """Forget a pool that does not have a queue anymore."""
        self._tags.pop(pool, None)
        self._left.pop(pool, None)
        self._paused.pop(pool, None)

    def _leaves(self, pool: str, replica: str, sent: int, seconds: float, now: float) -> bool:
        """Return whether a free slot is left to the others, for `seconds` after their last request to the replica."""
        left = self._left.setdefault(pool, {})
        since, before = left.setdefault(replica, (now, sent))
        if before != sent:
            since, _ = left[replica] = now, sent
        if now - since < seconds:
            return True
        del self._left[pool]
        _, length = self._paused.get(pool, (0.0, 0.0))
        length = min(2 * length, _MAX_PAUSE) or _PAUSE
        self._paused[pool] = now + length, length
        return False

    def _others(self, pool: str, now: float) -> list[_Peer]:
        """Return the other pickers that have requests waiting for a pool."""
        for name in [name for name, peer in self._peers.items() if now - peer.heard > PEER_TTL]:
            del self._peers[name]
        return [peer for peer in self._peers.values() if pool in peer.demands]


def _shares(weights: Sequence[Sequence[float]]) -> list[float]:
    """Return each picker's share, based on the weights of its waiting flows by priority."""
    places = _places(weights)
    return [max(_MIN_SHARE, sum(a * b for a, b in zip(places, own, strict=True))) for own in weights]


def _places(weights: Sequence[Sequence[float]]) -> list[float]:
    """Return, for each priority, the share of a flow with weight 1, based on each picker's weights by priority.

    As within a single picker, the highest waiting priority gets `MAX_PASSED` slots for each slot given to another
    priority.
    """
    sums = [max(total, _MIN_SHARE) if (total := sum(priority)) else 0.0 for priority in zip(*weights, strict=True)]
    parts = [1 if total else 0 for total in sums]
    parts[parts.index(1)] = MAX_PASSED
    return [part / (sum(parts) * total) if total else 0.0 for part, total in zip(parts, sums, strict=True)]


def _bounded(tag: float, own: float, others: Sequence[tuple[float, float]]) -> float:
    """Return a tag that is neither too far behind nor too far ahead of the other tags.

    `others`: the other pickers' shares and tags. A picker that has taken few slots gets credit for at most about one
    slot. The other tags are up to one message old, and this picker may take many slots in that time. Its lead is
    therefore limited, relative to the smaller share.
    """
    if others:
        total = sum(share for share, _ in others)
        mean = sum(share * min(other, _MAX_TAG) for share, other in others) / total
        tag = max(tag, mean - 0.5 / (own * total))
        tag = min(tag, *(other + _MAX_LEAD / min(own, share) for share, other in others))
    return round(tag, _DIGITS)
