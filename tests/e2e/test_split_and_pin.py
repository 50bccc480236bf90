"""A split divides requests between pools; a pin decides before the draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.support.binaries import Kind
from tests.e2e.support.client import Load
from tests.e2e.support.fleet import Fleet, fleet_of, pool_of, running
from tests.e2e.support.http1 import Request
from tests.e2e.support.replicas import Replica, replicas

_PINS = [
    {"header": "X-Model-Version", "equals": "v2", "pool": "canary"},
    {"header": "X-Model-Version", "equals": "v1 (old); \"it's\" $x %d", "pool": "stable"},
    {"cookie": "beta", "equals": "1", "pool": "canary"},
]


def _fleet(stable: Replica, canary: Replica, split: Mapping[str, int]) -> Fleet:
    pools = {"stable": pool_of([stable]), "canary": pool_of([canary])}
    route: dict[str, Any] = {"match": {"path_prefix": "/"}, "split": dict(split), "pin": _PINS}
    return {**fleet_of(pools["stable"]), "routes": {"everything": route}, "pools": pools}


def test_a_split_holds_and_a_pin_always_wins(kind: Kind) -> None:
    with replicas("stable", "canary") as (stable, canary):
        with running(kind, _fleet(stable, canary, {"stable": 95, "canary": 5})) as gateway:
            drawn = gateway.load(2000, concurrency=8)
            pinned = gateway.load(200, 8, Request(headers={"x-model-version": "v2"}))
    drawn.assert_no_failure()
    pinned.assert_no_failure()
    assert drawn.shares() == pytest.approx({"stable": 0.95, "canary": 0.05}, abs=0.02)
    assert pinned.by_replica == {"canary": 200}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-model-version": "v2"}, "canary"),
        ({"x-model-version": "v22"}, "stable"),
        ({"x-model-version": "V2"}, "stable"),
        ({"cookie": "a=2; beta=1; c=3"}, "canary"),
        ({"cookie": "alphabeta=1"}, "stable"),
        ({"cookie": "beta=10"}, "stable"),
        ({"x-model-version": _PINS[1]["equals"], "cookie": "beta=1"}, "stable"),
    ],
)
def test_a_pin_is_for_exactly_that_value_and_the_first_one_decides(
    kind: Kind, headers: dict[str, str], expected: str
) -> None:
    """All of the split is on `stable`, so that what comes to `canary` was pinned."""
    assert _where(kind, headers).by_replica == {expected: 5}


def _where(kind: Kind, headers: dict[str, str]) -> Load:
    with replicas("stable", "canary") as (stable, canary):
        with running(kind, _fleet(stable, canary, {"stable": 1, "canary": 0})) as gateway:
            return gateway.load(5, 1, Request(headers=headers))
