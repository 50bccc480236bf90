"""Limits the memory used by subscriptions to names that do not exist. Each name is stored until its stream ends.

A name that exists does not need additional memory, so an Envoy with 10,000 clusters uses almost none of the budget.
Names that do not exist are counted at three levels. The per-stream limit stops a single client early. The per-peer
limit (a host or the Unix socket) protects other peers. The per-process limit protects the process's memory from many
peers acting together. Only the stream that exceeds a limit is ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from sys import getsizeof

from lbctl.xds.protocol.wire import StreamError

OVERHEAD = 150
"""Number of bytes of memory that a name needs in addition to its text, for its entries in three sets."""


class ExhaustedError(StreamError):
    """A limit has been exceeded: the stream ends with RESOURCE_EXHAUSTED and this message."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Limits on requests and subscriptions.

    `names` limits the names in one request. `unknown` limits the bytes of a stream's nonexistent names, counting
    `OVERHEAD` for each. `unknown_of_peer` is the corresponding limit for all streams of one peer, and `unknown_in_all`
    for all streams.
    """

    names: int = 100_000
    unknown: int = 8 << 20
    unknown_of_peer: int = 24 << 20
    unknown_in_all: int = 64 << 20


@dataclass(slots=True)
class Budget:
    """A server's memory budget. `used` is the number of bytes of unknown names in its streams."""

    limits: SubscriptionLimits = field(default_factory=SubscriptionLimits)
    used: int = 0
    of_peers: dict[str, int] = field(default_factory=dict)
    """Maps each peer to the number of bytes that its streams use. Peers that use none are absent."""

    def add(self, peer: str, size: int) -> None:
        """Add bytes to the count of a peer; a negative size subtracts them."""
        self.used += size
        left = self.of_peers.get(peer, 0) + size
        if left:
            self.of_peers[peer] = left
        else:
            self.of_peers.pop(peer, None)


class StreamBudget:
    """One stream's share of the budget, released by `close`. `peer` is the client's host, or the Unix socket."""

    def __init__(self, budget: Budget, peer: str = "") -> None:
        self._budget = budget
        self._peer = peer
        self._used: dict[str, int] = {}

    def check_length(self, names: int) -> None:
        """Check the number of names in one request. Raises ExhaustedError."""
        if names > self._budget.limits.names:
            raise ExhaustedError(f"more than {self._budget.limits.names} names in a request")

    def keep(
        self, kind: str, names: Collection[str], versions: Mapping[str, str], existing: Mapping[str, object]
    ) -> None:
        """Replace the stored data of a type: the subscribed names, and the versions that the client claims.

        Raises ExhaustedError if this exceeds a limit.
        """
        self.count(kind, names, versions, existing)
        limits = self._budget.limits
        if sum(self._used.values()) > limits.unknown:
            raise ExhaustedError(f"unknown resource names take up more than {limits.unknown >> 10} KiB on this stream")
        if self._used[kind] and self._budget.of_peers.get(self._peer, 0) > limits.unknown_of_peer:
            raise ExhaustedError(
                f"unknown resource names take more than {limits.unknown_of_peer >> 10} KiB on the streams of this peer"
            )
        if self._used[kind] and self._budget.used > limits.unknown_in_all:
            raise ExhaustedError(
                f"unknown resource names take more than {limits.unknown_in_all >> 10} KiB on all streams"
            )

    def count(
        self, kind: str, names: Collection[str], versions: Mapping[str, str], existing: Mapping[str, object]
    ) -> None:
        """Update the count like `keep`, but without checking the limits.

        Publishing a snapshot can change which names exist.
        """
        size = sum(OVERHEAD + getsizeof(name) for name in names if name not in existing)
        size += sum(
            OVERHEAD + getsizeof(name) + getsizeof(version)
            for name, version in versions.items()
            if name not in existing
        )
        self._budget.add(self._peer, size - self._used.get(kind, 0))
        self._used[kind] = size

    def close(self) -> None:
        """Release the stream's share of the budget."""
        self._budget.add(self._peer, -sum(self._used.values()))
        self._used.clear()
