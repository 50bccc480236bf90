"""LB208: a warning if every replica of a pool is drained and a route has no other pool."""

from __future__ import annotations

import pytest

from tests.support.fleet import compiling, marked, places

_POOLS = """
  a: {replicas: ▶[{address: "10.0.0.1:80", drain: true}, {address: "10.0.0.2:80", drain: true}]}
  b: {replicas: [{address: "10.0.0.3:80"}]}
"""


def drained_diagnostics(routes: str, pools: str = _POOLS) -> tuple[str, list[str], list[str]]:
    """Return the position of the mark, the positions and codes of the diagnostics, and their messages."""
    text, mark = marked(f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:80"}}}}\nroutes: {{{routes}}}\npools:{pools}')
    fleet, diagnostics = compiling(text)
    assert fleet is not None
    assert {item.severity for item in diagnostics} <= {"warning"}
    return mark, places(diagnostics), [item.message for item in diagnostics]


@pytest.mark.parametrize(
    "keys",
    [
        "pool: a",
        "split: {a: 1, b: 1}",
        "pool: b, pin: [{header: x, equals: y, pool: a}]",
        "pool: a, mirror: {pool: b}",
    ],
)
def test_a_route_to_a_fully_drained_pool_is_a_warning(keys: str) -> None:
    mark, warnings, messages = drained_diagnostics(f"r: {{match: {{path_prefix: /}}, {keys}}}")
    assert warnings == [f"{mark} LB208"]
    assert messages == ["every replica is drained: the route r gets no response from this pool"]


def test_one_warning_names_all_routes_of_a_pool() -> None:
    _, warnings, (message,) = drained_diagnostics("r: {match: {path: /r}, pool: a}, s: {match: {path: /s}, pool: a}")
    assert len(warnings) == 1
    assert "the routes r, s get no response" in message


@pytest.mark.parametrize(
    "keys",
    ["pool: b", "pool: a, fallback: b", "split: {a: 0, b: 1}", "pool: b, fallback: a", "pool: b, mirror: {pool: a}"],
)
def test_a_drained_pool_without_effect_is_not_reported(keys: str) -> None:
    assert drained_diagnostics(f"r: {{match: {{path_prefix: /}}, {keys}}}")[1] == []


def test_a_drained_fallback_does_not_prevent_the_warning() -> None:
    pools = _POOLS.replace("b: {replicas: [{", "b: {replicas: [{drain: true, ")
    mark, warnings, _ = drained_diagnostics("r: {match: {path_prefix: /}, pool: a, fallback: b}", pools)
    assert warnings == [f"{mark} LB208"]


def test_partly_drained_and_discovered_pools_are_not_reported() -> None:
    pools = _POOLS.replace("drain: true}]", "drain: false}]").replace(
        "b: {", "b: {discovery: {dns: {name: b.example, port: 80}}}\n  c: {"
    )
    assert drained_diagnostics("r: {match: {path: /r}, pool: a}, s: {match: {path: /s}, pool: b}", pools)[1] == []
