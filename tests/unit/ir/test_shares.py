"""The one rule by which requests are shared among replicas: `lint`, `diff`, `explain` and the API all show it."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.shares import of_replicas, serving


def _pool(**replicas: dict[str, Any]) -> Pool:
    return Pool("p", tuple(Replica(name, Address("10.0.0.1", 1), **keys) for name, keys in replicas.items()))


def test_capacities_share_where_no_weight_is_given() -> None:
    assert of_replicas(_pool(a={"capacity": 3.0}, b={})) == {"a": 0.75, "b": 0.25}
    assert of_replicas(_pool(a={"capacity": 3.0}, b={}), {}) == {"a": 0.75, "b": 0.25}


def test_a_weight_takes_the_place_of_the_capacity() -> None:
    assert of_replicas(_pool(a={"capacity": 3.0}, b={}), {"a": 1.0}) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("how", ["files", "operator"])
def test_one_of_three_that_is_drained_leaves_a_half_to_each_of_the_others(how: str) -> None:
    pool = _pool(a={}, b={}, c={"drain": how == "files"})
    assert of_replicas(pool, {"c": 9.0}, {"c"} if how == "operator" else set()) == {"a": 0.5, "b": 0.5}


def test_the_next_priority_gets_something_once_the_first_gets_nothing() -> None:
    pool = _pool(a={}, b={}, spare={"priority": 1}, last={"priority": 2})
    assert of_replicas(pool) == {"a": 0.5, "b": 0.5}
    assert of_replicas(pool, resting={"a"}) == {"b": 1.0}
    assert of_replicas(pool, resting={"a", "b"}) == {"spare": 1.0}
    assert [item.name for item in serving(pool, {"a"})] == ["b"]


def test_where_nobody_is_left_nobody_has_a_share() -> None:
    assert of_replicas(_pool(a={}, b={"drain": True}), resting={"a"}) == {}
    assert of_replicas(_pool()) == {}


def test_a_route_that_stays_in_regions_shares_among_their_replicas() -> None:
    pool = _pool(a={"region": "eu"}, b={"region": "us"}, c={"region": "eu", "priority": 1})
    assert of_replicas(pool, regions=("eu",)) == {"a": 1.0}
    assert of_replicas(pool, None, {"a"}, ("eu",)) == {"c": 1.0}
