"""Shares of requests among replicas, as shown by `lint`, `diff`, `explain` and the API."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.shares import of_replicas, serving


def pool_of(**replicas: dict[str, Any]) -> Pool:
    return Pool("p", tuple(Replica(name, Address("10.0.0.1", 1), **keys) for name, keys in replicas.items()))


def test_shares_follow_capacities_without_weights() -> None:
    assert of_replicas(pool_of(a={"capacity": 3.0}, b={})) == {"a": 0.75, "b": 0.25}
    assert of_replicas(pool_of(a={"capacity": 3.0}, b={}), {}) == {"a": 0.75, "b": 0.25}


def test_a_weight_replaces_the_capacity() -> None:
    assert of_replicas(pool_of(a={"capacity": 3.0}, b={}), {"a": 1.0}) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("how", ["files", "operator"])
def test_the_other_replicas_share_after_a_drain(how: str) -> None:
    pool = pool_of(a={}, b={}, c={"drain": how == "files"})
    assert of_replicas(pool, {"c": 9.0}, {"c"} if how == "operator" else set()) == {"a": 0.5, "b": 0.5}


def test_the_next_priority_serves_if_the_first_is_out() -> None:
    pool = pool_of(a={}, b={}, spare={"priority": 1}, last={"priority": 2})
    assert of_replicas(pool) == {"a": 0.5, "b": 0.5}
    assert of_replicas(pool, resting={"a"}) == {"b": 1.0}
    assert of_replicas(pool, resting={"a", "b"}) == {"spare": 1.0}
    assert [item.name for item in serving(pool, {"a"})] == ["b"]


def test_no_replica_has_a_share_if_all_are_out() -> None:
    assert of_replicas(pool_of(a={}, b={"drain": True}), resting={"a"}) == {}
    assert of_replicas(pool_of()) == {}


def test_a_route_with_regions_shares_among_their_replicas() -> None:
    pool = pool_of(a={"region": "eu"}, b={"region": "us"}, c={"region": "eu", "priority": 1})
    assert of_replicas(pool, regions=("eu",)) == {"a": 1.0}
    assert of_replicas(pool, None, {"a"}, ("eu",)) == {"c": 1.0}
