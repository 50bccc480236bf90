"""Envoy uses the replica that the picker names for each request, and works without a picker."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import change
from tests.support.processes.fleet import entry, fleet_of
from tests.support.processes.http1 import Request
from tests.support.processes.picker import await_picker, frozen, picker_section, pid_of
from tests.support.processes.replicas import Replica, replicas
from tests.support.processes.waiting import eventually

EDGE = "edge"
TIMEOUT = 2.0
"""The default of `pick.timeout`, in seconds."""


def _pick(timeout: str = "10s", **keys: Any) -> dict[str, Any]:
    """Return the keys of a pool. The default timeout is long enough for each request to get the picker's response."""
    return {"balance": {"algorithm": "pick", "pick": {"timeout": timeout, **keys}}}


def _fleet(pool: dict[str, Any], **more: Any) -> Fleet:
    return fleet_of(pool, **driven(EDGE), **picker_section(), **more)


@contextmanager
def _served(fleet: Fleet) -> Iterator[tuple[ControlPlane, XdsEnvoy]]:
    with controlling(fleet) as control, control.envoy(EDGE, [EDGE], by_socket=True) as envoy:
        await_picker(envoy)
        yield control, envoy


@dataclass(frozen=True, slots=True)
class _Site:
    control: ControlPlane
    envoy: XdsEnvoy
    members: Mapping[str, list[Replica]]
    """Maps a pool to its replicas."""


@pytest.fixture(scope="module")
def shared_site() -> Iterator[_Site]:
    """Run one control plane with a pool and a route of the same name for each test that does not change the fleet."""
    names = {"sessions": "abc", "one": "a", "other": "b", "refusing": "abc", "busy": "abc", "bodies": "a", "sse": "a"}
    with ExitStack() as stack:
        members = {pool: stack.enter_context(replicas(*names[pool])) for pool in names}
        pools = {pool: _pool(items) for pool, items in members.items()}
        routes: Fleet = {pool: {"match": {"path_prefix": f"/{pool}"}, "pool": pool} for pool in pools}
        routes["busy"]["retry"] = {"attempts": 1, "when": ["connect_failure", "replica_busy"]}
        pin = {"header": "x-pool", "equals": "other", "pool": "other"}
        routes["split"] = {"match": {"path_prefix": "/split"}, "split": {"one": 1, "other": 1}, "pin": [pin]}
        control, envoy = stack.enter_context(_served({**_fleet(pools["one"]), "pools": pools, "routes": routes}))
        yield _Site(control, envoy, members)


@pytest.fixture
def site(shared_site: _Site) -> _Site:
    await_picker(shared_site.envoy)
    return shared_site


def _chat(session: str = "", prompt: str = "hello", path: str = "/") -> Request:
    headers = (("content-type", "application/json"), *((("x-session-id", session),) if session else ()))
    return Request("POST", path, headers, json.dumps({"model": "m", "prompt": prompt}).encode())


def _pool(all_replicas: list[Replica], **keys: Any) -> dict[str, Any]:
    return {"replicas": [entry(item) for item in all_replicas], **_pick(), **keys}


def _by_session(envoy: XdsEnvoy, path: str = "/") -> dict[str, set[str | None]]:
    """Return session → the replicas that answered it, for 60 requests of 12 sessions."""
    load = envoy.client().load(60, 4, lambda number: _chat(f"s{number % 12}", f"{number % 12} " * 1500, path))
    load.assert_no_failure()
    homes: dict[str, set[str | None]] = {}
    for response in load.responses:
        homes.setdefault(str(dict(response.json["headers"])["x-session-id"]), set()).add(response.replica)
    return homes


def test_session_stays_with_its_replica_and_sessions_spread(site: _Site) -> None:
    _by_session(site.envoy, "/sessions")
    homes = _by_session(site.envoy, "/sessions")
    assert all(len(home) == 1 for home in homes.values()), homes
    assert {name for home in homes.values() for name in home} == {"a", "b", "c"}
    explained = site.control.explain_pick({"pool": "sessions", "session": "s1", "body": '{"prompt": "hello"}'})
    assert (explained["reason"], set(explained["choices"])) == ("session", homes["s1"])
    eventually(lambda: any(row["decisions"].get("session") for row in site.control.get("picks")["pools"]))


def test_pinned_variant_of_a_split_gets_the_request(site: _Site) -> None:
    load = site.envoy.client().load(20, 2, lambda _: Request("POST", "/split", {"x-pool": "other"}, b"{}"))
    load.assert_no_failure()
    assert load.by_replica == {"b": 20}


def test_replica_that_refuses_connections_is_skipped(site: _Site) -> None:
    """No check detects it before the first request."""
    site.members["refusing"][0].refuse()
    load = site.envoy.client().load(60, 4, _chat(path="/refusing"))
    load.assert_no_failure()
    assert load.by_replica.keys() == {"b", "c"}


def test_busy_replica_is_skipped_until_it_is_free(site: _Site) -> None:
    busy = site.members["busy"][0]
    busy.behave(status=503)
    load = site.envoy.client().load(60, 4, _chat(path="/busy"))
    load.assert_no_failure()
    assert (load.by_replica.keys(), busy.requests > 0) == ({"b", "c"}, True)
    busy.behave(status=200)
    eventually(lambda: "a" in site.envoy.client().load(12, 4, _chat(path="/busy")).by_replica, pause=0.2)


def test_long_bodies_pass_unchanged(site: _Site) -> None:
    bodies = [b"", b"{", b"\xff" * 3_000_000, b"[" * 100_000, json.dumps({"prompt": "y" * 2_000_000}).encode()]
    for body in bodies:
        for chunked in (False, True):
            response = site.envoy.client().post("/bodies", body, {"x-session-id": "k" * 7_000}, chunked=chunked)
            assert response.status == 200
            assert len(response.json["body"]) == len(body)


def test_prompt_is_computed_at_the_first_byte_of_its_response(site: _Site) -> None:
    (replica,) = site.members["sse"]

    def work() -> float:
        (row,) = site.control.explain_pick({"pool": "sse", "session": "", "body": "{}"})["candidates"]
        return float(row["work"])

    replica.held = replica.paused = True
    request = _chat(prompt="word " * 4_000, path="/sse")
    stream = site.envoy.client().send(request.method, request.path, request.headers, request.body)
    eventually(lambda: work() > 1_000)
    replica.held = False
    eventually(lambda: work() < 100)
    assert not stream.done(), "the response has begun but not ended"
    replica.paused = False
    assert stream.result(30).ok


@pytest.mark.parametrize("early", [": ping", "event: response.created", 'data: {"type":"response.in_progress"}'])
def test_text_before_the_first_token_does_not_count(site: _Site, early: str) -> None:
    (replica,) = site.members["sse"]
    replica.paused = True
    request = _chat(prompt=f"before {early} " * 1_000, path=f"/sse?early={quote(early)}")
    stream = site.envoy.client().send(request.method, request.path, request.headers, request.body)
    eventually(lambda: replica.in_flight == 1)
    time.sleep(0.5)
    (row,) = site.control.explain_pick({"pool": "sse", "session": "", "body": "{}"})["candidates"]
    replica.paused = False
    assert stream.result(30).ok
    assert float(row["work"]) > 1_000


def test_client_cannot_choose_its_replica(site: _Site) -> None:
    (other,) = site.members["other"]
    other.forget()
    header = {"x-gateway-destination-endpoint": other.address}
    assert site.envoy.client().post("/one", b"{}", header).replica == "a"
    os.kill(pid_of(site.control), signal.SIGKILL)
    load = site.envoy.client().load(20, 2, lambda _: Request("POST", "/one", header, b"{}"))
    load.assert_no_failure()
    assert other.requests == 0


def test_picks_exclude_drained_replicas_and_other_regions() -> None:
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


def test_farther_replica_is_picked_only_without_a_nearer_one() -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        places = [entry(b, region="west"), entry(a, region="east"), entry(spare, region="east", priority=1)]
        pool = {"replicas": places, "locality": {"prefer": "region"}, **_pick()}
        fleet = _fleet(pool)
        with controlling(fleet) as control, control.envoy(EDGE, [EDGE], region="east", by_socket=True) as envoy:
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


def test_requests_use_otherwise_without_a_working_picker() -> None:
    with replicas("a", "b", "c") as three:
        fleet = _fleet(
            {"replicas": [entry(item) for item in three], **_pick(f"{TIMEOUT * 1000:.0f}ms", otherwise="round_robin")}
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
