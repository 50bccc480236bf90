"""A header keeps a client on its variant: the same value draws the same pool."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas

_USERS = 200


def _fleet(old: list[Replica], new: list[Replica], share: int, **keys: Any) -> Fleet:
    route: dict[str, Any] = {
        "match": {"path_prefix": "/"},
        "split": {"old": 100 - share, "new": share},
        "sticky_split": {"header": "X-User"},
        **keys,
    }
    return {
        **fleet_of(old),
        "routes": {"everything": route},
        "pools": {"old": pool_of(old), "new": pool_of(new)},
    }


def _variants(client: Client) -> dict[int, str]:
    load = client.load(_USERS, 8, lambda number: Request(path=f"/{number}", headers={"x-user": f"user-{number}@a.com"}))
    load.assert_no_failure()
    assert not any(answer.header_list("set-cookie") for answer in load.responses)
    return {int(answer.json["path"][1:]): (answer.replica or "")[:3] for answer in load.responses}


def test_same_value_keeps_its_variant(kind: Kind) -> None:
    with replicas("old-1", "old-2", "new-1") as (a, b, c), running(kind, _fleet([a, b], [c], 30)) as gateway:
        first = _variants(gateway)
        again = _variants(gateway)
        one = gateway.load(40, 10, Request(headers={"x-user": "user-7@a.com"}), keep_alive=False)
    assert first == again
    assert list(first.values()).count("new") / _USERS == pytest.approx(0.3, abs=0.1)
    assert {(name or "")[:3] for name in one.by_replica} == {first[7]}


def test_requests_without_the_header_are_drawn(kind: Kind) -> None:
    with replicas("old-1", "new-1") as (old, new), running(kind, _fleet([old], [new], 50)) as gateway:
        bare = gateway.load(200, 4)
    bare.assert_no_failure()
    assert bare.shares() == pytest.approx({"old-1": 0.5, "new-1": 0.5}, abs=0.2)


def test_pin_overrides_the_header(kind: Kind) -> None:
    pin = {"pin": [{"header": "x-version", "equals": "new", "pool": "new"}]}
    with replicas("old-1", "new-1") as (old, new), running(kind, _fleet([old], [new], 1, **pin)) as gateway:
        load = gateway.load(50, 1, lambda number: Request(headers={"x-user": str(number), "x-version": "new"}))
    assert load.by_replica == {"new-1": 50}


def test_changed_split_moves_part_of_the_clients(kind: Kind) -> None:
    with replicas("old-1", "new-1") as (old, new), running(kind, fleet := _fleet([old], [new], 10)) as gateway:
        before = _variants(gateway)
        route = {**fleet["routes"]["everything"], "split": {"old": 50, "new": 50}}
        gateway.reload({**fleet, "routes": {"everything": route}})
        after = _variants(gateway)
    moved = sum(before[number] != after[number] for number in before)
    assert list(after.values()).count("new") / _USERS == pytest.approx(0.5, abs=0.1)
    assert moved / _USERS < 0.6
