"""What each node was given and what it said to that: read by the API, written by the streams.

A push costs a time stamp here; the rest is worked out when somebody looks. Nodes that have left are remembered for an
hour, the latest thousand of them: whoever connects under ever new names cannot fill the memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic
from lbctl.xds.resource import SHORT
from lbctl.xds.stream import Node, TypeStatus

_Key = tuple[str, bool]
"""A node's id, and whether it only looks: a reader takes an Envoy's name and is none."""
Row = dict[str, object]
"""What is known of a node, made of JSON's own types. Times are seconds since the epoch."""

READER = "lbctl"
"""The agent of those who only look, as `lbctl xds`, under whatever node's name: they tell nothing of what it has."""
_KEPT_FOR = 3600.0
_KEPT_NODES = 1000
_KEPT_NACKS = 10
_KEPT_ENDED = 8
_WORST_FIRST = ("NACKED", "STALE", "WAITING", "SYNCED")


class Observer(Protocol):
    """Told of everything that happens on the streams, as it happens; `kind` is `sotw` or `delta`."""

    def connected(self, kind: str) -> None: ...

    def disconnected(self, kind: str) -> None: ...

    def pushed(self, type_short: str, resources: int, size: int) -> None:
        """`size`: bytes of the whole response."""

    def acked(self, type_short: str, seconds: float) -> None:
        """`seconds`: from the writing of the response to its ACK."""

    def nacked(self, type_short: str) -> None: ...

    def unmatched(self, node_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Nack:
    """A refusal: the node's own words, and each resource that it refused, at the place in the YAML that it is from."""

    at: float
    type_url: str
    version: str
    names: tuple[str, ...]
    message: str
    findings: tuple[Diagnostic, ...] = ()


@dataclass(slots=True, eq=False)
class Entry:
    """A stream, as seen from outside. `version`: the edition last offered, at `offered`; `good`: the one last accepted
    whole; `reason`: why it is given nothing new; `words`: by type, what was last said against it, without secrets.
    `pushed`, `acked`, `refused`: when that last happened, by type."""

    node: Node
    peer: str
    delta: bool
    status: Callable[[], tuple[TypeStatus, ...]]
    since: float
    proxy: str | None = None
    reason: str = ""
    version: str = ""
    good: str = ""
    offered: float = 0.0
    pushed: dict[str, float] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)

    @property
    def is_reader(self) -> bool:
        return self.node.agent == READER

    @property
    def key(self) -> _Key:
        return self.node.id, self.is_reader

    def closed(self) -> Entry:
        """The same, without hold on the stream."""
        last = self.status()
        return replace(self, status=lambda: last)


@dataclass(slots=True)
class _Record:
    """All that is known of a node id. `streams` stand; `ended` are those that ended last, over one connection."""

    streams: list[Entry] = field(default_factory=list)
    ended: deque[Entry] = field(default_factory=lambda: deque(maxlen=_KEPT_ENDED))
    nacks: deque[Nack] = field(default_factory=lambda: deque(maxlen=_KEPT_NACKS))
    good: str = ""
    left: float = 0.0


class Ledger:
    """`clock` gives seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._here: dict[_Key, _Record] = {}
        self._gone: dict[_Key, _Record] = {}  # in the order in which they left

    def now(self) -> float:
        return self._clock()

    def enter(self, entry: Entry) -> None:
        """A stream whose node is known."""
        key = entry.key
        if key not in self._here:
            self._here[key] = self._gone.pop(key) if key in self._gone else _Record()
        self._here[key].streams.append(entry)

    def leave(self, entry: Entry) -> None:
        key = entry.key
        record = self._here[key]
        record.streams.remove(entry)
        if record.ended and record.ended[0].peer != entry.peer:
            record.ended.clear()
        record.ended.append(entry.closed())
        if not record.streams:
            record.left = self._clock()
            del self._here[key]
            if not entry.is_reader:
                self._gone[key] = record
                self._forget()

    def nacked(self, entry: Entry, nack: Nack) -> None:
        self._here[entry.key].nacks.append(nack)

    def good(self, entry: Entry) -> None:
        """Everything of the edition that this stream was last offered has been accepted."""
        record = self._here[entry.key]
        entry.good = entry.version
        if all(other.good == entry.version for other in record.streams):
            record.good = entry.version

    def proxies(self) -> list[Row]:
        """A row for each node and connection, by node id, those that have left included unless they only looked.

        `state`: the worst of its types — SYNCED, WAITING (asked for what does not exist), STALE (sent or due, not yet
        accepted), NACKED — or REFUSED (gets nothing new: `reason`) or, whatever it was, GONE.
        """
        self._forget()
        known = sorted([*self._here.items(), *self._gone.items()], key=lambda item: item[0])
        return [row for _, record in known for row in _rows(record)]

    def _forget(self) -> None:
        oldest = self._clock() - _KEPT_FOR
        while self._gone and (len(self._gone) > _KEPT_NODES or next(iter(self._gone.values())).left < oldest):
            del self._gone[next(iter(self._gone))]


def _rows(record: _Record) -> Iterator[Row]:
    by_peer: dict[str, list[Entry]] = {}
    for entry in record.streams or record.ended:
        by_peer.setdefault(entry.peer, []).append(entry)
    for entries in by_peer.values():
        yield _row(record, entries)


def _row(record: _Record, entries: list[Entry]) -> Row:
    """The streams of a node over one connection: one for ADS, one a type otherwise."""
    first = entries[0]
    reason = next((entry.reason for entry in entries if entry.reason), "")
    types = [(entry, status) for entry in entries for status in entry.status()]
    return {
        "node": first.node.id,
        "cluster": first.node.cluster,
        "region": first.node.region,
        "zone": first.node.zone,
        "sub_zone": first.node.sub_zone,
        "envoy": first.node.version,
        "proxy": first.proxy,
        "reader": first.is_reader,
        "peer": first.peer,
        "delta": first.delta,
        "connected": bool(record.streams),
        "since": min(entry.since for entry in entries),
        "state": _state(record, reason, (status for _, status in types)),
        "reason": reason,
        "version": first.version,
        "last_good": record.good,
        "types": [_type(record, entry, status) for entry, status in types],
        "nacks": _nacks(record),
    }


def _state(record: _Record, reason: str, types: Iterable[TypeStatus]) -> str:
    if not record.streams:
        return "GONE"
    if reason:
        return "REFUSED"
    states = {status.state for status in types}
    return next((state for state in _WORST_FIRST if state in states), "WAITING")


def _type(record: _Record, entry: Entry, status: TypeStatus) -> Row:
    return {
        "type": SHORT.get(status.type_url, status.type_url),
        "state": status.state,
        "since": _since(entry, status) if record.streams else record.left,
        "wildcard": status.wildcard,
        "names": len(status.names),
        "offered": status.offered_version,
        "acked": status.acked_version,
        "pushed_at": entry.pushed.get(status.type_url),
        "acked_at": entry.acked.get(status.type_url),
        "message": entry.words.get(status.type_url, "") if status.state == "NACKED" else "",
        "nacked": list(status.nacked),
    }


def _since(entry: Entry, status: TypeStatus) -> float:
    """When the type came into its state; what is due and not sent waits since it was offered."""
    kind = status.type_url
    pushed, acked = entry.pushed.get(kind, 0.0), entry.acked.get(kind, 0.0)
    told = {
        "SYNCED": acked,
        "NACKED": entry.refused.get(kind, 0.0),
        "STALE": pushed if pushed > acked else entry.offered,
        "WAITING": 0.0,
    }
    return max(entry.since, told[status.state])


def _nacks(record: _Record) -> list[Row]:
    """The latest first."""
    return [
        {
            "at": item.at,
            "type": SHORT.get(item.type_url, item.type_url),
            "version": item.version,
            "names": list(item.names),
            "message": item.message,
            "findings": [str(finding) for finding in item.findings],
        }
        for item in reversed(record.nacks)
    ]
