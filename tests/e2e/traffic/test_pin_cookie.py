"""A cookie pins a client to a pool, with precedence over the draw and the client's variant, even to a pool outside the
split."""

from __future__ import annotations

from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.replicas import Replica, replicas

_PINS = [
    {"cookie": "beta", "equals": "1", "pool": "canary"},
    {"cookie": "beta", "equals": "next.2", "pool": "lab"},
    {"cookie": "LAB", "equals": "a=b", "pool": "lab"},
]


def _fleet(stable: Replica, canary: Replica, lab: Replica) -> Fleet:
    route: dict[str, Any] = {
        "match": {"path_prefix": "/"},
        "split": {"stable": 1, "canary": 0},
        "pin": _PINS,
        "sticky_split": {"cookie": "lb_variant"},
    }
    pools = {name: pool_of([replica]) for name, replica in (("stable", stable), ("canary", canary), ("lab", lab))}
    return {**fleet_of([stable]), "routes": {"everything": route}, "pools": pools}


_CASES: list[tuple[list[tuple[str, str]], str]] = [
    ([("cookie", "beta=1")], "canary"),
    ([("cookie", "beta=1; a=2")], "canary"),
    ([("cookie", "a=2;beta=1")], "canary"),
    ([("cookie", "a=2"), ("cookie", "beta=1")], "canary"),
    ([("cookie", "beta=1"), ("cookie", "a=2")], "canary"),
    ([("cookie", "lb_variant=stable; beta=1")], "canary"),
    ([("cookie", "beta=next.2")], "lab"),
    ([("cookie", "beta=next_2")], "stable"),
    ([("cookie", "LAB=a=b")], "lab"),
    ([("cookie", "lab=a=b")], "stable"),
    ([("cookie", "LAB=a")], "stable"),
    ([("cookie", "LAB=a=b; beta=1")], "canary"),
    ([("cookie", "beta=")], "stable"),
    ([("cookie", "beta=12")], "stable"),
    ([("cookie", "xbeta=1")], "stable"),
    ([("cookie", "a=beta=1")], "stable"),
    ([("x-cookie", "beta=1")], "stable"),
    ([], "stable"),
]


def test_cookie_pin_matches_the_whole_name_and_value(kind: Kind) -> None:
    with replicas("stable", "canary", "lab") as pools, running(kind, _fleet(*pools)) as gateway:
        served_by = [(headers, gateway.get(headers=headers).replica) for headers, _ in _CASES]
        pinned = gateway.get(headers={"cookie": "beta=1; session=s"})
    assert served_by == _CASES
    assert pinned.header("set-cookie") is None  # a pin does not set the client's variant
    assert ["Cookie", "beta=1; session=s"] in [[name.title(), value] for name, value in pinned.json["headers"]]
