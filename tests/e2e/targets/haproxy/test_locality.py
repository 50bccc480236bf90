from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener, PathMatch, Rule
from lbctl.ir.pools import ActiveCheck, Balance, GrpcCheck, HttpCheck, LoadShedding, Locality, PassiveCheck, Pool
from lbctl.ir.routes import Forward, Route, Share
from lbctl.targets.haproxy import TARGET
from tests.support.haproxy import (
    VERSIONS,
    Running,
    Served,
    checked,
    everything,
    forward,
    make_view,
    replicas,
    running,
)
from tests.support.processes.ports import free_port

CHECK = ActiveCheck(HttpCheck("/h"), interval=50, unhealthy_threshold=1, healthy_threshold=1)
HERE: dict[str, Any] = {"region": "us", "zone": "us-a"}
PLACES = {"a": ("us", "us-a"), "b": ("us", "us-b"), "c": ("eu", "eu-a"), "n": (None, None)}
"""The first letter of a replica's name is its location; the number after a dash is its priority."""


def pool(served: list[Served], **changes: Any) -> Pool:
    members = []
    for item in served:
        region, zone = PLACES[item.name[0]]
        members.append(item.replica(region=region, zone=zone, priority=int(item.name.partition("-")[2] or 0)))
    defaults: dict[str, Any] = {"balance": Balance("round_robin"), "active": CHECK, "locality": Locality("zone", 70.0)}
    return Pool("p", tuple(members), **{**defaults, **changes})


@contextlib.contextmanager
def served_by(given: Pool, tmp_path: Path, version: Any = "haproxy", **proxy: Any) -> Iterator[Running]:
    port = free_port()
    listener = Listener("pub", Address("127.0.0.1", port), rules=everything())
    view = make_view((listener,), (forward("p"),), (given,), **(proxy or HERE))
    with running(view, tmp_path, port, version) as proxy_:
        yield proxy_


def answering_replicas(proxy: Running, expected: str, path: str = "/") -> str:
    """Return the prefixes of the names of the replicas that answer 24 requests, once these are the expected ones."""
    deadline = time.monotonic() + 60
    while True:
        names = " ".join(sorted({proxy.send(path).body[:3].strip() for _ in range(24)}))
        if names == expected or time.monotonic() > deadline:
            return names


def down(served: list[Served], *names: str) -> None:
    for item in served:
        item.status = 500 if item.name in names else 200


@pytest.mark.parametrize("version", VERSIONS)
def test_own_zone_then_region_then_all_get_requests(tmp_path: Path, version: Any) -> None:
    expected = {
        "": "a1 a2 a3 a4",
        "a1": "a2 a3 a4",
        "a1 a2": "a3 a4 b1 b2",
        "a1 a2 a3 a4": "b1 b2",
        "a1 a2 b1": "a3 a4 b2 c1 n1",
        "a1 a2 a3 a4 b1 b2": "c1 n1",
        "c1 n1": "a1 a2 a3 a4",
    }
    with (
        replicas("a1", "a2", "a3", "a4", "b1", "b2", "c1", "n1") as served,
        served_by(pool(served), tmp_path, version) as proxy,
    ):
        answers = {}
        for lost, names in expected.items():
            down(served, *lost.split())
            answers[lost] = answering_replicas(proxy, names)
        log = {(line["pool"], line["replica"]) for line in proxy.log(24)}
    assert answers == expected
    assert log - {("p", None)} == {("p", item.name) for item in served}, (
        "None: while the checks find the failed replicas"
    )


def test_priority_precedes_locality(tmp_path: Path) -> None:
    with replicas("c1", "a1-1", "b1-1", "c2-2") as served, served_by(pool(served), tmp_path) as proxy:
        for lost, expected in ((), "c1"), (("c1",), "a1-"), (("c1", "a1-1"), "b1-"), (("c1", "a1-1", "b1-1"), "c2-"):
            down(served, *lost)
            assert answering_replicas(proxy, expected) == expected


def test_region_can_be_preferred(tmp_path: Path) -> None:
    given = Locality("region", 100.0)
    with replicas("a1", "b1", "c1") as served, served_by(pool(served, locality=given), tmp_path) as proxy:
        assert answering_replicas(proxy, "a1 b1") == "a1 b1"
        down(served, "a1")
        assert answering_replicas(proxy, "b1 c1") == "b1 c1"


def test_proxy_without_place_prefers_no_replica(tmp_path: Path) -> None:
    with (
        replicas("a1", "c1", "n1") as served,
        served_by(pool(served), tmp_path, region=None, zone=None) as proxy,
    ):
        assert answering_replicas(proxy, "a1 c1 n1") == "a1 c1 n1"
        listener = Listener("pub", Address("127.0.0.1", free_port()), rules=everything())
        (warning,) = TARGET.render(make_view((listener,), (forward("p"),), (pool(served),))).diagnostics
    assert (warning.code, warning.path) == ("LB467", ("pools", "p", "locality"))


@pytest.mark.parametrize("version", VERSIONS)
def test_three_priorities_without_locality(tmp_path: Path, version: Any) -> None:
    with (
        replicas("a1", "a2", "a3-1", "a4-7") as served,
        served_by(pool(served, locality=None), tmp_path, version) as proxy,
    ):
        for lost, names in ((), "a1 a2"), (("a1",), "a2"), (("a1", "a2"), "a3-"), (("a1", "a2", "a3-1"), "a4-"):
            down(served, *lost)
            assert answering_replicas(proxy, names) == names


def test_failing_replica_leaves_its_zone_without_checks(tmp_path: Path) -> None:
    passive = PassiveCheck(consecutive_5xx=2, ejection_time=60_000, is_5xx_written=True)
    with (
        replicas("a1", "c1") as served,
        served_by(pool(served, active=None, passive=passive), tmp_path) as proxy,
    ):
        before = answering_replicas(proxy, "a1")
        down(served, "a1")
        failed = [proxy.send().status for _ in range(2)]
        down(served)
        after = [proxy.send().body for _ in range(8)]
    assert before == "a1"
    assert failed == [500, 500]
    assert set(after) == {"c1"}


def test_load_shedding_counts_all_replicas_of_the_pool(tmp_path: Path) -> None:
    shedding = LoadShedding(60.0, 7000)
    with replicas("a1", "b1", "c1") as served, served_by(pool(served, load_shedding=shedding), tmp_path) as proxy:
        down(served, "b1")
        assert answering_replicas(proxy, "a1") == "a1"
        down(served, "b1", "c1")
        refused = '{"e'
        assert answering_replicas(proxy, refused) == refused
        shed = proxy.send()
    assert (shed.status, shed.headers["retry-after"]) == (503, "7")


def test_route_with_region_spills_within_it(tmp_path: Path) -> None:
    port = free_port()
    rules = (Rule("b", path=PathMatch("prefix", "/b")), Rule("r"))
    listener = Listener("pub", Address("127.0.0.1", port), rules=rules)
    bound = Route("b", Forward((Share("p", 1),)), ("pub",), regions=("us",))
    with replicas("a1", "b1", "c1") as served:
        view = make_view((listener,), (bound, forward("p")), (pool(served),), **HERE)
        with running(view, tmp_path, port) as proxy:
            for lost, bound_one, free_one in ((), "a1", "a1"), (("a1",), "b1", "b1"), (("a1", "b1"), '{"e', "c1"):
                down(served, *lost)
                assert (answering_replicas(proxy, bound_one, "/b"), answering_replicas(proxy, free_one)) == (
                    bound_one,
                    free_one,
                )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "changes",
    [
        {"active": None, "passive": None},
        {"active": ActiveCheck(GrpcCheck(), port=9), "protocol": "grpc"},
        {"active": ActiveCheck(HttpCheck(), port=9), "protocol": "http2"},
        {"locality": None, "active": ActiveCheck(HttpCheck(), port=9)},
    ],
)
def test_haproxy_accepts_each_check_in_parts_of_a_pool(tmp_path: Path, changes: Any, version: Any) -> None:
    listener = Listener("pub", Address("127.0.0.1", free_port()), rules=everything())
    given = pool([Served("a1", port=1), Served("b1-1", port=2), Served("c1-2", port=3)], **changes)
    view = make_view((listener,), (forward("p"),), (given,), **HERE)
    text = checked(view, tmp_path, version)
    assert "backend pool_p.NEAR.1\n" in text
    assert not TARGET.render(view).diagnostics
