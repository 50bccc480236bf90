"""How several pickers share a pool's replicas while requests wait at more than one picker.

A picker learns of a free place at a replica from another picker's next message. So a picker whose own requests fill the
replicas could give each free place to its own next request, and the other pickers' requests would wait forever.
Therefore, a picker with more than its share leaves a free place to the others for a short time. The shares are
proportional to the numbers of flows (for example tenants) that wait at each picker.
"""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.pick.books import PEER_TTL

_TURN = 0.15
"""Seconds for which a free place is left to the other pickers: three times their message interval."""
_PAUSE, _MAX_PAUSE = 1.0, 8.0
"""Seconds during which no place is left to the others after they did not use one, because their requests need other
replicas.

The pause doubles each time, up to the second value.
"""


class QueueShares:
    """This picker's share of each pool. Times are in seconds on one clock."""

    def __init__(self) -> None:
        self._peers: dict[str, tuple[float, Mapping[str, int]]] = {}
        """Picker → time of its last message, and number of its waiting flows by pool."""
        self._left: dict[str, float] = {}
        """Pool → since when a free place has been left to the others."""
        self._paused: dict[str, tuple[float, float]] = {}
        """Pool → end and length of the pause in which no place is left to the others."""
        self._took: set[str] = set()
        """Pools whose last free place this picker took."""

    def merge(self, peer: str, flows: Mapping[str, int], now: float) -> None:
        """Replace the numbers of flows that wait at another picker, by pool."""
        if flows:
            self._peers[peer] = now, flows
        else:
            self._peers.pop(peer, None)

    def leaves(self, pool: str, flows: int, own: int, total: int, now: float) -> bool:
        """Return whether a free place is left to the other pickers.

        `flows` wait at this picker. `own` of the `total` requests at the pool's replicas were sent by this picker.
        """
        others = self._others(pool, now)
        own_use, other_use = (own + 1) * others, (total - own + 1) * max(flows, 1)
        if not others or own_use < other_use or (own_use == other_use and pool not in self._took):
            self._left.pop(pool, None)
            return False
        until, length = self._paused.get(pool, (0.0, 0.0))
        if now < until:
            return False
        if now - self._left.setdefault(pool, now) < _TURN:
            return True
        del self._left[pool]
        length = min(2 * length, _MAX_PAUSE) or _PAUSE
        self._paused[pool] = now + length, length
        return False

    def taken(self, pool: str) -> None:
        """Record that this picker took a free place."""
        if self._peers:
            self._took.add(pool)

    def full(self, pool: str) -> None:
        """Record that no place is free, for example because another picker took it."""
        if self._left.pop(pool, None) is not None:
            self._took.discard(pool)
            self._paused.pop(pool, None)

    def forget(self, pool: str) -> None:
        """Forget a pool that no longer has a queue."""
        self._left.pop(pool, None)
        self._paused.pop(pool, None)
        self._took.discard(pool)

    @property
    def is_alone(self) -> bool:
        """Whether no requests wait at other pickers."""
        return not self._peers

    def _others(self, pool: str, now: float) -> int:
        for peer in [peer for peer, (heard, _) in self._peers.items() if now - heard > PEER_TTL]:
            del self._peers[peer]
        return sum(flows.get(pool, 0) for _, flows in self._peers.values())
