"""What differs between two fleets, in words: every kind of change is told, and nothing else is."""

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
DERIVED = {"rules", "content_type", "few_slots", "is_limited", "kubeconfig_file"}
"""Fields that follow from others: `rules` from what the routes match, `few_slots` from what the servers are,
`is_limited` from the limits, `kubeconfig_file` from where the fleet is."""

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


def topology(text: str) -> Topology:
    return compiled(text).topology


def changed(*swaps: tuple[str, str]) -> Difference:
    """What differs once these words of FLEET are others."""
    text = FLEET
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new)
    return difference(topology(FLEET), topology(text))


def settings(found: Difference) -> list[tuple[str, str | None, str | None]]:
    return [(dotted(item.path), item.old, item.new) for item in found.settings]


def things(found: Difference) -> list[tuple[str, str]]:
    return [(item.kind, dotted(item.path)) for item in found.objects]


def moves(found: Difference) -> dict[str, tuple[float, float]]:
    return {
        f"{item.route} {item.pool}/{item.replica}": (round(item.old, 4), round(item.new, 4)) for item in found.traffic
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
def test_what_means_the_same_is_no_difference(swaps: list[tuple[str, str]]) -> None:
    assert changed(*swaps) == Difference()
    assert not changed(*swaps)


def test_a_weight_moves_the_share_of_every_replica_of_its_pool_through_the_splits() -> None:
    found = changed(("weight: 3", "weight: 1"))
    assert settings(found) == [("pools.a.replicas.one.capacity", "3", "1")]
    assert moves(found) == {
        "chat a/one": (0.7125, 0.475),
        "chat a/two": (0.2375, 0.475),
        "rest a/one": (0.75, 0.5),
        "rest a/two": (0.25, 0.5),
    }
    assert (found.objects, found.rerouted) == ((), ())


def test_a_split_moves_shares_of_pools_and_of_their_replicas() -> None:
    found = changed(("{a: 95, b: 5}", "{a: 50, b: 50}"))
    assert settings(found) == [("routes.chat.split.a", "95%", "50%"), ("routes.chat.split.b", "5%", "50%")]
    assert moves(found) == {
        "chat a/": (0.95, 0.5),
        "chat a/one": (0.7125, 0.375),
        "chat a/two": (0.2375, 0.125),
        "chat b/": (0.05, 0.5),
        "chat b/only": (0.05, 0.5),
    }


def test_a_split_that_differs_by_one_in_a_million_differs() -> None:
    assert changed(("{a: 95, b: 5}", "{a: 950000, b: 49999}")).settings


def test_a_new_replica_and_one_that_goes_are_told_with_what_they_are() -> None:
    found = changed(('{name: two, address: "10.0.0.2:8000", weight: 1}', '{name: new, address: "10.0.0.9:1", gpu: L4}'))
    assert [(item.kind, dotted(item.path), item.description) for item in found.objects] == [
        ("removed", "pools.a.replicas.two", "10.0.0.2:8000, capacity 1"),
        ("added", "pools.a.replicas.new", "10.0.0.9:1, capacity 0.8, L4"),
    ]
    assert moves(found)["rest a/two"] == (0.25, 0.0)


def test_a_drained_replica_gives_its_share_to_the_others_and_a_standby_gets_none() -> None:
    assert moves(changed(("weight: 1}", "weight: 1, drain: true}")))["rest a/one"] == (0.75, 1.0)
    assert moves(changed(("weight: 1}", "weight: 1, priority: 1}")))["rest a/two"] == (0.25, 0.0)


def test_a_route_kept_to_a_region_sends_nothing_elsewhere() -> None:
    text = FLEET.replace("weight: 3", "weight: 3, region: eu").replace("weight: 1", "weight: 1, region: us")
    kept = text.replace("pool: a, timeouts", "pool: a, regions: [eu], timeouts")
    found = difference(topology(text), topology(kept))
    assert moves(found) == {"rest a/one": (0.75, 1.0), "rest a/two": (0.25, 0.0)}
    assert settings(found) == [("routes.rest.regions", "any", "eu")]


def test_a_pool_and_a_route_that_come_or_go_are_things() -> None:
    more = (
        FLEET.replace("routes:", "routes:\n  new: {match: {path: /x}, pool: c}")
        + '  c: {replicas: [{address: "h:1"}]}\n'
    )
    found = difference(topology(FLEET), topology(more))
    assert things(found) == [("added", "pools.c"), ("added", "routes.new")]
    assert things(difference(topology(more), topology(FLEET))) == [("removed", "pools.c"), ("removed", "routes.new")]


def test_settings_come_with_old_and_new_value_and_what_is_not_there() -> None:
    assert settings(changed(("idle: 60s", "request: 5s"))) == [
        ("routes.rest.timeouts.request", "unlimited", "5s"),
        ("routes.rest.timeouts.idle", "1m", "5m"),
    ]
    found = changed(("  b:\n", "  b:\n    affinity: {cookie: c}\n"))
    assert settings(found) == [("pools.b.affinity.cookie", None, "c"), ("pools.b.affinity.ttl", None, "30m")]


def test_listeners_proxies_and_the_control_plane_are_compared() -> None:
    more = FLEET.replace("8081", "8082") + "proxies: {edge: {kind: envoy}}\ncontrol: {max_shrink: 10%}\n"
    found = difference(topology(FLEET), topology(more))
    assert things(found) == [("added", "proxies.edge")]
    assert settings(found) == [
        ("listeners.internal.bind", "127.0.0.1:8081", "127.0.0.1:8082"),
        ("control.max_shrink", "50%", "10%"),
    ]


# ── Requests that go elsewhere ───────────────────────────────────────────────────────────────────────────────────────


def ways(found: Difference) -> set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return {(item.listener, _words(item), item.old, item.new) for item in found.rerouted}


def _words(item: ReroutedRequests) -> str:
    return f"{item.rule.host}{item.rule.path.value}"


def both(path: str, old: tuple[str, ...], new: tuple[str, ...]) -> set[Any]:
    return {(listener, path, old, new) for listener in ("public", "internal")}


def test_a_new_route_takes_its_requests_from_the_wider_one() -> None:
    found = changed(("routes:", "routes:\n  new: {match: {path: /v1/chat/x}, pool: b}"))
    assert ways(found) == both("/v1/chat/x", ("chat",), ("new",))


def test_a_route_that_goes_leaves_its_requests_to_the_wider_one_or_to_nobody() -> None:
    gone = FLEET.replace("  chat: {match: {path_prefix: /v1/chat}, split: {a: 95, b: 5}}\n", "")
    assert ways(difference(topology(FLEET), topology(gone))) == both("/v1/chat", ("chat",), ("rest",))
    alone = FLEET.replace("  rest: {match: {path_prefix: /}, pool: a, timeouts: {idle: 60s}}\n", "")
    assert ways(difference(topology(FLEET), topology(alone))) == both("/", ("rest",), ("",))


def test_a_route_that_matches_otherwise_is_told_from_both_ends() -> None:
    found = changed(("path_prefix: /v1/chat", "path_prefix: /v2"))
    assert ways(found) == both("/v1/chat", ("chat",), ("rest",)) | both("/v2", ("rest",), ("chat",))
    assert settings(found) == [("routes.chat.match.path_prefix", "/v1/chat", "/v2")]


def test_a_route_that_leaves_a_listener_leaves_its_requests_there() -> None:
    found = changed(("match: {path_prefix: /v1/chat}", "listeners: [public], match: {path_prefix: /v1/chat}"))
    assert ways(found) == {("internal", "/v1/chat", ("chat",), ("rest",))}


def test_a_more_specific_condition_takes_a_part_and_the_others_keep_theirs() -> None:
    found = changed(("routes:", "routes:\n  new: {match: {hosts: [x.example.com]}, respond: {status: 410}}"))
    assert ways(found) == both("x.example.com/", ("chat", "rest"), ("new",))


def test_a_route_of_another_name_takes_the_same_requests() -> None:
    found = changed(("  rest:", "  other:"))
    assert ways(found) == both("/", ("rest",), ("other",))


# ── Nothing is overlooked ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Variant:
    path: str
    value: Any


def _variants(value: Any, path: str = "") -> Iterator[_Variant]:
    """`value` with one of its leaves changed, for each leaf that says something: 0 and "" are what does not apply."""
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


def test_every_value_of_a_fleet_that_uses_every_key_makes_a_difference() -> None:
    diagnostics = Diagnostics()
    loaded = load([str(FULL)], diagnostics)
    assert loaded is not None, list(diagnostics)
    whole = loaded.compiled.topology
    variants = list(_variants(whole))
    assert len(variants) > 300
    unseen = [variant.path for variant in variants if not difference(whole, variant.value)]
    weights = [f".routes[{index}].action.shares[0].weight" for index in (1, 2)]
    assert sorted(unseen) == weights  # the only pool of a route: all of it, whatever the weight
    assert not difference(whole, whole)
