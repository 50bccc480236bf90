"""Versions of proxies with published faults that their rendered text can reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets.advisories import described, known_faults
from tests.support.fleets import fleet_of, load_fleet, pool, replica

_BY_MODEL = {"route": {"match": {"path_prefix": "/", "model": ["m"]}}}


def faults(tmp_path: Path, kind: str, version: tuple[int, ...], **fleet: object) -> list[str]:
    topology = load_fleet(
        tmp_path, fleet_of(pool(replica("a")), proxies={"edge": {"kind": kind}}, **fleet)
    ).compiled.topology
    return [item.name for item in known_faults(kind, version, view(Snapshot(topology), topology.proxies[0]))]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((1, 22, 1), []),
        ((1, 30, 5), ["CVE-2026-93479"]),
        ((1, 30, 6), []),
        ((1, 31, 6), ["CVE-2026-93479"]),
        ((1, 31, 7), []),
        ((1, 32, 0), []),
    ],
)
def test_each_branch_has_its_first_fixed_version(version: tuple[int, ...], expected: list[str], tmp_path: Path) -> None:
    assert faults(tmp_path, "nginx", version) == expected


def test_only_what_the_text_uses_counts(tmp_path: Path) -> None:
    assert faults(tmp_path, "haproxy", (3, 2, 5)) == []
    assert faults(tmp_path, "haproxy", (3, 2, 5), **_BY_MODEL) == ["CVE-2025-11230"]
    assert faults(tmp_path, "haproxy", (3, 3, 0), **_BY_MODEL) == []
    assert faults(tmp_path, "envoy", (1, 20, 0), **_BY_MODEL) == []


def test_finding_names_the_faults_and_the_fixes(tmp_path: Path) -> None:
    topology = load_fleet(tmp_path, fleet_of(pool(replica("a")), proxies={"edge": {"kind": "nginx"}})).compiled.topology
    advisories = list(known_faults("nginx", (1, 30, 0), view(Snapshot(topology), topology.proxies[0])))
    assert described(advisories) == (
        "CVE-2026-93479 (maps with regular expressions)",
        "use a version with the fixes (1.30.6, 1.31.7), unless your distribution has patched it",
    )
