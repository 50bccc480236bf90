from __future__ import annotations

from lbctl.model.node import plain_value
from tests.support.fleet import GROUND, compiled, compiling, places, reading


def merged_with_defaults(kind: str, defaults: str, own: str) -> object:
    """Return the object `x` after it is merged with the defaults."""
    section = {"pool": "pools", "route": "routes"}[kind]
    source, diagnostics = reading(f"version: 1\ndefaults: {{{kind}: {defaults}}}\n{section}: {{x: {own}}}\n")
    assert source is not None, diagnostics
    return plain_value(source.root)[section]["x"]


POOL = 'replicas: [{address: "a:1"}]'


def test_maps_are_merged_deeply() -> None:
    merged = merged_with_defaults(
        "pool",
        "{health: {passive: {consecutive_5xx: 7, error_rate: {min_requests: 9}}}, labels: {a: x, b: x}}",
        f"{{{POOL}, health: {{passive: {{error_rate: {{percent: 10%}}}}}}, labels: {{b: y}}}}",
    )
    assert isinstance(merged, dict)
    assert merged["health"] == {"passive": {"consecutive_5xx": 7, "error_rate": {"min_requests": 9, "percent": "10%"}}}
    assert merged["labels"] == {"a": "x", "b": "y"}


def test_lists_and_scalars_are_replaced() -> None:
    merged = merged_with_defaults(
        "route",
        "{match: {methods: [GET, POST]}, websocket: true}",
        "{match: {methods: [PUT]}, websocket: false, pool: a}",
    )
    assert merged == {"match": {"methods": ["PUT"]}, "websocket": False, "pool": "a"}


def test_an_explicit_choice_replaces_the_default_choice() -> None:
    defaults = "{health: {active: {http: {path: /x, host: h}, interval: 5s}}}"
    merged = merged_with_defaults("pool", defaults, f"{{{POOL}, health: {{active: {{tcp: {{}}}}}}}}")
    assert isinstance(merged, dict)
    assert merged["health"] == {"active": {"tcp": {}, "interval": "5s"}}
    assert merged_with_defaults("route", "{pool: a}", "{split: {b: 1}}") == {"split": {"b": 1}}
    assert merged_with_defaults("route", "{split: {b: 1}}", "{respond: {redirect: https}}") == {
        "respond": {"redirect": "https"}
    }
    assert merged_with_defaults("route", "{pool: a, match: {path_regex: /x}}", "{match: {path: /y}}") == {
        "pool": "a",
        "match": {"path": "/y"},
    }
    assert merged_with_defaults("route", "{respond: {status: 200, body: x}}", "{respond: {redirect: https}}") == {
        "respond": {"redirect": "https"}
    }
    assert merged_with_defaults("pool", f"{{{POOL}}}", "{discovery: {file: {path: x}}}") == {
        "discovery": {"file": {"path": "x"}}
    }


def test_equal_choices_are_merged() -> None:
    merged = merged_with_defaults(
        "pool", "{health: {active: {http: {host: h}}}}", f"{{{POOL}, health: {{active: {{http: {{path: /x}}}}}}}}"
    )
    assert isinstance(merged, dict)
    assert merged["health"] == {"active": {"http": {"host": "h", "path": "/x"}}}


def test_defaults_apply_to_every_object() -> None:
    fleet = compiled(f"{GROUND}defaults: {{pool: {{connections: {{idle: 9s}}}}}}\n")
    assert [pool.connections.idle for pool in fleet.topology.pools] == [9000, 9000]


def test_an_error_in_the_defaults_is_reported_once() -> None:
    text = "version: 1\ndefaults:\n  pool:\n    connections: {idle: 4}\n    bogus: 1\n"
    for pools in ("", 'pools: {a: {replicas: [{address: "a:1"}]}, b: {replicas: [{address: "b:1"}]}}\n'):
        source, diagnostics = reading(text + pools)
        assert source is None
        assert places(diagnostics) == ["4:25 LB013", "5:5 LB011"]
        assert [item.path[0] for item in diagnostics] == ["defaults", "defaults"]


def test_contradictory_defaults_are_reported_without_objects() -> None:
    _, diagnostics = reading("version: 1\ndefaults: {route: {pool: a, respond: {status: 200}}}\n")
    assert places(diagnostics) == ["2:12 LB015"]


def test_compiler_errors_point_to_the_default() -> None:
    routes = "{r: {}, s: {match: {path: /}, pool: a}}"
    _, diagnostics = compiling(f"{GROUND}defaults: {{route: {{pool: nowhere}}}}\nroutes: {routes}\n")
    assert places(diagnostics) == ["6:26 LB101"]


def test_defaults_may_be_incomplete() -> None:
    source, diagnostics = reading(
        "version: 1\ndefaults: {pool: {balance: {hash: {bounded_load: 2}}}, route: {auth: {forward_tenant: x}}}\n"
    )
    assert diagnostics == []
    assert source is not None
