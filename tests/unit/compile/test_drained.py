"""A pool that is drained as a whole is said, where a route is left without an answer."""

from __future__ import annotations

import pytest

from tests.support.fleet import compiling, marked, places

_POOLS = """
  a: {replicas: ▶[{address: "10.0.0.1:80", drain: true}, {address: "10.0.0.2:80", drain: true}]}
  b: {replicas: [{address: "10.0.0.3:80"}]}
"""


def _found(routes: str, pools: str = _POOLS) -> tuple[str, list[str], list[str]]:
    """The place of the mark, the places of what is found, and the messages."""
    text, mark = marked(f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:80"}}}}\nroutes: {{{routes}}}\npools:{pools}')
    made, found = compiling(text)
    assert made is not None
    assert {item.severity for item in found} <= {"warning"}
    return mark, places(found), [item.message for item in found]


@pytest.mark.parametrize(
    "keys",
    [
        "pool: a",
        "split: {a: 1, b: 1}",
        "pool: b, pin: [{header: x, equals: y, pool: a}]",
        "pool: a, mirror: {pool: b}",
    ],
)
def test_a_route_to_a_pool_that_is_drained_as_a_whole_is_warned_of_at_the_replicas(keys: str) -> None:
    mark, found, messages = _found(f"r: {{match: {{path_prefix: /}}, {keys}}}")
    assert found == [f"{mark} LB208"]
    assert messages == ["every replica is drained: the route r gets no answer from this pool"]


def test_one_warning_names_all_its_routes() -> None:
    _, found, (message,) = _found("r: {match: {path: /r}, pool: a}, s: {match: {path: /s}, pool: a}")
    assert len(found) == 1
    assert "the routes r, s get no answer" in message


@pytest.mark.parametrize(
    "keys",
    ["pool: b", "pool: a, fallback: b", "split: {a: 0, b: 1}", "pool: b, fallback: a", "pool: b, mirror: {pool: a}"],
)
def test_a_drained_pool_that_nobody_misses_is_no_fault(keys: str) -> None:
    assert _found(f"r: {{match: {{path_prefix: /}}, {keys}}}")[1] == []


def test_a_fallback_that_is_drained_too_relieves_nobody() -> None:
    pools = _POOLS.replace("b: {replicas: [{", "b: {replicas: [{drain: true, ")
    mark, found, _ = _found("r: {match: {path_prefix: /}, pool: a, fallback: b}", pools)
    assert found == [f"{mark} LB208"]


def test_a_pool_with_one_replica_left_and_one_without_any_are_no_fault() -> None:
    pools = _POOLS.replace("drain: true}]", "drain: false}]").replace(
        "b: {", "b: {discovery: {dns: {name: b.example, port: 80}}}\n  c: {"
    )
    assert _found("r: {match: {path: /r}, pool: a}, s: {match: {path: /s}, pool: b}", pools)[1] == []
