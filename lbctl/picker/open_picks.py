"""Detects picks whose end was never reported.

HAProxy and nginx report the ends of requests in datagrams, which may be lost.

If a proxy reports how many requests it has at each replica, the picker ends the picks in excess of that number, oldest
first. A report may be older than a request, and a request may end between two reports. Therefore, only picks that are
at least a few seconds old are considered, and only an excess confirmed by two consecutive reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from lbctl.pick.table import Candidate
from lbctl.picker.wire import ProxySample

_SETTLED = 5.0
"""Age in seconds up to which a request may be missing from a proxy's report."""
_Place = tuple[str, str, str]
"""(proxy, pool, replica)."""


class OpenPick(NamedTuple):
    """A picked request that has not ended."""

    pool: str
    ordered: tuple[Candidate, ...]
    """Replicas named in the response."""
    at: float
    """Time of the pick, in seconds on the service's clock."""
    proxy: str = ""
    """The querying proxy; empty if it did not send a name."""
    leaves_busy: bool = False
    """Whether the request is retried on another replica if the first one is busy."""
    refund: Callable[[], None] = lambda: None
    """Refunds its prompt to its budgets."""


class LostEnds:
    """Detects requests whose end was never reported.

    It remembers the excess picks from the previous report.
    """

    def __init__(self) -> None:
        self._excess: dict[_Place, int] = {}

    def of(self, picks: Mapping[str, OpenPick], samples: Iterable[ProxySample], now: float) -> list[str]:
        """Return the IDs of the picks that have ended. `picks` must be sorted by time."""
        reported = {(item.proxy, item.pool, item.replica): item.requests for item in samples}
        ended: list[str] = []
        for place, names in _settled(picks, reported, now).items():
            excess = max(0, len(names) - reported[place])
            ended += names[: min(excess, self._excess.pop(place, 0))]
            if excess:
                self._excess[place] = excess
        return ended


def _settled(picks: Mapping[str, OpenPick], reported: Mapping[_Place, int], now: float) -> dict[_Place, list[str]]:
    """Return the IDs of the settled picks for each proxy, pool and replica, oldest first."""
    settled: dict[_Place, list[str]] = {place: [] for place in reported}
    for name, pick in picks.items():
        if now - pick.at <= _SETTLED:
            break
        place = pick.proxy, pick.pool, pick.ordered[0].name
        if place in settled:
            settled[place].append(name)
    return settled
