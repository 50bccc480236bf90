"""Resources that Envoy rejects are detected before they are sent (tests/e2e/xds/test_validation.py confirms it)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.ir.snapshot import Snapshot
from lbctl.targets.load import load
from lbctl.xds.build import validate
from lbctl.xds.build.nack_locator import message_of
from lbctl.xds.build.snapshot_cache import Builder, UnsoundError
from lbctl.xds.resource import CDS, EDS, LDS, RDS
from tests.support.broken_xds import ANY, BROKEN, broken_message, built_resources
from tests.support.paths import ROOT
from tests.support.processes.certs import Authority
from tests.support.xds import load_text


def _weights_too_large(message: Any) -> None:
    for item in message.endpoints[0].lb_endpoints:
        item.load_balancing_weight.value = 2**32 - 1


def _priority_gap(message: Any) -> None:
    message.endpoints[0].priority = 1


def _twice_in_one_place(message: Any) -> None:
    message.endpoints[0].lb_endpoints[1].endpoint.address.socket_address.address = "10.0.0.1"


def problems_of(kind: str, message: Message, path: tuple[Any, ...]) -> list[tuple[str, tuple[Any, ...]]]:
    problems = [*validate.examine(kind, message, path).problems]
    problems += validate.examine_addresses(message, path) if kind == EDS else ()
    return [(item.message, item.path) for item in problems]


@pytest.mark.parametrize(("kind", "name", "wrong", "words", "path"), BROKEN)
def test_a_broken_rule_is_reported_with_its_path(
    kind: str, name: str, wrong: Callable[[Any], None], words: str, path: tuple[str, ...]
) -> None:
    broken, broken_path = broken_message(kind, name, wrong)
    problems = problems_of(kind, broken, broken_path)
    assert any(words in message and position == path for message, position in problems), problems


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_priority_gap, "priorities must be consecutive"),
        (_twice_in_one_place, "is used twice: 10.0.0.1, port 80"),
        (_weights_too_large, "sum is at most 4294967295"),
    ],
)
def test_messages_envoy_would_misread_are_reported(wrong: Callable[[Any], None], words: str) -> None:
    assert any(words in message for message, _ in problems_of(EDS, *broken_message(EDS, "llama", wrong)))


def test_built_resources_have_no_problems() -> None:
    resources = built_resources()
    for kind in (CDS, EDS, LDS, RDS):
        for item in resources.of(kind).values():
            assert problems_of(kind, message_of(item), item.path) == []


# ── References between resources ───────────────────────────────────────────────────────────────────────────────────


def test_a_dangling_reference_is_reported_at_its_source() -> None:
    needs = [((CDS, "gone"), ("listeners", "public")), ((CDS, "llama"), ("listeners", "public"))]
    (problem,) = validate.missing(needs, {(CDS, "llama")})
    assert problem.path == ("listeners", "public")
    assert "it refers to 'gone', which does not exist (CDS)" in problem.message


def test_references_of_every_kind_are_collected(tmp_path: Path) -> None:
    text = """
version: 1
listeners:
  l: {bind: "127.0.0.1:80", tracing: {otlp: "127.0.0.1:4317", sample: 10%, service: s},
      tls: {certificates: [{certificate: a.crt, key: a.key}], client_ca: ca.crt}}
routes:
  r: {match: {path_prefix: /}, split: {a: 1, b: 1}, mirror: {pool: c}, fallback: d}
  s: {match: {path_prefix: /s}, pool: a}
pools:
  a: {replicas: [{address: "10.0.0.1:80"}], tls: {ca: ca.crt, server_name: x.example.com}}
  b: {replicas: [{address: "10.0.0.2:80"}]}
  c: {replicas: [{address: "10.0.0.3:80"}]}
  d: {replicas: [{address: "10.0.0.4:80"}]}
"""
    loaded = load_text(text)
    authority = Authority(tmp_path)
    pair = authority.issue("x.example.com")
    files = {"a.crt": pair.certificate, "a.key": pair.key, "ca.crt": authority.ca}
    secrets = replace(loaded.secrets, files={name: path.read_bytes() for name, path in files.items()})
    resources = Builder().build(loaded, Snapshot(loaded.compiled.topology, secrets=secrets)).resources(ANY)
    needs = {
        name: {
            f"{kind.rpartition('.')[2]} {of}"
            for kind, of in validate.examine(item.type_url, message_of(item), item.path).needs
        }
        for where in (LDS, RDS, CDS)
        for name, item in resources.of(where).items()
        for name in [f"{where.rpartition('.')[2]} {name}"]
    }
    assert needs == {
        "Listener l": {"RouteConfiguration l", "Secret certificate:a.crt", "Secret ca:ca.crt", "Cluster tracing|l"},
        "RouteConfiguration l": {"Cluster a|else|d", "Cluster b|else|d", "Cluster c", "Cluster a"},
        "Cluster a": {"ClusterLoadAssignment a", "Secret ca:ca.crt"},
        "Cluster b": {"ClusterLoadAssignment b"},
        "Cluster c": {"ClusterLoadAssignment c"},
        "Cluster d": {"ClusterLoadAssignment d"},
        "Cluster a|else|d": {"Cluster a", "Cluster d"},
        "Cluster b|else|d": {"Cluster b", "Cluster d"},
        "Cluster tracing|l": set(),
    }


# ── No false alarms ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for folder in (ROOT / "tests" / "golden", ROOT / "examples")
        for path in folder.rglob("*.yaml")
        if "version: 1" in path.read_text() and "invalid" not in str(path)
    ),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_valid_fleets_have_no_problems(path: Path, tmp_path: Path) -> None:
    """Files that the fleet refers to do not exist here, so only LB922 is allowed."""
    diagnostics = Diagnostics()
    loaded = load([str(path)], diagnostics)
    assert loaded is not None, list(diagnostics)
    problems: tuple[Diagnostic, ...] = ()
    try:
        Builder().build(loaded, Snapshot(loaded.compiled.topology, secrets=loaded.secrets))
    except UnsoundError as error:
        problems = error.problems
    assert {item.code for item in problems} <= {"LB922"}
