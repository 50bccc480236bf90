from __future__ import annotations

from lbctl.model.node import plain_value
from tests.support.fleet import GROUND, compiled, compiling, places, reading


def laid(kind: str, defaults: str, own: str) -> object:
    """What stands in the object `x` with these defaults under it."""
    section = {"pool": "pools", "route": "routes"}[kind]
    source, found = reading(f"version: 1\ndefaults: {{{kind}: {defaults}}}\n{section}: {{x: {own}}}\n")
    assert source is not None, found
    return plain_value(source.root)[section]["x"]


POOL = 'replicas: [{address: "a:1"}]'


def test_maps_are_merged_deeply() -> None:
    made = laid(
        "pool",
        "{health: {passive: {consecutive_5xx: 7, error_rate: {min_requests: 9}}}, labels: {a: x, b: x}}",
        f"{{{POOL}, health: {{passive: {{error_rate: {{percent: 10%}}}}}}, labels: {{b: y}}}}",
    )
    assert isinstance(made, dict)
    assert made["health"] == {"passive": {"consecutive_5xx": 7, "error_rate": {"min_requests": 9, "percent": "10%"}}}
    assert made["labels"] == {"a": "x", "b": "y"}


def test_lists_and_scalars_are_replaced() -> None:
    made = laid(
        "route",
        "{match: {methods: [GET, POST]}, websocket: true}",
        "{match: {methods: [PUT]}, websocket: false, pool: a}",
    )
    assert made == {"match": {"methods": ["PUT"]}, "websocket": False, "pool": "a"}


def test_an_own_choice_replaces_that_of_the_defaults() -> None:
    defaults = "{health: {active: {http: {path: /x, host: h}, interval: 5s}}}"
    made = laid("pool", defaults, f"{{{POOL}, health: {{active: {{tcp: {{}}}}}}}}")
    assert isinstance(made, dict)
    assert made["health"] == {"active": {"tcp": {}, "interval": "5s"}}
    assert laid("route", "{pool: a}", "{split: {b: 1}}") == {"split": {"b": 1}}
    assert laid("route", "{split: {b: 1}}", "{respond: {redirect: https}}") == {"respond": {"redirect": "https"}}
    assert laid("route", "{pool: a, match: {path_regex: /x}}", "{match: {path: /y}}") == {
        "pool": "a",
        "match": {"path": "/y"},
    }
    assert laid("route", "{respond: {status: 200, body: x}}", "{respond: {redirect: https}}") == {
        "respond": {"redirect": "https"}
    }
    assert laid("pool", f"{{{POOL}}}", "{discovery: {file: {path: x}}}") == {"discovery": {"file": {"path": "x"}}}


def test_the_same_choice_is_merged() -> None:
    made = laid(
        "pool", "{health: {active: {http: {host: h}}}}", f"{{{POOL}, health: {{active: {{http: {{path: /x}}}}}}}}"
    )
    assert isinstance(made, dict)
    assert made["health"] == {"active": {"http": {"host": "h", "path": "/x"}}}


def test_defaults_are_laid_under_every_object() -> None:
    made = compiled(f"{GROUND}defaults: {{pool: {{connections: {{idle: 9s}}}}}}\n")
    assert [pool.connections.idle for pool in made.topology.pools] == [9000, 9000]


def test_a_fault_in_the_defaults_is_reported_once_and_there() -> None:
    text = "version: 1\ndefaults:\n  pool:\n    connections: {idle: 4}\n    bogus: 1\n"
    for pools in ("", 'pools: {a: {replicas: [{address: "a:1"}]}, b: {replicas: [{address: "b:1"}]}}\n'):
        source, found = reading(text + pools)
        assert source is None
        assert places(found) == ["4:25 LB013", "5:5 LB011"]
        assert [item.path[0] for item in found] == ["defaults", "defaults"]


def test_defaults_that_exclude_each_other_are_reported_without_any_object() -> None:
    _, found = reading("version: 1\ndefaults: {route: {pool: a, respond: {status: 200}}}\n")
    assert places(found) == ["2:12 LB015"]


def test_what_the_compiler_finds_in_a_default_stands_at_the_default() -> None:
    routes = "{r: {}, s: {match: {path: /}, pool: a}}"
    _, found = compiling(f"{GROUND}defaults: {{route: {{pool: nowhere}}}}\nroutes: {routes}\n")
    assert places(found) == ["6:26 LB101"]


def test_what_is_absent_from_the_defaults_is_no_fault() -> None:
    source, found = reading(
        "version: 1\ndefaults: {pool: {balance: {hash: {bounded_load: 2}}}, route: {auth: {forward_tenant: x}}}\n"
    )
    assert found == []
    assert source is not None
