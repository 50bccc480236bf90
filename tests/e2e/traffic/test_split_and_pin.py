"""A split divides requests between pools; a pin takes precedence over the draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas

_ODD = 'v1 (old); "it\'s" $x %d'
_PINS = [
    {"header": "X-Model-Version", "equals": "v2", "pool": "canary"},
    {"header": "X-Model-Version", "equals": _ODD, "pool": "stable"},
    {"cookie": "beta", "equals": "1", "pool": "canary"},
]


def _fleet(stable: Replica, canary: Replica, split: Mapping[str, int]) -> Fleet:
    pools = {"stable": pool_of([stable]), "canary": pool_of([canary])}
    route: dict[str, Any] = {"match": {"path_prefix": "/"}, "split": dict(split), "pin": _PINS}
    return {**fleet_of(pools["stable"]), "routes": {"everything": route}, "pools": pools}


def test_split_follows_its_shares_and_pin_wins(kind: Kind) -> None:
    with replicas("stable", "canary") as pair, running(kind, _fleet(*pair, {"stable": 95, "canary": 5})) as gateway:
        drawn = gateway.load(1000, concurrency=8)
        pinned = gateway.load(60, 8, Request(headers={"x-model-version": "v2"}))
    drawn.assert_no_failure()
    pinned.assert_no_failure()
    assert drawn.shares() == pytest.approx({"stable": 0.95, "canary": 0.05}, abs=0.04)
    assert pinned.by_replica == {"canary": 60}


_PINNED: list[tuple[dict[str, str], str]] = [
    ({"x-model-version": "v2"}, "canary"),
    ({"x-model-version": "v22"}, "stable"),
    ({"x-model-version": "V2"}, "stable"),
    ({"cookie": "a=2; beta=1; c=3"}, "canary"),
    ({"cookie": "alphabeta=1"}, "stable"),
    ({"cookie": "beta=10"}, "stable"),
    ({"x-model-version": _ODD, "cookie": "beta=1"}, "stable"),
]


def test_first_pin_with_the_exact_value_wins(kind: Kind) -> None:
    """All of the split is on `stable`, so requests that reach `canary` were pinned."""
    with replicas("stable", "canary") as pair, running(kind, _fleet(*pair, {"stable": 1, "canary": 0})) as gateway:
        served_by = [(headers, gateway.get(headers=headers).replica) for headers, _ in _PINNED]
    assert served_by == _PINNED
