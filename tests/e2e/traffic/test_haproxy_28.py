"""The same configuration on the next HAProxy: the features that every fleet needs, with traffic, on 2.8 too."""

from __future__ import annotations

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.fleet import bind, entry, fleet_of, pool_of, running
from tests.support.processes.replicas import replicas

KIND = "haproxy-2.8"


def _as_2_8(fleet: Fleet) -> Fleet:
    return {**fleet, "proxies": {"edge": {"kind": "haproxy", "version": "2.8"}}}


def test_shares_follow_the_weights() -> None:
    with replicas("a", "b", "c") as pool:
        fleet = fleet_of(pool_of(pool, (5, 3, 2), balance={"algorithm": "round_robin"}))
        with running(KIND, _as_2_8(fleet)) as gateway:
            load = gateway.load(300, 8)
    load.assert_no_failure()
    assert load.shares() == pytest.approx({"a": 0.5, "b": 0.3, "c": 0.2}, abs=0.03)


def test_refused_connection_is_retried_and_failed_post_is_not() -> None:
    with replicas("a", "b") as (a, b), running(KIND, _as_2_8(fleet_of([a, b]))) as gateway:
        a.refuse()
        gateway.load(50, 1).assert_no_failure()
        b.forget()
        b.behave(status=503)
        assert gateway.post("/v1/chat", b"{}").status == 503
        assert b.requests == 1


def test_split_pin_drain_and_stream_work() -> None:
    with replicas("a", "b", "c") as (a, b, c):
        fleet = {
            "version": 1,
            "listeners": {"gateway": {"bind": bind()}},
            "routes": {
                "all": {"split": {"one": 9, "two": 1}, "pin": [{"header": "x-version", "equals": "v2", "pool": "two"}]}
            },
            "pools": {"one": {"replicas": [entry(a), entry(b, drain=True)]}, "two": {"replicas": [entry(c)]}},
        }
        with running(KIND, _as_2_8(fleet)) as gateway:
            load = gateway.load(500, 8)
            assert gateway.get("/", headers={"x-version": "v2"}).replica == "c"
            events = gateway.get("/sse?n=3&gap=0.1").events()
    load.assert_no_failure()
    assert load.shares().get("c", 0) == pytest.approx(0.1, abs=0.075)
    assert b.requests == 0
    assert len(events) == 3
