"""With `hash`, a key stays on its replica, keys are distributed, and a bound spills hot keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import fleet_of, pool_of, running, side_by_side
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

_KEYS = 120
_BY_HEADER = {"header": "X-User"}

_MOVED_BY_MAGLEV = 3
"""Maximum number of keys that Envoy moves from remaining replicas when another replica is removed. Maglev moves about
one in a thousand; which ones depends on the ports of the replicas. The other proxies move none."""

_Requests = Callable[[str], Request]

_HOT = Request(headers={"x-user": "hot"})


def _header(key: str) -> Request:
    return Request(headers={"x-user": key})


def _cookie(key: str) -> Request:
    return Request(headers={"Cookie": f"theme=dark; user={key}; x=1"})


def _query(key: str) -> Request:
    return Request(path=f"/chat?page=1&user={key}&x=1")


def _pool(members: list[Replica], key: dict[str, Any] = _BY_HEADER, **more: Any) -> dict[str, Any]:
    return pool_of(members, balance={"algorithm": "hash", "hash": {"key": key, **more}})


def _homes(client: Client, make: _Requests = _header, count: int = _KEYS) -> dict[int, str]:
    """Return the replica of each key. The requests use one connection, so that the responses are in order."""
    load = client.load(count, 1, lambda number: make(f"u{number}"))
    load.assert_no_failure()
    return {number: response.replica or "" for number, response in enumerate(load.responses)}


def _assert_only_moved_from(gone: str, before: dict[int, str], after: dict[int, str], kind: Kind) -> None:
    """Fail unless all keys of the replica `gone` have moved, and no other keys."""
    assert gone in before.values()
    assert gone not in after.values()
    moved = [number for number in before if before[number] not in (gone, after[number])]
    assert len(moved) <= (_MOVED_BY_MAGLEV if kind == "envoy" else 0)


def test_key_stays_with_its_replica_and_keys_spread(kind: Kind) -> None:
    """Also if header rules change or remove the key before the request reaches a replica."""
    hidden = {"upstream": {"host": "api.example.com"}}
    cases: dict[str, tuple[dict[str, Any], _Requests, str | None]] = {
        "header": ({"pool": {}}, _header, "sent"),
        "cookie": ({"pool": {"key": {"cookie": "user"}}}, _cookie, "sent"),
        "query": ({"pool": {"key": {"query": "user"}}}, _query, "sent"),
        "removed-header": ({"pool": {}, "rules": {"remove": ["x-user"]}}, _header, None),
        "replaced-header": ({"pool": {}, "rules": {"set": {"x-user": "someone"}}}, _header, "someone"),
        "removed-cookie": ({"pool": {"key": {"cookie": "user"}}, "rules": {"remove": ["cookie"]}}, _cookie, None),
        "hosted-api": ({"pool": {"key": {"cookie": "user"}}, "keys": hidden}, _cookie, None),
    }
    with replicas("a", "b", "c") as pool:
        fleets = {
            case: fleet_of(
                {**_pool(pool, **keys["pool"]), **keys.get("keys", {})},
                route={"headers": {"request": keys.get("rules", {})}},
            )
            for case, (keys, _, _) in cases.items()
        }
        with running(kind, side_by_side(fleets)) as gateway:
            for case, (_, make, seen) in cases.items():
                client = gateway.connect(case)
                homes = _homes(client, make, _KEYS if seen == "sent" else 40)
                assert _homes(client, make, 30) == {number: homes[number] for number in range(30)}, case
                assert client.get("/without/key").ok, case
                if seen == "sent":
                    assert min(Counter(homes.values())[replica.name] for replica in pool) >= _KEYS * 0.1, case
                else:
                    assert len(set(homes.values())) > 1, case
                if seen != "sent":
                    last = [request for replica in pool for request in list(replica.seen)[-3:-1]]
                    name = "cookie" if make is _cookie else "x-user"
                    assert {request.header(name) for request in last} == {seen}, case
                for replica in pool:
                    replica.forget()


def test_clients_with_one_address_share_a_replica(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, fleet_of(_pool(pool, {"source_ip": {}}))) as gateway:
        load = gateway.load(60, concurrency=6, keep_alive=False)
    load.assert_no_failure()
    assert len(load.by_replica) == 1


def test_removed_replica_moves_only_its_own_keys(kind: Kind) -> None:
    with replicas("a", "b", "c", "d") as pool, running(kind, fleet := fleet_of(_pool(pool))) as gateway:
        before = _homes(gateway)
        gateway.reload({**fleet, "pools": {"pool": _pool(pool[1:])}})
        after = _homes(gateway)
    _assert_only_moved_from("a", before, after, kind)


def test_unreachable_replica_loses_its_keys_and_no_request(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, fleet_of(_pool(pool))) as gateway:
        before = _homes(gateway)
        pool[0].refuse()
        lost = [number for number, name in before.items() if name == "a"]
        answers = [gateway.get(headers={"x-user": f"u{number}"}) for number in lost[:5]]
        after = _homes(gateway)
    _assert_only_moved_from("a", before, after, kind)
    assert {answer.status for answer in answers} == {200}
    assert min(answer.seconds for answer in answers) < 0.95, "the next one at once, without another try of the first"


def test_hot_key_without_a_bound_stays_with_one_replica(kind: Kind) -> None:
    with replicas("a", "b", "c", "d") as pool, running(kind, fleet_of(_pool(pool))) as gateway:
        load = gateway.load(100, 20, _HOT)
    load.assert_no_failure()
    assert len(load.by_replica) == 1


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_bound_spills_a_hot_key(kind: Kind) -> None:
    """20 concurrent requests on four replicas: the mean is 5, and 1.25 × 5, rounded up, is 7.

    Not every proxy counts a request whose connection is still being opened, so that one or two more are possible.
    """
    with replicas("a", "b", "c", "d") as pool, running(kind, fleet_of(_pool(pool, bounded_load=1.25))) as gateway:
        for replica, delay in zip(pool, (0.1, 0.12, 0.14, 0.16), strict=True):
            replica.behave(delay=delay)
        gateway.load(60, 20, _HOT, gap=0.04, jitter=0.5).assert_no_failure()
        for replica in pool:
            replica.forget()
        load = gateway.load(160, 20, _HOT, gap=0.04, jitter=0.5)
        peaks = [replica.max_in_flight for replica in pool]
    load.assert_no_failure()
    assert len(load.by_replica) >= 3
    assert max(peaks) <= 7 + 2


@pytest.mark.parametrize("dead", [0, 1])
def test_bound_leads_no_request_to_a_dead_replica_alone(dead: int) -> None:
    """The other replica is at its bound, so HAProxy uses the dead one for the next attempt too, until it is ejected."""
    with replicas("a", "b") as pool, running("haproxy", fleet_of(_pool(pool, bounded_load=1.05))) as gateway:
        alive = pool[1 - dead]
        alive.held = True
        first = [gateway.send("GET", "/", {"x-user": f"u{number}"}, timeout=30) for number in range(8)]
        eventually(lambda: alive.in_flight > 0)
        pool[dead].refuse()
        later = [gateway.send("GET", "/", {"x-user": f"v{number}"}, timeout=30) for number in range(4)]
        eventually(lambda: alive.in_flight >= len(later) + 1)
        alive.held = False
        assert {future.result(60).status for future in later} == {200}
        for future in first:
            future.result(60)


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_bound_keeps_other_keys(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, fleet_of(_pool(pool, bounded_load=1.25))) as gateway:
        homes = _homes(gateway)
        assert _homes(gateway) == homes
    assert len(set(homes.values())) == 3


def test_nginx_reports_that_it_has_no_bound() -> None:
    with replicas("a", "b") as pool, running("nginx", fleet_of(_pool(pool, bounded_load=1.25))) as gateway:
        load = gateway.load(60, 10, _HOT)
        assert "LB462" in gateway.messages
    load.assert_no_failure()
    assert len(load.by_replica) == 1
