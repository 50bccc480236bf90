"""A split is taken back while it is under load: routes alone move, and who had the bad variant is let go."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.control import XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, both, change, loaded
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas

_HAS_BAD = Request(headers={"cookie": "variant=bad"})


def _fleet(good: Replica, bad: Replica) -> Fleet:
    fleet = fleet_of([good], **driven(*BOTH))
    kept: dict[str, Any] = {"connections": {"idle": "5m"}}
    return {**fleet, "pools": {"good": pool_of([good], **kept), "bad": pool_of([bad], **kept)}} | _split(50)


def _split(percent: int) -> dict[str, Any]:
    route = {
        "match": {"path_prefix": "/"},
        "split": {"good": 100 - percent, "bad": percent},
        "sticky_split": {"cookie": "variant", "ttl": "1h"},
    }
    return {"routes": {"everything": route}}


def _untouched(envoy: XdsEnvoy) -> Counter[str]:
    """What may not move with a split: what was taken of the other types, and connections that were ended."""
    counted = Counter({name: value for name, value in envoy.updates().items() if not name.startswith("rds.")})
    return counted + Counter(envoy.stats("upstream_cx_destroy$|downstream_cx_destroy_local$"))


def test_a_rollback_moves_routes_alone_and_takes_back_the_cookie_of_the_bad_variant() -> None:
    with (
        replicas("good", "bad") as (good, bad),
        controlling(fleet := _fleet(good, bad)) as control,
        both(control) as envoys,
        loaded(envoys, 100) as drawn,
        loaded(envoys, 100, _HAS_BAD) as stuck,
    ):
        now = time.monotonic()
        time.sleep(1)
        assert [set(load.since(now).by_replica) for load in drawn] == [{"good", "bad"}] * 2
        assert [set(load.since(now).by_replica) for load in stuck] == [{"bad"}] * 2
        running = [envoy.client().send("GET", "/sse?n=10&gap=0.3", _HAS_BAD.headers) for envoy in envoys]
        time.sleep(0.3)
        before = [_untouched(envoy) for envoy in envoys]

        change(control, {**fleet, **_split(0)})
        now = time.monotonic()
        time.sleep(1)
        assert [set(load.since(now).by_replica) for load in (*drawn, *stuck)] == [{"good"}] * 4
        given = [answer.header("set-cookie") or "" for load in stuck for answer in load.since(now).responses]
        assert all("variant=good" in cookie for cookie in given), "they are told where they are now"

        change(control, {**fleet, **_split(10)})
        assert [_untouched(envoy) for envoy in envoys] == before
        assert [len(stream.result(60).events()) for stream in running] == [10, 10]
        assert {stream.result().replica for stream in running} == {"bad"}
