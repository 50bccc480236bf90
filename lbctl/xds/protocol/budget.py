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
"""Bytes that a name costs in addition to its text: its entries in three sets."""


class ExhaustedError(StreamError):
    """A limit is exceeded: the stream ends with RESOURCE_EXHAUSTED and this message."""


@dataclass(frozen=True, slots=True)
class Most:
    """Limits of requests and subscriptions.

    `names`: number of names in one request. `unknown`: bytes of one stream's names that do not exist, with `OVERHEAD`
    for each. `unknown_in_all`: the same for all streams together.
    """

    names: int = 100_000
    unknown: int = 8 << 20
    unknown_in_all: int = 64 << 20


@dataclass(slots=True)
class Budget:
    """The memory budget of a server. `used`: bytes of unknown names that its streams keep."""

    most: Most = field(default_factory=Most)
    used: int = 0


class Share:
    """One stream's part of the budget, until `close`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._used: dict[str, int] = {}

    def check_length(self, names: int) -> None:
        """Check the number of names in one request. Raises ExhaustedError."""
        if names > self._budget.most.names:
            raise ExhaustedError(f"more than {self._budget.most.names} names in a request")

    def keep(self, kind: str, names: Collection[str], versions: Mapping[str, str], there: Mapping[str, object]) -> None:
        """Replace what the stream keeps of a type: the subscribed names, and the versions that the client claims.

        Raises ExhaustedError if that exceeds a limit.
        """
        self.count(kind, names, versions, there)
        most = self._budget.most
        if sum(self._used.values()) > most.unknown:
            raise ExhaustedError(f"names that do not exist take more than {most.unknown >> 10} KiB on this stream")
        if self._used[kind] and self._budget.used > most.unknown_in_all:
            raise ExhaustedError(
                f"names that do not exist take more than {most.unknown_in_all >> 10} KiB on all streams"
            )

    def count(
        self, kind: str, names: Collection[str], versions: Mapping[str, str], there: Mapping[str, object]
    ) -> None:
        """Count as `keep` does, without a check: after a publication other names may exist than before."""
        used = sum(OVERHEAD + getsizeof(name) for name in names if name not in there)
        used += sum(
            OVERHEAD + getsizeof(name) + getsizeof(version) for name, version in versions.items() if name not in there
        )
        self._budget.used += used - self._used.get(kind, 0)
        self._used[kind] = used

    def close(self) -> None:
        """Return the stream's part to the budget."""
        self._budget.used -= sum(self._used.values())
        self._used.clear()
