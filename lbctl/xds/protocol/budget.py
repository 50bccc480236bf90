"""Limits the memory for subscribed names that do not exist: each is kept until its stream ends.

A name that exists costs no extra memory, so an Envoy with 10,000 clusters uses almost none of the budget. Names that do
not exist are counted for each stream, so that one client is stopped early, and for the whole process, so that many
streams together cannot fill its memory. Only the stream that exceeds a limit is ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from sys import getsizeof

from lbctl.xds.protocol.wire import StreamError

OVERHEAD = 150
"""The bytes that a name costs in addition to its text, for its entries in three sets."""


class ExhaustedError(StreamError):
    """A limit is exceeded: the stream ends with RESOURCE_EXHAUSTED and this message."""


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """Limits of requests and subscriptions.

    `names` limits the names in one request. `unknown` limits the bytes of one stream's names that do not exist, with
    `OVERHEAD` for each, and `unknown_in_all` the same for all streams together.
    """

    names: int = 100_000
    unknown: int = 8 << 20
    unknown_in_all: int = 64 << 20


@dataclass(slots=True)
class Budget:
    """The memory budget of a server. `used` is the bytes of unknown names that its streams keep."""

    limits: SubscriptionLimits = field(default_factory=SubscriptionLimits)
    used: int = 0


class Share:
    """One stream's part of the budget, until `close`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._used: dict[str, int] = {}

    def check_length(self, names: int) -> None:
        """Check the number of names in one request. Raises ExhaustedError."""
        if names > self._budget.limits.names:
            raise ExhaustedError(f"more than {self._budget.limits.names} names in a request")

    def keep(
        self, kind: str, names: Collection[str], versions: Mapping[str, str], existing: Mapping[str, object]
    ) -> None:
        """Replace what the stream keeps of a type: the subscribed names, and the versions that the client claims.

        Raises ExhaustedError if that exceeds a limit.
        """
        self.count(kind, names, versions, existing)
        limits = self._budget.limits
        if sum(self._used.values()) > limits.unknown:
            raise ExhaustedError(f"names that do not exist take more than {limits.unknown >> 10} KiB on this stream")
        if self._used[kind] and self._budget.used > limits.unknown_in_all:
            raise ExhaustedError(
                f"names that do not exist take more than {limits.unknown_in_all >> 10} KiB on all streams"
            )

    def count(
        self, kind: str, names: Collection[str], versions: Mapping[str, str], existing: Mapping[str, object]
    ) -> None:
        """Count as `keep` does, without a check: after a publication other names may exist than before."""
        size = sum(OVERHEAD + getsizeof(name) for name in names if name not in existing)
        size += sum(
            OVERHEAD + getsizeof(name) + getsizeof(version)
            for name, version in versions.items()
            if name not in existing
        )
        self._budget.used += size - self._used.get(kind, 0)
        self._used[kind] = size

    def close(self) -> None:
        """Return the stream's part to the budget."""
        self._budget.used -= sum(self._used.values())
        self._used.clear()
