"""Which replica has seen which session, beginning of a prompt and adapter: what it may still hold.

The memory is bounded in entries and in time. It has two generations: what is used moves into the younger one; when that
is full or half of `ttl` old, it becomes the older one, and what was in the older one and not used since is forgotten.
This is LRU and a TTL without a time or a list link for each entry, and forgetting costs nothing.

Of a prompt not every block is stored: all of the first eight, then four in each doubling of the length, and the last
one. A conversation that goes on finds the last block of its previous request; other prompts that share a beginning find
at least four fifths of it.

Sessions and prompts belong to a tenant: a tenant cannot find out what another one has sent by sending it too. Adapters
are few, as the files name them: of each, the time of its last request is kept for every replica, whoever sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from lbctl.pick.features import Features

LIMIT = 1_000_000
"""The most entries: blocks of prompts and sessions."""
TTL = 3600.0
"""Seconds after which what was not used is forgotten; at the earliest after half of it."""
_MAX_HOLDERS = 4


class CachedPrefix(NamedTuple):
    """What a replica may still have in its cache of a request."""

    replica: str
    tokens: float
    """The tokens of the prompt that it has seen."""


class AffinityMemory:
    """The memory of one picker."""

    def __init__(self, limit: int = LIMIT, ttl: float = TTL) -> None:
        self._half, self._ttl = max(1, limit // 2), ttl
        self._young: dict[int, tuple[int, ...]] = {}
        self._old: dict[int, tuple[int, ...]] = {}
        self._turned = 0.0
        self._ids: dict[tuple[str, str], int] = {}
        self._names: dict[int, str] = {}
        self._adapters: dict[tuple[str, str], dict[int, float]] = {}
        self._next = 0

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._young) + len(self._old)

    def home(self, features: Features, now: float) -> CachedPrefix | None:
        """Return the replica that had the request's session last."""
        self._turn(now)
        if features.session is None:
            return None
        entry = self._get(_session_key(features))
        if entry is None or entry[0] not in self._names:
            return None
        return CachedPrefix(self._names[entry[0]], min(entry[1], features.prompt_tokens))

    def holders(self, features: Features, now: float) -> tuple[CachedPrefix, ...]:
        """Return each replica that has seen the prompt's beginning with how much of it, the longest first."""
        self._turn(now)
        hashes, seen = features.prefix, None
        depths: dict[str, int] = {}
        for depth in range(len(hashes), 0, -1):
            entry = self._get(hashes[depth - 1])
            if entry is None or entry == seen:
                continue
            seen = entry
            for holder in entry:
                name = self._names.get(holder)
                if name is not None:
                    depths.setdefault(name, depth)
            if len(depths) >= _MAX_HOLDERS:
                break
        share = features.prompt_tokens / len(hashes) if hashes else 0.0
        return tuple([CachedPrefix(name, depth * share) for name, depth in depths.items()])

    def with_adapter(self, features: Features, now: float) -> frozenset[str]:
        """Return who may have the request's adapter loaded; nobody where it names none."""
        if features.adapter is None:
            return frozenset()
        used = self._adapters.get((features.pool, features.adapter), {})
        return frozenset(self._names[holder] for holder, at in used.items() if now - at <= self._ttl)

    def remember(self, features: Features, replica: str, now: float) -> None:
        """Record that a replica was picked for the request."""
        self._turn(now)
        holder = self._id(features.pool, replica)
        if features.adapter is not None:
            self._adapters.setdefault((features.pool, features.adapter), {})[holder] = now
        if features.session is not None:
            self._young[_session_key(features)] = (holder, round(features.prompt_tokens))
        for depth in stored_depths(len(features.prefix)):
            key = features.prefix[depth - 1]
            holders = self._get(key) or ()
            if holder not in holders[:1]:
                self._young[key] = (holder, *(item for item in holders if item != holder))[:_MAX_HOLDERS]

    def forget(self, pool: str, replica: str) -> None:
        """Forget everything of a replica that has restarted or left: its cache and its adapters are gone."""
        holder = self._ids.pop((pool, replica), None)
        if holder is not None:
            del self._names[holder]
            for used in self._adapters.values():
                used.pop(holder, None)

    def _get(self, key: int) -> tuple[int, ...] | None:
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is not None:
                self._young[key] = entry
        return entry

    def _turn(self, now: float) -> None:
        if len(self._young) >= self._half or now - self._turned >= self._ttl / 2:
            self._old, self._young, self._turned = self._young, {}, now

    def _id(self, pool: str, replica: str) -> int:
        number = self._ids.get((pool, replica))
        if number is None:
            number = self._ids[pool, replica] = self._next = self._next + 1
            self._names[number] = replica
        return number


@cache
def stored_depths(length: int) -> Sequence[int]:
    """Return the numbers of blocks that are stored of a prompt of this length, the last one among them."""
    depths = [depth for depth in range(1, length + 1) if depth <= 8 or depth % (1 << (depth.bit_length() - 3)) == 0]
    return depths if not length or depths[-1] == length else [*depths, length]


def _session_key(features: Features) -> int:
    """Return the key of a session, which is that of one tenant in one pool."""
    return hash((features.pool, features.tenant, features.session))
