"""Snapshots that proxies still have, by version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.fleet.recent import MAX_SNAPSHOTS, RecentSnapshots


def published(version: str) -> PublishedFleet:
    """Return a published fleet with this version and its own snapshot."""
    snapshot = Snapshot(Topology((), (), ()))
    parts = {"cached_snapshot": SimpleNamespace(version=version), "composed": SimpleNamespace(snapshot=snapshot)}
    return cast(PublishedFleet, SimpleNamespace(**parts))


def test_oldest_snapshot_is_the_one_published_first() -> None:
    recent = RecentSnapshots(set)
    fleets = {version: published(version) for version in "ab"}
    for version in "aba":
        recent.keep(fleets[version])
    assert recent.oldest(["a", "b"]) is fleets["b"].composed.snapshot
    assert recent.oldest(["a"]) is fleets["a"].composed.snapshot
    assert recent.oldest([]) is None
    assert recent.oldest(["a", ""]) is None


def test_version_in_use_outlives_unused_versions() -> None:
    recent = RecentSnapshots(lambda: {"v0"})
    for place in range(3 * MAX_SNAPSHOTS):
        recent.keep(published(f"v{place}"))
    assert recent.oldest(["v0"]) is not None
    assert recent.oldest(["v1"]) is None
    assert recent.oldest([f"v{3 * MAX_SNAPSHOTS - 1}"]) is not None


def test_memory_is_bounded_if_every_version_is_in_use() -> None:
    recent = RecentSnapshots(lambda: {f"v{place}" for place in range(1000)})
    for place in range(3 * MAX_SNAPSHOTS):
        recent.keep(published(f"v{place}"))
    assert recent.oldest([f"v{2 * MAX_SNAPSHOTS - 1}"]) is None
    assert recent.oldest([f"v{2 * MAX_SNAPSHOTS}"]) is not None
