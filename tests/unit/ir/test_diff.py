"""The difference of two fleets: every kind of change is reported, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics, dotted
from lbctl.ir.diff import Difference, ReroutedRequests, difference
from lbctl.ir.topology import Topology
from lbctl.targets.load import load
from tests.support.fleet import compiled
from tests.support.paths import FIXTURES

FULL = FIXTURES / "full.yaml"
DERIVED = {
    "rules", "content_type", "few_slots", "is_limited", "kubeconfig_file", "control_files", "token_limits", "route",
}  # fmt: skip
"""Derived fields: `rules` and `token_limits` follow from the routes, `few_slots` from the servers, `is_limited` from
the limits, `kubeconfig_file` from the directory of the fleet, `control_files` from its section `control`. `route`
repeats the name of the limit's route."""

ONE = '      - {name: one, address: "10.0.0.1:8000", weight: 3}\n'
TWO = '      - {name: two, address: "10.0.0.2:8000", weight: 1}\n'
FLEET = """
version: 1
listeners:
  public: {bind: "127.0.0.1:8080"}
  internal: {bind: "127.0.0.1:8081"}
routes:
  chat: {match: {path_prefix: /v1/chat}, split: {a: 95, b: 5}}
  rest: {match: {path_prefix: /}, pool: a, timeouts: {idle: 60s}}
pools:
  a:
    replicas:
      - {name: one, address: "10.0.0.1:8000", weight: 3}
      - {name: two, address: "10.0.0.2:8000", weight: 1}
  b:
    replicas:
      - {name: only, address: "10.0.0.3:8000"}
"""


def topology_of(text: str) -> Topology:
    return compiled(text).topology


def changed(*swaps: tuple[str, str]) -> Difference:
    """Return the difference after these replacements in FLEET."""
    text = FLEET
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new)
    return difference(topology_of(FLEET), topology_of(text))


def settings(result: Difference) -> list[tuple[str, str | None, str | None]]:
    return [(dotted(item.path), item.old, item.new) for item in result.settings]


def object_changes(result: Difference) -> list[tuple[str, str]]:
    return [(item.kind, dotted(item.path)) for item in result.objects]


def moves(result: Difference) -> dict[str, tuple[float, float]]:
    return {
        f"{item.route} {item.pool}/{item.replica}": (round(item.old, 4), round(item.new, 4)) for item in result.traffic
    }


@pytest.mark.parametrize(
    "swaps",
    [
        [("60s", "1m")],
        [("{a: 95, b: 5}", "{b: 1, a: 19}")],
        [("version: 1", "# words\nversion: 1")],
        [("path_prefix: /v1/chat", "path_prefix: /v1/chat/")],
        [(", pool: a,", ", split: {a: 7},")],
        [("weight: 3", "weight: 3, drain: false, priority: 0"), ("only,", "only, weight: 1,")],
        [("split: {a: 95, b: 5}", "split: {a: 95, b: 5}, retry: {attempts: 2}, listeners: [internal, public]")],
        [(ONE + TWO, TWO + ONE)],
    ],
    ids=["unit", "split", "comment", "slash", "one pool", "defaults", "route defaults", "order"],
)
def test_equivalent_fleets_have_no_difference(swaps: list[tuple[str, str]]) -> None:
    assert changed(*swaps) == Difference()
    assert not changed(*swaps)


def test_a_weight_moves_shares_of_all_replicas_of_its_pool() -> None:
    result = changed(("weight: 3", "weight: 1"))
    assert settings(result) == [("pools.a.replicas.one.capacity", "3", "1")]
    assert moves(result) == {
        "chat a/one": (0.7125, 0.475),
        "chat a/two": (0.2375, 0.475),
        "rest a/one": (0.75, 0.5),
        "rest a/two": (0.25, 0.5),
    }
    assert (result.objects, result.rerouted) == ((), ())


def test_a_split_moves_shares_of_pools_and_replicas() -> None:
    result = changed(("{a: 95, b: 5}", "{a: 50, b: 50}"))
    assert settings(result) == [("routes.chat.split.a", "95%", "50%"), ("routes.chat.split.b", "5%", "50%")]
    assert moves(result) == {
        "chat a/": (0.95, 0.5),
        "chat a/one": (0.7125, 0.375),
        "chat a/two": (0.2375, 0.125),
        "chat b/": (0.05, 0.5),
        "chat b/only": (0.05, 0.5),
    }


def test_a_tiny_change_of_a_split_is_a_difference() -> None:
    assert changed(("{a: 95, b: 5}", "{a: 950000, b: 49999}")).settings


def test_added_and_removed_replicas_have_a_description() -> None:
    result = changed(
        ('{name: two, address: "10.0.0.2:8000", weight: 1}', '{name: new, address: "10.0.0.9:1", gpu: L4}')
    )
    assert [(item.kind, dotted(item.path), item.description) for item in result.objects] == [
        ("removed", "pools.a.replicas.two", "10.0.0.2:8000, capacity 1"),
        ("added", "pools.a.replicas.new", "10.0.0.9:1, capacity 0.8, L4"),
    ]
    assert moves(result)["rest a/two"] == (0.25, 0.0)


def test_a_drained_replica_and_a_standby_have_no_share() -> None:
    assert moves(changed(("weight: 1}", "weight: 1, drain: true}")))["rest a/one"] == (0.75, 1.0)
    assert moves(changed(("weight: 1}", "weight: 1, priority: 1}")))["rest a/two"] == (0.25, 0.0)


def test_a_route_with_regions_uses_only_their_replicas() -> None:
    text = FLEET.replace("weight: 3", "weight: 3, region: eu").replace("weight: 1", "weight: 1, region: us")
    kept = text.replace("pool: a, timeouts", "pool: a, regions: [eu], timeouts")
    result = difference(topology_of(text), topology_of(kept))
    assert moves(result) == {"rest a/one": (0.75, 1.0), "rest a/two": (0.25, 0.0)}
    assert settings(result) == [("routes.rest.regions", "any", "eu")]


def test_added_and_removed_pools_and_routes_are_objects() -> None:
    more = (
        FLEET.replace("routes:", "routes:\n  new: {match: {path: /x}, pool: c}")
        + '  c: {replicas: [{address: "h:1"}]}\n'
    )
    result = difference(topology_of(FLEET), topology_of(more))
    assert object_changes(result) == [("added", "pools.c"), ("added", "routes.new")]
    assert object_changes(difference(topology_of(more), topology_of(FLEET))) == [
        ("removed", "pools.c"),
        ("removed", "routes.new"),
    ]


def test_changed_settings_have_old_and_new_values() -> None:
    assert settings(changed(("idle: 60s", "request: 5s"))) == [
        ("routes.rest.timeouts.request", "unlimited", "5s"),
        ("routes.rest.timeouts.idle", "1m", "5m"),
    ]
    result = changed(("  b:\n", "  b:\n    affinity: {cookie: c}\n"))
    assert settings(result) == [("pools.b.affinity.cookie", None, "c"), ("pools.b.affinity.ttl", None, "30m")]


def test_listeners_proxies_and_the_control_plane_are_compared() -> None:
    more = FLEET.replace("8081", "8082") + "proxies: {edge: {kind: envoy}}\ncontrol: {max_shrink: 10%}\n"
    result = difference(topology_of(FLEET), topology_of(more))
    assert object_changes(result) == [("added", "proxies.edge")]
    assert settings(result) == [
        ("listeners.internal.bind", "127.0.0.1:8081", "127.0.0.1:8082"),
        ("control.max_shrink", "50%", "10%"),
    ]


# ── Rerouted requests ────────────────────────────────────────────────────────────────────────────────────────────────


def reroutes(result: Difference) -> set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return {(item.listener, _words(item), item.old, item.new) for item in result.rerouted}


def _words(item: ReroutedRequests) -> str:
    return f"{item.rule.host}{item.rule.path.value}"


def on_both_listeners(path: str, old: tuple[str, ...], new: tuple[str, ...]) -> set[Any]:
    return {(listener, path, old, new) for listener in ("public", "internal")}


def test_a_new_route_takes_requests_from_the_broader_one() -> None:
    result = changed(("routes:", "routes:\n  new: {match: {path: /v1/chat/x}, pool: b}"))
    assert reroutes(result) == on_both_listeners("/v1/chat/x", ("chat",), ("new",))


def test_requests_of_a_removed_route_go_to_the_broader_one() -> None:
    gone = FLEET.replace("  chat: {match: {path_prefix: /v1/chat}, split: {a: 95, b: 5}}\n", "")
    assert reroutes(difference(topology_of(FLEET), topology_of(gone))) == on_both_listeners(
        "/v1/chat", ("chat",), ("rest",)
    )
    alone = FLEET.replace("  rest: {match: {path_prefix: /}, pool: a, timeouts: {idle: 60s}}\n", "")
    assert reroutes(difference(topology_of(FLEET), topology_of(alone))) == on_both_listeners("/", ("rest",), ("",))


def test_a_changed_match_reroutes_old_and_new_requests() -> None:
    result = changed(("path_prefix: /v1/chat", "path_prefix: /v2"))
    assert reroutes(result) == on_both_listeners("/v1/chat", ("chat",), ("rest",)) | on_both_listeners(
        "/v2", ("rest",), ("chat",)
    )
    assert settings(result) == [("routes.chat.match.path_prefix", "/v1/chat", "/v2")]


def test_a_route_removed_from_a_listener_is_rerouted_there() -> None:
    result = changed(("match: {path_prefix: /v1/chat}", "listeners: [public], match: {path_prefix: /v1/chat}"))
    assert reroutes(result) == {("internal", "/v1/chat", ("chat",), ("rest",))}


def test_a_more_specific_route_takes_only_its_requests() -> None:
    result = changed(("routes:", "routes:\n  new: {match: {hosts: [x.example.com]}, respond: {status: 410}}"))
    assert reroutes(result) == on_both_listeners("x.example.com/", ("chat", "rest"), ("new",))


def test_a_renamed_route_takes_the_same_requests() -> None:
    result = changed(("  rest:", "  other:"))
    assert reroutes(result) == on_both_listeners("/", ("rest",), ("other",))


# ── Completeness ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Variant:
    path: str
    value: Any


def _variants(value: Any, path: str = "") -> Iterator[_Variant]:
    """Yield `value` with one leaf changed, for each leaf except 0 and "", which mean "not applicable"."""
    if is_dataclass(value) and not isinstance(value, type):
        yield from _of_fields(value, path)
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            for variant in _variants(item, f"{path}[{place}]"):
                yield _Variant(variant.path, (*value[:place], variant.value, *value[place + 1 :]))
    elif isinstance(value, bool):
        yield _Variant(path, not value)
    elif value:
        yield _Variant(path, f"{value}x" if isinstance(value, str) else value + 1)


def _of_fields(value: Any, path: str) -> Iterator[_Variant]:
    for item in fields(value):
        if item.init and item.name not in DERIVED:
            for variant in _variants(getattr(value, item.name), f"{path}.{item.name}"):
                yield _Variant(variant.path, replace(value, **{item.name: variant.value}))


@pytest.mark.slow
def test_every_value_of_a_full_fleet_makes_a_difference() -> None:
    diagnostics = Diagnostics()
    loaded = load([str(FULL)], diagnostics)
    assert loaded is not None, list(diagnostics)
    full = loaded.compiled.topology
    variants = list(_variants(full))
    assert len(variants) > 300
    unseen = [variant.path for variant in variants if not difference(full, variant.value)]
    weights = [f".routes[{index}].action.shares[0].weight" for index in (1, 2, 7, 8, 9)]
    assert sorted(unseen) == weights  # the only pool of a route gets all requests, with any weight
    assert not difference(full, full)
