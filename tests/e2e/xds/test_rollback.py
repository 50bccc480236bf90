"""A split is rolled back under load: only routes change, and clients of the bad variant move to the good one."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.control import XdsEnvoy
from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import change, loaded
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_HAS_BAD = Request(headers={"cookie": "variant=bad"})


def _split_fleet(driven_envoys: DrivenEnvoys, good: Replica, bad: Replica) -> Fleet:
    idle: dict[str, Any] = {"connections": {"idle": "5m"}}
    pools = {"good": pool_of([good], **idle), "bad": pool_of([bad], **idle)}
    return {**driven_envoys.fleet_of([good]), "pools": pools} | _split(50)


def _split(percent: int) -> dict[str, Any]:
    route = {
        "match": {"path_prefix": "/"},
        "split": {"good": 100 - percent, "bad": percent},
        "sticky_split": {"cookie": "variant", "ttl": "1h"},
    }
    return {"routes": {"everything": route}}


def _untouched(envoy: XdsEnvoy) -> Counter[str]:
    """Return the counters that a new split does not change: updates of the other types, and closed connections."""
    counted = Counter({name: value for name, value in envoy.updates().items() if not name.startswith("rds.")})
    return counted + Counter(envoy.stats("upstream_cx_destroy$|downstream_cx_destroy_local$"))


def test_rollback_changes_routes_and_cookies_only(driven_envoys: DrivenEnvoys) -> None:
    control, envoys = driven_envoys.control, driven_envoys.envoys
    with replicas("good", "bad") as (good, bad):
        driven_envoys.serve(fleet := _split_fleet(driven_envoys, good, bad))
        with loaded(envoys, 50) as new_clients, loaded(envoys, 50, _HAS_BAD) as bad_clients:
            start = time.monotonic()
            time.sleep(0.5)
            assert [set(load.since(start).by_replica) for load in new_clients] == [{"good", "bad"}] * 2
            assert [set(load.since(start).by_replica) for load in bad_clients] == [{"bad"}] * 2
            streams = [envoy.client().send("GET", "/sse?n=10&gap=0.25", _HAS_BAD.headers) for envoy in envoys]
            eventually(lambda: sum(seen.path.startswith("/sse") for seen in bad.seen) == len(streams))
            before = [_untouched(envoy) for envoy in envoys]

            change(control, {**fleet, **_split(0)})
            rolled_back = time.monotonic()
            time.sleep(0.5)
            loads = (*new_clients, *bad_clients)
            assert [set(load.since(rolled_back).by_replica) for load in loads] == [{"good"}] * 4
            answers = [answer for load in bad_clients for answer in load.since(rolled_back).responses]
            cookies = [answer.header("set-cookie") or "" for answer in answers]
            assert all("variant=good" in cookie for cookie in cookies), "they keep the cookie of the bad variant"

            change(control, {**fleet, **_split(10)})
            assert [_untouched(envoy) for envoy in envoys] == before
            assert [len(stream.result(60).events()) for stream in streams] == [10, 10]
            assert {stream.result().replica for stream in streams} == {"bad"}
