"""The status of each node: the content sent to it and its responses.

The streams write the status, and the API reads it.

A push stores only a timestamp; rows are computed when they are requested. Disconnected nodes are kept for an hour, up
to the most recent thousand, so that clients that keep changing their IDs cannot fill the memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import Proxy
from lbctl.targets.envoy import TARGET
from lbctl.xds.protocol.stream import TypeStatus, XdsNode
from lbctl.xds.resource import SHORT

_Key = tuple[str, bool]
"""Node ID, and whether the client is a reader, which uses an Envoy's ID without being that Envoy."""
READER = "lbctl"
"""User agent of clients that only read, such as `lbctl xds`. An ACK from such a client does not affect the node whose
ID it uses."""
READER_KIND = "reader"
"""Kind of a read-only client in its row."""
_KEPT_FOR = 3600.0
_KEPT_NODES = 1000
_KEPT_NACKS = 10
_MAX_NACK_TEXT = 8 << 20
"""Maximum total number of characters in all stored NACKs, counting `_NACK_OVERHEAD` for each."""
_NACK_OVERHEAD = 500
_KEPT_ENDED = 8
_SHOWN_REFUSED = 60.0
"""Seconds for which a rejected node is shown as REFUSED. Envoy reconnects within 30 s."""
_WORST_FIRST = ("NACKED", "STALE", "WAITING", "SYNCED")


class StreamObserver(Protocol):
    """Receives the events of all streams as they happen; `kind` is `sotw` or `delta`."""

    def connected(self, kind: str) -> None:
        """Process the start of a stream."""

    def disconnected(self, kind: str) -> None:
        """Process the end of a stream."""

    def pushed(self, type_short: str, resources: int, size: int) -> None:
        """Process a sent response; `size` is the size of the whole response in bytes."""

    def acked(self, type_short: str, seconds: float) -> None:
        """Process an ACK, `seconds` after the response was sent."""

    def nacked(self, type_short: str) -> None:
        """Process a NACK."""

    def unmatched(self, node_id: str) -> None:
        """Process a connection from a node that matches no entry of `proxies`."""

    def failed(self) -> None:
        """Process the end of a stream because of an unexpected exception in the server."""


@dataclass(frozen=True, slots=True)
class Nack:
    """A NACK: the node's message, and a finding for each rejected resource at its position in the YAML."""

    at: float
    """Time of arrival, in seconds since the epoch."""
    type_url: str
    version: str
    """Rejected version."""
    names: tuple[str, ...]
    """Rejected resources."""
    message: str
    """Error message of the node."""
    findings: tuple[Diagnostic, ...] = ()
    """Error of each resource at its position in the YAML."""

    @property
    def length(self) -> int:
        """Number of characters that count towards the limit on stored NACKs."""
        return (
            _NACK_OVERHEAD
            + len(self.message)
            + sum(map(len, self.names))
            + sum(len(item.message) for item in self.findings)
        )


@dataclass(frozen=True, slots=True)
class NodeTypeRow:
    """The status of one resource type of a node.

    Times are in seconds since the epoch, or None if the event has not happened.
    """

    type: str
    """Short name of the type, for example `cds`."""
    state: str
    """SYNCED, WAITING, STALE or NACKED."""
    since: float
    """Time at which the type entered this state."""
    wildcard: bool
    """Whether the node subscribes to all resources of the type."""
    names: int
    """Number of resources subscribed to by name."""
    offered: str
    """Version last sent; empty before the first."""
    acked: str
    """Version last accepted; empty before the first."""
    pushed_at: float | None
    """Time at which a response was last sent."""
    acked_at: float | None
    """Time at which a response was last accepted."""
    message: str
    """Node's error while it is NACKED; otherwise empty."""
    nacked: tuple[str, ...]
    """Names of the resources that the node rejects."""


@dataclass(frozen=True, slots=True)
class NackRow:
    """A NACK of a node."""

    at: float
    """Time of the NACK, in seconds since the epoch."""
    type: str
    """Short name of the type."""
    version: str
    """Rejected version."""
    names: tuple[str, ...]
    """Rejected resources."""
    message: str
    """Error message of the node."""
    findings: tuple[str, ...]
    """Error of each resource at its position in the YAML, as one line each."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The status of a node on one connection."""

    node: str
    cluster: str
    region: str
    zone: str
    sub_zone: str
    envoy: str
    """Version of Envoy; empty if the node does not send it."""
    proxy: str | None
    """Entry of `proxies` that matches the node; None if none matches."""
    kind: str
    """Kind of the proxy, or `reader` for a client that only reads."""
    peer: str
    """Address of the client."""
    delta: bool
    """Whether the client uses delta xDS."""
    connected: bool
    since: float
    """Start of the connection, or its end if the node is GONE, in seconds since the epoch."""
    state: str
    """State of the node, see `NodeStatus.proxies`."""
    reason: str
    """The reason why updates to the node are withheld; otherwise empty."""
    version: str
    """Version of the snapshot last sent; empty before the first."""
    confirmed: bool
    """Whether the client has proven that it is a proxy of the fleet."""
    last_good: str
    """Version of the snapshot last accepted as a whole; empty before the first."""
    types: tuple[NodeTypeRow, ...]
    nacks: tuple[NackRow, ...]
    """Last NACKs, latest first."""
    reports_refused: str
    """The reason why the node's load reports are not accepted; empty if they are, or for a reader."""


@dataclass(slots=True, eq=False)
class StreamEntry:
    """The status of one stream.

    `authenticated`: the client is a process of this user, or has a certificate. `version`: the snapshot last offered,
    at `offered`. `good`: the snapshot last accepted completely. `proxy`, `kind`: name and kind of the matching entry of
    `proxies`. `reason`: the reason why updates are withheld. `denied`: the stream was ended for that reason.
    `nack_messages`: by type, the last NACK message, without secrets. `pushed`, `acked`, `refused`: by type, the time of
    the last push, ACK and NACK.
    """

    node: XdsNode
    peer: str
    delta: bool
    status: Callable[[], tuple[TypeStatus, ...]]
    since: float
    authenticated: bool = True
    proxy: str | None = None
    kind: str = TARGET.kind
    reason: str = ""
    denied: bool = False
    version: str = ""
    good: str = ""
    offered: float = 0.0
    pushed: dict[str, float] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    nack_messages: dict[str, str] = field(default_factory=dict)

    def offer(self, version: str, at: float) -> None:
        """Record that this snapshot is being offered to the node."""
        self.version, self.offered, self.reason = version, at, ""

    def assign(self, proxy: Proxy | None) -> None:
        """Record the entry of `proxies` that matches the node; None if none matches."""
        self.proxy = proxy.name if proxy else None
        if proxy is not None:
            self.kind = proxy.kind

    def refuse(self, reason: str, *, denied: bool) -> bool:
        """Record why updates are withheld, and return whether the reason has changed."""
        is_new = self.reason != reason
        self.reason = reason
        self.denied = self.denied or denied
        return is_new

    def push(self, type_url: str, at: float) -> None:
        """Record when resources of this type were last sent."""
        self.pushed[type_url] = at

    def ack(self, type_url: str, at: float) -> None:
        """Record when resources of this type were last accepted."""
        self.acked[type_url] = at

    def nack(self, type_url: str, at: float, message: str) -> None:
        """Record when resources of this type were last rejected, and the message."""
        self.refused[type_url], self.nack_messages[type_url] = at, message

    def accept(self) -> None:
        """Record that the node has accepted all of the snapshot last offered."""
        self.good = self.version

    @property
    def is_reader(self) -> bool:
        """Return whether the client only reads, as `lbctl xds` does."""
        return self.node.agent == READER

    @property
    def key(self) -> _Key:
        """Return the node ID, and whether the client only reads."""
        return self.node.id, self.is_reader

    def closed(self) -> StreamEntry:
        """Return a copy with a final status that does not refer to the stream."""
        last = tuple(replace(item, names=()) for item in self.status())
        return replace(self, status=lambda: last)


@dataclass(slots=True)
class _Record:
    """The state of one node ID.

    `streams` contains the open streams; `ended`, the most recently ended streams of one connection.
    """

    streams: list[StreamEntry] = field(default_factory=list)
    ended: deque[StreamEntry] = field(default_factory=lambda: deque(maxlen=_KEPT_ENDED))
    nacks: deque[Nack] = field(default_factory=lambda: deque(maxlen=_KEPT_NACKS))
    good: str = ""
    left_at: float = 0.0


class NodeStatus:
    """The status of all nodes. `clock` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._connected: dict[_Key, _Record] = {}
        self._disconnected: dict[_Key, _Record] = {}  # in the order of disconnection
        self._nacks: deque[tuple[deque[Nack], Nack]] = deque()
        """NACKs of all nodes, oldest first, each paired with the NACKs of its node. The node may no longer have the
        paired NACK."""
        self._nack_text = 0
        self._reports_refused: dict[object, tuple[str, str]] = {}
        """Maps an open report stream to the node ID and the reason why its reports are not accepted."""

    def now(self) -> float:
        """Return the current time in seconds since the epoch."""
        return self._clock()

    def enter(self, entry: StreamEntry) -> None:
        """Add a stream whose node is known."""
        key = entry.key
        if key not in self._connected:
            self._connected[key] = self._disconnected.pop(key) if key in self._disconnected else _Record()
        self._connected[key].streams.append(entry)

    def leave(self, entry: StreamEntry) -> None:
        """Remove a stream that has ended, and keep its final status."""
        key = entry.key
        record = self._connected[key]
        record.streams.remove(entry)
        if record.ended and record.ended[0].peer != entry.peer:
            record.ended.clear()
        record.ended.append(entry.closed())
        if not record.streams:
            record.left_at = self._clock()
            del self._connected[key]
            if not entry.is_reader:
                self._disconnected[key] = record
                self._forget()

    def nacked(self, entry: StreamEntry, nack: Nack) -> None:
        """Record a NACK by the stream's node."""
        of_node = self._connected[entry.key].nacks
        of_node.append(nack)
        self._nacks.append((of_node, nack))
        self._nack_text += nack.length
        while self._nack_text > _MAX_NACK_TEXT:
            of_node, oldest = self._nacks.popleft()
            self._nack_text -= oldest.length
            if of_node and of_node[0] is oldest:
                of_node.popleft()

    def good(self, entry: StreamEntry) -> None:
        """Record that the client has accepted everything in the snapshot last offered on this stream.

        Other connections do not count, because any user of this machine can connect with another node's ID.
        """
        record = self._connected[entry.key]
        entry.accept()
        if all(other.good == entry.version for other in record.streams if other.peer == entry.peer):
            record.good = entry.version

    def refuse_reports(self, stream: object, node_id: str, reason: str) -> None:
        """Record why a node's reports on this stream are not accepted; an empty reason means that they are."""
        if reason:
            self._reports_refused[stream] = node_id, reason
        else:
            self._reports_refused.pop(stream, None)

    def reports_refused(self) -> dict[str, str]:
        """Map each node ID to the reason why its reports are not accepted, for nodes that try to report."""
        return dict(self._reports_refused.values())

    def connected_to(self, proxy: str) -> list[str]:
        """Return the IDs of connected nodes that match this entry of `proxies`, excluding readers."""
        return [
            node_id
            for (node_id, is_reader), record in self._connected.items()
            if not is_reader and any(entry.proxy == proxy for entry in record.streams)
        ]

    def admins(self) -> dict[str, str]:
        """Map node IDs to admin addresses, for Envoys that report one over the Unix socket.

        The addresses that other clients report are not used: a control plane connects only to addresses that its own
        user sets.
        """
        return {
            node_id: entry.node.admin
            for (node_id, is_reader), record in self._connected.items()
            for entry in record.streams
            if entry.node.admin and entry.peer.startswith("/") and not is_reader
        }

    def proxies(self) -> list[NodeRow]:
        """Return a row for each node and connection, by node ID, including recently disconnected nodes but no readers.

        `state` is the worst state of its types: SYNCED, WAITING (subscribed to missing resources), STALE (sent or due,
        not yet accepted) or NACKED. It is REFUSED if updates are withheld (see `reason`) or if the node was rejected in
        the last minute, and GONE if the node has disconnected.
        """
        self._forget()
        records = sorted([*self._connected.items(), *self._disconnected.items()], key=lambda item: item[0])
        refused = self.reports_refused()
        return [
            row
            for (node_id, is_reader), record in records
            for row in _rows(record, self._clock(), "" if is_reader else refused.get(node_id, ""))
        ]

    def _forget(self) -> None:
        oldest = self._clock() - _KEPT_FOR
        while self._disconnected and (
            len(self._disconnected) > _KEPT_NODES or next(iter(self._disconnected.values())).left_at < oldest
        ):
            del self._disconnected[next(iter(self._disconnected))]


def _rows(record: _Record, now: float, reports_refused: str) -> Iterator[NodeRow]:
    by_peer: dict[str, list[StreamEntry]] = {}
    for entry in record.streams or record.ended:
        by_peer.setdefault(entry.peer, []).append(entry)
    for entries in by_peer.values():
        yield _row(record, entries, now, reports_refused, is_sole=len(by_peer) == 1)


def _row(record: _Record, entries: list[StreamEntry], now: float, reports_refused: str, *, is_sole: bool) -> NodeRow:
    """Return the row for a node's streams on one connection: one stream for ADS, otherwise one for each type.

    `is_sole`: the node has no other connection.
    """
    first = entries[0]
    reason = next((entry.reason for entry in entries if entry.reason), "")
    recently_denied = entries[-1].denied and record.left_at + _SHOWN_REFUSED > now
    types = [(entry, status) for entry in entries for status in entry.status()]
    state = _state(record, reason, recently_denied, (status for _, status in types))
    return NodeRow(
        node=first.node.id,
        cluster=first.node.cluster,
        region=first.node.region,
        zone=first.node.zone,
        sub_zone=first.node.sub_zone,
        envoy=first.node.version,
        proxy=first.proxy,
        kind=READER_KIND if first.is_reader else first.kind,
        peer=first.peer,
        delta=first.delta,
        connected=bool(record.streams),
        since=record.left_at if state == "GONE" else min(entry.since for entry in entries),
        state=state,
        reason=reason,
        version=first.version,
        confirmed=any(bool(entry.authenticated or entry.good) for entry in entries),
        last_good=_good(entries) or (record.good if is_sole else ""),
        types=tuple(_type(record, entry, status) for entry, status in types),
        nacks=_nacks(record),
        reports_refused=reports_refused,
    )


def _good(entries: list[StreamEntry]) -> str:
    """Return the snapshot that all streams of a connection have accepted; empty if there is none."""
    accepted = {entry.good for entry in entries}
    return accepted.pop() if len(accepted) == 1 else ""


def _state(record: _Record, reason: str, recently_denied: bool, types: Iterable[TypeStatus]) -> str:
    if not record.streams:
        return "REFUSED" if recently_denied else "GONE"
    if reason:
        return "REFUSED"
    states = {status.state for status in types}
    return next((state for state in _WORST_FIRST if state in states), "WAITING")


def _type(record: _Record, entry: StreamEntry, status: TypeStatus) -> NodeTypeRow:
    return NodeTypeRow(
        type=SHORT.get(status.type_url, status.type_url),
        state=status.state,
        since=_since(entry, status) if record.streams else record.left_at,
        wildcard=status.wildcard,
        names=status.count,
        offered=status.offered_version,
        acked=status.acked_version,
        pushed_at=entry.pushed.get(status.type_url),
        acked_at=entry.acked.get(status.type_url),
        message=entry.nack_messages.get(status.type_url, "") if status.state == "NACKED" else "",
        nacked=tuple(status.nacked),
    )


def _since(entry: StreamEntry, status: TypeStatus) -> float:
    """Return the time at which the type entered its state. Content that is due but not sent counts from its offer."""
    kind = status.type_url
    pushed, acked = entry.pushed.get(kind, 0.0), entry.acked.get(kind, 0.0)
    entered = {
        "SYNCED": acked,
        "NACKED": entry.refused.get(kind, 0.0),
        "STALE": pushed if pushed > acked else entry.offered,
        "WAITING": 0.0,
    }
    return max(entry.since, entered[status.state])


def _nacks(record: _Record) -> tuple[NackRow, ...]:
    """Return the NACKs as rows, latest first."""
    return tuple(
        NackRow(
            at=item.at,
            type=SHORT.get(item.type_url, item.type_url),
            version=item.version,
            names=item.names,
            message=item.message,
            findings=tuple(str(finding) for finding in item.findings),
        )
        for item in reversed(record.nacks)
    )
