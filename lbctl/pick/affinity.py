"""Memory of the sessions, prompt prefixes and adapters that each replica has seen and may still have cached.

The memory is bounded both in entries and in time. It has two generations, and an entry moves to the younger generation
when it is used. When the younger generation is full or half of `ttl` old, it becomes the older generation, and the
previous older generation is dropped. The result is LRU eviction with a TTL, but without a timestamp or a linked-list
node per entry, and expiring entries costs nothing.

Only some blocks of a prompt are stored: the first eight, then four each time the length doubles, and the last block. A
continued conversation matches the last block of its previous request. Other prompts that share a prefix match at least
four fifths of it.

Sessions and prompts belong to a tenant, so that tenants cannot discover each other's prompts by sending the same text.
The number of adapters is small, because they are listed in configuration files. For each adapter, the memory keeps the
time of the last request at each replica, regardless of the tenant.

A process can save and share the memory: `take_changes` returns everything that is new since the last call, `restore`
accepts saved entries, and `merge` accepts another picker's entries. Keys of entries are Python hashes, so all processes
must use the same secret (`launch`). Entries from other pickers are stored separately, so that they cannot displace the
picker's own entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from lbctl.pick.features import Features

LIMIT = 1_000_000
"""Maximum number of the picker's own entries (prompt blocks and sessions). The same limit applies to entries from other
pickers."""
TTL = 3600.0
"""Seconds after which an unused entry expires. An entry may already expire after half that time."""
MAX_HOLDERS = 4
_GROWTH = 1.25
"""Factor by which a session's prompt must grow before its entry is treated as changed."""
BLOCK = -1
"""Token count that marks an entry as a prompt block rather than a session."""
MAX_BATCH = 2_000
"""Maximum number of entries in a batch."""
_RECENT = 2
"""Number of `take_changes` calls after which other pickers normally have one of this picker's entries."""


class _Session(NamedTuple):
    """A session's entry."""

    holder: int
    """Number of the replica."""
    tokens: int
    """Number of tokens in the newest prompt."""
    recorded: int
    """Number of tokens in the entry's most recent recorded change."""


_Entry = _Session | tuple[int, ...]
"""A session's entry, or the numbers of the replicas that have a block, most recent last."""


class CachedPrefix(NamedTuple):
    """The part of a request that a replica may still have cached."""

    replica: str
    tokens: float
    """Number of prompt tokens that the replica has seen."""


@dataclass(slots=True)
class AffinityChanges:
    """New entries of one generation, in a form that can be saved."""

    generation: int
    """Number of the generation, one higher for each newer generation."""
    began: float
    """Time at which the generation began."""
    replicas: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Maps each number to the pool and name of a replica."""
    entries: list[int] = field(default_factory=list)
    """Three numbers per entry: its key, the number of the replica, and the session's tokens or `BLOCK`."""
    forgotten: list[int] = field(default_factory=list)
    """Numbers of replicas that have lost their caches."""


class AffinityBatch(NamedTuple):
    """Entries to send to other pickers. Their number is limited, so that a batch fits into one message."""

    replicas: Mapping[int, tuple[str, str]]
    """Maps each number in `entries` to the pool and name of a replica."""
    entries: Sequence[int]
    """Three numbers per entry, as in `AffinityChanges`."""


class _OtherEntries:
    """Entries from other pickers, in two generations."""

    def __init__(self, half: int, ttl: float) -> None:
        self._half, self._ttl = half, ttl
        self.young: dict[int, _Entry] = {}
        self.old: dict[int, _Entry] = {}
        self._turned = 0.0

    def __len__(self) -> int:
        return len(self.young) + len(self.old)

    def get(self, key: int) -> _Entry | None:
        entry = self.young.get(key)
        if entry is None and (entry := self.old.get(key)) is not None:
            self.young[key] = entry
        return entry

    def put(self, key: int, entry: _Entry, now: float) -> None:
        self.turn(now)
        self.young[key] = entry

    def discard(self, key: int) -> None:
        self.young.pop(key, None)
        self.old.pop(key, None)

    def turn(self, now: float) -> None:
        if len(self.young) >= self._half or now - self._turned >= self._ttl / 2:
            self.old, self.young, self._turned = self.young, {}, now


class AffinityMemory:
    """One picker's memory. `records_changes`: whether the process calls `take_changes` periodically."""

    def __init__(self, limit: int = LIMIT, ttl: float = TTL, *, records_changes: bool = False) -> None:
        self._half, self._ttl = max(1, limit // 2), ttl
        self._records_changes = records_changes
        self._changes = [AffinityChanges(0, 0.0)]
        """Changes in each generation since the last `take_changes` call, newest generation last."""
        self._recent: deque[Sequence[AffinityChanges]] = deque(maxlen=_RECENT)
        """Changes returned by the last `take_changes` call."""
        self._young: dict[int, _Entry] = {}
        self._old: dict[int, _Entry] = {}
        self._turned = 0.0
        self._others = _OtherEntries(self._half, ttl)
        self._has_others = False
        """Whether any other picker has sent entries."""
        self._ids: dict[tuple[str, str], int] = {}
        self._replicas: dict[int, tuple[str, str]] = {}
        self._adapters: dict[tuple[str, str], dict[int, float]] = {}
        self._next = 0

    def __len__(self) -> int:
        """Return the number of entries, including those from other pickers."""
        return len(self._young) + len(self._old) + len(self._others)

    def home(self, features: Features, now: float) -> CachedPrefix | None:
        """Return the replica that most recently served the request's session."""
        self._turn(now)
        if features.session is None:
            return None
        entry = self._session(_session_key(features))
        if entry is None or entry[0] not in self._replicas:
            return None
        return CachedPrefix(self._replicas[entry[0]][1], min(entry[1], features.prompt_tokens))

    def holders(self, features: Features, now: float) -> tuple[CachedPrefix, ...]:
        """Return the replicas that have seen a prefix of the prompt, each with the prefix's length, longest first."""
        self._turn(now)
        hashes, seen = features.prefix, None
        young, old = self._young, self._old
        others_young, others_old = self._others.young, self._others.old
        depths: dict[str, int] = {}
        for depth in range(len(hashes), 0, -1):
            key = hashes[depth - 1]
            if key not in young and key not in old and key not in others_young and key not in others_old:
                continue  # most blocks of a long prompt are unknown
            entry = self._block(key)
            if entry is None or entry == seen:
                continue
            seen = entry
            for holder in entry:
                replica = self._replicas.get(holder)
                if replica is not None:
                    depths.setdefault(replica[1], depth)
            if len(depths) >= MAX_HOLDERS:
                break
        share = features.prompt_tokens / len(hashes) if hashes else 0.0
        return tuple([CachedPrefix(name, depth * share) for name, depth in depths.items()])

    def with_adapter(self, features: Features, now: float) -> frozenset[str]:
        """Return the replicas that may have the request's adapter loaded; empty if the request names no adapter."""
        if features.adapter is None:
            return frozenset()
        used = self._adapters.get((features.pool, features.adapter), {})
        return frozenset(self._replicas[holder][1] for holder, at in used.items() if now - at <= self._ttl)

    def remember(self, features: Features, replica: str, now: float) -> None:
        """Record that a replica was picked for the request."""
        self._turn(now)
        holder = self._id(features.pool, replica)
        if features.adapter is not None:
            self._adapters.setdefault((features.pool, features.adapter), {})[holder] = now
        if features.session is not None:
            self._remember_session(_session_key(features), holder, round(features.prompt_tokens))
        for depth in stored_depths(len(features.prefix)):
            key = features.prefix[depth - 1]
            holders = self._block(key) or ()
            if holder not in holders[:1]:
                self._remember_block(key, holder, holders)

    def _remember_session(self, key: int, holder: int, tokens: int) -> None:
        before = self._young.get(key)
        if before is not None and before[0] == holder and tokens <= before[2] * _GROWTH:
            self._young[key] = _Session(holder, tokens, before[2])
            return
        if before is None and self._has_others:
            self._others.discard(key)
        self._young[key] = _Session(holder, tokens, tokens)
        if self._records_changes:
            self._changes[-1].entries += (key, holder, tokens)

    def _remember_block(self, key: int, holder: int, holders: tuple[int, ...]) -> None:
        if self._has_others:
            self._others.discard(key)
        self._young[key] = (holder, *(item for item in holders if item != holder))[:MAX_HOLDERS]
        if self._records_changes:
            self._changes[-1].entries += (key, holder, BLOCK)

    def forget(self, pool: str, replica: str) -> None:
        """Forget a replica that has restarted or left, because its cache and its adapters are gone."""
        holder = self._ids.pop((pool, replica), None)
        if holder is not None:
            del self._replicas[holder]
            if self._records_changes:
                self._changes[-1].forgotten.append(holder)
            for used in self._adapters.values():
                used.pop(holder, None)

    def take_changes(self) -> list[AffinityChanges]:
        """Return the entries added since the last call, oldest generation first."""
        taken = [part for part in self._changes if part.entries or part.replicas or part.forgotten]
        newest = self._changes[-1]
        self._changes = [AffinityChanges(newest.generation, newest.began)]
        self._recent.append(taken)
        return taken

    def batches(self, changes: Sequence[AffinityChanges]) -> Iterator[AffinityBatch]:
        """Yield changes in batches for other pickers."""
        entries = [number for part in changes for number in part.entries]
        for start in range(0, len(entries), 3 * MAX_BATCH):
            yield self._batch(entries[start : start + 3 * MAX_BATCH])

    def all_batches(self) -> Iterator[AffinityBatch]:
        """Yield all entries for a new picker, older entries first. The memory may change between two batches."""
        for known in (self._others.old, self._others.young, self._old, self._young):
            keys = tuple(known)
            for start in range(0, len(keys), MAX_BATCH // MAX_HOLDERS):
                entries: list[int] = []
                for key in keys[start : start + MAX_BATCH // MAX_HOLDERS]:
                    entries += _numbers(key, known.get(key, ()))
                yield self._batch(entries)

    def _batch(self, entries: Sequence[int]) -> AffinityBatch:
        """Return a batch without the entries of forgotten replicas."""
        replicas = {number: self._replicas[number] for number in set(entries[1::3]) if number in self._replicas}
        return AffinityBatch(replicas, entries)

    def merge(self, batch: AffinityBatch, now: float, *, yields: bool) -> None:
        """Accept another picker's entries.

        If both pickers have chosen a replica for a session at the same time, the other picker's choice wins if this
        picker `yields`. Exactly one of the two must yield.
        """
        self._turn(now)
        self._has_others = True
        numbers = {number: self._id(*replica) for number, replica in batch.replicas.items()}
        unknown_to_other: frozenset[int] | None = None
        values = iter(batch.entries)
        for key, number, tokens in zip(values, values, values, strict=True):
            holder, own = numbers.get(number), self._young.get(key)
            if holder is None:
                continue
            if tokens == BLOCK:
                before = own or self._others.get(key) or self._old.get(key) or ()
                entry: _Entry = (holder, *(item for item in before if item != holder))[:MAX_HOLDERS]
            elif own is None or own[0] == holder:
                entry = _Session(holder, tokens, tokens)
            else:
                if unknown_to_other is None:
                    unknown_to_other = frozenset() if yields else self._recent_keys()
                entry = own if key in unknown_to_other else _Session(holder, tokens, 0)
            if own is not None:
                self._young[key] = entry
            else:
                self._old.pop(key, None)
                self._others.put(key, entry, now)

    def _recent_keys(self) -> frozenset[int]:
        """Return the keys of this picker's changes that another picker may not have received yet."""
        parts = [part for taken in (*self._recent, self._changes) for part in taken]
        return frozenset(key for part in parts for key in part.entries[::3])

    def restore(self, saved: Sequence[AffinityChanges]) -> None:
        """Load saved entries, oldest generation first, into an empty memory.

        Later entries replace earlier ones with the same key.
        """
        for part in saved:
            self._old, self._young, self._turned = self._young, {}, part.began
            self._replicas.update(part.replicas)
            self._ids.update({replica: number for number, replica in part.replicas.items()})
            self._next = max(self._next, *part.replicas) if part.replicas else self._next
            for number in part.forgotten:
                self._replicas.pop(number, None)
            for at in range(0, len(part.entries), 3):
                key, holder, tokens = part.entries[at : at + 3]
                if tokens == BLOCK:
                    others = self._young.get(key) or self._old.get(key) or ()
                    self._young[key] = (holder, *(item for item in others if item != holder))[:MAX_HOLDERS]
                else:
                    self._young[key] = _Session(holder, tokens, tokens)
            self._changes = [AffinityChanges(part.generation, part.began)]
        self._ids = {replica: number for replica, number in self._ids.items() if number in self._replicas}

    def _session(self, key: int) -> _Entry | None:
        entry = self._young.get(key)
        if entry is not None:
            return entry
        entry = self._old.get(key)
        if entry is None:
            return self._others.get(key) if self._has_others else None
        self._remember_session(key, entry[0], entry[1])
        return entry

    def _block(self, key: int) -> _Entry | None:
        entry = self._young.get(key)
        if entry is not None:
            return entry
        entry = self._old.get(key)
        if entry is None:
            return self._others.get(key) if self._has_others else None
        self._young[key] = entry
        if self._records_changes:
            self._changes[-1].entries += _numbers(key, entry)
        return entry

    def _turn(self, now: float) -> None:
        self._others.turn(now)
        if len(self._young) >= self._half or now - self._turned >= self._ttl / 2:
            self._old, self._young, self._turned = self._young, {}, now
            if self._records_changes:
                replicas = {number: replica for replica, number in self._ids.items()}
                before = self._changes[-1]
                self._changes = [before, AffinityChanges(before.generation + 1, now, replicas)]

    def _id(self, pool: str, replica: str) -> int:
        number = self._ids.get((pool, replica))
        if number is None:
            number = self._ids[pool, replica] = self._next = self._next + 1
            self._replicas[number] = pool, replica
            if self._records_changes:
                self._changes[-1].replicas[number] = (pool, replica)
        return number


@cache
def stored_depths(length: int) -> Sequence[int]:
    """Return the indexes of the blocks to store for a prompt of `length` blocks, including the last block."""
    depths = [depth for depth in range(1, length + 1) if depth <= 8 or depth % (1 << (depth.bit_length() - 3)) == 0]
    return depths if not length or depths[-1] == length else [*depths, length]


def _numbers(key: int, entry: _Entry) -> list[int]:
    """Return an entry as triples of key, replica number and tokens."""
    if isinstance(entry, _Session):
        return [key, entry.holder, entry.tokens]
    return [number for holder in reversed(entry) for number in (key, holder, BLOCK)]


def _session_key(features: Features) -> int:
    """Return a session's key. A session belongs to one tenant in one pool."""
    return hash((features.pool, features.tenant, features.session))
