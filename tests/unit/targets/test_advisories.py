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


def test_tls_reaches_faults_of_every_branch_before_the_fix(tmp_path: Path) -> None:
    pem = tmp_path / "pem"
    pem.touch()
    listeners = {
        "gateway": {"bind": "127.0.0.1:8443", "tls": {"certificates": [{"certificate": str(pem), "key": str(pem)}]}}
    }
    reached = ["CVE-2026-118899", "CVE-2026-123007", "CVE-2026-123633"]
    assert faults(tmp_path, "nginx", (1, 22, 1), listeners=listeners) == reached
    assert faults(tmp_path, "nginx", (1, 30, 6), listeners=listeners) == reached
    assert faults(tmp_path, "nginx", (1, 30, 7), listeners=listeners) == []


def test_only_what_the_text_uses_counts(tmp_path: Path) -> None:
    assert faults(tmp_path, "haproxy", (3, 2, 5)) == []
    assert faults(tmp_path, "haproxy", (3, 2, 5), **_BY_MODEL) == ["CVE-2025-11230"]
    assert faults(tmp_path, "haproxy", (3, 3, 0), **_BY_MODEL) == []
    assert "CVE-2026-48042" in faults(tmp_path, "envoy", (1, 38, 2), **_BY_MODEL)
    assert "CVE-2026-48042" not in faults(tmp_path, "envoy", (1, 38, 2))
    assert faults(tmp_path, "envoy", (1, 40, 0), **_BY_MODEL) == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ((1, 36, 8), ["CVE-2026-73550"]),
        ((1, 36, 6), ["CVE-2026-47774", "CVE-2026-73550"]),
        ((1, 36, 4), ["CVE-2026-26311", "CVE-2026-47774", "CVE-2026-73550"]),
        ((1, 35, 14), ["CVE-2026-73550"]),
        ((1, 39, 0), ["CVE-2026-73550"]),
        ((1, 39, 1), []),
    ],
)
def test_faults_of_an_envoy(version: tuple[int, ...], expected: list[str], tmp_path: Path) -> None:
    assert faults(tmp_path, "envoy", version) == expected


def test_service_that_decides_is_named(tmp_path: Path) -> None:
    external = {"route": {"auth": {"external": {"url": "http://127.0.0.1:9191/"}}}}
    found = faults(tmp_path, "envoy", (1, 38, 3), **external)
    assert found == ["CVE-2026-50572", "CVE-2026-73547", "CVE-2026-73550"]
    picked = faults(tmp_path, "envoy", (1, 38, 2), pools={"pool": pool(replica("a"), balance={"algorithm": "pick"})})
    assert "CVE-2026-47205" in picked


def test_finding_names_the_faults_and_the_fixes(tmp_path: Path) -> None:
    topology = load_fleet(tmp_path, fleet_of(pool(replica("a")), proxies={"edge": {"kind": "nginx"}})).compiled.topology
    advisories = list(known_faults("nginx", (1, 30, 0), view(Snapshot(topology), topology.proxies[0])))
    assert described(advisories, (1, 30, 0)) == (
        "CVE-2026-93479 (maps with regular expressions)",
        "upgrade to a version with the fixes (1.30.6, 1.31.7), unless your distribution has patched this version",
    )


def test_hint_names_the_fix_of_the_own_branch(tmp_path: Path) -> None:
    shown = {"route": {"match": {"path_prefix": "/", "model": ["m"]}}}
    document = fleet_of(pool(replica("a")), proxies={"edge": {"kind": "haproxy", "version": "2.6"}}, **shown)
    topology = load_fleet(tmp_path, document).compiled.topology
    found = list(known_faults("haproxy", (2, 6, 12), view(Snapshot(topology), topology.proxies[0])))
    assert found
    assert "2.6." in described(found, (2, 6, 12))[1]
