"""Snapshots that proxies still have, by version."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.fleet.recent import MOST, RecentSnapshots


def published(version: str) -> PublishedFleet:
    """A fleet with this version and a snapshot of its own."""
    snapshot = Snapshot(Topology((), (), ()))
    parts = {"cached_snapshot": SimpleNamespace(version=version), "composed": SimpleNamespace(snapshot=snapshot)}
    return cast(PublishedFleet, SimpleNamespace(**parts))


def test_the_oldest_is_the_one_that_was_published_first_and_a_version_that_came_back_is_new() -> None:
    recent = RecentSnapshots(set)
    fleets = {version: published(version) for version in "ab"}
    for version in "aba":
        recent.follow(fleets[version])
    assert recent.oldest(["a", "b"]) is fleets["b"].composed.snapshot
    assert recent.oldest(["a"]) is fleets["a"].composed.snapshot
    assert recent.oldest([]) is None
    assert recent.oldest(["a", ""]) is None


def test_a_version_that_a_proxy_has_outlives_those_that_none_has() -> None:
    recent = RecentSnapshots(lambda: {"v0"})
    for place in range(3 * MOST):
        recent.follow(published(f"v{place}"))
    assert recent.oldest(["v0"]) is not None
    assert recent.oldest(["v1"]) is None
    assert recent.oldest([f"v{3 * MOST - 1}"]) is not None


def test_the_memory_is_bounded_even_where_every_version_is_in_use() -> None:
    recent = RecentSnapshots(lambda: {f"v{place}" for place in range(1000)})
    for place in range(3 * MOST):
        recent.follow(published(f"v{place}"))
    assert recent.oldest([f"v{2 * MOST - 1}"]) is None
    assert recent.oldest([f"v{2 * MOST}"]) is not None
