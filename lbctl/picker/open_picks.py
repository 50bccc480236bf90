"""Picks whose end was never reported: HAProxy and nginx report ends by datagrams, and datagrams may be lost.

A proxy that says how many requests it has for each replica ends those that the picker has beyond them, the oldest
first. A report may be older than a request, and a request may end between two looks, so only picks of some seconds ago
count, and only as many as are too many in two reports in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lbctl.pick.table import Candidate
from lbctl.picker.wire import ProxySample

_SETTLED = 5.0
"""Seconds within which a request may be missing from a proxy's report."""
_Place = tuple[str, str, str]
"""Proxy, pool and replica."""


class OpenPick(NamedTuple):
    """A picked request that has not ended."""

    pool: str
    ordered: tuple[Candidate, ...]
    """The replicas of the answer."""
    at: float
    """When it was picked, in seconds on the service's clock."""
    proxy: str = ""
    """The proxy that asked; empty where it did not say."""
    leaves_busy: bool = False
    """Whether it goes on to another replica where the first one is busy."""


class LostEnds:
    """Remembers how many picks were too many in the report before."""

    def __init__(self) -> None:
        self._excess: dict[_Place, int] = {}

    def of(self, picks: Mapping[str, OpenPick], samples: Iterable[ProxySample], now: float) -> list[str]:
        """Return the picks that have ended. `picks` are in the order of their times."""
        reported = {(item.proxy, item.pool, item.replica): item.requests for item in samples}
        ended: list[str] = []
        for place, names in _settled(picks, reported, now).items():
            excess = max(0, len(names) - reported[place])
            ended += names[: min(excess, self._excess.pop(place, 0))]
            if excess:
                self._excess[place] = excess
        return ended


def _settled(picks: Mapping[str, OpenPick], reported: Mapping[_Place, int], now: float) -> dict[_Place, list[str]]:
    """Return the settled picks of each place, the oldest first."""
    settled: dict[_Place, list[str]] = {place: [] for place in reported}
    for name, pick in picks.items():
        if now - pick.at <= _SETTLED:
            break
        place = pick.proxy, pick.pool, pick.ordered[0].name
        if place in settled:
            settled[place].append(name)
    return settled
