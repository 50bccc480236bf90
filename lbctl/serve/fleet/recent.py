"""The most recently published snapshots by version, for proxies that do not have the newest one yet.

A snapshot is kept as long as a proxy has its version. At most `MAX_SNAPSHOTS` are kept, so that a proxy that never
updates cannot exhaust memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from lbctl.ir.snapshot import Snapshot
from lbctl.serve.fleet.publisher import PublishedFleet

MAX_SNAPSHOTS = 16


class RecentSnapshots:
    """Keeps published snapshots. `in_use` returns the versions that proxies currently have."""

    def __init__(self, in_use: Callable[[], Collection[str]]) -> None:
        self._in_use = in_use
        self._snapshots: dict[str, Snapshot] = {}  # newest publication last

    def keep(self, served: PublishedFleet) -> None:
        """Keep this fleet's snapshot as the newest one."""
        version = served.cached_snapshot.version
        self._snapshots.pop(version, None)
        self._snapshots[version] = served.composed.snapshot
        if len(self._snapshots) > MAX_SNAPSHOTS:
            used = self._in_use()
            older = list(self._snapshots)[:-1]
            del self._snapshots[next((item for item in older if item not in used), older[0])]

    def get(self, version: str) -> Snapshot | None:
        """Return the snapshot with this version; None if it has been dropped."""
        return self._snapshots.get(version)

    def oldest(self, versions: Iterable[str]) -> Snapshot | None:
        """Return the oldest snapshot among these versions; None if any version is unknown or none is given."""
        wanted = frozenset(versions)
        if not wanted <= self._snapshots.keys():
            return None
        return next((snapshot for version, snapshot in self._snapshots.items() if version in wanted), None)
