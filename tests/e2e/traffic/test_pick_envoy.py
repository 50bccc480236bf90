"""Envoy asks the picker for a replica for each request, obeys it, and goes on without it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import change
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import await_picker, frozen, picker_section, pid_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

EDGE = "edge"
TIMEOUT = 0.2
"""The default of `pick.timeout`, in seconds."""


def _pick(timeout: str = "2s", **keys: Any) -> dict[str, Any]:
    """`timeout`: long enough that every request gets the picker's answer, on a busy machine too."""
    return {"balance": {"algorithm": "pick", "pick": {"timeout": timeout, **keys}}}


def _fleet(pool: dict[str, Any], **more: Any) -> Fleet:
    return fleet_of(pool, **driven(EDGE), **picker_section(), **more)


@contextmanager
def _served(fleet: Fleet) -> Iterator[tuple[ControlPlane, XdsEnvoy]]:
    with controlling(fleet) as control, control.envoy(EDGE, [EDGE]) as envoy:
        await_picker(envoy)
        yield control, envoy


def _chat(session: str = "", prompt: str = "hello") -> Request:
    headers = (("content-type", "application/json"), *((("x-session-id", session),) if session else ()))
    return Request("POST", "/v1/completions", headers, json.dumps({"model": "m", "prompt": prompt}).encode())


def _pool(all_replicas: list[Replica], **keys: Any) -> dict[str, Any]:
    return {"replicas": [entry(item) for item in all_replicas], **_pick(), **keys}


def _by_session(envoy: XdsEnvoy, count: int = 60, sessions: int = 12) -> dict[str, set[str | None]]:
    """Session → the replicas that answered it, for so many requests of so many sessions."""
    load = envoy.client().load(count, 4, lambda number: _chat(f"s{number % sessions}", f"{number % sessions} " * 1500))
    load.assert_no_failure()
    homes: dict[str, set[str | None]] = {}
    for response in load.responses:
        homes.setdefault(str(dict(response.json["headers"])["x-session-id"]), set()).add(response.replica)
    return homes


def test_a_session_stays_with_its_replica_and_sessions_are_spread() -> None:
    with replicas("a", "b", "c") as three, _served(_fleet(_pool(three))) as (control, envoy):
        _by_session(envoy)
        homes = _by_session(envoy)
        assert all(len(home) == 1 for home in homes.values()), homes
        assert {name for home in homes.values() for name in home} == {"a", "b", "c"}
        explained = control.explain_pick({"pool": "pool", "session": "s1", "body": '{"prompt": "hello"}'})
        assert (explained["reason"], set(explained["choices"])) == ("session", homes["s1"])
        eventually(lambda: any(row["decisions"].get("session") for row in control.get("picks")["pools"]))


def test_no_drained_replica_and_no_other_region_is_picked() -> None:
    with replicas("a", "b", "c") as (a, b, c):
        places = [entry(a, region="eu"), entry(b, region="eu"), entry(c, region="us")]
        fleet = _fleet({"replicas": places, **_pick()}, route={"regions": ["eu"]})
        with _served(fleet) as (control, envoy):
            _by_session(envoy)
            assert c.requests == 0
            drained = [{**places[0], "drain": True}, *places[1:]]
            change(control, {**fleet, "pools": {"pool": {"replicas": drained, **_pick()}}}, EDGE)
            before = a.requests
            _by_session(envoy)
            assert (a.requests, c.requests) == (before, 0)
            assert b.requests


def test_a_farther_replica_is_picked_only_when_no_nearer_one_can_take_it() -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        places = [entry(b, region="west"), entry(a, region="east"), entry(spare, region="east", priority=1)]
        pool = {"replicas": places, "locality": {"prefer": "region"}, **_pick()}
        fleet = _fleet(pool)
        with controlling(fleet) as control, control.envoy(EDGE, [EDGE], region="east") as envoy:
            await_picker(envoy)

            def samples(replica: Replica) -> list[Any]:
                return [row for row in control.get("picks")["samples"] if row["replica"] == replica.name]

            for serving in (a, b, spare):
                load = envoy.client().load(30, 2, lambda number: _chat(f"s{number}"))
                load.assert_no_failure()
                assert load.by_replica == {serving.name: 30}
                eventually(lambda replica=serving: samples(replica))  # type: ignore[misc]
                places = [{**item, "drain": item.get("drain") or item["name"] == serving.name} for item in places]
                if serving is not spare:
                    change(control, {**fleet, "pools": {"pool": {**pool, "replicas": places}}}, EDGE)
            assert {row["proxy"] for row in control.get("picks")["samples"]} == {EDGE}


def test_a_variant_of_a_split_gets_no_request_of_the_other() -> None:
    with replicas("a", "b") as (a, b):
        fleet = _fleet({"replicas": [entry(a)], **_pick()}, pools={"other": {"replicas": [entry(b)], **_pick()}})
        pin = {"header": "x-pool", "equals": "other", "pool": "other"}
        route = {"match": {"path_prefix": "/"}, "split": {"pool": 1, "other": 1}, "pin": [pin]}
        with _served({**fleet, "routes": {"everything": route}}) as (_, envoy):
            load = envoy.client().load(20, 2, lambda _: Request("POST", "/", {"x-pool": "other"}, b"{}"))
            load.assert_no_failure()
            assert load.by_replica == {"b": 20}


def test_a_client_cannot_choose_its_replica() -> None:
    with replicas("a", "b") as (a, b), _served(_fleet({"replicas": [entry(a)], **_pick()})) as (control, envoy):
        header = {"x-gateway-destination-endpoint": b.address}
        assert envoy.client().post("/", b"{}", header).replica == "a"
        os.kill(pid_of(control), signal.SIGKILL)
        load = envoy.client().load(20, 2, lambda _: Request("POST", "/", header, b"{}"))
        load.assert_no_failure()
        assert b.requests == 0


def test_a_dead_replica_is_left_before_any_check_has_seen_it() -> None:
    with replicas("a", "b", "c") as three, _served(_fleet(_pool(three))) as (_, envoy):
        three[0].refuse()
        load = envoy.client().load(120, 4, _chat())
        load.assert_no_failure()
        assert load.by_replica.keys() == {"b", "c"}


def test_a_busy_replica_is_left_and_gets_requests_again_when_it_is_not() -> None:
    route = {"retry": {"attempts": 1, "when": ["connect_failure", "replica_busy"]}}
    with replicas("a", "b", "c") as three, _served(_fleet(_pool(three), route=route)) as (_, envoy):
        three[0].behave(status=503)
        load = envoy.client().load(120, 4, _chat())
        load.assert_no_failure()
        assert (load.by_replica.keys(), three[0].requests > 0) == ({"b", "c"}, True)
        three[0].behave(status=200)
        eventually(lambda: "a" in envoy.client().load(12, 4, _chat()).by_replica)


def test_requests_go_on_by_the_old_policy_while_the_picker_is_dead_or_hangs() -> None:
    with replicas("a", "b", "c") as three:
        fleet = _fleet(
            {"replicas": [entry(a_b_c) for a_b_c in three], **_pick(f"{TIMEOUT * 1000:.0f}ms", otherwise="round_robin")}
        )
        with _served(fleet) as (control, envoy):
            with envoy.client().steady(100, _chat("s1")) as load:
                killed = time.monotonic()
                os.kill(pid_of(control), signal.SIGKILL)
                eventually(lambda: control.status["picker"]["starts"] == 2)
                dead = load.since(killed)
                await_picker(envoy)
                with frozen(pid_of(control)):
                    stopped = time.monotonic()
                    await_picker(envoy, fit=False)
                    hung = load.since(stopped)
                    since = time.monotonic()
                    time.sleep(1.0)
                    meanwhile = load.since(since)
                await_picker(envoy)
            load.load.assert_no_failure()
            assert dead.percentile(50) < TIMEOUT / 2, "requests wait for a picker that is dead"
            assert hung.percentile(50) < 2 * TIMEOUT, "requests wait longer than `timeout` for one that hangs"
            assert meanwhile.percentile(75) < TIMEOUT / 2, "requests wait for a picker that is known to hang"
            assert set(meanwhile.by_replica) == {"a", "b", "c"}
            shares = meanwhile.shares()
            assert max(shares.values()) - min(shares.values()) < 0.1


def test_long_bodies_of_any_kind_pass_unchanged() -> None:
    bodies = [b"", b"{", b"\xff" * 3_000_000, b"[" * 100_000, json.dumps({"prompt": "y" * 2_000_000}).encode()]
    with replicas("a") as (a,), _served(_fleet(_pool([a]))) as (_, envoy):
        for body in bodies:
            for chunked in (False, True):
                response = envoy.client().post("/", body, {"x-session-id": "k" * 7_000}, chunked=chunked)
                assert response.status == 200
                assert len(response.json["body"]) == len(body)
