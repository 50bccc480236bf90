from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbctl.ir.pools import CircuitBreaker
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Share
from lbctl.ir.snapshot import Snapshot, View, part, view
from lbctl.ir.weight import Weight, from_capacity
from tests.support.fleet import compiled

FLEET = """\
version: 1
listeners:
  front: {{bind: "127.0.0.1:80", max_connections: 100}}
  back: {{bind: "127.0.0.1:81", max_connections: 100}}
pools:
  a:
    replicas:
      - {{name: x, address: "10.0.0.1:80", weight: 2}}
      - {{name: y, address: "10.0.0.2:80", weight: 3, drain: true}}
    circuit_breaker:
      max_connections: 100
      max_pending_requests: 10
      max_requests: 7
      max_retries: 1
      per_replica: {{max_connections: 5, max_requests: 4}}
  b: {{replicas: [{{address: "10.0.0.3:80"}}]}}
  c: {{replicas: [{{address: "10.0.0.4:80"}}]}}
routes:
  front:
    listeners: [front]
    match: {{path: /f}}
    split: {{a: 9, b: 1}}
    rate_limit: [{{by: all, rate: 10/s, burst: 3}}, {{by: all, concurrent: 9}}]
  both: {{pool: a, rate_limit: [{{by: all, rate: 10/s}}]}}
  back: {{listeners: [back], match: {{path: /b}}, pool: b, mirror: {{pool: c}}}}
{}"""
TWO = "proxies: {one: {kind: nginx, instances: 3, listeners: [front]}, two: {kind: envoy}}\n"


def view_of(proxies: str, name: str, **live: object) -> View:
    topology = compiled(FLEET.format(proxies)).topology
    named = [item for item in topology.proxies if item.name == name]
    return view(Snapshot(topology, **live), named[0] if named else Proxy(name, "nginx", (1, 22)))  # type: ignore[arg-type]


def limits(proxy_view: View, route: str) -> list[tuple[int, int, int]]:
    return [(item.requests, item.burst, item.concurrent) for item in proxy_view.routes[route].rate_limits]


def test_a_view_has_the_listeners_routes_and_pools_of_its_proxy() -> None:
    one = view_of(TWO, "one")
    assert [item.name for item in one.listeners] == ["front"]
    assert set(one.routes) == {"front", "both"}
    assert set(one.pools) == set(one.weights) == set(one.drained) == {"a", "b"}
    two = view_of(TWO, "two")
    assert [item.name for item in two.listeners] == ["back", "front"]
    assert set(two.routes) == {"front", "both", "back"}
    assert set(two.pools) == {"a", "b", "c"}


def test_limits_are_divided_by_proxy_instances() -> None:
    one, two = view_of(TWO, "one"), view_of(TWO, "two")
    assert [item.max_connections for item in one.listeners] == [25]
    assert [item.max_connections for item in two.listeners] == [100, 25]
    assert limits(one, "front") == limits(two, "front") == [(3, 1, 0), (0, 0, 3)]
    assert limits(one, "both") == limits(two, "both") == [(3, 3, 0)]
    for each in (one, two):
        assert each.pools["a"].circuit_breaker == CircuitBreaker(25, 3, 2, 1, 2, 1)


def test_an_unnamed_proxy_has_the_full_limits() -> None:
    proxy_view = view_of("", "any")
    assert limits(proxy_view, "front") == [(10, 3, 0), (0, 0, 9)]
    assert proxy_view.pools["a"].circuit_breaker == CircuitBreaker(100, 10, 7, 1, 5, 4)


@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_parts_of_a_limit_are_rounded_up(limit: int, instances: int) -> None:
    each = part(limit, instances)
    assert each >= 1
    assert limit <= each * instances < limit + instances


def test_without_live_state_the_view_equals_the_files() -> None:
    proxy_view = view_of("", "any")
    assert proxy_view.weights["a"] == (from_capacity(2), from_capacity(3))
    assert proxy_view.drained == {"a": frozenset({"y"}), "b": frozenset(), "c": frozenset()}
    action = proxy_view.routes["front"].action
    assert isinstance(action, Forward)
    assert action.shares == (Share("a", 9), Share("b", 1))


def test_live_state_overrides_the_files() -> None:
    proxy_view = view_of(
        "", "any",
        weights={"a": {"x": Weight(0.5, 2, 0.5)}}, drained={"a": frozenset({"x"})}, splits={"front": (Share("b", 1),)},
    )  # fmt: skip
    assert proxy_view.weights["a"] == (Weight(0.5, 2, 0.5), from_capacity(3))
    assert proxy_view.drained["a"] == {"x", "y"}
    action = proxy_view.routes["front"].action
    assert isinstance(action, Forward)
    assert action.shares == (Share("a", 0), Share("b", 1))


@pytest.mark.parametrize("section", ["pools", "routes"])
def test_maps_are_sorted_by_name(section: str) -> None:
    names = list(getattr(view_of("", "any"), section))
    assert names == sorted(names)
